"""Two branches that meet after some blocks of a network, at ends of stages or elsewhere.

    blocks        1  2  3  4 | 5  6  7  8 | 9 10 11 12        | end of a stage
    points        4, 8, 12            x -> 1 2 3 4 -> concat -> 5 6 7 8 -> concat -> ..
                                      `--> 1 2 3 4 ---^   `---> 5 6 7 8 ---^
    points        12                  x -> 1 .. 12 -> concat -> mean
                                      `--> 1 .. 12 ---^

A 1x1 convolution before the concatenation restores the number of channels (the paper's equation 1).
Branches of `ts.stretch` meet at the end of every stage at least, so designs cannot say less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import onnx

from benchmarks.accuracy_networks import Small
from benchmarks.accuracy_tasks import CLASSES
from tutorials.zoo.builder import Builder
from tvm_stretch.lab.stretching.block_layers import outside_layers
from tvm_stretch.lab.stretching.judge import Task
from tvm_stretch.lab.stretching.predict import Chain, Figures, Timeline
from tvm_stretch.network.operators import Operators
from tvm_stretch.read import load_trainable

BRANCHES = 2

Part: TypeAlias = tuple[int, int]
"""``(2 * s + 1, b)``: branch b of segment s; ``(2 * s, 0)``: what lies before segment s."""


@dataclass(frozen=True)
class Branched:
    """A network of two branches.

    Attributes:
        model: the network.
        ends: the last value of each part, in the order of the nodes.
    """

    model: onnx.ModelProto
    ends: Mapping[str, Part]

    def parts(self, operators: Operators) -> dict[Part, list[str]]:
        """The operators of each part."""
        part_of, ends = {}, iter(self.ends.items())
        end, part = next(ends)
        for node in self.model.graph.node:
            part_of[node.name] = part
            if node.output[0] == end:
                end, part = next(ends, ("", part))
        found: dict[Part, list[str]] = {}
        for operator in operators:
            found.setdefault(part_of[operator.name.partition(".")[0]], []).append(operator.name)
        return found


def branched(small: Small, points: Sequence[int], ratio: float, size: int) -> Branched:
    """A network for images of a size whose branches meet after these blocks.

    Args:
        small: the network without branches.
        points: numbers of blocks, the last one too.
        ratio: the width of each branch, relative to the network's.
        size: pixels along each side of images.
    """
    b = Builder(0)
    x, ends = small.begin(b, 3, size), {}
    blocks = list(small.blocks(size))
    for number, (first, last) in enumerate(pairwise((0, *points))):
        ends[x.name] = (2 * number, 0)
        results = []
        for branch in range(BRANCHES):
            y = x
            for width, stride in blocks[first:last]:
                y = small.block(b, y, round(ratio * width), stride)
            y = b.conv_bn(y, blocks[last - 1][0] // BRANCHES)
            ends[y.name] = (2 * number + 1, branch)
            results.append(y)
        x = b.concat(results)
    x = b.classifier(x, CLASSES)
    model = b.finish("branched", x)
    return Branched(model, {**ends, model.graph.output[0].name: (2 * len(points), 0)})


def predicted(network: Branched, task: Task, team: Sequence[str]) -> Figures:
    """The branches on two processors, all else on the one that runs the rest of the task."""
    operators = Operators(load_trainable(network.model)["main"])
    names = [processor.name for processor in task.pricing.costs.processors]
    timeline = Timeline(Chain.of(operators, ()), task.pricing, task.home)
    parts = network.parts(operators)
    for number in range(max(step for step, _ in parts) + 1):
        if number % 2 == 0:
            timeline.outside(parts[number, 0])
            continue
        found = []
        for branch, processor in enumerate(team):
            own = parts[number, branch]
            layers = outside_layers(operators, own, {})
            size = operators.bytes(own[-1])
            found.append((f"{number}.{branch}", names.index(processor), layers, size))
        timeline.branches(found)
    return timeline.figures()
