"""Limits of networks: one that exceeds them is refused before it costs time or memory.

y = Tile(x, [10_000_000_000])   ->   UnsupportedError: expected at most 1073741824 elements ..
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tvm
from tvm import relax

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.network.expressions import bindings_of
from tvm_stretch.network.provenance import source_of
from tvm_stretch.passes.fold_constants import constant_bindings

MOST_ELEMENTS = 1 << 30
"""The largest tensor: kernels count in 32 bits, and a blocked layout may need twice as many."""

MOST_TABLE_ELEMENTS = 1 << 24
"""The largest table that the frontend makes for one operator: indices, weights, masks."""

MOST_CONSTANT_ELEMENTS = 1 << 26
"""The sum over constants that the network computes from smaller ones; see `Constants`."""

MOST_OPERATORS = 10_000
"""Operators after functions are inlined and loops unrolled; NASNet-Large has about 1,500."""

MOST_ITERATIONS = 1024
"""Iterations of a loop; with more, the unrolled network takes minutes to compile."""


def too_large(what: str, shape: Sequence[int], most: int) -> UnsupportedError | None:
    """The refusal of a tensor with more than ``most`` elements."""
    if math.prod(shape) <= most:
        return None
    return UnsupportedError(
        f"expected at most {most} elements for {what}, got {math.prod(shape)} of shape "
        f"{list(shape)}; make this part of the model smaller"
    )


class Constants:
    """Counts the elements of the constants that are computed when compiling.

    A network may turn its own weights around a few times, and make a little out of nothing.
    """

    def __init__(self, weight_elements: int) -> None:
        self.most = MOST_CONSTANT_ELEMENTS + 8 * weight_elements
        self.numbers = 0

    def add(self, what: str, shape: Sequence[int]) -> None:
        """Refuse one constant too many."""
        self.numbers += math.prod(shape)
        if self.numbers > self.most:
            raise UnsupportedError(
                f"expected at most {self.most} elements for all constants that the network "
                f"computes, got {self.numbers} up to {what}; make this part of the model smaller"
            )


def check_sizes(mod: tvm.IRModule) -> None:
    """Refuse tensors of ``main`` that are too large; shapes that are not known are left alone.

    Raises:
        UnsupportedError: A tensor is too large, or a constant that would be computed here.
    """
    for param in mod["main"].params:
        _check(f"input {param.name!r}", param)
    bindings = [*bindings_of(mod["main"])]
    for binding in bindings:
        _check(_what(binding), binding.var)
    weights: set[relax.Expr] = set()
    for binding in bindings:
        weights |= {
            a for a in getattr(binding.value, "args", ()) if isinstance(a, tvm.ir.GenericConst)
        }
    constants = Constants(sum(math.prod(shape) for w in weights for shape in _shapes(w)))
    for binding in constant_bindings(mod["main"]):
        for shape in _shapes(binding.var):
            constants.add(_what(binding), shape)


def _check(what: str, value: relax.Expr) -> None:
    for shape in _shapes(value):
        if min(shape, default=0) < 0:
            raise UnsupportedError(
                f"expected sizes of at least 0 for {what}, got shape {shape}; convert or export "
                "the network again"
            )
        if error := too_large(what, shape, MOST_ELEMENTS):
            raise error


def _shapes(value: relax.Expr) -> list[list[int]]:
    """The static shapes of a tensor, or of the tensors of a tuple."""
    kind = getattr(value, "ty", None)
    fields = kind.fields if isinstance(kind, tvm.ir.TupleType) else [kind]
    shapes = [getattr(field, "shape", None) for field in fields]
    sizes = [s.values for s in shapes if isinstance(s, relax.ShapeExpr)]
    return [
        [int(d) for d in dims]
        for dims in sizes
        if all(isinstance(d, tvm.tirx.IntImm) for d in dims)
    ]


def _what(binding: relax.Binding) -> str:
    op = getattr(getattr(binding.value, "op", None), "name", "")
    name = source_of(binding.var.name)
    return f"{op.removeprefix('relax.') or 'the tensor'} {name!r}"
