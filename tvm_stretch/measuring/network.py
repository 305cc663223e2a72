"""The latency of a whole compiled network on one processor: the sum of its kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tvm_stretch.cost.context import in_place
from tvm_stretch.cost.features import Features
from tvm_stretch.cost.prediction import CostModel, Prediction, Source
from tvm_stretch.errors import InputError
from tvm_stretch.lowering.graph import COPY_KERNEL, Graph


@dataclass(frozen=True)
class NetworkPrediction:
    """A network's latency and what it is made of.

    Attributes:
        nanoseconds: of one run, processors one after the other.
        low: with 90 % of confidence it takes at least this, if kernels err independently.
        high: see ``low``.
        source: ``measured`` if every kernel's prediction is.
        kernels: by name of the node.
        unknown: share of the latency that the model predicts out of its range.
    """

    nanoseconds: int
    low: int
    high: int
    source: Source
    kernels: Mapping[str, Prediction]
    unknown: float


def predict_network(
    graph: Graph, features: Mapping[str, Features], models: Mapping[str, CostModel]
) -> NetworkPrediction:
    """Predict a run of a compiled network.

    Args:
        graph: of the model.
        features: of each kernel, by its name; see `recording`.
        models: of each processor that the graph names.

    Raises:
        InputError: a kernel without features, or a processor without a model.
    """
    found: dict[str, Prediction] = {}
    places = dict(zip((n.name for n in graph.nodes), in_place(graph, features), strict=True))
    for region in graph.regions:
        processor = graph.processors[region.processor].name
        nodes = [graph.nodes[i] for i in region.nodes if graph.nodes[i].kernel != COPY_KERNEL]
        missing = sorted({node.kernel for node in nodes} - set(features))
        if missing:
            raise InputError(
                f"expected features of every kernel of the graph, got none of {missing}; "
                "pass the table of the same compilation"
            )
        if nodes and processor not in models:
            raise InputError(
                f"expected a cost model of processor {processor!r}, got those of "
                f"{sorted(models)}; measure it, or pass an AnalyticModel"
            )
        if nodes:
            placed = [places[node.name] for node in nodes]
            answers = models[processor].predict_all([kernel for kernel in placed if kernel])
            found.update(zip((node.name for node in nodes), answers, strict=True))
    return add_up(found)


def add_up(kernels: Mapping[str, Prediction]) -> NetworkPrediction:
    """The sum; errors of single kernels partly cancel, a tenth of them is taken as common."""
    total = sum(p.nanoseconds for p in kernels.values())
    below = _combine([p.nanoseconds - p.low for p in kernels.values()])
    above = _combine([p.high - p.nanoseconds for p in kernels.values()])
    measured = all(p.source == "measured" for p in kernels.values())
    strange = sum(p.nanoseconds for p in kernels.values() if p.out_of_range)
    return NetworkPrediction(
        nanoseconds=total,
        low=round(total - below),
        high=round(total + above),
        source="measured" if measured else "analytic",
        kernels=dict(kernels),
        unknown=strange / total if total else 0.0,
    )


def _combine(errors: list[int]) -> float:
    everything = float(sum(errors))
    return min(everything, math.hypot(math.hypot(*errors), everything / 10))
