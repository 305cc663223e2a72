"""A graph as a torch module with ordinary parameters and torch's batch normalisations.

net = TrainableNetwork(graph, weights)
net.conv_1_b0.weight        # the layer that Relax calls conv_1.b0
net.train(); loss(net(images), labels).backward(); net.eval()
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tvm_stretch.base.errors import InputError, UnsupportedError
from tvm_stretch.lab.training.torch_functions import compute
from tvm_stretch.lab.training.torch_graph import BATCH_NORM, Graph, Node, Weight
from tvm_stretch.plan.design import Source

_NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


class Layer(nn.Module):
    """The weights of an operator, which `TrainableNetwork.forward` computes."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def extra_repr(self) -> str:
        """The operator and the shapes of its weights."""
        held = [*self.named_parameters(), *self.named_buffers()]
        return ", ".join([self.kind, *(f"{name}={tuple(value.shape)}" for name, value in held)])


class TrainableNetwork(nn.Module):
    """The torch module that `to_torch` makes; its results are those of the network.

    It takes batches of any size if the first axis of every value is the batch.

    Attributes:
        graph: its operators.
        design: which design of a stretching it has, as JSON; None for other networks.
        sources: which channels of the given network its tensors stand for, if it was stretched.

    Examples:
        >>> net = ts.training.to_torch("resnet18.onnx")
        >>> isinstance(net, ts.training.TrainableNetwork)
        True
    """

    def __init__(
        self,
        graph: Graph,
        weights: Mapping[str, np.ndarray | Tensor],
        design: Mapping[str, object] | None = None,
        sources: Mapping[str, Source] | None = None,
    ) -> None:
        super().__init__()
        self.graph = graph
        self.design = design
        self.sources = dict(sources or {})
        nodes = {node.name: node for node in graph.nodes}
        self._layer_of: dict[str, str] = {}
        self._places: dict[str, tuple[str, str]] = {}
        for weight in graph.weights:
            if weight.layer not in self._layer_of:
                self._add_layer(nodes[weight.layer])
            self._places[weight.name] = (self._layer_of[weight.layer], weight.role)
            value = torch.as_tensor(weights[weight.name])
            self._put(weight, value.detach().cpu().clone())

    def _add_layer(self, node: Node) -> None:
        name = node.name.replace(".", "_") or "layer"
        while hasattr(self, name):
            name += "_"
        self._layer_of[node.name] = name
        if node.kind == BATCH_NORM:
            norm = _NORMS[node.attrs["rank"]]
            self.add_module(name, norm(node.shape[1], eps=node.attrs["epsilon"]))
        else:
            self.add_module(name, Layer(node.kind))

    def _put(self, weight: Weight, value: Tensor) -> None:
        layer = self.get_submodule(self._layer_of[weight.layer])
        if not isinstance(layer, Layer):
            getattr(layer, weight.role).data.copy_(value)
        elif weight.trained:
            layer.register_parameter(weight.role, nn.Parameter(value))
        else:
            layer.register_buffer(weight.role, value)

    @property
    def fingerprint(self) -> str:
        """A hash of all but the values of the weights."""
        return self.graph.fingerprint

    def weight_key(self, name: str) -> str:
        """The key of a graph's weight in `state_dict`."""
        return ".".join(self._places[name])

    @property
    def weight_names(self) -> tuple[str, ...]:
        """The graph's names of its weights."""
        return tuple(self._places)

    def forward(self, *inputs: Tensor) -> Any:
        """Compute the network; inputs have the graph's order."""
        values, times = self.bound(inputs)
        for node in self.graph.nodes:
            values[node.name] = self.compute(node, values, times)
            for name in node.inputs:
                if self.graph.last_reader.get(name) == node.name:
                    values.pop(name, None)
        outputs = tuple(values[name] for name in self.graph.outputs)
        return outputs if self.graph.is_tuple else outputs[0]

    def compute(self, node: Node, values: Mapping[str, Any], times: int) -> Any:
        """The result of an operator.

        Args:
            node: an operator of the graph.
            values: the values that it reads, without weights.
            times: the batch as a multiple of the batch that the graph was written for.
        """
        read = [values[n] if n in values else self._weight(n) for n in node.inputs]
        if node.kind == BATCH_NORM:
            return self.norm_of(node.name)(read[0])
        return compute(node, times, *read)

    def norm_of(self, name: str) -> _BatchNorm:
        """The batch normalisation of this name."""
        norm = self.get_submodule(self._layer_of[name])
        assert isinstance(norm, _BatchNorm)
        return norm

    def weight_of(self, name: str, role: str = "weight") -> Tensor:
        """A weight of an operator, to be read or written."""
        held = getattr(self.get_submodule(self._layer_of[name]), role)
        assert isinstance(held, Tensor)
        return held.data

    def holds(self, name: str, role: str = "weight") -> bool:
        """Whether an operator has a weight of this role."""
        return f"{name}:{role}" in self._places

    def bound(self, inputs: tuple[Tensor, ...]) -> tuple[dict[str, Any], int]:
        """The inputs by name, and their batch as a multiple of the graph's.

        Raises:
            InputError: their number or shapes are not those of the network.
        """
        wanted = self.graph.inputs
        if len(inputs) != len(wanted):
            raise InputError(
                f"expected {len(wanted)} inputs ({', '.join(wanted)}), got {len(inputs)}; give one "
                "tensor for each"
            )
        for (name, shape), value in zip(wanted.items(), inputs, strict=True):
            fits = tuple(value.shape[1:]) == shape[1:] and value.shape[0] % shape[0] == 0
            if not fits:
                raise InputError(
                    f"expected batches of shape {shape[1:]} for {name!r}, got a tensor of shape "
                    f"{tuple(value.shape)}; resize it, or stretch with other shapes"
                )
        batch = inputs[0].shape[0] // self.graph.batch
        if batch != 1 and (node := self.graph.without_batch):
            raise UnsupportedError(
                f"expected batches of {self.graph.batch}, as the network was written for, got "
                f"{inputs[0].shape[0]}: the first axis of {node!r} is another one; export the "
                "network with batches of the size to train with"
            )
        return dict(zip(wanted, inputs, strict=True)), batch

    def _weight(self, name: str) -> Tensor | None:
        layer, role = self._places[name]
        return getattr(getattr(self, layer), role)
