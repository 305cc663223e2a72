"""Operators that are one kernel whose steps need each other, and how they stand in Relax.

    y = R.call_tir(lstm, (given, ..))          # attrs: {"kind": "recurrent.lstm", ..}
    places = R.call_tir(top_k, (x,))           # attrs: {"kind": "ordering.top_k"}

The kernel says in plain loops what it computes; stock TVM can run it. Nothing of it can run beside
another part of it, so it belongs on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, tirx

KIND = "kind"
"""Attribute of a call of `relax.call_tir`: what it computes, as `ir.operators.kind_of` says it."""

WHY_NOT_ON_A_GPU = "its steps need each other, so that a GPU would compute them on one work-item"


def steps_call(
    bb: relax.BlockBuilder,
    kind: str,
    kernel: tirx.PrimFunc,
    operands: Sequence[relax.Expr],
    result: relax.TensorType,
    **described: str,
) -> relax.Call:
    """The call of such a kernel, which ``bb`` gets; more attributes may describe it."""
    var = bb.add_func(kernel, kind.rpartition(".")[2])
    call = relax.call_tir(var, list(operands), result)
    attrs = tvm.ir.make_node("ir.DictAttrs", **{KIND: kind, **described})
    return relax.Call(call.op, call.args, attrs, call.ty_args)


def kind_of_steps(call: Any) -> str | None:
    """The kind of such a call; None for everything else."""
    attrs = getattr(call, "attrs", None)
    return str(attrs[KIND]) if isinstance(attrs, tvm.ir.DictAttrs) and KIND in attrs else None
