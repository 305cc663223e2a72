"""What every processor did during a run: for people as text, for Perfetto as a trace.

    trace of the executor                     the timeline, printed
    r0  cpu     kernel                        run 5.1 ms, several processors busy for 43% of it
    r1  opencl  receive, kernel, send    ->   cpu  kernels 4.0 ms, …, idle 1.1 ms (waiting 0.9 ms)
    r2  cpu     wait for r1, kernel           …
                                              critical path r1 → r2

A processor is busy with kernels and transfers and idle otherwise; `waiting` is the part of that in
which a region stood there and needed another processor's results.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tvm_stretch.base.errors import InputError
from tvm_stretch.base.files import as_path, write_whole, writing
from tvm_stretch.make.lowering.executor_graph import Graph
from tvm_stretch.plan.plan import Execution, Plan
from tvm_stretch.run.plans_of_model import find_execution

SpanKind = Literal["kernel", "receive", "send", "wait"]
Interval = tuple[int, int]


@dataclass(frozen=True)
class Span:
    """Something a region spent time on; nanoseconds from the start of the run."""

    kind: SpanKind  # what it was
    name: str  # of the node, or what was moved or waited for
    start: int  # when the processor began
    end: int  # when it was done
    queued: int | None = None  # when the host enqueued it, if that is known


@dataclass(frozen=True)
class RegionTime:
    """One region of the graph and what it spent time on; `planned` is what the plan predicts.

    `planned_mj` is the energy that it predicts for the processor's work.
    """

    name: str
    processor: str
    after: tuple[str, ...]
    spans: tuple[Span, ...]
    planned: Interval | None = None
    planned_mj: float | None = None

    @property
    def work(self) -> tuple[Span, ...]:
        """All spans but the waits."""
        return tuple(span for span in self.spans if span.kind != "wait")

    @property
    def start(self) -> int:
        """When its processor began to work for it."""
        return min((span.start for span in self.work), default=0)

    @property
    def end(self) -> int:
        """When its last kernel or transfer was done."""
        return max((span.end for span in self.work), default=0)


@dataclass(frozen=True)
class Usage:
    """How one processor spent a run, in nanoseconds; `waiting` is part of `idle`."""

    processor: str
    kernels: int
    transfers: int
    waiting: int
    idle: int


@dataclass(frozen=True, repr=False)
class Timeline:
    """One run; printing it shows the summary.

    Attributes:
        duration: nanoseconds.
        processors: their names.
        regions: what each of them did.
        execution: the plan against the kernels that really ran, if there was a plan.
        planned_mj: the energy of the run that the plan predicts, if powers are known.
    """

    duration: int
    processors: tuple[str, ...]
    regions: tuple[RegionTime, ...]
    execution: Execution | None = None
    planned_mj: float | None = None

    @property
    def overlap(self) -> float:
        """The share of the run in which at least two processors were busy."""
        return _parallel_time(self._busy(p) for p in self.processors) / max(self.duration, 1)

    @property
    def usage(self) -> tuple[Usage, ...]:
        """How each processor spent the run."""
        return tuple(self._usage(processor) for processor in self.processors)

    @property
    def critical_path(self) -> tuple[RegionTime, ...]:
        """The chain of regions that decided when the run ended, first region first.

        Each was held up by the one before it: another processor's result or its own processor.
        """
        ran = [region for region in self.regions if region.work]
        path: list[RegionTime] = []
        before: Sequence[RegionTime] = ran
        while before:
            path.append(max(before, key=lambda region: region.end))
            index = ran.index(path[-1])
            last = path[-1]
            before = [
                region
                for region in ran[:index]
                if region.name in last.after or region.processor == last.processor
            ]
        return tuple(reversed(path))

    def to_chrome(self) -> dict[str, object]:
        """The run in the trace-event format of Chrome and Perfetto."""
        return {"displayTimeUnit": "ms", "traceEvents": list(_events(self))}

    def write(self, path: str | Path) -> None:
        """Write the trace; `ui.perfetto.dev` and `chrome://tracing` open it.

        Raises:
            InputError: it cannot be written there.
        """
        with writing("the trace", InputError):
            write_whole(as_path(path, "the trace"), json.dumps(self.to_chrome()))

    def __repr__(self) -> str:
        """The summary: overlap, each processor's use, the critical path, what fell back."""
        lines = [f"run {_ms(self.duration)}, several processors busy for {self.overlap:.0%} of it"]
        width = max(map(len, self.processors))
        for usage in self.usage:
            lines.append(
                f"{usage.processor.ljust(width)}  kernels {_ms(usage.kernels)}, "
                f"transfers {_ms(usage.transfers)}, idle {_ms(usage.idle)} "
                f"(waiting {_ms(usage.waiting)})"
            )
        lines.append("critical path " + " → ".join(region.name for region in self.critical_path))
        planned = [region.planned[1] for region in self.regions if region.planned is not None]
        if planned:
            energy = "" if self.planned_mj is None else f", {self.planned_mj:.3g} mJ"
            by_name = {
                name: sum(one.planned_mj or 0 for one in self.regions if one.processor == name)
                for name in self.processors
            }
            parts = [f"{name} {mj:.3g}" for name, mj in by_name.items() if mj]
            of_each = f" ({', '.join(parts)})" if parts else ""
            lines.append(f"the plan predicts {_ms(max(planned))}{energy}{of_each}")
        if self.execution is not None:
            lines.append(str(self.execution))
        return "\n".join(lines)

    def _spans(self, processor: str) -> Iterator[Span]:
        for region in self.regions:
            if region.processor == processor:
                yield from region.spans

    def _busy(self, processor: str) -> list[Interval]:
        return _union((s.start, s.end) for s in self._spans(processor) if s.kind != "wait")

    def _usage(self, processor: str) -> Usage:
        spans = list(self._spans(processor))
        busy = self._busy(processor)
        waits = [(s.start, s.end) for s in spans if s.kind == "wait"]
        kernels = _length(_union((s.start, s.end) for s in spans if s.kind == "kernel"))
        return Usage(
            processor,
            kernels=kernels,
            transfers=_length(busy) - kernels,  # a transfer beside a kernel costs nothing
            waiting=_length(_union([*waits, *busy])) - _length(busy),
            idle=self.duration - _length(busy),
        )


def read_timeline(
    graph: Graph,  # the graph that ran
    trace: Mapping[str, Any],  # the parsed JSON
    plan: Plan | None,  # what was wanted: when regions should run, and where operators should
) -> Timeline:
    """The timeline of a trace of the executor (`TraceToJSON` in executor_runs.cc)."""
    planned = {} if plan is None else {r.name: r for r in plan.regions}
    start = trace["start"]
    names = [region.name for region in graph.regions]
    regions = []
    for region, spans in zip(graph.regions, trace["regions"], strict=True):
        wanted = planned.get(region.name)
        regions.append(
            RegionTime(
                region.name,
                graph.processors[region.processor].name,
                tuple(names[other] for other in region.after),
                tuple(_read_span(span, start, names) for span in spans),
                None if wanted is None else wanted.predicted_ns,
                None if wanted is None else wanted.predicted_mj,
            )
        )
    processors = tuple(processor.name for processor in graph.processors)
    execution = None
    if plan is not None:
        kernels = (s for spans in trace["regions"] for s in spans if s["kind"] == "kernel")
        ran = {span["id"] for span in kernels}
        execution = find_execution(plan.processor_of(), graph, ran)
    energy = None if plan is None else plan.predicted_mj
    return Timeline(trace["end"] - start, processors, tuple(regions), execution, energy)


def _read_span(span: Mapping[str, Any], start: int, regions: Sequence[str]) -> Span:
    name = span["name"]
    if span["kind"] in ("receive", "send"):
        what = f"tensor {span['id']}" if span["id"] >= 0 else span["name"]
        name = f"{span['kind']} {what}"
    elif span["kind"] == "wait":
        name = f"wait for {regions[span['id']] if span['id'] >= 0 else 'others'}"
    queued = span["queued"] - start if "queued" in span else None
    return Span(span["kind"], name, span["start"] - start, span["end"] - start, queued)


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same points in time as disjoint intervals, in order."""
    union: list[Interval] = []
    for start, end in sorted(intervals):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((start, end))
    return union


def _length(intervals: Iterable[Interval]) -> int:
    return sum(end - start for start, end in intervals)


def _parallel_time(busy: Iterable[list[Interval]]) -> int:
    """How long at least two of the lists of disjoint intervals have one."""
    steps = sorted(
        step for intervals in busy for start, end in intervals for step in ((start, 1), (end, -1))
    )
    total = depth = 0
    for (time, change), (following, _) in itertools.pairwise(steps):
        depth += change
        if depth > 1:
            total += following - time
    return total


def _ms(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:.3f} ms"


_ACTUAL, _PLANNED = 0, 1
_COLOURS = {"kernel": "good", "receive": "yellow", "send": "olive", "wait": "grey"}


def _events(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Tracks: for each processor its regions with their spans inside, and its queue."""
    has_plan = any(region.planned for region in timeline.regions)
    for process, title in ((_ACTUAL, "actual"), (_PLANNED, "planned"))[: 1 + has_plan]:
        yield _name("process_name", process, 0, title)
        for index, processor in enumerate(timeline.processors):
            yield _name("thread_name", process, 2 * index, processor)
    for flow, region in enumerate(timeline.regions):
        track = 2 * timeline.processors.index(region.processor)
        if region.planned is not None:
            event = _slice(region.name, "region", _PLANNED, track, region.planned)
            yield (
                event if region.planned_mj is None else {**event, "args": {"mJ": region.planned_mj}}
            )
        if region.work:
            yield _slice(region.name, "region", _ACTUAL, track, (region.start, region.end))
            yield from _arrows(timeline, region, flow)
        for span in region.spans:
            event = _slice(span.name, span.kind, _ACTUAL, track, (span.start, span.end))
            yield {**event, "cname": _COLOURS[span.kind], "args": {"region": region.name}}
        queued = [span for span in region.spans if span.queued is not None]
        if queued:
            yield _name("thread_name", _ACTUAL, track + 1, f"{region.processor} queue")
        for span in queued:
            assert span.queued is not None
            interval = (span.queued, max(span.start, span.queued))
            yield _slice(span.name, "queued", _ACTUAL, track + 1, interval)


def _arrows(timeline: Timeline, region: RegionTime, flow: int) -> Iterator[dict[str, Any]]:
    """From the end of every region that this one waited for to its start."""
    for index, name in enumerate(region.after):
        source = next(other for other in timeline.regions if other.name == name)
        ends = ((source, source.end, "s"), (region, region.start, "f"))
        for other, time, phase in ends if source.work else ():
            yield {
                "name": "needs",
                "cat": "dependency",
                "ph": phase,
                "bp": "e",
                "id": flow * len(timeline.regions) + index,
                "pid": _ACTUAL,
                "tid": 2 * timeline.processors.index(other.processor),
                "ts": time / 1e3,
            }


def _slice(
    name: str, category: str, process: int, track: int, interval: Interval
) -> dict[str, Any]:
    start, end = interval
    times = {"ts": start / 1e3, "dur": (end - start) / 1e3}  # microseconds
    return {"name": name, "cat": category, "ph": "X", "pid": process, "tid": track, **times}


def _name(kind: str, process: int, track: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": track, "args": {"name": name}}


def chart(timeline: Timeline, columns: int = 84) -> str:
    """The run in characters: `[left ====]` while a region runs, `|` for a short one."""
    rows = {name: ["."] * columns for name in timeline.processors}
    for region in timeline.regions:
        if region.work:
            first = min(region.start * columns // timeline.duration, columns - 1)
            last = max(region.end * columns // timeline.duration, first + 1)
            room = last - first - 2
            words = f"{region.name} " if len(region.name) < room else ""
            box = f"[{words.ljust(room, '=')}]" if room >= 0 else "|"
            rows[region.processor][first:last] = box
    width = max(map(len, rows))
    return "\n".join(f"{name.ljust(width)}  {''.join(cells)}" for name, cells in rows.items())
