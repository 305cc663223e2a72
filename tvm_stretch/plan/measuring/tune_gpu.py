"""The few best configurations of each layer on a GPU, of which the fastest right one is kept.

    resnet18: 11 layers of convolutions    ->  8 configurations of each, in 8 small networks
                                           ->  opencl.tuned.json

Data and weights are small whole numbers, so that sums are exact in any order: every answer must be
NumPy's to the bit (Winograd's near it). A configuration that the driver refuses, or whose answer is
wrong, is dropped.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.passes.block_channels import BlockChannels
from tvm_stretch.plan.cost.tuned import Tuned, described, with_winners
from tvm_stretch.plan.measuring.bench import trace_of
from tvm_stretch.plan.measuring.trial import Array, Build, Failure, Forms, attempt
from tvm_stretch.plan.measuring.workshop import Workshop
from tvm_stretch.read import load_network
from tvm_stretch.run.benchmark import node_times
from tvm_stretch.run.model import Model
from tvm_stretch.targets.cpu.kernels.window import WindowConfig
from tvm_stretch.targets.opencl.kernels.base import Layer, gpu_candidates
from tvm_stretch.targets.opencl.kernels.machine import WinnersWithGaps

CANDIDATES = 8
_TOGETHER = 12
"""Layers of one small network."""
_RUNS, _SECONDS = 9, 1.5
_NAME = "tuned"


@dataclass(frozen=True)
class Trial:
    """One configuration of a layer, with its operands and the right answer."""

    config: Any  # of a `TunedTemplate`
    data: Array
    weight: Array
    answer: Array


class Layers(Forms):
    """Convolutions and dense layers that are tried in the same small networks."""

    what = "layers"

    @classmethod
    def unmeasured(
        cls, networks: Iterable[object], workshop: Workshop, tuned: Tuned, end: float = math.inf
    ) -> list[list[Layer]]:
        """The layers of networks that are not measured yet, each once."""
        asked, processor = WinnersWithGaps(tuned.table), workshop.processor
        machine = with_winners(processor, asked).machine
        for network in networks:
            phase: Any = BlockChannels({processor.name: machine})  # mypy sees no pass
            phase(load_network(network))
        layers = [la for la in asked.unknown if getattr(la, "kind", "depthwise") == "depthwise"]
        return [layers[start : start + _TOGETHER] for start in range(0, len(layers), _TOGETHER)]

    def choose(self, count: int | None) -> None:
        """The first configuration of each layer, then the second ones, and so on."""
        self.times: dict[Layer, list[tuple[int, Any]]] = {layer: [] for layer in self.layers}
        every = [gpu_candidates(layer, self.gpu, count or CANDIDATES) for layer in self.layers]
        turns = [self._untried(turn) for turn in itertools.zip_longest(*every)]
        self.turns = [turn for turn in turns if turn]
        self.builds = [partial(self.build, turn) for turn in self.turns]

    def _untried(self, configs: Iterable[Any]) -> list[Any]:
        return [c for c in configs if c is not None and described(c) not in self.tuned.dropped]

    def decide(self, builds: Sequence[Build]) -> bool:
        """Add the winners; whether a configuration was dropped."""
        before = len(self.tuned.dropped)
        for turn, build in zip(self.turns, builds, strict=True):
            self._try(turn, build)
        failed = [layer for layer, times in self.times.items() if not times]
        barest = (gpu_candidates(layer, self.gpu.barest, 1)[0] for layer in failed)
        if last := self._untried(barest):
            self._try(last, partial(self.build, last))
        for layer, times in self.times.items():
            if times:
                self.tuned.winners[layer] = min(times, key=lambda pair: pair[0])[1]
        return len(self.tuned.dropped) > before

    def _try(self, configs: Sequence[Any], build: Build) -> None:
        results = self.measure([Trial(c, *_operands(c.bare())) for c in configs], build)
        for config, result in zip(configs, results, strict=True):
            if isinstance(result, int):
                self.times[config.bare()].append((result, config))
            else:
                self.drop(described(config), result)

    def measure(self, trials: Sequence[Trial], build: Build) -> list[int | Failure]:
        """Nanoseconds of each trial, or why it is no use; if one fails, each is tried by itself."""
        data = [trial.data for trial in trials]
        times = attempt(build, data, partial(self.judge, trials), self.bench.device)
        if not isinstance(times, str):
            return times
        if len(trials) == 1:
            return [times]
        alone = (self.measure([trial], partial(self.build, [trial.config])) for trial in trials)
        return [result for results in alone for result in results]

    def build(self, configs: Sequence[Any]) -> Model:
        """A network of layers with these configurations."""
        table = {config.bare(): config for config in configs}
        processor = with_winners(self.workshop.processor, table)
        return self.workshop.on(processor).network(_network(configs)).model

    def judge(
        self, trials: Sequence[Trial], model: Model, loaded: Any, answers: Sequence[Array]
    ) -> list[int | Failure]:
        """Nanoseconds of each trial, or that its answer is wrong."""
        total = len(model.graph.nodes)
        timings = self.bench.stopwatch.watch(
            lambda: node_times(trace_of(loaded.module, total), total), _RUNS, _SECONDS
        )
        names = [node.name for node in model.graph.nodes]
        results: list[int | Failure] = []
        for index, (trial, answer) in enumerate(zip(trials, answers, strict=True)):
            wrong = int(np.sum(~(np.abs(answer - trial.answer) <= trial.config.slack)))
            reason = f"answer: {wrong} of {trial.answer.size} numbers are wrong"
            timing = timings[names.index(f"{_NAME}{index}")]
            results.append(reason if wrong else timing.nanoseconds)
        return results


# --- networks of layers ---------------------------------------------------------------------------


@lru_cache(maxsize=2 * _TOGETHER)
def _operands(layer: Layer) -> tuple[Array, Array, Array]:
    """Data and weights of whole numbers, and the answer by NumPy."""
    data, weight = operands_of(layer)
    return data, weight, convolved(layer, data, weight)


def operands_of(layer: Layer) -> tuple[Array, Array]:
    """Data and weights of small whole numbers."""
    dice = np.random.default_rng(0)
    channels = layer.channels if isinstance(layer, WindowConfig) else layer.in_channels
    outputs = layer.channels if isinstance(layer, WindowConfig) else layer.out_channels
    shape = (outputs, channels // _groups(layer), *layer.kernel)
    data = dice.integers(-2, 3, (layer.batch, channels, *layer.in_size)).astype("float32")
    weight = dice.integers(-1, 2, shape).astype("float32")
    return data, weight


def _groups(layer: Layer) -> int:
    return layer.channels if isinstance(layer, WindowConfig) else layer.groups


def convolved(layer: Layer, data: Array, weight: Array) -> Array:
    """The convolution, tap by tap; exact for whole numbers."""
    top, left, bottom, right = layer.padding
    padded = np.pad(data, ((0, 0), (0, 0), (top, bottom), (left, right)))
    groups, (height, width) = _groups(layer), layer.out_size
    images = padded.reshape(layer.batch, groups, -1, *padded.shape[2:])
    factors = weight.reshape(groups, -1, *weight.shape[1:])
    out = np.zeros((layer.batch, groups, factors.shape[1], height, width), "float32")
    for ky in range(layer.kernel[0]):
        for kx in range(layer.kernel[1]):
            y, x = ky * layer.dilation[0], kx * layer.dilation[1]
            rows = slice(y, y + (height - 1) * layer.stride[0] + 1, layer.stride[0])
            columns = slice(x, x + (width - 1) * layer.stride[1] + 1, layer.stride[1])
            tap = images[..., rows, columns].reshape(*images.shape[:3], -1)
            out += (factors[..., ky, kx] @ tap).reshape(out.shape)
    return out.reshape(layer.batch, -1, height, width)


def _network(configs: Sequence[Any]) -> tvm.IRModule:
    """The layers beside each other, each with an input and an output of its own."""
    bb, every = relax.BlockBuilder(), [(c, *_operands(c.bare())[:2]) for c in configs]
    inputs = [
        relax.Var(f"x{i}", relax.TensorType(data.shape, "float32"))
        for i, (_, data, _) in enumerate(every)
    ]
    with bb.function("main", inputs):
        with bb.dataflow():
            results: list[relax.Expr] = []
            for x, (layer, _, weight) in zip(inputs, every, strict=True):
                window = {key: getattr(layer, key) for key in ("padding", "dilation")}
                groups, strides = _groups(layer), layer.stride
                y = relax.op.nn.conv2d(
                    x, relax.const(weight), strides=strides, groups=groups, **window
                )
                results.append(bb.emit_output(y, name_hint=f"{_NAME}{len(results)}"))
        bb.emit_func_output(relax.Tuple(results) if len(results) > 1 else results[0])
    return bb.get()
