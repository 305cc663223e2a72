"""Potentials & Pitfalls, table 2: levels of optimisation, each alone and combined, for ResNet-18.

    given ──low rank, pruning, 8 bits──> its forms ──fusion──> kernels ──memory plan──> one arena
                                                      one core; CoDL; ours on both ──> latency

Accuracy is that of the same network trained for small tasks (`table2_accuracy.py`). Memory (weights
as the artifact holds them, and feature maps) and latency are those of 224x224 pixels: compressing
cuts the same channels and ranks there. The two processors are a core for LLVM and a core for OpenCL
(PoCL). All models take turns; a ratio is the median of a round's ratios, and beside it stands the
ratio of the least latencies, for machines that do other work. `ours` is what `ts.compile` finds by
measuring: it takes both processors only if they are faster than one. The second table is what the
profile of a Snapdragon 855 predicts for each form, where fusion and the memory plan stay on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import tvm_stretch as ts
from benchmarks.baselines import schedule_codl
from benchmarks.commands import markdown, options
from benchmarks.harness import check
from benchmarks.papers.table2_accuracy import (
    BOTH,
    BOTH_8,
    CLASSES,
    EIGHT_BITS,
    FORMS,
    GIVEN,
    LOW_RANK,
    PRUNED,
    PRUNED_8,
    TASKS,
    Form,
    Network,
    accuracies,
    in_8_bits,
)
from benchmarks.scheduling_profiles import host_costs
from benchmarks.two_processors import TARGETS, Carrier, in_turns
from tutorials import zoo
from tvm_stretch.make.pipeline import Job, build_parts
from tvm_stretch.passes.mark_patterns import MarkPatterns
from tvm_stretch.plan.plan import Plan
from tvm_stretch.read import load_network
from tvm_stretch.targets.processor import Processor
from tvm_stretch.targets.processors import make_processors

LARGE, _CALIBRATED = 224, 8
_PHONE = "snapdragon-855"
_TEAMS = {"CPU": ["cpu"], "CPU, GPU": ["cpu", "opencl"], "all three": ["cpu", "opencl", "hexagon"]}

THEIRS = {
    "none": (76.23, 47.24, 213.24),
    "low rank": (73.73, 15.61, 197.53),
    "pruning": (71.31, 23.91, 146.73),
    "CoDL": (76.23, 47.24, 189.01),
    "fusion": (76.23, 47.24, 136.66),
    "CoDL, low rank": (73.72, 15.60, 132.96),
    "CoDL, pruning": (71.31, 23.89, 131.46),
    "CoDL, pruning, fusion, memory plan": (73.56, 11.53, 103.23),
}
"""The paper's accuracy in percent, megabytes and milliseconds."""


@dataclass(frozen=True)
class Row:
    """The levels at which the network is made fast."""

    form: Form = GIVEN
    plan: str = "one core"  # or "CoDL" or "ours"
    is_fused: bool = False  # whether layers take the elementwise operators that follow
    is_planned: bool = False  # whether feature maps share memory

    @property
    def name(self) -> str:
        """For people."""
        levels = ["" if self.plan == "one core" else self.plan, self.form.name]
        levels += ["fusion" if self.is_fused else "", "memory plan" if self.is_planned else ""]
        return ", ".join(filter(None, levels)) or "none"


def _full(plan: str, form: Form = GIVEN) -> Row:
    return Row(form, plan, is_fused=True, is_planned=True)


BASELINE = _full("CoDL")
"""The given network on two processors, compiled as well as can be."""

ROWS = (
    Row(),
    Row(LOW_RANK),
    Row(PRUNED),
    Row(EIGHT_BITS),
    Row(is_fused=True),
    Row(is_planned=True),
    Row(plan="CoDL"),
    Row(plan="ours"),
    Row(LOW_RANK, "CoDL"),
    Row(PRUNED, "CoDL"),
    _full("one core"),
    BASELINE,
    _full("ours"),
    _full("one core", PRUNED),
    _full("one core", EIGHT_BITS),
    _full("CoDL", PRUNED),
    _full("ours", PRUNED),
    _full("ours", BOTH),
    _full("ours", PRUNED_8),
    _full("ours", BOTH_8),
)


# --- models ---------------------------------------------------------------------------------------


def networks(seed: int) -> dict[Form, Network]:
    """All forms at 224x224; only shapes of their weights matter here."""
    given = load_network(zoo.build("resnet18", size=LARGE, classes=CLASSES))
    floats = {
        form: ts.compress(given, **form.how) if form.how else given
        for form in FORMS
        if not form.is_quantised
    }
    images = _images(seed, _CALIBRATED)
    return {
        form: in_8_bits(floats[form.in_floats], images) if form.is_quantised else floats[form]
        for form in FORMS
    }


def models(made: Mapping[Form, Network], seed: int) -> dict[Row, ts.Model]:
    """All rows, compared with each other where their networks are the same."""
    image = _images(seed, 1)
    found: dict[Row, ts.Model] = {}
    answers: dict[Form, np.ndarray] = {}
    plans: dict[tuple[Form, str], Plan | None] = {}
    for row in ROWS:
        key = row.form, row.plan
        if key not in plans:
            plans[key] = _plan(row, made[row.form])
        found[row] = _built(row, made[row.form], plans[key])
        answer = np.asarray(found[row](image))
        check(row.name, answer, [answers.setdefault(row.form, answer)])
    return found


def _images(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 3, LARGE, LARGE)).astype("float32")


def _plan(row: Row, network: Network) -> Plan | None:
    """The plan of a row; None for one processor."""
    if row.plan == "one core":
        return None
    if row.plan == "ours":
        return ts.compile(network, TARGETS, cpu_threads=1).plan
    carrier = Carrier(load_network(network), host_costs())
    return carrier.plan(schedule_codl(carrier.problem))


def _built(row: Row, network: Network, plan: Plan | None) -> ts.Model:
    """The model of a row, from the same phases as that of `ts.compile`."""
    processors, placeable = make_processors(TARGETS if plan else TARGETS[:1], 1)
    if not row.is_fused:
        processors, placeable = (list(map(_unfused, some)) for some in (processors, placeable))
    job = Job(load_network(network), processors, placeable, plan)
    return ts.Model.from_parts(build_parts(job, apart=not row.is_planned))


def _unfused(processor: Processor) -> Processor:
    """The processor with a kernel of its own for what would be an epilogue of another."""
    phases = (
        MarkPatterns(epilogues=False) if isinstance(phase, MarkPatterns) else phase
        for phase in processor.code.phases
    )
    return replace(processor, code=replace(processor.code, phases=tuple(phases)))


# --- figures --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figures:
    """What was measured of a row."""

    percent: Mapping[str, tuple[float, float]]  # of each task: fitted, and trained
    mib: float
    ms: float
    least_ms: float
    ratio: float  # to `BASELINE`
    least_ratio: float

    def lost(self, given: Figures) -> float:
        """Points of accuracy, of the task that loses the most."""
        return max(given.percent[task][1] - own[1] for task, own in self.percent.items())


def figures(
    made: Mapping[Form, Network], folder: Path, seed: int, rounds: int
) -> dict[Row, Figures]:
    """The figures of each row."""
    built = models(made, seed)
    samples = in_turns({row.name: model for row, model in built.items()}, rounds)
    right, found = accuracies(folder, seed), {}
    for row, model in built.items():
        found[row] = Figures(
            percent={task: right[task][row.form.name] for task in TASKS},
            mib=(model.graph.arena_bytes + model.graph.weights_bytes) / 2**20,
            ms=samples.median(row.name),
            least_ms=min(samples.of[row.name]),
            ratio=samples.ratio(row.name, BASELINE.name),
            least_ratio=samples.least_ratio(row.name, BASELINE.name),
        )
    return found


def table(found: Mapping[Row, Figures]) -> Iterator[str]:
    """Ours, and the paper's table below it."""
    tasks = (f"{task}: fitted, trained" for task in TASKS)
    heads = "ours", *tasks, "MiB", "ms (least)", f"of {BASELINE.name} (least)"
    yield from markdown(heads, (_cells(row, own) for row, own in found.items()))
    given = found[BASELINE]
    combined = [row for row in found if row.is_fused and row.is_planned and row.form.how]
    best = min(combined, key=lambda row: (found[row].lost(given) > 3, found[row].ratio))
    yield ""
    yield (
        f"The best combination: {best.name}, {found[best].ratio:.2f} of {BASELINE.name}, "
        f"{found[best].lost(given):.1f} points lost."
    )
    yield ""
    heads = "paper (Snapdragon 855)", "accuracy", "MB", "ms", "of CoDL alone"
    rows = ((name, *own, own[2] / THEIRS["CoDL"][2]) for name, own in THEIRS.items())
    yield from markdown(heads, rows)


def _cells(row: Row, own: Figures) -> Iterator[str]:
    yield row.name
    yield from ("{:.1f}, {:.1f}".format(*own.percent[task]) for task in TASKS)
    yield f"{own.mib:.1f}"
    yield f"{own.ms:.1f} ({own.least_ms:.1f})"
    yield f"{own.ratio:.2f} ({own.least_ratio:.2f})"


def on_the_phone(made: Mapping[Form, Network]) -> Iterator[str]:
    """The predictions of the phone's profile for each form, in ms; its DSP has no floats."""

    def predicted(form: Form, team: list[str]) -> str:
        if "hexagon" in team and not form.is_quantised:
            return "-"
        plan = ts.plan_for(made[form], team, device=_PHONE, as_built=True)
        return f"{plan.predicted_ns / 1e6:.1f}"

    rows = (
        (form.name or "given", *(predicted(form, team) for team in _TEAMS.values()))
        for form in FORMS
    )
    yield from markdown((f"ours on {_PHONE}, predicted ms", *_TEAMS), rows)


def main() -> None:
    """Run from the command line."""
    arguments = options(
        __doc__,
        None,
        ("--folder", Path("build/papers"), "keeps networks"),
        ("--rounds", 31),
        ("--seed", 0),
    )
    arguments.folder.mkdir(parents=True, exist_ok=True)
    made = networks(arguments.seed)
    found = figures(made, arguments.folder, arguments.seed, arguments.rounds)
    print("\n".join((*table(found), "", *on_the_phone(made))))


if __name__ == "__main__":
    main()
