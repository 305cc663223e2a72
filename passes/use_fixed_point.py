"""Round in integers, for processors whose vectors hold no floats.

round(float(a) * f + (float(b) * g + h)) + zero   ->   (a * F + b * G + H >> bits) + zero

Each kernel says which `Integer` it computes, and is written again with `integer_sums.in_integers`.
Convolutions in blocks of channels round in integers from the start (`kernels/integer_blocks.py`).
"""

from __future__ import annotations

import tvm
from tvm import tirx

from tvm_stretch.network.integer_kernels import integer_kernel
from tvm_stretch.network.integers import meaning_of
from tvm_stretch.network.rewriting import rewrite_kernels
from tvm_stretch.targets.cpu.kernels.integer_sums import in_integers

_FLOAT = ("average", "softmax")
"""Kinds that divide floats, which such processors refuse or compute otherwise."""


@tvm.transform.module_pass(opt_level=0, name="UseFixedPoint")
class UseFixedPoint:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_kernels(mod, _in_integers)


def _in_integers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    integer = meaning_of(func)
    if integer is None or integer.rounding is None or integer.kind in _FLOAT:
        return func
    operands = tuple((tuple(map(int, p.shape)), str(p.dtype)) for p in func.params[:-1])
    kernel, _ = integer_kernel(integer, operands, in_integers)
    return kernel.with_attrs(dict(func.attrs or {}))
