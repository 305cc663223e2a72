"""Times the few best configurations of each layer on a GPU, and keeps the fastest right one.

    resnet18: 11 layers of convolutions    ->  8 configurations of each, in 8 small networks
                                           ->  opencl.tuned.json

Data and weights are small whole numbers, so that sums are exact in any order: every answer must be
NumPy's to the bit (Winograd's near it). A configuration that the driver refuses, or whose answer is
wrong, is dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.base.errors import last_line
from tvm_stretch.base.progress import count, say
from tvm_stretch.passes.block_channels import BlockChannels
from tvm_stretch.plan.cost.tuned import Tuned, described, with_winners
from tvm_stretch.plan.measuring.ahead import Ahead
from tvm_stretch.plan.measuring.bench import Bench, trace_of
from tvm_stretch.plan.measuring.workshop import Workshop
from tvm_stretch.read import load_network
from tvm_stretch.run.benchmark import node_times
from tvm_stretch.run.model import Model
from tvm_stretch.targets.cpu.kernels.window import WindowConfig
from tvm_stretch.targets.opencl.kernels.candidates import (
    Layer,
    bare_layer,
    group_candidates,
    without_sharing,
)
from tvm_stretch.targets.opencl.kernels.winners import Asked
from tvm_stretch.targets.opencl.kernels.winograd import GroupWinogradConfig
from tvm_stretch.targets.processor import Processor

CANDIDATES = 8
_TOGETHER = 12
"""Layers of one small network."""
_RUNS, _SECONDS = 9, 1.5
_NAME = "tuned"


Build = Callable[[], Model | None]


@dataclass(frozen=True)
class Trial:
    """One configuration of a layer, with its operands and the right answer."""

    config: Layer
    data: np.ndarray[Any, Any]
    weight: np.ndarray[Any, Any]
    answer: np.ndarray[Any, Any]


def tune(
    workshop: Workshop,  # of the GPU
    bench: Bench,  # where it runs
    networks: Mapping[str, object],  # by name
    path: Path,  # of the file of winners; it is written after every few layers
    end: float,  # no further layers are begun after this time of ``time.monotonic``
    # how many configurations of a layer are tried, the model's best ones
    candidates: int = CANDIDATES,
    ahead: int = 0,  # networks of trials that are compiled while another one is measured
) -> Workshop:
    """Measure configurations of the networks' layers that are not measured yet.

    Returns:
        A workshop whose kernels have the configurations that won.
    """
    processor = workshop.processor
    tuned = Tuned.read(path, processor)
    layers = layers_of(networks, processor, tuned)
    for start in range(0, len(layers), _TOGETHER):
        if time.monotonic() > end:
            say(f"{processor.name}: {len(layers) - start} layers are not tuned; measure again")
            break
        few = layers[start : start + _TOGETHER]
        count("layer", start + len(few), len(layers))
        has_failed = _tune(few, _Bank(workshop, bench, ahead), tuned, candidates)
        tuned.write(path)
        if has_failed:
            bench.require_device()
    if layers:
        dropped = f", {len(tuned.dropped)} configurations dropped" if tuned.dropped else ""
        say(f"{processor.name}: {len(tuned.winners)} layers tuned{dropped}")
    return workshop.on(tuned.apply(processor))


def layers_of(networks: Mapping[str, object], processor: Processor, tuned: Tuned) -> list[Layer]:
    """The convolutions and dense layers of networks that are not measured yet, each once."""
    asked = Asked(tuned.table)
    machine = with_winners(processor, asked).machine
    for network in networks.values():
        phase: Any = BlockChannels({processor.name: machine})  # mypy sees no pass
        phase(load_network(network))
    return [layer for layer in asked.unknown if getattr(layer, "kind", "depthwise") == "depthwise"]


def _tune(layers: Sequence[Layer], bank: _Bank, tuned: Tuned, candidates: int) -> bool:
    """Add the winners of some layers; whether a configuration was dropped."""
    gpu = bank.workshop.processor.machine.gpu
    assert gpu is not None
    trials = {layer: _trial(layer) for layer in layers}
    found: dict[Layer, list[tuple[int, Layer]]] = {layer: [] for layer in layers}
    before = len(tuned.dropped)

    def tried(configs: Mapping[Layer, Layer]) -> dict[Layer, Trial]:
        left = {la: c for la, c in configs.items() if described(c) not in tuned.dropped}
        return {layer: replace(trials[layer], config=config) for layer, config in left.items()}

    def measure(turn: Mapping[Layer, Trial], build: Build) -> None:
        results = bank.measure(list(turn.values()), build)
        for (layer, trial), result in zip(turn.items(), results, strict=True):
            if isinstance(result, int):
                found[layer].append((result, trial.config))
                continue
            tuned.dropped[described(trial.config)] = result
            say(f"{bank.workshop.processor.name}: a configuration is dropped: {result}")

    every = {layer: group_candidates(layer, gpu, candidates) for layer in layers}
    turns = [
        tried({layer: configs[turn] for layer, configs in every.items() if turn < len(configs)})
        for turn in range(max(map(len, every.values())))
    ]

    def built(number: int) -> Model | None:
        turn = turns[number] if number < len(turns) else {}
        return bank.build(list(turn.values())) if turn else None

    with Ahead(built, 0, bank.ahead) as ahead:
        for number, turn in enumerate(turns):
            measure(turn, partial(ahead.take, number))
    last = tried({layer: without_sharing(layer, gpu) for layer in layers if not found[layer]})
    measure(last, partial(bank.build, list(last.values())))
    for layer, times in found.items():
        if times:
            tuned.winners[layer] = min(times, key=lambda pair: pair[0])[1]
    return len(tuned.dropped) > before


@dataclass(frozen=True)
class _Bank:
    """Where trials run."""

    workshop: Workshop
    bench: Bench
    ahead: int

    def measure(self, trials: Sequence[Trial], build: Build) -> list[int | str]:
        """Nanoseconds of each trial, or why it is no use.

        If one of them fails, each is built and tried by itself.
        """
        if not trials:
            return []
        try:
            return self._measure(trials, build())
        except Exception as error:  # of the compiler, or of a driver
            if len(trials) == 1:
                return [last_line(error)]
        alone = (self.measure([trial], partial(self.build, [trial])) for trial in trials)
        return [found for results in alone for found in results]

    def build(self, trials: Sequence[Trial]) -> Model:
        """A network of the trials' layers with their configurations."""
        winners = {bare_layer(trial.config): trial.config for trial in trials}
        processor = with_winners(self.workshop.processor, winners)
        return self.workshop.on(processor).network(_network(trials)).model

    def _measure(self, trials: Sequence[Trial], built: Model | None) -> list[int | str]:
        assert built is not None
        graph, device = built.graph, self.bench.device
        model = built if device is None else device.load(built)
        answers = _as_list(model(*(trial.data for trial in trials)))
        total = len(graph.nodes)
        timings = self.bench.stopwatch.watch(
            lambda: node_times(trace_of(model.module, total), total), _RUNS, _SECONDS
        )
        times = {node.name: t.nanoseconds for node, t in zip(graph.nodes, timings, strict=True)}
        found: list[int | str] = []
        for index, (trial, answer) in enumerate(zip(trials, answers, strict=True)):
            apart = np.abs(np.asarray(answer) - trial.answer)
            wrong = int(np.sum(~(apart <= _slack(trial.config))))
            reason = f"answer: {wrong} of {trial.answer.size} numbers are wrong"
            found.append(reason if wrong else times[f"{_NAME}{index}"])
        return found


def _slack(config: Layer) -> float:
    """How far numbers of right answers may lie from whole ones: Winograd's sums are rounded."""
    return 0.1 if isinstance(config, GroupWinogradConfig) else 0.0


def _as_list(answers: Any) -> list[Any]:
    return list(answers) if isinstance(answers, list | tuple) else [answers]


# --- networks of layers ---------------------------------------------------------------------------


def _trial(layer: Layer) -> Trial:
    """A layer with operands of whole numbers, and the answer by NumPy."""
    data, weight = operands_of(layer)
    return Trial(layer, data, weight, convolved(layer, data, weight))


def operands_of(layer: Layer) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
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


def convolved(
    layer: Layer, data: np.ndarray[Any, Any], weight: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
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


def _network(trials: Sequence[Trial]) -> tvm.IRModule:
    """The layers beside each other, each with an input and an output of its own."""
    bb = relax.BlockBuilder()
    inputs = [
        relax.Var(f"x{i}", relax.TensorType(trial.data.shape, "float32"))
        for i, trial in enumerate(trials)
    ]
    with bb.function("main", inputs):
        with bb.dataflow():
            results = [
                bb.emit_output(_layer(x, trial), name_hint=f"{_NAME}{i}")
                for i, (x, trial) in enumerate(zip(inputs, trials, strict=True))
            ]
        bb.emit_func_output(relax.Tuple(results) if len(results) > 1 else results[0])
    return bb.get()


def _layer(x: relax.Expr, trial: Trial) -> relax.Expr:
    layer = trial.config
    return relax.op.nn.conv2d(
        x,
        relax.const(trial.weight),
        strides=layer.stride,
        padding=layer.padding,
        dilation=layer.dilation,
        groups=_groups(layer),
    )
