"""One seed of one network: the original, its stretched form trained alike, distilled, warm-started.

It needs torch and tvm_stretch/lab/training/, but not TVM: accuracy_networks.py prepares the
networks with TVM.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.accuracy_tasks import Data, turned
from tvm_stretch.lab.training import (
    Batches,
    TrainableNetwork,
    Training,
    accuracy,
    distill,
    fit,
    imitate,
    recalibrate,
    refine,
)
from tvm_stretch.lab.training.torch_graph import Graph
from tvm_stretch.plan.design import Source

NOISE = 0.01
"""The same as in passes/duplicate_and_scale.py."""


@dataclass(frozen=True)
class Inherited:
    """The origin of each element of a weight of the stretched network.

    Attributes:
        source: the original's weight; empty for a new weight.
        index: the index of each element in it; -1 for new elements.
        factor: the factor of each element.
        value: the number that is added to each element.
        is_noisy: whether another branch has the same weight, so that noise is added.
    """

    source: str
    index: np.ndarray
    factor: np.ndarray
    value: np.ndarray
    is_noisy: bool


@dataclass(frozen=True)
class Prepared:
    """A network and its stretched form.

    Attributes:
        name: of the network.
        original: its graph.
        stretched: the graph of the design.
        inherited: what each weight of that starts from.
        sources: which channels of the original its tensors stand for.
        told: the design and its size, for people.
    """

    name: str
    original: Graph
    stretched: Graph
    inherited: Mapping[str, Inherited]
    sources: Mapping[str, Source]
    told: str


@dataclass(frozen=True)
class Schedule:
    """How long and on how much each network is trained.

    Attributes:
        trained: images.
        tested: images.
        epochs: of training.
        rate: the highest learning rate.
        low_rate: of the two epochs after a warm start.
        steps: in which a warm start is refined.
        batch: images in a step.
    """

    trained: int = 4000
    tested: int = 6000
    epochs: int = 12
    rate: float = 0.05
    low_rate: float = 0.01
    steps: int = 400
    batch: int = 32


def fresh(graph: Graph, seed: int) -> TrainableNetwork:
    """A network with random weights, after He."""
    random = np.random.default_rng(seed)
    norms = {weight.layer for weight in graph.weights if weight.role == "running_var"}

    def drawn(role: str, layer: str, shape: tuple[int, ...]) -> np.ndarray:
        if layer in norms or role != "weight":
            ones = role in ("weight", "running_var")
            return np.full(shape, 1.0 if ones else 0.0, "float32")
        inside = math.prod(shape[1:]) if len(shape) > 2 else shape[0]
        gain = 2.0 if len(shape) > 2 else 1.0
        values = random.standard_normal(shape) * math.sqrt(gain / inside)
        return values.astype("float32")

    weights = {w.name: drawn(w.role, w.layer, w.shape) for w in graph.weights}
    net = TrainableNetwork(graph, weights)
    return net.to(memory_format=torch.channels_last)  # a fifth faster on a CPU


def weights_of(net: TrainableNetwork) -> dict[str, np.ndarray]:
    """By the graph's names."""
    state = net.state_dict()
    return {w.name: state[net.weight_key(w.name)].cpu().numpy() for w in net.graph.weights}


def inherit(
    prepared: Prepared, weights: Mapping[str, np.ndarray], seed: int, noise: float = NOISE
) -> dict[str, np.ndarray]:
    """The weights of the stretched network, as stretching makes them of the original's."""
    random = np.random.default_rng(seed)
    found = {}
    for name, origin in prepared.inherited.items():
        values = origin.value
        if origin.source:
            taken = weights[origin.source].reshape(-1)[np.maximum(origin.index, 0)]
            values = values + origin.factor * np.where(origin.index >= 0, taken, 0)
        if noise and origin.is_noisy:
            values = values + noise * values.std() * random.standard_normal(values.shape)
        found[name] = values.astype("float32")
    return found


def batches_of(data: Data, schedule: Schedule) -> Batches:
    """The training batches."""
    augment = turned if data.are_turned else None
    return Batches(data.images, data.labels, schedule.batch, augment=augment)


def trial(prepared: Prepared, data: Data, schedule: Schedule, seed: int) -> dict[str, float]:
    """Accuracies of one seed, in percent, and seconds."""
    began = time.perf_counter()
    batches = batches_of(data, schedule)
    tests = Batches(data.test_images, data.test_labels, 1000, shuffled=False)
    device = data.images.device

    how: dict[str, Any] = {"seed": seed, "device": device, "progress": _unheard}
    long = {**how, "epochs": schedule.epochs, "rate": schedule.rate}

    def right(net: nn.Module) -> float:
        return 100 * accuracy(net, tests)

    original, alike = fresh(prepared.original, seed), fresh(prepared.stretched, seed)
    fit(original, batches, Training(**long))
    fit(alike, batches, Training(**long))
    start = inherit(prepared, weights_of(original), seed)
    warm = TrainableNetwork(prepared.stretched, start, sources=prepared.sources).to(device)
    found = {"original": right(original), "alike": right(alike), "copied": right(warm)}
    recalibrate(warm, data.images[:2048], progress=_unheard)
    found["recalibrated"] = right(warm)
    imitate(warm, original, data.images[:2048], progress=_unheard)
    found["imitating"] = right(warm)
    images = Batches(data.images, data.labels, augment=batches.augment)
    refine(warm, original, images, steps=schedule.steps, seed=seed, progress=_unheard)
    found["refined"] = right(warm)
    fit(warm, batches, Training(epochs=2, rate=schedule.low_rate, **how))
    found["two epochs"] = right(warm)
    taught = TrainableNetwork(prepared.stretched, start)
    distill(taught, original, batches, Training(**long))
    found["distilled"] = right(taught)
    found["seconds"] = time.perf_counter() - began
    return found


def _unheard(_line: str) -> None:
    """A trial is one line."""
