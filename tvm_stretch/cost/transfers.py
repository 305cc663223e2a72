"""What it costs that two processors work together: hand-overs by size, and being slowed down.

cpu: a0 -> opencl: a1 -> cpu: a2 -> ...      from the end of a0 to the start of a1: a hand-over
cpu: a0, a1, ...  beside  opencl: b0, ...    against the same kernels alone: the slowdown
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax

from tvm_stretch.compiler import compile
from tvm_stretch.cost.dataset import Row
from tvm_stretch.cost.features import TransferFeatures
from tvm_stretch.cost.timing import summarize
from tvm_stretch.errors import InputError
from tvm_stretch.frontend import load_network
from tvm_stretch.passes.calls import Calls
from tvm_stretch.plan import Plan, PlannedRegion
from tvm_stretch.runtime.model import Model
from tvm_stretch.targets.processor import Processor

SIZES = tuple(4 * 16 * side * side for side in (1, 8, 28, 56, 112, 224))
"""Bytes of the tensors that are handed over: from one vector to the largest of usual networks."""

_TRIPS = 4
_RUNS = 15
_WARM_UP = 3


def measure_transfers(
    host: Processor, other: Processor, sizes: Sequence[int] = SIZES, runs: int = _RUNS
) -> list[Row]:
    """Hand-overs in both directions, one row for each size and direction."""
    rows = []
    for size in sizes:
        model = _ping_pong(host, other, size)
        gaps: dict[tuple[int, int], list[int]] = {(0, 1): [], (1, 0): []}
        for trace in _traces(model, runs):
            for pair, gap in _gaps(model, trace):
                gaps[pair].append(max(0, gap))
        for (sender, receiver), found in gaps.items():
            timing = summarize(found, True)
            features = TransferFeatures.of(size, sender, receiver)
            rows.append(Row(features, timing.nanoseconds, round(timing.spread, 4), timing.runs))
    return rows


def measure_slowdown(host: Processor, other: Processor, runs: int = _RUNS) -> tuple[float, float]:
    """How much longer kernels take while the other processor works: of the host, of the other."""
    mod = load_network(_two_branches())
    half = (len(Calls(mod["main"]).calls) - 1) // 2
    times = []
    for together in (True, False):
        # Alone: the branches follow each other, because the second reads the first one's result.
        network = mod if together else load_network(_two_branches(one_after_the_other=True))
        own = list(Calls(network["main"]).calls)
        regions = (
            PlannedRegion("other", other.name, tuple(own[half : 2 * half])),
            PlannedRegion("host", host.name, tuple(own[:half])),
            PlannedRegion("end", host.name, tuple(own[2 * half :])),
        )
        if not together:
            regions = (regions[1], regions[0], regions[2])
        model = _compile(network, host, other, regions)
        times.append(_region_times(model, runs))
    (host_both, other_both), (host_alone, other_alone) = times
    return host_both / host_alone, other_both / other_alone


def _ping_pong(host: Processor, other: Processor, size: int) -> Model:
    """A chain of operators whose tensors are ``size`` bytes, on one processor and the other."""
    if size % 64:
        raise InputError(f"expected a multiple of 64 bytes for sizes, got {size}; round it")
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, size // 64, 16), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            y: relax.Expr = x
            for index in range(2 * _TRIPS + 1):
                y = bb.emit(relax.op.subtract(relax.const(np.float32(index + 0.5)), y))
            out = bb.emit_output(y)
        bb.emit_func_output(out)
    mod = load_network(bb.get())
    names = list(Calls(mod["main"]).calls)
    regions = tuple(
        PlannedRegion(f"r{i}", (host, other)[i % 2].name, (name,)) for i, name in enumerate(names)
    )
    return _compile(mod, host, other, regions)


def _two_branches(one_after_the_other: bool = False) -> IRModule:
    """Two chains of convolutions and their sum."""
    bb, dice = relax.BlockBuilder(), np.random.default_rng(0)
    x = relax.Var("x", relax.TensorType((1, 64, 28, 28), "float32"))

    def chain(start: relax.Expr) -> relax.Expr:
        value = start
        for _ in range(4):
            weight = 0.05 * dice.standard_normal((64, 64, 3, 3), dtype=np.float32)
            value = bb.emit(relax.op.nn.conv2d(value, relax.const(weight), padding=1))
        return value

    with bb.function("main", [x]):
        with bb.dataflow():
            first = chain(x)
            second = chain(first if one_after_the_other else x)
            out = bb.emit_output(relax.op.add(first, second))
        bb.emit_func_output(out)
    return bb.get()


def _compile(
    mod: IRModule, host: Processor, other: Processor, regions: tuple[PlannedRegion, ...]
) -> Model:
    plan = Plan((host.name, other.name), regions)
    return compile(mod, [host, other], plan=plan, cpu_threads=host.threads)


def _traces(model: Model, runs: int) -> list[dict[str, Any]]:
    dice, module = np.random.default_rng(0), model.module
    for port in model.graph.inputs:
        spec = model.graph.tensors[port.tensor]
        value = dice.standard_normal(spec.shape).astype(spec.dtype)
        module["set_input"](port.name, tvm.runtime.tensor(value))
    for _ in range(_WARM_UP):
        module["run"]()
    return [json.loads(module["trace"]()) for _ in range(runs)]


def _kernel_spans(trace: dict[str, Any], region: int) -> list[tuple[int, int]]:
    spans = trace["regions"][region]
    return [(s["start"], s["end"]) for s in spans if s["kind"] == "kernel"]


def _gaps(model: Model, trace: dict[str, Any]) -> list[tuple[tuple[int, int], int]]:
    """Between the last kernel of each region and the first one of the next region."""
    found = []
    regions = model.graph.regions
    for index in range(len(regions) - 1):
        before, after = _kernel_spans(trace, index), _kernel_spans(trace, index + 1)
        pair = (regions[index].processor, regions[index + 1].processor)
        if before and after and pair[0] != pair[1]:
            found.append((pair, min(s for s, _ in after) - max(e for _, e in before)))
    return found


def _region_times(model: Model, runs: int) -> tuple[float, float]:
    """Median nanoseconds of the kernels of the regions ``host`` and ``other``."""
    indices = {region.name: i for i, region in enumerate(model.graph.regions)}
    samples: dict[str, list[int]] = {"host": [], "other": []}
    for trace in _traces(model, runs):
        for name, found in samples.items():
            found.append(sum(end - start for start, end in _kernel_spans(trace, indices[name])))
    return statistics.median(samples["host"]), statistics.median(samples["other"])
