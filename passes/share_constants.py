"""Let the constants of several modules share their memory.

first:   R.add(x, const of 1 MB)      second:  R.add(y, const of the same values)
->
first:   R.add(x, const)              second:  R.add(y, const), with one tensor for both

A network that is read for several lengths has its weights once in each module; this pass, applied
to one module after the other, keeps the tensors of the first.
"""

from __future__ import annotations

import hashlib
from typing import Any

import tvm
from tvm import relax

from tvm_stretch.network.expressions import tensor_bytes
from tvm_stretch.network.rewriting import CallRewriter

_Known = dict[tuple[Any, ...], tvm.ir.GenericConst]


@tvm.transform.module_pass(opt_level=0, name="ShareConstants")
class ShareConstants:
    """See the module docstring; one object for all modules."""

    def __init__(self) -> None:
        """Begin without constants."""
        self.shared: _Known = {}

    def transform_module(
        self, mod: tvm.IRModule, context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Replace constants of ``main`` that an earlier module has, too."""
        return _Sharer(mod, self.shared).rewritten(mod)


@relax.expr_functor.mutator
class _Sharer(CallRewriter):
    def __init__(self, mod: tvm.IRModule, shared: _Known) -> None:
        super().__init__(mod)
        self.shared = shared

    def visit_generic_const_(self, constant: tvm.ir.GenericConst) -> relax.Expr:
        """The first constant with this shape, type and content."""
        value = constant.value
        digest = hashlib.blake2b(tensor_bytes(value).data, digest_size=16).digest()
        key = (tuple(value.shape), str(value.dtype), digest)
        return self.shared.setdefault(key, constant)
