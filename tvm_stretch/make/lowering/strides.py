"""Adapt kernels to tensors that have gaps.

    x: Buffer((1, 8, 20, 56, 8))  ->  x: Buffer(.., strides=(200704, 25088, 448, 8, 1))

Loop nests index tensors by coordinates, so nothing else changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.ir import Var

from tvm_stretch.network.rewriting import rewrite

Strides = tuple[int, ...]


def with_strides(function: tirx.PrimFunc, strides: Sequence[Strides]) -> tirx.PrimFunc:
    """The kernel for parameters with these strides, in elements; without strides they are dense."""
    params = {
        param: _strided(param, own) for param, own in zip(function.params, strides, strict=True)
    }
    body = rewrite(function.body, (Var, lambda var: params.get(var, var)))
    return tirx.PrimFunc(list(params.values()), body, function.ret_type, function.attrs)


def _strided(param: tirx.Buffer, strides: Strides) -> tirx.Buffer:
    if not strides:
        return param
    return tirx.decl_buffer(
        param.shape,
        param.dtype,
        param.name,
        strides=[tirx.const(stride, "int64") for stride in strides],
    )
