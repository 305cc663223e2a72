"""Round in integers, for processors whose vectors hold no floats.

round(float(a) * f + (float(b) * g + h)) + zero   ->   (a * F + b * G + H >> bits) + zero

Each kernel says which `Integer` it computes, and is written again with `integer_sums.in_integers`;
not before TVM has simplified it, because the loop nests of HVX look for the form that this has.
Convolutions in blocks of channels round in integers from the start (`kernels/integer_blocks.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import tvm
from tvm import tirx
from tvm.ir import Call, Expr

from tvm_stretch.ir.integer_kernels import Product, integer_kernel
from tvm_stretch.ir.integers import Rounding, meaning_of
from tvm_stretch.rewriting import rewrite, rewrite_kernels
from tvm_stretch.targets.kernels.integer_sums import in_integers

_LATER = "tvm_stretch.rounded"
_FLOAT = ("average", "softmax")
"""Kinds that divide floats, which such processors refuse or compute otherwise."""


@tvm.transform.module_pass(opt_level=0, name="UseFixedPoint")
class UseFixedPoint:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite the kernels of integer operators, before others are fused into them."""
        return rewrite_kernels(mod, _in_integers)


def _in_integers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    integer = meaning_of(func)
    if integer is None or integer.rounding is None or integer.kind in _FLOAT:
        return func
    operands = tuple((tuple(map(int, p.shape)), str(p.dtype)) for p in func.params[:-1])
    kernel, _ = integer_kernel(integer, operands, _later)
    body = rewrite(kernel.body, (Call, partial(_rounded, integer.rounding)))
    return kernel.with_body(body).with_attrs(dict(func.attrs or {}))


def _later(rounding: Rounding, products: Sequence[Product], offset: float | None) -> Expr:
    """A call that TVM does not simplify, and `_rounded` replaces."""
    last = tirx.const(offset or 0.0, "float32")
    operands = [operand for product in products for operand in product]
    return tirx.call_pure_extern(rounding.dtype, _LATER, *operands, last)


def _rounded(rounding: Rounding, call: Call) -> Expr:
    if getattr(call.op, "name", "") != "tirx.call_pure_extern" or call.args[0].value != _LATER:
        return call
    *operands, offset = call.args[1:]
    products = list(zip(operands[::2], operands[1::2], strict=True))
    return in_integers(rounding, products, float(offset.value))
