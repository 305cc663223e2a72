"""Legalise every operator to a PrimFunc, except those that only look at memory another way.

R.nn.relu(x)                          ->  R.call_tir(relu, (x,))
R.reshape(x, (1, 64))                 stays: a second tensor on the same bytes
R.concat((a, b), axis=1), one image   stays: a and b are written next to each other
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm_stretch.passes.expressions import shape_of

_ALWAYS_VIEWS = ["relax.reshape", "relax.flatten", "relax.expand_dims", "relax.squeeze"]


def keep_views() -> tvm.transform.Pass:
    """The pass described in the module docstring."""
    legalizers = {name: _unless_contiguous(name) for name in ("relax.concat", "relax.split")}
    return relax.transform.LegalizeOps(legalizers, skip_ops=_ALWAYS_VIEWS)


def _unless_contiguous(name: str) -> relax.transform.LegalizeFunc:
    stock = tvm.ir.Op.get(name).get_attr("FLegalize")

    def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        tensor = call if name == "relax.concat" else call.args[0]
        return call if is_contiguous_along(tensor, call.attrs.axis) else stock(bb, call)

    return legalize


def is_contiguous_along(tensor: relax.Expr, axis: int | None) -> bool:
    """Whether pieces of ``tensor`` along ``axis`` are pieces of its memory.

    True for axis 1 of (1, 64, 56, 56), false for axis 1 of (2, 64, 56, 56).
    """
    if axis is None:
        return False
    shape = shape_of(tensor)
    leading = shape[: int(axis) % len(shape)]
    return all(dim == 1 for dim in leading)
