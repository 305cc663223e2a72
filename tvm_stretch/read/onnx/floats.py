"""Operators of an ONNX network whose quantised operands no integer operator takes, and why.

Weights of 8 bits are such where the values that they meet are not quantised.

w = DequantizeLinear(int4)     v = Transpose(w)     y = MatMul(x, v)  "fc"
    ->
{"weights of int4": ["fc"]}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tvm_stretch.network.properties.quantised_values import EIGHT_BITS
from tvm_stretch.read.onnx.block_weights import blocks_of_product
from tvm_stretch.read.onnx.node import Node, Value
from tvm_stretch.read.onnx.operators.quantised import is_plain

_PLAIN = (*EIGHT_BITS, "int32")  # of biases


@dataclass
class Floats:
    """Follows dequantised tensors to the operators that read them."""

    by_reason: dict[str, list[str]] = field(default_factory=dict)  # names of operators
    _reasons: dict[int, tuple[Value, str]] = field(default_factory=dict)
    """By the identity of a value, which is kept: another one could be at the same place."""
    _quantised: dict[int, Value] = field(default_factory=dict)
    """Values that integer operators take, in the same way."""

    def see(self, node: Node, results: Sequence[Value | None]) -> None:
        """What a node was translated to."""
        reason = _why(node) or self._of_operands(node)
        known = {id(value): value for value in results if value is not None}
        if node.op == "QuantizeLinear":
            return
        if node.op == "DequantizeLinear" or self._are_weights(node):
            if reason:
                self._reasons |= {key: (value, reason) for key, value in known.items()}
            elif not node.is_const(0):
                self._quantised |= known
        elif node.op in _MOVES and self._reads_quantised(node):
            self._quantised |= known
        elif (
            blocks_of_product(node) is None
            and reason
            and not (reason.endswith(_ALONE) and self._reads_quantised(node))
        ):
            names = self.by_reason.setdefault(reason, [])
            if (name := node.name or node.op) not in names:
                names.append(name)

    def _of_operands(self, node: Node) -> str:
        found = (self._reasons.get(id(value)) for value in node.inputs if value is not None)
        return next((known[1] for known in found if known), "")

    def _reads_quantised(self, node: Node) -> bool:
        return any(id(value) in self._quantised for value in node.inputs if value is not None)

    def _are_weights(self, node: Node) -> bool:
        """Whether it only computes with constants: weights that are moved before they are used."""
        return all(
            value is None or isinstance(value, np.ndarray) or self._is_weight(value)
            for value in node.inputs
        )

    def _is_weight(self, value: Value) -> bool:
        known = self._reasons.get(id(value))
        return known is not None and known[1].startswith(_WEIGHTS)


_WEIGHTS = "weights"
_ALONE = "beside values in float"
_MOVES = ("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""Operators that turn quantised values into quantised values."""


def _why(node: Node) -> str:
    """Why what a DequantizeLinear reads is no operand of integer operators; empty if it may be."""
    if node.op != "DequantizeLinear":
        return ""
    kind, what = node.dtype(0), _WEIGHTS if node.is_const(0) else "values"
    if node.attr("block_size", 0):
        return f"{what} of {kind} in blocks of {node.attr('block_size', 0)}"
    if kind not in _PLAIN:
        return f"{what} of {kind}"
    if not is_plain(node, kind, "float32"):
        return f"{what} with scales of {node.dtype(1)}, or computed ones"
    return f"{what} of {kind} {_ALONE}" if kind in EIGHT_BITS and node.is_const(0) else ""
