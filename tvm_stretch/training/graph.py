"""A network as plain data, which torch can run and which needs no TVM: operators and their weights.

    Node("conv_0", "nn.conv2d", ("x", "conv_0:weight"), {"strides": (2, 2), ..}, (1, 64, 32, 32))
    Weight("conv_0:weight", "conv_0", "weight", (64, 3, 3, 3), True)

Values have names: inputs, weights (``layer:role``), results of nodes. relax_graph.py makes such a
graph of Relax; network.py runs it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

BATCH_NORM = "nn.batch_norm"


@dataclass(frozen=True)
class Weight:
    """A constant of the network.

    Attributes:
        name: of the value.
        layer: the node that reads it.
        role: what it is there: ``weight``, ``bias``, ``running_mean``, ..
        shape: of the array.
        trained: whether training changes it.
    """

    name: str
    layer: str
    role: str
    shape: tuple[int, ...]
    trained: bool


@dataclass(frozen=True)
class Node:
    """One operator.

    Attributes:
        name: of its result.
        kind: of the operator, as Relax calls it.
        inputs: names of values.
        attrs: numbers, lists of numbers, words.
        shape: of the result, for the batch that the network was written for.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Graph:
    """A network without the numbers of its weights.

    Attributes:
        inputs: shapes by name, in order.
        weights: what it holds.
        nodes: in an order in which they can be computed.
        outputs: names of values.
        is_tuple: whether it returns its outputs as a tuple.
    """

    inputs: Mapping[str, tuple[int, ...]]
    weights: tuple[Weight, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    is_tuple: bool

    @cached_property
    def last_reader(self) -> dict[str, str]:
        """After which node a value is not needed any more."""
        last = {name: node.name for node in self.nodes for name in node.inputs}
        return {name: reader for name, reader in last.items() if name not in self.outputs}

    @cached_property
    def without_batch(self) -> str:
        """The first node that depends on the inputs and whose first axis is not the batch."""
        known = set(self.inputs)
        for node in self.nodes:
            if known.intersection(node.inputs):
                known.add(node.name)
                if node.shape is not None and node.shape[:1] != (self.batch,):
                    return node.name
        return ""

    def node(self, name: str) -> Node:
        """The operator of this name."""
        return next(node for node in self.nodes if node.name == name)

    @property
    def batch(self) -> int:
        """Of the inputs, as the network was written."""
        return next((shape[0] for shape in self.inputs.values() if shape), 1)

    @cached_property
    def fingerprint(self) -> str:
        """Differs where anything but the numbers of the weights differs."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
