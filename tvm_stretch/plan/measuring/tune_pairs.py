"""Times pairs of layers on a GPU as one kernel and as two, and keeps the faster form.

    mobilenet_v2: 12 pairs of a depthwise and a 1x1 convolution
        ->  each as two kernels and as one of 6 tiles, in 7 small models   ->  opencl.tuned.json

Each model computes the pair six times, one after the other, and plain runs are timed: a launch
hides beside a long kernel, so that sums of traced kernels say too much of one launch less
(`benchmarks/log/gpu.md`). Models of a pair run in turns, because the host's core, which changes,
decides what a launch takes. The best tiles run again beside two kernels, because the least of
seven times is too small by chance.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.base.errors import last_line
from tvm_stretch.base.progress import count, say
from tvm_stretch.make.pipeline import complete_plan, lower_regions
from tvm_stretch.plan.cost.tuned import Tuned, with_winners
from tvm_stretch.plan.measuring.ahead import Ahead
from tvm_stretch.plan.measuring.bench import Bench
from tvm_stretch.plan.measuring.tune_gpu import convolved, operands_of
from tvm_stretch.plan.measuring.workshop import Workshop
from tvm_stretch.read import load_network
from tvm_stretch.run.model import Model
from tvm_stretch.targets.opencl.kernels.pair import APART, Pair, PairTile, pair_candidates
from tvm_stretch.targets.opencl.kernels.winners import Asked

CANDIDATES = 6
_COPIES = 6
_RUNS, _SECONDS = 15, 2.0
_AGAIN = 2  # tiles that run again
_GAIN = 0.98
"""One kernel is taken where it needs at most this part of the time of two."""

Numbers = np.ndarray[Any, Any]
Failure = str


@dataclass(frozen=True)
class _Trial:
    """A pair several times, with the right sum of its results."""

    pair: Pair
    data: Numbers  # to which the model adds a number for each channel: copies to a GPU take long
    weights: list[tuple[Numbers, Numbers]]  # of both layers, in each copy
    answer: Numbers


def tune_pairs(
    workshop: Workshop,  # of the GPU, whose layers are tuned
    bench: Bench,  # where it runs
    networks: Mapping[str, object],  # by name
    path: Path,  # of the file of winners; it is written after every pair
    end: float,  # no further pair is begun after this time of ``time.monotonic``
    candidates: int = CANDIDATES,  # how many tiles of a pair are tried, the model's best ones
    ahead: int = 0,  # pairs that are compiled while another one is measured
) -> Workshop:
    """Measure the networks' pairs that are not measured yet.

    Returns:
        A workshop whose kernels are joined where that was faster.
    """
    tuned = Tuned.read(path, workshop.processor)
    pairs = unmeasured_pairs(networks, workshop, tuned, end)
    tiles = [_left(pair, workshop, tuned, candidates) for pair in pairs]

    def built(number: int) -> tuple[_Trial, dict[PairTile, Model | Failure]] | None:
        if number >= len(pairs):
            return None
        trial = _trial(pairs[number])
        forms = (APART, *tiles[number])
        return trial, {tile: _built(trial, tile, workshop, tuned) for tile in forms}

    with Ahead(built, 0, ahead) as coming:
        for number in range(len(pairs)):
            if time.monotonic() > end:
                say(f"{workshop.processor.name}: {len(pairs) - number} pairs are not tuned")
                break
            count("pair", number + 1, len(pairs))
            made = coming.take(number)
            assert made is not None
            failed = _decide(*made, bench, tuned)
            tuned.write(path)
            if failed:
                bench.require_device()
    if pairs:
        joined = sum(tile != APART for tile in tuned.pairs.values())
        say(f"{workshop.processor.name}: {joined} of {len(tuned.pairs)} pairs are one kernel")
    return workshop.on(tuned.apply(workshop.processor))


def unmeasured_pairs(
    networks: Mapping[str, object], workshop: Workshop, tuned: Tuned, end: float
) -> list[Pair]:
    """The pairs of networks, as their kernels are now, that are not measured yet."""
    gpu = workshop.processor.machine.gpu
    assert gpu is not None
    if not gpu.local_on_chip:
        return []
    asked = Asked(tuned.table)
    own = with_winners(workshop.processor, asked)
    for network in networks.values():
        if time.monotonic() < end:
            mod = load_network(network)
            plan, branched = complete_plan(mod, None, [workshop.host, own], [own, workshop.host])
            lower_regions(branched.mod, plan, [workshop.host, own])
    return [layer for layer in asked.unknown if isinstance(layer, Pair)]


def _left(pair: Pair, workshop: Workshop, tuned: Tuned, candidates: int) -> list[PairTile]:
    gpu = workshop.processor.machine.gpu
    assert gpu is not None
    tiles = pair_candidates(pair, gpu, candidates)
    return [tile for tile in tiles if _described(pair, tile) not in tuned.dropped]


def _decide(
    trial: _Trial, models: Mapping[PairTile, Model | Failure], bench: Bench, tuned: Tuned
) -> bool:
    """Add the fastest form of a pair; whether one failed."""
    right: dict[PairTile, Model] = {}
    failures: dict[PairTile, Failure] = {}
    for tile, model in models.items():
        failure = model if isinstance(model, Failure) else _failure(trial, model, bench)
        if failure:
            failures[tile] = failure
        elif isinstance(model, Model):
            right[tile] = model
    for tile, failure in failures.items():
        if tile != APART:
            tuned.dropped[_described(trial.pair, tile)] = failure
        say(f"a pair's {'tile is dropped' if tile != APART else 'two kernels fail'}: {failure}")
    if APART in right:
        tuned.pairs[trial.pair] = _fastest(right, bench)
    return bool(failures)


def _failure(trial: _Trial, model: Model, bench: Bench) -> Failure:
    """Why a model is no use; empty if its answer is right."""
    try:
        loaded = model if bench.device is None else bench.device.load(model)
        answer = np.asarray(loaded(np.zeros(_added(trial), "float32")))
    except Exception as error:  # of a driver
        return last_line(error)
    wrong = int(np.sum(answer != trial.answer))
    return f"answer: {wrong} of {trial.answer.size} numbers are wrong" if wrong else ""


def _fastest(models: Mapping[PairTile, Model], bench: Bench) -> PairTile:
    """The tile that is faster than two kernels, or `APART`."""
    for left in (_AGAIN, 1):
        times = _times(models, bench)
        tiles = sorted((tile for tile in models if tile != APART), key=lambda tile: times[tile])
        models = {tile: models[tile] for tile in (APART, *tiles[:left])}
    best = min(models, key=lambda tile: times[tile])
    return best if times[best] <= _GAIN * times[APART] else APART


def _times(models: Mapping[PairTile, Model], bench: Bench) -> dict[PairTile, int]:
    """Nanoseconds of a plain run of each model."""
    runs = [bench.timed(model) for model in models.values()]
    timings = bench.stopwatch.watch(lambda: [run() for run in runs], _RUNS, _SECONDS)
    return {tile: timing.nanoseconds for tile, timing in zip(models, timings, strict=True)}


def _described(pair: Pair, tile: PairTile) -> str:
    values = {**asdict(pair), **tile._asdict()}
    return "pair " + " ".join(f"{key}={value}" for key, value in values.items())


# --- models of pairs ------------------------------------------------------------------------------


def _trial(pair: Pair) -> _Trial:
    """A pair with operands of whole numbers, and the answer by NumPy.

    Weights differ from copy to copy, as equal kernels of the same data would run only once.
    """
    data, depthwise = operands_of(pair.window)
    _, pointwise = operands_of(pair.conv)
    weights = [
        (np.roll(depthwise, copy, axis=0), np.roll(pointwise, copy, axis=0))
        for copy in range(_COPIES)
    ]
    results = [
        convolved(pair.conv, convolved(pair.window, data, first), second)
        for first, second in weights
    ]
    return _Trial(pair, data, weights, np.sum(results, axis=0))


def _added(trial: _Trial) -> tuple[int, ...]:
    return (1, trial.pair.window.channels, 1, 1)


def _built(trial: _Trial, tile: PairTile, workshop: Workshop, tuned: Tuned) -> Model | Failure:
    """The pair with a tile, or why there is no such model."""
    processor = with_winners(workshop.processor, {**tuned.winners, trial.pair: tile})
    try:
        return workshop.on(processor).network(_network(trial)).model
    except Exception as error:  # of the compiler
        return last_line(error)


def _network(trial: _Trial) -> tvm.IRModule:
    """The copies, each of which adds its result to that of the one before."""
    window, conv = trial.pair.window, trial.pair.conv
    bb = relax.BlockBuilder()
    given = relax.Var("x", relax.TensorType(_added(trial), "float32"))
    attrs: Sequence[dict[str, Any]] = [
        {"strides": window.stride, "padding": window.padding, "dilation": window.dilation},
        {"strides": conv.stride, "padding": conv.padding},
    ]
    with bb.function("main", [given]):
        with bb.dataflow():
            x = bb.emit(relax.op.add(relax.const(trial.data), given))
            total: relax.Expr | None = None
            for first, second in trial.weights:
                y = relax.op.nn.conv2d(x, relax.const(first), groups=window.channels, **attrs[0])
                y = relax.op.nn.conv2d(bb.emit(y), relax.const(second), **attrs[1])
                total = bb.emit(y if total is None else relax.op.add(bb.emit(y), total))
            result = bb.emit_output(total)
        bb.emit_func_output(result)
    return bb.get()
