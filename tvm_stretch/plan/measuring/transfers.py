"""Measures the costs of using two processors: transfers by size, and mutual slowdown.

    cpu: a0 -> opencl: a1 -> cpu: a2 -> ...   against   cpu: a0 -> a1 -> a2 -> ...     transfers
    cpu and opencl: a half of each layer      against   half of all halves on one      slowdown

Whole runs are compared instead of single kernels' spans, because a device may start a kernel early
and let it wait inside. Comparing two lengths of each chain cancels the fixed cost of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import IRModule, relax

from tvm_stretch.base.compiling import compiling
from tvm_stretch.base.errors import InputError
from tvm_stretch.base.progress import step
from tvm_stretch.make.pipeline import Job, build_parts
from tvm_stretch.network.expressions import network_of
from tvm_stretch.network.operators import Calls
from tvm_stretch.plan.cost.generic_features import TransferFeatures
from tvm_stretch.plan.measuring.dataset import Row
from tvm_stretch.plan.measuring.timing import quartile
from tvm_stretch.plan.measuring.workshop import half_shares, in_halves
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.read import load_network
from tvm_stretch.run.model import Model
from tvm_stretch.targets.processor import Processor

SIZES = tuple(4 * 16 * side * side for side in (1, 8, 28, 56, 112, 224))
"""Sizes of tensors in bytes, from one vector to the largest tensors of usual networks."""

_SHORT, _LONG = 9, 25
"""The lengths of the two chains whose difference is measured."""

_LAYERS = ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1))
"""Output channels and stride of the layers that both processors compute in halves."""

_RUNS = 25
_WARM_UP = 5


Timed = Callable[[Model], Callable[[], int]]
"""Makes a function that runs a model on the device: `Bench.timed`."""


def measure_transfers(
    host: Processor,
    other: Processor,
    timed: Timed,
    sizes: Sequence[int] = SIZES,
    runs: int = _RUNS,
) -> list[Row]:
    """Measure transfers: one row for each size and direction, with the same cost in both."""
    rows, smallest = [], 1
    for size in sorted(sizes):
        if size % 64:
            raise InputError(f"expected a multiple of 64 bytes for sizes, got {size}; round it")
        times = [
            _whole_runs(
                [timed(_chain(host, other, size, count, turns)) for count in (_SHORT, _LONG)], runs
            )
            for turns in (True, False)
        ]
        (short, long), (short_alone, long_alone) = times
        extra = (long - short) - (long_alone - short_alone)
        each = max(smallest, round(extra / (_LONG - _SHORT)))
        smallest = each  # a larger tensor is never cheaper to transfer
        for pair in ((0, 1), (1, 0)):
            rows.append(Row(TransferFeatures.make(size, *pair), each, 0.0, runs))
    return rows


def measure_slowdown(host: Processor, other: Processor, timed: Timed, runs: int = _RUNS) -> float:
    """The slowdown of halves of layers while the other processor computes the other halves.

    Each processor reads the results of both, and weights come from the same memory.
    """
    with compiling():
        network = load_network(_layers())
        plan = Plan((host.name, other.name), (), shares=half_shares(network))
        halves = in_halves(network)
        jobs = (
            Job(network, [host, other], [host, other], plan),
            Job(halves, [host], [host]),
            Job(halves, [host, other], [other, host]),
        )
        models = [Model.from_parts(build_parts(job)) for job in jobs]
    together, *alone = _whole_runs([timed(model) for model in models], runs)
    return max(1.0, together / (max(alone) / 2))


@compiling()
def _chain(host: Processor, other: Processor, size: int, count: int, in_turns: bool) -> Model:
    """A chain of operators on tensors of ``size`` bytes, alternating or on the host."""
    x = relax.Var("x", relax.TensorType((1, size // 64, 16), "float32"))

    def operators(bb: relax.BlockBuilder) -> relax.Expr:
        y: relax.Expr = x
        for index in range(count):
            y = bb.emit(relax.op.subtract(relax.const(np.float32(index + 0.5)), y))
        return y

    mod = load_network(network_of([x], operators))
    names = list(Calls(mod["main"]).calls)
    # The host's chain keeps one operator on the other processor, so both runs wake it once.
    places = [index % 2 if in_turns else int(index == count - 2) for index in range(count)]
    regions = tuple(
        PlannedRegion(f"r{index}", (host, other)[place].name, (name,))
        for index, (name, place) in enumerate(zip(names, places, strict=True))
    )
    plan = Plan((host.name, other.name), regions)
    return Model.from_parts(build_parts(Job(mod, [host, other], [host, other], plan)))


def _layers() -> IRModule:
    """A residual network's 3x3 convolutions: many pixels at first, then many weights."""
    x, dice = relax.Var("x", relax.TensorType((1, 64, 56, 56), "float32")), np.random.default_rng(0)

    def layers(bb: relax.BlockBuilder) -> relax.Expr:
        value, inputs = x, 64
        for outputs, stride in _LAYERS:
            weight = dice.standard_normal((outputs, inputs, 3, 3), dtype=np.float32)
            scaled = relax.const(weight / np.float32(3 * np.sqrt(inputs)))
            value = bb.emit(relax.op.nn.conv2d(value, scaled, strides=stride, padding=1))
            inputs = outputs
        return value

    return network_of([x], layers)


def _whole_runs(calls: Sequence[Callable[[], int]], runs: int) -> list[float]:
    """The lower quartile of each model's run times, measured alternately."""
    samples: list[list[int]] = [[] for _ in calls]
    for number in range(_WARM_UP + runs):
        for call, times in zip(calls, samples, strict=True):
            step()
            ns = call()
            if number >= _WARM_UP:
                times.append(ns)
    return [quartile(times)[0] for times in samples]
