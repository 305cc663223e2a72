"""Shared by both kinds of exact branching: bands, results, and putting branches into `main`.

conv = R.nn.conv2d(x, w)           x.r0.0to9 = R.strided_slice(x, ..)
y = R.nn.relu(conv)          ->    conv.r0 = R.nn.conv2d(x.r0.0to9, w, ..)
z = R.exp(y)                       ..
y = R.concat((y.r0, y.r1), axis=2)
z = R.exp(y)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm
from tvm import relax

from tvm_stretch.base.errors import InputError
from tvm_stretch.network.provenance import free_name


class Emitter:
    """Collects the bindings that replace a segment.

    Args:
        builder: receives the kernels of integer operators.
        origins: of each new variable, by its name, the tensor of the network that it is a part of.
        taken: names that are no longer free.
    """

    def __init__(
        self, builder: relax.BlockBuilder, origins: dict[str, str], taken: set[str]
    ) -> None:
        self.bindings: list[relax.Binding] = []
        self.builder, self.origins, self.taken = builder, origins, taken

    def emit(self, name: str, value: relax.Expr, of: str) -> relax.Var:
        """Bind ``value`` to a new variable with this name, numbered if the name is taken."""
        name = free_name(name, self.taken)
        self.origins[name] = of
        value = self.builder.normalize(value)
        return self._bind(relax.DataflowVar(name, value.ty), value)

    def emit_as(self, var: relax.Var, value: relax.Expr) -> relax.Var:
        """Bind ``value`` to a variable of the network, so that its readers need no change."""
        value = self.builder.normalize(value)
        tvm.ir.assert_structural_equal(value.ty, var.ty)
        return self._bind(var, value)

    def _bind(self, var: relax.Var, value: relax.Expr) -> relax.Var:
        self.bindings.append(relax.VarBinding(var, value))
        return var


@dataclass(frozen=True, eq=False)
class Replacement:
    """A branched segment that is not yet part of the network."""

    end: str  # the last operator of the segment; the bindings are inserted in its place
    removed: frozenset[str]  # names of the segment's operators
    bindings: tuple[relax.Binding, ...]  # replace the removed operators
    # for each branch the names of its operators, in program order
    branches: tuple[tuple[str, ...], ...]
    # names of the segment's operators that run once, in program order: those that join the
    # branches, and those that follow until the segment's end
    joins: tuple[str, ...]
    origins: Mapping[str, str]  # for each new operator, the operator that it is a part of or joins


def replace_segments(
    mod: tvm.IRModule, segments: Sequence[Replacement], builder: relax.BlockBuilder
) -> tvm.IRModule:
    """Put branched segments into `main`, each in the place of its last operator."""
    removed: set[str] = set()
    for segment in segments:
        twice = removed & segment.removed
        if twice:
            raise InputError(
                f"expected segments that share no operator, got {min(twice)!r} in two; "
                "split a segment once"
            )
        removed |= segment.removed
    added = {segment.end: segment.bindings for segment in segments}
    main = mod["main"]
    blocks = []
    for block in main.body.blocks:
        kept: list[relax.Binding] = []
        for binding in block.bindings:
            name = binding.var.name
            kept += added.get(name, () if name in removed else (binding,))
        blocks.append(type(block)(kept))
    return with_body(mod, relax.SeqExpr(blocks, main.body.body), builder)


def with_body(mod: tvm.IRModule, body: relax.SeqExpr, builder: relax.BlockBuilder) -> tvm.IRModule:
    """``mod`` with another body of ``main`` and the kernels that the body calls."""
    main = mod["main"]
    function = relax.Function(main.params, builder.normalize(body), main.ret_ty, main.is_pure)
    updated = mod.clone()
    updated.update(builder.get())
    updated["main"] = function.with_attrs(dict(main.attrs or {}))
    return updated
