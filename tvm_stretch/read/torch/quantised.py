"""Operators of torch that are written otherwise in Relax: quantised ones (PT2E) and recurrences.

    quantized_decomposed.quantize_per_tensor(x, 0.02, 3, 0, 255, uint8)   ->   R.quantize(x, ..)
    quantized_decomposed.dequantize_per_channel(w, scales, zeros, 0, ..)  ->   R.dequantize(w, ..)

From there they go the way of ONNX's: `passes/form_integers.py`. Numbers that a quantiser does not
use, as of weights from -127 on, are cut off before: R.quantize knows types only.

LSTM, GRU and RNN become ONNX's operators, one per layer:

    y, h, c = aten.lstm(x, (h0, c0), weights, ..)     # two layers
        ->  y1, h1, c1 = LSTM(x, W1, R1, B1, h0[:1], c0[:1])
            y2, h2, c2 = LSTM(y1, W2, R2, B2, h0[1:], c0[1:])

Torch's decomposition and TVM's importer would unroll the steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax

from tvm_stretch.base.errors import ModelError, UnsupportedError
from tvm_stretch.network.expressions import constant, shape_of
from tvm_stretch.read.onnx.node import CONVERTERS, Node
from tvm_stretch.read.onnx.operators import recurrent  # noqa: F401  registers the converter
from tvm_stretch.read.torch.importer import Call, Converter

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

_NAMESPACES = ("quantized", "quantized_decomposed", "torchao")
_KNOWN = (
    *(f"quantize_per_tensor.{overload}" for overload in ("default", "tensor", "tensor2")),
    *(f"dequantize_per_tensor.{overload}" for overload in ("default", "tensor", "tensor2")),
    "quantize_per_channel.default",
    "dequantize_per_channel.default",
)
_CONVERTS = "convert_element_type.no_fuse"
_SCHEMES = {
    "4bit": "4 bits",
    "int4": "4 bits",
    "2bit": "2 bits",
    "group": "block-wise",
    "blockwise": "block-wise",
    "per_token": "a scale for each row, computed while it runs",
    "choose_qparams": "scales that are computed while it runs",
    "float8": "float8",
}
_TYPES = ("int8", "uint8", "int16", "uint16", "int32")


def register_quantised() -> None:
    """Let torch know the operators, which it otherwise learns from who quantises."""
    import torch.ao.quantization.fx._decomposed  # noqa: F401


def quantised_converters(program: ExportedProgram) -> dict[str, Converter]:
    """Converters of the quantising operators of ``program``, as TVM's importer wants them.

    Raises:
        UnsupportedError: its scheme is not one of 8 bits with constant scales.
    """
    values = constants_of(program)
    for node in program.graph.nodes:
        is_ours = getattr(node.target, "namespace", "") in _NAMESPACES
        if is_ours and node.target.__name__ != _CONVERTS:
            _check(node, values)

    def written(call: Call) -> relax.Expr:
        write = _dequantise if call.node.target.__name__.startswith("dequantize") else _quantise
        return write(_Quantising(call.node, values), call)

    return {_CONVERTS: _convert, **dict.fromkeys(_KNOWN, written)}


def constants_of(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Weights and other constants by the name of their node."""
    signature = program.graph_signature
    given = {**program.constants, **program.state_dict}
    names = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    return {node: given[name] for node, name in names.items() if name in given}


class _Quantising:
    """A node that quantises or dequantises: its arguments, by name."""

    def __init__(self, node: Any, values: dict[str, torch.Tensor]) -> None:
        self.node = node
        self.values = values
        names = [argument.name for argument in node.target._schema.arguments]
        self.arguments = {**dict(zip(names, node.args, strict=False)), **node.kwargs}

    def refuse(self, expected: str, got: str) -> UnsupportedError:
        """An error that names the operator."""
        return UnsupportedError(
            f"expected {expected} for {self.node.target} {self.node.name!r}, got {got}; "
            "quantise weights and activations to 8 bits, with constant scales per tensor or "
            "per channel"
        )

    def constant(self, *names: str) -> np.ndarray:
        """An argument that is a number or a constant tensor, under one of these names."""
        name = next(name for name in names if name in self.arguments)
        value = self.arguments[name]
        if not hasattr(value, "op"):
            return np.asarray(value)
        if value.name not in self.values:
            raise self.refuse(f"a constant {name}", "one that is computed while it runs")
        return self.values[value.name].detach().cpu().numpy()

    @property
    def dtype(self) -> str:
        """The type of the integers."""
        return str(self.arguments["dtype"]).removeprefix("torch.")

    @property
    def axis(self) -> int:
        """Along which there are many scales."""
        return int(self.arguments.get("axis", 0))

    def limits(self) -> tuple[int, int]:
        """The least and the greatest number that is used."""
        low, high = self.constant("quant_min"), self.constant("quant_max")
        return int(low), int(high)

    def scales(self) -> tuple[np.ndarray, np.ndarray]:
        """Scales as float32 and zero points in the type of the integers; single ones as scalars."""
        scale = self.constant("scale", "scales").astype("float32")
        given = next(name for name in ("zero_point", "zero_points") if name in self.arguments)
        zero = np.zeros_like(scale) if self.arguments[given] is None else self.constant(given)
        if not (np.isfinite(scale) & (scale > 0)).all():
            bad = scale[~(np.isfinite(scale) & (scale > 0))].flat[0]
            raise ModelError(
                f"expected scales above zero for {self.node.target} {self.node.name!r}, got "
                f"{bad:g}; quantise the model again"
            )
        limits = np.iinfo(self.dtype)
        if (zero != np.rint(zero)).any() or zero.min() < limits.min or zero.max() > limits.max:
            raise self.refuse(f"zero points of {self.dtype}", f"{zero.min()} to {zero.max()}")
        if "axis" not in self.arguments:
            scale, zero = scale.reshape(()), zero.reshape(())
        return scale, zero.astype(self.dtype)


def _check(node: Any, values: dict[str, torch.Tensor]) -> None:
    """Refuse what has another scheme."""
    given = _Quantising(node, values)
    name = f"{node.target.namespace}.{node.target.__name__}"
    if name not in [f"quantized_decomposed.{operator}" for operator in _KNOWN]:
        scheme = next((text for word, text in _SCHEMES.items() if word in name), "another scheme")
        raise given.refuse("8 bits with a constant scale per tensor or per channel", scheme)
    if given.dtype not in _TYPES:
        raise given.refuse(f"one of {', '.join(_TYPES)}", given.dtype)
    given.scales()


def _convert(call: Call) -> relax.Expr:
    return call.emit(relax.op.astype(call.x, call.dtype))


def _quantise(given: _Quantising, call: Call) -> relax.Expr:
    source, (scale, zero) = given.node.args[0], given.scales()
    if source.name in given.values:  # weights that were not folded
        return constant(_numbers(given))
    emit, x, limits, used = call.emit, call.x, np.iinfo(given.dtype), given.limits()
    if str(x.ty.dtype) != "float32":
        x = emit(relax.op.astype(x, "float32"))
    if used != (limits.min, limits.max):
        x = emit(_between(x, [(n - zero.astype("float32")) * scale for n in used], given.axis))
    return emit(relax.op.quantize(x, constant(scale), constant(zero), given.axis, given.dtype))


def _numbers(given: _Quantising) -> np.ndarray:
    """What torch makes of constants."""
    args = [given.values.get(getattr(arg, "name", ""), arg) for arg in given.node.args]
    return given.node.target(*args, **given.node.kwargs).detach().cpu().numpy()


def _between(x: relax.Expr, limits: list[np.ndarray], axis: int) -> relax.Expr:
    if not limits[0].ndim:
        low, high = (relax.prim_value(float(limit)) for limit in limits)
        return relax.op.clip(x, low, high)
    full = [-1 if i == axis % len(shape_of(x)) else 1 for i in range(len(shape_of(x)))]
    low, high = (constant(limit.reshape(full)) for limit in limits)
    return relax.op.minimum(relax.op.maximum(x, low), high)


def _dequantise(given: _Quantising, call: Call) -> relax.Expr:
    scale, zero = map(constant, given.scales())
    return call.typed(call.emit(relax.op.dequantize(call.x, scale, zero, given.axis)))


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
        def convert(call: Call) -> relax.Expr:
            x, states, _, _, count, _, _, both, batch_first = call.args
            arrays = [weight(argument) for argument in call.node.args[2]]
            each = len(arrays) // count
            stack = _Stack(op, attributes, 2 if both else 1, call.importer.block_builder)
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
        results: list[list[relax.Expr]] = [[] for _ in states]
        for number, weights in enumerate(layers):
            first, end = number * self.directions, (number + 1) * self.directions
            own = [self.emit(relax.op.strided_slice(s, [0], [first], [end])) for s in states]
            y, *last = self.layer(x, own, weights)
            steps, _, batch, hidden = (int(d) for d in y.ty.shape.values)
            y = self.emit(relax.op.permute_dims(y, [0, 2, 1, 3]))
            shape = relax.ShapeExpr([steps, batch, self.directions * hidden])
            x = self.emit(relax.op.reshape(y, shape))
            for state, value in zip(results, last, strict=True):
                state.append(value)
        if batch_first:
            x = self.emit(relax.op.permute_dims(x, [1, 0, 2]))
        joined = [s[0] if len(s) == 1 else self.emit(relax.op.concat(s, 0)) for s in results]
        return self.emit(relax.Tuple([x, *joined]))

    def layer(
        self, x: relax.Expr, states: Sequence[relax.Expr], weights: Sequence[np.ndarray]
    ) -> list[relax.Expr]:
        """The results of one layer, as of ONNX's operator."""
        per = len(weights) // self.directions
        if per % 2:
            return self.projected(x, states, weights)
        w, r, *biases = (np.stack([*map(self.ordered, weights[i::per])]) for i in range(per))
        bias = np.concatenate(biases, 1) if biases else None
        attributes = {**self.attributes, "hidden_size": r.shape[-1]}
        inputs = [x, w, r, bias, None, *states]
        node = Node(self.op, "", 17, inputs, attributes, [], self.bb)
        return [self.emit(result) for result in CONVERTERS[self.op](node)]

    def projected(
        self, x: relax.Expr, states: Sequence[relax.Expr], weights: Sequence[np.ndarray]
    ) -> list[relax.Expr]:
        """A layer whose steps get ``p @ h`` for h: its matrix is ``r @ p``.

        The first h is the shortest one that `p` makes the given one of.
        """
        per = len(weights) // self.directions
        directions = [weights[i * per : (i + 1) * per] for i in range(self.directions)]
        for *_, p in directions:
            if np.linalg.cond(p) > 1e3:
                raise UnsupportedError(
                    "expected a projection of full rank for torch's lstm, got rows of weight_hr "
                    "that others nearly make up; use a smaller proj_size"
                )
        whole = [v for w, r, *biases, p in directions for v in (w, r @ p, *biases)]
        down = relax.const(np.stack([p.T for *_, p in directions]))
        up = relax.const(np.stack([np.linalg.pinv(p).T for *_, p in directions]))
        first = self.emit(relax.op.matmul(states[0], up))
        y, h, c = self.layer(x, [first, *states[1:]], whole)
        return [*(self.emit(relax.op.matmul(value, down)) for value in (y, h)), c]

    def ordered(self, weight: np.ndarray) -> np.ndarray:
        """The rows of a weight with the gates in ONNX's order."""
        gates = np.split(weight, len(_ORDER[self.op]))
        return np.concatenate([gates[gate] for gate in _ORDER[self.op]])
