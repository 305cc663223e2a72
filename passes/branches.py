"""Shared by both kinds of exact branching: bands, results, and putting branches into `main`.

conv = R.nn.conv2d(x, w)           x.r0.0to9 = R.strided_slice(x, ..)
y = R.nn.relu(conv)          ->    conv.r0 = R.nn.conv2d(x.r0.0to9, w, ..)
z = R.exp(y)                       ..
y = R.concat((y.r0, y.r1), axis=2)
z = R.exp(y)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import tvm
from tvm import relax

from tvm_stretch.errors import InputError, UnsupportedError
from tvm_stretch.files import is_finite
from tvm_stretch.ir.operators import Operator, Operators, remember
from tvm_stretch.ir.provenance import free_name

Span = tuple[int, int]


def share(total: int, ratios: Sequence[float], unit: int = 1) -> tuple[Span, ...]:
    """Cut ``range(total)`` in the given ratios, at multiples of ``unit``.

    >>> share(56, (2, 1)), share(64, (0.3, 0.7), unit=8)
    (((0, 37), (37, 56)), ((0, 16), (16, 64)))
    """
    whole = sum(ratios)
    if len(ratios) < 2 or not all(is_finite(r) and r > 0 for r in ratios):
        raise InputError(
            f"expected two or more positive numbers for ratios, got {tuple(ratios)}; "
            "give one share per branch"
        )
    cuts = [0]
    for index in range(1, len(ratios)):
        exact = total * sum(ratios[:index]) / whole
        cuts.append(min(total, unit * math.floor(exact / unit + 0.5)))
    cuts.append(total)
    spans = tuple(pairwise(cuts))
    if any(begin >= end for begin, end in spans):
        raise UnsupportedError(
            f"expected at least {unit} of {total} for each of the ratios {tuple(ratios)}, got "
            f"{[end - begin for begin, end in spans]}; use fewer branches or more even ratios"
        )
    return spans


@remember  # a search asks once for each ratio
def closed_segment(operators: Operators, start: str, end: str) -> tuple[Operator, ...]:
    """The operators between two tensors, if they exchange no other tensor with the rest.

    Raises:
        UnsupportedError: The operators read another tensor, or an operator outside reads theirs.
    """
    members = operators.between(start, end)
    names = {member.name for member in members}
    if end not in names:
        raise UnsupportedError(
            f"expected a tensor computed from {start!r} for end, got {end!r}; "
            "choose another segment"
        )
    for member in members:
        foreign = [name for name in member.inputs if name != start and name not in names]
        if foreign:
            raise _open(start, end, f"{member.name!r} reads {foreign[0]!r} from outside")
        readers = [name for name in operators.readers[member.name] if name not in names]
        if member.name != end and (readers or member.name in operators.outputs):
            who = repr(readers[0]) if readers else "the caller"
            raise _open(start, end, f"{who} outside reads {member.name!r}")
    return members


def _open(start: str, end: str, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"expected one tensor in and one out for segment {start!r} -> {end!r}, got: {what}; "
        "cut at meeting points"
    )


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
    """A branched segment that is not yet part of the network.

    Attributes:
        end: the last operator of the segment; the bindings are inserted in its place.
        removed: names of the segment's operators.
        bindings: replace the removed operators.
        branches: for each branch the names of its operators, in program order.
        joins: names of the segment's operators that run once, in program order: those that join the
            branches, and those that follow until the segment's end.
        origins: for each new operator, the operator that it is a part of or joins.
    """

    end: str
    removed: frozenset[str]
    bindings: tuple[relax.Binding, ...]
    branches: tuple[tuple[str, ...], ...]
    joins: tuple[str, ...]
    origins: Mapping[str, str]


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
