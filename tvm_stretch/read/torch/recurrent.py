"""Translates torch's LSTM, GRU and RNN to ONNX's operators, one per layer.

    y, h, c = aten.lstm(x, (h0, c0), weights, ..)     # two layers
        ->  y1, h1, c1 = LSTM(x, W1, R1, B1, h0[:1], c0[:1])
            y2, h2, c2 = LSTM(y1, W2, R2, B2, h0[1:], c0[1:])

Torch's decomposition and TVM's importer would unroll the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.read.onnx.node import CONVERTERS, Node
from tvm_stretch.read.onnx.operators import recurrent  # noqa: F401  registers the converter
from tvm_stretch.read.torch.quantised import constants_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram

Converter = Callable[[Any, Any], relax.Expr]

# The positions of ONNX's gates in torch's order, which is i, f, g, o for LSTM and r, z, n for GRU.
_ORDER = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm.input": ("LSTM", {}),
    "gru.input": ("GRU", {"linear_before_reset": 1}),
    "rnn_tanh.input": ("RNN", {"activations": [b"Tanh"]}),
    "rnn_relu.input": ("RNN", {"activations": [b"Relu"]}),
}
RECURRENT = tuple(_KINDS)
"""The torch operators that this file translates."""


def recurrent_converters(program: ExportedProgram) -> dict[str, Converter]:
    """Converters for TVM's importer by torch's operator names."""
    constants = constants_of(program)

    def weight(argument: Any) -> np.ndarray:
        """The value of a parameter node."""
        value = constants.get(argument.name)
        if value is None:
            raise UnsupportedError(
                f"expected a parameter for the weight {argument.name!r} of a recurrent layer, got "
                "a computed one; make it a parameter"
            )
        value = value.detach()
        return (value if value.element_size() > 2 else value.float()).numpy()

    def converter(op: str, attributes: dict[str, Any]) -> Converter:
        def convert(node: Any, importer: Any) -> relax.Expr:
            arguments = importer.retrieve_args(node)
            x, states, _, has_bias, count, _, _, both, batch_first = arguments
            arrays = [weight(argument) for argument in node.args[2]]
            directions = 2 if both else 1
            each = (4 if has_bias else 2) * directions
            if len(arrays) != each * count:
                raise UnsupportedError(
                    f"expected an {op} without projection for {node.name!r}, got proj_size; "
                    "export the network without it"
                )
            stack = _Stack(op, attributes, directions, importer.block_builder)
            layers = [arrays[i * each : (i + 1) * each] for i in range(count)]
            states = list(states) if op == "LSTM" else [states]
            return stack.results(x, states, layers, batch_first=batch_first)

        return convert

    return {name: converter(op, attributes) for name, (op, attributes) in _KINDS.items()}


class _Stack:
    """Emits a stack of layers of one operator."""

    def __init__(
        self, op: str, attributes: dict[str, Any], directions: int, bb: relax.BlockBuilder
    ) -> None:
        self.op, self.directions, self.bb = op, directions, bb
        self.attributes = dict(attributes)
        if directions == 2:
            self.attributes["direction"] = b"bidirectional"
        if "activations" in attributes:
            self.attributes["activations"] = directions * attributes["activations"]

    def emit(self, expr: relax.Expr) -> relax.Var:
        """Bind ``expr`` to a variable."""
        return self.bb.emit(expr)

    def results(
        self,
        x: relax.Expr,
        states: Sequence[relax.Expr],
        layers: Sequence[Sequence[np.ndarray]],
        *,
        batch_first: bool,
    ) -> relax.Var:
        """A tuple: the last layer's output at every step, then the last states of all layers."""
        if batch_first:
            x = self.emit(relax.op.permute_dims(x, [1, 0, 2]))
        found: list[list[relax.Expr]] = [[] for _ in states]
        for number, weights in enumerate(layers):
            first, end = number * self.directions, (number + 1) * self.directions
            own = [self.emit(relax.op.strided_slice(s, [0], [first], [end])) for s in states]
            y, *last = self.layer(x, own, weights)
            steps, _, batch, hidden = (int(d) for d in y.ty.shape.values)
            y = self.emit(relax.op.permute_dims(y, [0, 2, 1, 3]))
            shape = relax.ShapeExpr([steps, batch, self.directions * hidden])
            x = self.emit(relax.op.reshape(y, shape))
            for state, value in zip(found, last, strict=True):
                state.append(value)
        if batch_first:
            x = self.emit(relax.op.permute_dims(x, [1, 0, 2]))
        joined = [s[0] if len(s) == 1 else self.emit(relax.op.concat(s, 0)) for s in found]
        return self.emit(relax.Tuple([x, *joined]))

    def layer(
        self, x: relax.Expr, states: Sequence[relax.Expr], weights: Sequence[np.ndarray]
    ) -> list[relax.Expr]:
        """The results of one layer, as of ONNX's operator."""
        per = len(weights) // self.directions
        w, r, *biases = (np.stack([*map(self.ordered, weights[i::per])]) for i in range(per))
        bias = np.concatenate(biases, 1) if biases else None
        attributes = {**self.attributes, "hidden_size": r.shape[-1]}
        inputs = [x, w, r, bias, None, *states]
        node = Node(self.op, "", 17, inputs, attributes, [], self.bb)
        return [self.emit(result) for result in CONVERTERS[self.op](node)]

    def ordered(self, weight: np.ndarray) -> np.ndarray:
        """The rows of a weight with the gates in ONNX's order."""
        gates = np.split(weight, len(_ORDER[self.op]))
        return np.concatenate([gates[gate] for gate in _ORDER[self.op]])
