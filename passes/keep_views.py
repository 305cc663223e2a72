"""Legalise every operator to a PrimFunc, except those that are views of memory.

R.nn.relu(x)                          ->  R.call_tir(relu, (x,))
R.reshape(x, (1, 64))                 stays: a second tensor on the same bytes
R.concat((a, b), axis=1), one image   stays: a and b are written next to each other
R.strided_slice(x, rows 8 to 16)      stays: some rows of each block of channels

R.scatter_nd(x, places, rows)         ->  a PrimFunc whose attribute says that it writes rows

Slices stay views if they begin at the alignment that kernels need; otherwise they are copied.
"""

from __future__ import annotations

import tvm
from tvm import relax

from tvm_stretch.ir.states import WRITES_PLACES
from tvm_stretch.ir.views import ALIGNMENT, PIECES, RESHAPES, is_view


def keep_views() -> tvm.transform.Pass:
    """The pass described in the module docstring."""
    legalizers = {f"relax.{name}": _unless_view(f"relax.{name}") for name in PIECES}
    legalizers["relax.scatter_nd"] = _marked
    return relax.transform.LegalizeOps(legalizers, skip_ops=[f"relax.{n}" for n in RESHAPES])


def _marked(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    made = tvm.ir.Op.get("relax.scatter_nd").get_attr("FLegalize")(bb, call)
    if str(call.attrs.reduction) != "update":
        return made
    function = bb.get()[made.args[0]].with_attr(WRITES_PLACES, True)
    kernel = bb.add_func(function, "scatter_nd")
    return relax.Call(made.op, [kernel, *made.args[1:]], made.attrs, made.ty_args, ret_ty=made.ty)


def _unless_view(name: str) -> relax.transform.LegalizeFunc:
    stock = tvm.ir.Op.get(name).get_attr("FLegalize")

    def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        return call if is_view(call, ALIGNMENT) else stock(bb, call)

    return legalize
