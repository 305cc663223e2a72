"""What `Model.benchmark` and `Model.profile` return."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_stretch.base.errors import InputError
from tvm_stretch.make.lowering.executor_graph import Graph
from tvm_stretch.run.meters import Energy


@dataclass(frozen=True, repr=False)
class BenchmarkResult:
    """Latencies of single runs, in seconds, in the order they were measured."""

    samples: tuple[float, ...]
    energy: Energy | None = None  # what a run costs, if it was measured

    @property
    def median(self) -> float:
        """Half of the runs were faster."""
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """Distance between the quartiles: the middle half of the runs lies that close together."""
        if len(self.samples) < 2:
            return 0.0
        first, _, third = statistics.quantiles(self.samples, n=4, method="inclusive")
        return third - first

    def percentile(self, percent: float) -> float:
        """The latency that ``percent`` of the runs stay within: 99 gives p99."""
        if not 0 <= percent <= 100:
            raise InputError(f"expected 0 to 100 for percent, got {percent!r}; 99 for p99")
        ordered = sorted(self.samples)
        return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]

    def __repr__(self) -> str:
        """Median, percentiles, fastest and slowest, in milliseconds."""
        p25, p75, p90, p99 = (self.percentile(percent) * 1e3 for percent in (25, 75, 90, 99))
        return (
            f"median {self.median * 1e3:.3f} ms (p25 {p25:.3f}, p75 {p75:.3f}, p90 {p90:.3f}, "
            f"p99 {p99:.3f}), {min(self.samples) * 1e3:.3f} to {max(self.samples) * 1e3:.3f} ms in "
            f"{len(self.samples)} runs" + (f"; {self.energy}" if self.energy else "")
        )


@dataclass(frozen=True)
class KernelTime:
    """One node of the graph and how long it took."""

    name: str
    kernel: str
    output: str
    seconds: float
    share: float
    packets: int = 0  # that a DSP executed for it; 0 on processors that do not count packets


_SLOWEST = 15
"""Rows of a profile that is printed."""


@dataclass(frozen=True, repr=False)
class ProfileResult:
    """The kernels, in the order they run."""

    kernels: tuple[KernelTime, ...]

    @property
    def total(self) -> float:
        """Seconds of all kernels together."""
        return sum(kernel.seconds for kernel in self.kernels)

    def __repr__(self) -> str:
        """The table of the slowest kernels."""
        return self.table(_SLOWEST)

    def table(self, most: int | None = None) -> str:
        """A table, slowest kernel first; with packets where a DSP counted them.

        Args:
            most: how many kernels have rows of their own; by default all.
        """
        slowest = sorted(self.kernels, key=lambda k: -k.seconds)
        rest = slowest[most:] if most is not None else []
        rows = [
            (f"{k.seconds * 1e6:.1f}", f"{k.share:.1%}", f"{k.packets}", k.kernel, k.output, k.name)
            for k in slowest[:most]
        ]
        packets = sum(kernel.packets for kernel in self.kernels)
        if rest:
            seconds, share, count = (
                sum(getattr(k, name) for k in rest) for name in ("seconds", "share", "packets")
            )
            others = f"{len(rest)} others: table() has them"
            rows.append((f"{seconds * 1e6:.1f}", f"{share:.1%}", f"{count}", others, "", ""))
        rows.append((f"{self.total * 1e6:.1f}", "100.0%", f"{packets}", "total", "", ""))
        head = ("µs", "share", "packets", "kernel", "output", "node")
        shown = [i for i, name in enumerate(head) if packets or name != "packets"]
        table = [tuple(row[i] for i in shown) for row in (head, *rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = []
        for row in table:
            cells = [
                cell.rjust(w) if i < len(shown) - 3 else cell.ljust(w)
                for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)


def summarize_profile(graph: Graph, traces: Sequence[dict[str, Any]]) -> ProfileResult:
    """Median over the traces of each node's time; see `TraceToJSON` for their form."""
    runs = [node_times(trace, len(graph.nodes)) for trace in traces]
    seconds = [statistics.median(times) / 1e9 for times in zip(*runs, strict=True)]
    packets = node_packets(traces[-1], len(graph.nodes))
    total = sum(seconds) or 1.0
    kernels = []
    for node, time, count in zip(graph.nodes, seconds, packets, strict=True):
        tensor = graph.tensors[node.outputs[0]]
        output = f"{tensor.dtype}{list(tensor.shape)}"
        kernels.append(KernelTime(node.name, node.kernel, output, time, time / total, count))
    return ProfileResult(tuple(kernels))


def node_packets(trace: Mapping[str, Any], count: int) -> list[int]:
    """Packets that a DSP executed for each of ``count`` nodes; 0 on other processors."""
    packets = [0] * count
    for spans in trace["regions"]:
        for span in spans:
            if span["kind"] == "kernel":
                packets[span["id"]] += span.get("packets", 0)
    return packets


def node_times(trace: Mapping[str, Any], count: int) -> list[int]:
    """Nanoseconds of each of ``count`` nodes; one that is several launches has several spans."""
    times = [0] * count
    for spans in trace["regions"]:
        for span in spans:
            if span["kind"] == "kernel":
                times[span["id"]] += span["end"] - span["start"]
    return times
