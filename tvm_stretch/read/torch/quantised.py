"""Quantised networks of torch (PT2E): what quantises and dequantises, as Relax's own operators.

    quantized_decomposed.quantize_per_tensor(x, 0.02, 3, 0, 255, uint8)   ->   R.quantize(x, ..)
    quantized_decomposed.dequantize_per_channel(w, scales, zeros, 0, ..)  ->   R.dequantize(w, ..)

From there they go the way of ONNX's: `passes/form_integers.py`.  Numbers that a quantiser does not
use, as of weights from -127 on, are cut off before: R.quantize knows types only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax

from tvm_stretch.base.errors import ModelError, UnsupportedError
from tvm_stretch.network.expressions import constant, shape_of

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


def quantised_converters(program: ExportedProgram) -> dict[str, Callable[[Any, Any], relax.Expr]]:
    """Converters of the quantising operators of ``program``, as TVM's importer wants them.

    Raises:
        UnsupportedError: its scheme is not one of 8 bits with constant scales.
    """
    values = constants_of(program)
    for node in program.graph.nodes:
        known = getattr(node.target, "namespace", "") in _NAMESPACES
        if known and node.target.__name__ != _CONVERTS:
            _check(node, values)

    def written(node: Any, importer: Any) -> relax.Expr:
        write = _dequantise if node.target.__name__.startswith("dequantize") else _quantise
        return write(_Quantising(node, values), importer)

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
    if name not in [f"quantized_decomposed.{known}" for known in _KNOWN]:
        scheme = next((text for word, text in _SCHEMES.items() if word in name), "another scheme")
        raise given.refuse("8 bits with a constant scale per tensor or per channel", scheme)
    if given.dtype not in _TYPES:
        raise given.refuse(f"one of {', '.join(_TYPES)}", given.dtype)
    given.scales()


def _convert(node: Any, importer: Any) -> relax.Expr:
    dtype = str(node.meta["val"].dtype).removeprefix("torch.")
    return importer.block_builder.emit(relax.op.astype(importer.env[node.args[0]], dtype))


def _quantise(given: _Quantising, importer: Any) -> relax.Expr:
    source, (scale, zero) = given.node.args[0], given.scales()
    if source.name in given.values:  # weights that were not folded
        return constant(_numbers(given))
    emit = importer.block_builder.emit
    x, limits, used = importer.env[source], np.iinfo(given.dtype), given.limits()
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


def _dequantise(given: _Quantising, importer: Any) -> relax.Expr:
    emit = importer.block_builder.emit
    x, (scale, zero) = importer.env[given.node.args[0]], given.scales()
    result = emit(relax.op.dequantize(x, constant(scale), constant(zero), given.axis))
    wanted = str(given.node.meta["val"].dtype).removeprefix("torch.")
    return result if wanted == "float32" else emit(relax.op.astype(result, wanted))
