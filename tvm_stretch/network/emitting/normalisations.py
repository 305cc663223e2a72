"""Layer normalisation among the operators of a network, which frontends write out.

m = mean(x, -1);  d = x - m;  v = mean(d * d, -1);  y = d / sqrt(v + epsilon)
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.network.expressions import shape_of
from tvm_stretch.network.operators import kind_of


def normalised(
    call: relax.Call, definitions: Mapping[relax.Var, relax.Expr]
) -> tuple[relax.Var, float] | None:
    """What a division or product normalises, and its epsilon; None if it does something else."""

    def args(expr: relax.Expr, kind: str) -> list[relax.Expr] | None:
        """The operands of the operator that computes ``expr``, if it is one of this kind."""
        found = definitions.get(expr) if isinstance(expr, relax.Var) else None
        return list(found.args) if found is not None and kind_of(found) == kind else None

    def mean_of(expr: relax.Expr) -> relax.Expr | None:
        """The operand of a mean along the last axis."""
        operands = args(expr, "mean")
        if operands is None:
            return None
        attrs, last = definitions[expr].attrs, len(shape_of(operands[0])) - 1
        axes = [] if attrs.axis is None else [int(axis) % (last + 1) for axis in attrs.axis]
        return operands[0] if axes == [last] and bool(attrs.keepdims) else None

    apart, root = call.args
    if kind_of(call) == "multiply":
        inverse = args(root, "divide")
        if inverse is None or not _is_one(inverse[0]):
            return None
        root = inverse[1]
    difference, inside = args(apart, "subtract"), args(root, "sqrt")
    added = None if inside is None else args(inside[0], "add")
    if difference is None or added is None or not isinstance(added[1], GenericConst):
        return None
    x, mean = difference
    squares = mean_of(added[0])
    product = None if squares is None else args(squares, "multiply")
    is_norm = mean_of(mean) == x and product is not None and product == [apart, apart]
    epsilon = added[1].value.numpy()
    return (x, float(epsilon)) if is_norm and epsilon.size == 1 else None


def _is_one(expr: relax.Expr) -> bool:
    return isinstance(expr, GenericConst) and bool((expr.value.numpy() == 1).all())
