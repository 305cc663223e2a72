"""Operators with kernels of their own, most of them for CPUs only, and their Relax calls.

    y = R.call_tir(lstm, (given, ..))          # attrs: {"kind": "recurrent.lstm", ..}
    places = R.call_tir(top_k, (x,))           # attrs: {"kind": "ordering.top_k"}

The PrimFunc consists of plain loops, which stock TVM can run. In most of them each step depends on
the previous one, so the kernel cannot use the work-items of a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, tirx

KIND = "kind"
"""The attribute of a `relax.call_tir` call that `ir.operators.kind_of` returns."""

BACKWARDS = "backwards"
"""The attribute of running sums: not empty if they begin at the end."""


def steps_call(
    bb: relax.BlockBuilder,
    kind: str,
    kernel: tirx.PrimFunc,
    operands: Sequence[relax.Expr],
    result: relax.TensorType,
    **described: str,
) -> relax.Call:
    """Calls a sequential kernel, which is added to ``bb``; ``described`` are further attributes."""
    var = bb.add_func(kernel, kind.rpartition(".")[2])
    call = relax.call_tir(var, list(operands), result)
    attrs = tvm.ir.make_node("ir.DictAttrs", **{KIND: kind, **described})
    return relax.Call(call.op, call.args, attrs, call.ty_args)


def has_groups(kind: str) -> bool:
    """Whether the operator of this kind has a kernel for the work-groups of a GPU, too."""
    return kind.startswith("matmul.")


def why_only_on_a_cpu(kind: str) -> str:
    """Why the operator of this kind runs on no DSP, and on a GPU only if it `has_groups`."""
    if has_groups(kind):
        return f"{kind}: its kernels are written for CPUs and GPUs"
    return f"{kind}: its steps need each other, so one work-item would compute them"


def kind_of_steps(call: Any) -> str | None:
    """The kind of a call of a sequential kernel; None for other calls."""
    attrs = getattr(call, "attrs", None)
    return str(attrs[KIND]) if isinstance(attrs, tvm.ir.DictAttrs) and KIND in attrs else None
