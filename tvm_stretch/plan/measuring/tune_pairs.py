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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.base.progress import say
from tvm_stretch.make.pipeline import Job
from tvm_stretch.network.expressions import network_of
from tvm_stretch.plan.cost.tuned import Tuned, with_winners
from tvm_stretch.plan.measuring.trial import Array, Build, Failure, Forms, attempt
from tvm_stretch.plan.measuring.tune_gpu import convolved, operands_of
from tvm_stretch.plan.measuring.workshop import Workshop
from tvm_stretch.read import load_network
from tvm_stretch.run.model import Model
from tvm_stretch.targets.opencl.kernels.machine import WinnersWithGaps
from tvm_stretch.targets.opencl.kernels.pair import APART, Pair, PairTile, pair_candidates

CANDIDATES = 6
_COPIES = 6
_RUNS, _SECONDS = 15, 2.0
_AGAIN = 2  # tiles that run again
_GAIN = 0.98
"""One kernel is taken where it needs at most this part of the time of two."""


class Pairs(Forms):
    """A pair, several times, as two kernels and as one kernel of each tile."""

    what = "pairs"

    @classmethod
    def unmeasured(
        cls, networks: Iterable[object], workshop: Workshop, tuned: Tuned, end: float
    ) -> list[Pair]:
        """The pairs of networks, as their kernels are now, that are not measured yet."""
        gpu = workshop.processor.machine.gpu
        if gpu is None or not gpu.local_on_chip:
            return []
        asked = WinnersWithGaps(tuned.table)
        own = with_winners(workshop.processor, asked)
        for network in networks:
            if time.monotonic() < end:
                every = [workshop.host, own]
                _ = Job(load_network(network), every, every[::-1]).lowered  # asks for winners
        return [layer for layer in asked.unknown if isinstance(layer, Pair)]

    def choose(self, count: int | None) -> None:
        """Two kernels, and the best tiles."""
        tiles = pair_candidates(self.layers, self.gpu, count or CANDIDATES)
        self.tiles = [APART, *(t for t in tiles if self.described(t) not in self.tuned.dropped)]
        self.builds = [partial(self.build, tile) for tile in self.tiles]

    def decide(self, builds: Sequence[Build]) -> bool:
        """Add the fastest form; whether one failed."""
        right: dict[PairTile, Model] = {}
        zeros = np.zeros(self._added, "float32")
        for tile, build in zip(self.tiles, builds, strict=True):
            result = attempt(build, [zeros], self.judge, self.bench.device)
            if not isinstance(result, str):
                right[tile] = result
            elif tile == APART:
                say(f"a pair's two kernels fail: {result}")
            else:
                self.drop(self.described(tile), result)
        if APART in right:
            self.tuned.pairs[self.layers] = self.fastest(right)
        return len(right) < len(self.tiles)

    def judge(self, model: Model, _loaded: Any, answers: Sequence[Array]) -> Model | Failure:
        """The model, if its answer is right."""
        right = self._operands[2]
        wrong = int(np.sum(answers[0] != right))
        return f"answer: {wrong} of {right.size} numbers are wrong" if wrong else model

    def build(self, tile: PairTile) -> Model:
        """The model of a form."""
        table = {**self.tuned.winners, self.layers: tile}
        processor = with_winners(self.workshop.processor, table)
        return self.workshop.on(processor).network(self._network()).model

    def described(self, tile: PairTile) -> str:
        """The pair and a tile as a text."""
        values = {**asdict(self.layers), **tile._asdict()}
        return "pair " + " ".join(f"{key}={value}" for key, value in values.items())

    @property
    def _added(self) -> tuple[int, ...]:
        """The shape of a model's input: a number for each channel, as copies to a GPU take long."""
        return (1, self.layers.window.channels, 1, 1)

    @cached_property
    def _operands(self) -> tuple[Array, list[tuple[Array, Array]], Array]:
        """Data, weights of both layers in each copy, all whole numbers, and the answer by NumPy.

        Weights differ from copy to copy, as equal kernels of the same data would run only once.
        """
        data, depthwise = operands_of(self.layers.window)
        _, pointwise = operands_of(self.layers.conv)
        weights = [
            (np.roll(depthwise, copy, axis=0), np.roll(pointwise, copy, axis=0))
            for copy in range(_COPIES)
        ]
        results = [
            convolved(self.layers.conv, convolved(self.layers.window, data, first), second)
            for first, second in weights
        ]
        return data, weights, np.sum(results, axis=0)

    def _network(self) -> tvm.IRModule:
        """The copies, each of which adds its result to that of the one before."""
        window, conv = self.layers.window, self.layers.conv
        data, every, _ = self._operands
        given = relax.Var("x", relax.TensorType(self._added, "float32"))
        attrs: Sequence[dict[str, Any]] = [
            {"strides": window.stride, "padding": window.padding, "dilation": window.dilation},
            {"strides": conv.stride, "padding": conv.padding},
        ]

        def copies(bb: relax.BlockBuilder) -> relax.Expr:
            x = bb.emit(relax.op.add(relax.const(data), given))
            total: relax.Expr | None = None
            for first, second in every:
                y = relax.op.nn.conv2d(x, relax.const(first), groups=window.channels, **attrs[0])
                y = relax.op.nn.conv2d(bb.emit(y), relax.const(second), **attrs[1])
                total = bb.emit(y if total is None else relax.op.add(bb.emit(y), total))
            return total

        return network_of([given], copies)

    def fastest(self, models: Mapping[PairTile, Model]) -> PairTile:
        """The tile that is faster than two kernels, or `APART`."""
        for left in (_AGAIN, 1):
            times = self.times(models)
            tiles = sorted((tile for tile in models if tile != APART), key=lambda tile: times[tile])
            models = {tile: models[tile] for tile in (APART, *tiles[:left])}
        best = min(models, key=lambda tile: times[tile])
        return best if times[best] <= _GAIN * times[APART] else APART

    def times(self, models: Mapping[PairTile, Model]) -> dict[PairTile, int]:
        """Nanoseconds of a plain run of each model."""
        runs = [self.bench.timed(model) for model in models.values()]
        timings = self.bench.stopwatch.watch(lambda: [run() for run in runs], _RUNS, _SECONDS)
        return {tile: timing.nanoseconds for tile, timing in zip(models, timings, strict=True)}
