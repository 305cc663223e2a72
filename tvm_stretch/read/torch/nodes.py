"""What converters of torch's operators ask about a node, and ONNX's converters for it.

as_onnx(node, importer, "Resize", [x, None, scales], {"mode": b"linear"})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.read.onnx import operators as onnx_ops  # noqa: F401  registers the converters
from tvm_stretch.read.onnx.node import CONVERTERS, Node, as_expr


def argument(node: Any, importer: Any, place: int, name: str, default: Any) -> Any:
    """An argument by its place or its name."""
    if len(node.args) > place:
        return importer._retrieve_args(node.args[place])
    return importer._retrieve_args(node.kwargs.get(name, default))


def dtype_of(node: Any) -> str:
    """The type of a node's result."""
    return str(node.meta["val"].dtype).removeprefix("torch.")


def of_type(importer: Any, value: Any, dtype: str) -> relax.Expr:
    """A tensor or a number as a tensor of ``dtype``."""
    if not isinstance(value, relax.Expr):
        return relax.const(value, dtype)
    given = str(value.ty.dtype)
    if given == dtype:
        return value
    emit = importer.block_builder.emit
    if dtype == "bool":
        return emit(relax.op.not_equal(value, relax.const(0, given)))
    return emit(relax.op.astype(value, dtype))


def is_static(x: relax.Expr) -> bool:
    """Whether all sizes of a tensor are known."""
    return all(isinstance(size, tvm.tirx.IntImm) for size in x.ty.shape.values)


def as_onnx(
    node: Any,
    importer: Any,
    op: str,
    inputs: Sequence[relax.Expr | np.ndarray | None],
    attributes: Mapping[str, Any] | None = None,
    opset: int = 20,
) -> relax.Expr:
    """What the converter of ONNX's operator emits; of several results the first."""
    builder = importer.block_builder
    given = list(inputs)
    onnx_node = Node(op, node.name, opset, given, dict(attributes or {}), ["result"], builder)
    found = CONVERTERS[op](onnx_node)
    return builder.emit(as_expr(found[0] if isinstance(found, tuple) else found))
