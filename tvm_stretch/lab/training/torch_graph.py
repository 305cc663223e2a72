"""A network as plain data, without TVM: operators and weights, which network.py runs in torch.

    Node("conv_0", "nn.conv2d", ("x", "conv_0:weight"), {"strides": (2, 2), ..}, (1, 64, 32, 32))
    Weight("conv_0:weight", "conv_0", "weight", (64, 3, 3, 3), True)

Each value has a name: inputs, weights (``layer:role``) and results of nodes. exchange.py
converts Relax to such a graph.
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
    """A constant of the network."""

    name: str  # the name of the value
    layer: str  # the node that reads it
    role: str  # its role in that node: ``weight``, ``bias``, ``running_mean``, ..
    shape: tuple[int, ...]  # the shape of the array
    trained: bool  # whether training changes it


@dataclass(frozen=True)
class Node:
    """One operator."""

    name: str  # the name of its result
    kind: str  # Relax's name of the operator
    inputs: tuple[str, ...]  # names of the values that it reads
    attrs: Mapping[str, Any]  # attributes: numbers, lists of numbers, strings
    # the shape of the result, for the batch that the network was written for
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Graph:
    """A network without the values of its weights."""

    inputs: Mapping[str, tuple[int, ...]]  # shapes of the inputs by name, in order
    weights: tuple[Weight, ...]  # its weights
    nodes: tuple[Node, ...]  # operators, topologically ordered
    outputs: tuple[str, ...]  # names of the values that it returns
    is_tuple: bool  # whether it returns its outputs as a tuple

    @cached_property
    def last_reader(self) -> dict[str, str]:
        """The node after which a value can be freed, by value."""
        last = {name: node.name for node in self.nodes for name in node.inputs}
        return {name: reader for name, reader in last.items() if name not in self.outputs}

    @cached_property
    def without_batch(self) -> str:
        """The first node that depends on the inputs and whose first axis is not the batch."""
        dependent = set(self.inputs)
        for node in self.nodes:
            if dependent.intersection(node.inputs):
                dependent.add(node.name)
                if node.shape is not None and node.shape[:1] != (self.batch,):
                    return node.name
        return ""

    def node(self, name: str) -> Node:
        """The operator of this name."""
        return next(node for node in self.nodes if node.name == name)

    @property
    def batch(self) -> int:
        """The batch size that the network was written for."""
        return next((shape[0] for shape in self.inputs.values() if shape), 1)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all but the values of the weights."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
