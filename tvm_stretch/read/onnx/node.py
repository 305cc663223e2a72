"""What a converter of an ONNX operator sees, and the table of converters.

@converter("LeakyRelu")
def _leaky_relu(node: Node) -> relax.Expr:
    return relax.op.nn.leakyrelu(node[0], node.attr("alpha", 0.01))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import onnx
import onnx.numpy_helper
import tvm
from tvm import relax

from tvm_stretch.base.errors import ModelError, UnsupportedError
from tvm_stretch.network.expressions import constant
from tvm_stretch.network.provenance import from_source
from tvm_stretch.passes.store_small_types import STORED
from tvm_stretch.read.network_limits import MOST_TABLE_ELEMENTS, too_large

Value: TypeAlias = "np.ndarray | relax.Expr"
Converter = Callable[["Node"], "Value | tuple[Value, ...]"]
"""The results of a node; none at all leave it to the function that ONNX defines for it."""
CONVERTERS: dict[str, Converter] = {}

DTYPES = {
    "float32", "float64", "float16", "bfloat16", "bool",
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
}  # fmt: skip
"""Element types a tensor may have in the canonical network."""


def converter(*op_types: str) -> Callable[[Converter], Converter]:
    """Register the decorated function as the converter of ``op_types``."""

    def register(function: Converter) -> Converter:
        for op_type in op_types:
            CONVERTERS[op_type] = function
        return function

    return register


@dataclass
class Node:
    """One ONNX node while it is translated."""

    op: str
    name: str
    opset: int
    # Arrays for constants, expressions for computed tensors, None for omitted inputs
    inputs: list[Value | None]
    attrs: dict[str, Any]  # Attributes as `onnx.helper.get_attribute_value` gives them
    outputs: list[str]  # Names of the outputs, empty where one is not wanted
    bb: relax.BlockBuilder
    # By result: the axis whose size the data decide, and that size: a vector of one int64, or a
    # `Size` of `true_sizes.py`
    sizes: dict[int, tuple[int, Any]] = field(default_factory=dict)
    is_settled: bool = False  # whether `sizes` says which results have true sizes
    # Integers that must be zero in each run, and what they count
    zeros: list[tuple[relax.Expr, str]] = field(default_factory=list)

    def __getitem__(self, index: int) -> relax.Expr:
        """Input ``index`` as an expression."""
        return as_expr(self.given(index))

    def given(self, index: int) -> Value:
        """Input ``index``, which the operator needs."""
        if not self.has(index):
            raise self.refuse(f"input {index}", "nothing")
        return self.inputs[index]

    def has(self, index: int) -> bool:
        """Whether the optional input ``index`` is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def is_const(self, index: int) -> bool:
        """Whether input ``index`` is given and constant."""
        return self.has(index) and isinstance(self.inputs[index], np.ndarray)

    def const(self, index: int, what: str) -> np.ndarray:
        """The constant input ``index``; ``what`` names it in the refusal."""
        if not self.has(index):
            raise self.refuse(f"input {index} ({what})", "nothing")
        value = self.inputs[index]
        if not isinstance(value, np.ndarray):
            raise self.refuse(f"a constant input {index} ({what})", "a computed one")
        return value

    def optional_const(self, index: int, what: str) -> np.ndarray | None:
        """Like `const`, but None if the input is left out."""
        return self.const(index, what) if self.has(index) else None

    def ints(self, index: int, what: str) -> list[int]:
        """The constant input ``index`` as integers, or the attribute ``what`` of older opsets."""
        given = self.optional_ints(index, what)
        if given is None:
            raise self.refuse(f"input {index} ({what})", "nothing")
        return given

    def optional_ints(self, index: int, what: str) -> list[int] | None:
        """Like `ints`, but None if both are left out."""
        if self.has(index):
            return [int(v) for v in self.const(index, what).reshape(-1)]
        given = self.attrs.get(what)
        return None if given is None else [int(v) for v in given]

    def attr(self, name: str, default: Any = None) -> Any:
        """Attribute ``name``, strings as str."""
        value = self.attrs.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def shape(self, index: int = 0) -> list[int]:
        """Static shape of input ``index``."""
        value = self.given(index)
        return list(value.shape) if isinstance(value, np.ndarray) else static_shape(value)

    def rank(self, index: int = 0) -> int:
        """Number of dimensions of input ``index``."""
        return len(self.shape(index))

    def axis(self, default: int, name: str = "axis", rank: int | None = None) -> int:
        """Attribute ``name`` as an axis counted from the front."""
        rank = self.rank() if rank is None else rank
        axis = self.attr(name, default)
        if not -rank <= axis <= rank:
            raise self.refuse(f"{name} within rank {rank}", str(axis))
        return axis + rank if axis < 0 else axis

    def dtype(self, index: int = 0) -> str:
        """Element type of input ``index``."""
        value = self.given(index)
        return str(value.dtype if isinstance(value, np.ndarray) else value.ty.dtype)

    def scalar(self, value: float, dtype: str | None = None) -> relax.Expr:
        """A constant of rank 0, of the type of input 0 unless said otherwise."""
        return relax.const(value, dtype or self.dtype())

    def emit(self, expr: relax.Expr) -> relax.Var:
        """Bind ``expr`` to a variable."""
        return self.bb.emit(expr, name_hint=from_source(self.name))

    @property
    def label(self) -> str:
        """Operator and name, as messages say them."""
        return f"{self.op} {self.name!r}" if self.name else self.op

    def check_table(self, *sizes: int) -> None:
        """Refuse a table of constants that would be too large to make."""
        if error := too_large(f"a table of {self.label}", sizes, MOST_TABLE_ELEMENTS):
            raise error

    def refuse(self, expected: str, got: str) -> UnsupportedError:
        """The error that says why this node cannot be taken."""
        return UnsupportedError(
            f"expected {expected} for {self.label}, got {got}; rewrite this part of the model"
        )


def as_expr(value: Any) -> relax.Expr:
    """``value`` as a Relax expression."""
    if not isinstance(value, np.ndarray):
        return value
    if str(value.dtype) in STORED:
        raise _not_plain("a constant", str(value.dtype))
    check_dtype(str(value.dtype), "a constant")
    return constant(value)


def check_dtype(dtype: str, what: str) -> str:
    """Refuse element types that no kernel handles."""
    if dtype not in DTYPES and dtype not in STORED:
        raise _not_plain(what, dtype)
    return dtype


def _not_plain(what: str, dtype: str) -> UnsupportedError:
    return UnsupportedError(
        f"expected a plain number type for {what}, got {dtype}; "
        "convert the model to float, bfloat16 or integers of 8 bits or more"
    )


def dtype_of(elem_type: int) -> str:
    """Name of an ONNX element type: ``float32``, ``int4``, ``string``."""
    if elem_type == onnx.TensorProto.STRING:
        return "string"
    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
    except KeyError as error:
        raise ModelError(
            f"expected an element type of ONNX, got the number {elem_type}; export the model again"
        ) from error


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy type called ``name``, bfloat16 and its like among them."""
    return np.dtype(getattr(ml_dtypes, name, name))


def static_shape(expr: relax.Expr) -> list[int]:
    """The static shape of a tensor expression."""
    shape = getattr(expr.ty, "shape", None)
    if shape is None or not all(isinstance(d, tvm.tirx.IntImm) for d in shape.values):
        raise UnsupportedError(
            f"expected a static shape for every tensor, got {expr.ty}; a shape depends on the data"
        )
    return [int(d) for d in shape.values]
