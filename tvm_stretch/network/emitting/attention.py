"""Find attention and layer normalisation among the operators of a network.

y = matmul(softmax(add(multiply(matmul(q, k), scale), mask)), v)   ->   Attention(q, k, v, mask, ..)
m = mean(x, -1);  d = x - m;  v = mean(d * d, -1);  y = d / sqrt(v + epsilon)   ->   (x, epsilon)

Shares that are no numbers, as in rows that a mask hides completely, may become 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.network.expressions import axes_of, shape_of
from tvm_stretch.network.operators import kind_of
from tvm_stretch.targets.cpu.kernels.attention import FEW_QUERIES
from tvm_stretch.targets.kernels.layers import AttentionShape


@dataclass(frozen=True)
class Attention:
    """The operands of an attention, and its shape, in which operands may have to be reshaped."""

    operands: tuple[relax.Expr, ...]
    shape: AttentionShape
    is_turned: bool = False  # whether the last axes of the keys have yet to be exchanged

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of each operand."""
        own = self.shape
        masks = [own.mask] if own.mask is not None else []
        return [own.q, own.k, own.v, *masks, *([own.row_scales] * 2 if own.is_rounded else [])]


class AttentionReader:
    """Reads the attention that a product computes, if nothing else reads what is in between."""

    def __init__(
        self, definitions: Mapping[relax.Var, relax.Expr], uses: Mapping[relax.Var, int]
    ) -> None:
        self.definitions = definitions
        self.uses = uses

    def read(self, call: relax.Call) -> Attention | None:
        """The attention of a product of shares and values; None if it is another product."""
        shares, v = call.args
        softmax, zeroes = self.zeroed(shares)
        if (
            softmax is None
            or int(softmax.attrs.axis) % len(shape_of(shares)) != len(shape_of(shares)) - 1
        ):
            return None
        x, masks, readers = softmax.args[0], [], 2 if zeroes == "hidden" else 1
        added = self.only(x, "add", readers)
        if added is not None and shape_of(added.args[0]) == shape_of(x):
            x, masks = added.args[0], [added.args[1]]
            readers = 1
        scale, scores = self.scaled(x, readers)
        product = self.only(scores, "matmul", readers if scores is x else 1)
        if product is None:
            return None
        operands = (*product.args, v, *masks)
        is_plain = all(str(o.ty.dtype) == "float32" for o in operands)
        if not is_plain or len({*operands}) < len(operands) or len(shape_of(v)) < 2:
            return None
        attention = self.placed(operands, scale)
        own, is_nan, is_hidden = attention.shape, zeroes == "nan", zeroes == "hidden"
        own = replace(own, zeroes_nan=is_nan, zeroes_hidden=is_hidden)
        return self.of_rounded(replace(attention, shape=own))

    def zeroed(self, shares: relax.Expr) -> tuple[relax.Call | None, str]:
        """The softmax of shares, and of which kind those are that PyTorch sets to 0.

        ``where(isnan(softmax), 0, softmax)``, ``where(equal(max(scores), -inf), 0, softmax)``
        """
        chosen = self.only(shares, "where")
        if chosen is None:
            return self.only(shares, "nn.softmax"), ""
        (test, zero, x), softmax = chosen.args, self.definitions.get(chosen.args[2])
        if not _is(zero, 0) or not isinstance(softmax, relax.Call):
            return None, ""
        if kind_of(softmax) != "nn.softmax":
            return None, ""
        is_nan = self.only(test, "isnan")
        if is_nan is not None:
            return softmax if is_nan.args[0] == x and self.uses[x] == 2 else None, "nan"
        equal = self.only(test, "equal")
        most = None if equal is None else self.only(equal.args[0], "max")
        if equal is None or most is None or not _is(equal.args[1], -np.inf):
            return None, ""
        axes, rank = most.attrs.axis, len(shape_of(x))
        is_of_rows = axes is not None and [int(axis) % rank for axis in axes] == [rank - 1]
        is_of_scores = most.args[0] == softmax.args[0] and self.uses[x] == 1
        is_hidden = is_of_rows and is_of_scores and bool(most.attrs.keepdims)
        return softmax if is_hidden else None, "hidden"

    def only(self, x: relax.Expr, kind: str, readers: int = 1) -> relax.Call | None:
        """The call of this kind that computes ``x``, which has so few readers."""
        call = self.definitions.get(x) if isinstance(x, relax.Var) else None
        return call if kind_of(call) == kind and self.uses.get(x) == readers else None

    def scaled(self, x: relax.Expr, readers: int) -> tuple[float, relax.Expr]:
        """A constant factor of all scores, and the scores without it."""
        calls = [self.only(x, kind, readers) for kind in ("multiply", "divide")]
        call = next((call for call in calls if call is not None), None)
        if call is None or not isinstance(call.args[1], GenericConst):
            return 1.0, x
        given = call.args[1].value.numpy()
        if given.size != 1 or not given.all():
            return 1.0, x
        factor = float(given.reshape(()))
        return factor if kind_of(call) == "multiply" else 1 / factor, call.args[0]

    def placed(self, operands: tuple[relax.Expr, ...], scale: float) -> Attention:
        """With keys as they were before they were transposed, if there are few queries."""
        q, k, v, *masks = operands
        before = self.untransposed(k) if shape_of(q)[-2] <= FEW_QUERIES else None
        k = k if before is None else before
        of_q, of_k, of_v, *of_mask = (tuple(shape_of(x)) for x in (q, k, v, *masks))
        mask = of_mask[0] if of_mask else None
        shape = AttentionShape(of_q, of_k, of_v, mask, scale, before is not None)
        attention = Attention((q, k, v, *masks), shape)
        return self.grouped(attention) or attention

    def grouped(self, attention: Attention) -> Attention | None:
        """The attention of heads that share keys and values, which are not repeated for each head.

        One query of several heads is several queries of one head.
        """
        (q, k, v, *masks), own = attention.operands, attention.shape
        before = k if own.in_place else self.untransposed(k)
        keys, values = self.repeated(before), self.repeated(v)
        if keys is None or values is None or keys[1] != values[1]:
            return None
        if not len(own.q) == len(own.k) == len(own.v) or own.q[-3] != own.k[-3]:
            return None
        if own.mask is not None and own.mask[-3:-2] not in ((), (1,)):
            return None  # heads have masks of their own
        *stack, heads, queries, depth = own.q
        times, groups, mask = keys[1], heads // keys[1], own.mask
        is_one = queries == 1 and own.in_place
        heads_of = (*stack, groups) if is_one else (*stack, groups, 1)
        if mask is not None and not is_one and len(mask) > 2:
            mask = (*mask[:-2], 1, *mask[-2:])
        shape = replace(
            own,
            q=(*stack, groups, times, depth) if is_one else (*stack, groups, times, *own.q[-2:]),
            k=(*heads_of, *own.k[-2:]),
            v=(*heads_of, *own.v[-2:]),
            mask=mask,
        )
        return Attention((q, keys[0], values[0], *masks), shape, is_turned=not own.in_place)

    def of_rounded(self, attention: Attention) -> Attention:
        """With the keys and values of a cache in int8 as they are, if it has some."""
        (q, k, v, *masks), own = attention.operands, attention.shape
        is_plain = not own.in_place and not attention.is_turned
        rows = self.untransposed(k) if is_plain else k
        keys, values = self.rounded(rows), self.rounded(v)
        if keys is None or values is None or own.k[:-2] != own.v[:-2]:
            return attention
        operands = (q, keys[0], values[0], *masks, keys[1], values[1])
        return Attention(operands, replace(own, is_rounded=True), not own.in_place)

    def rounded(self, x: relax.Expr | None) -> tuple[relax.Expr, relax.Expr] | None:
        """The rows in int8, and their scales, of which a value is the product."""
        call = self.definitions.get(x) if isinstance(x, relax.Var) else None
        if call is not None and kind_of(call) == "reshape":
            call = self.definitions.get(call.args[0])
        if call is None or kind_of(call) != "multiply":
            return None
        (value, scale), shape = call.args, shape_of(call)
        wide = self.definitions.get(value) if isinstance(value, relax.Var) else None
        is_wide = wide is not None and kind_of(wide) == "astype"
        if wide is None or not is_wide or shape_of(scale) != [*shape[:-1], 1]:
            return None
        return (wide.args[0], scale) if str(wide.args[0].ty.dtype) == "int8" else None

    def repeated(self, x: relax.Expr) -> tuple[relax.Expr, int] | None:
        """What a value holds of each head several times in succession, and how often."""
        view = self.definitions.get(x) if isinstance(x, relax.Var) else None
        if view is None or kind_of(view) != "reshape":
            return None
        wide = self.definitions.get(view.args[0]) if isinstance(view.args[0], relax.Var) else None
        if wide is None or kind_of(wide) != "broadcast_to":
            return None
        if len(shape_of(wide)) < 4:
            return None
        *stack, groups, times, rows, width = shape_of(wide)
        one = [*stack, groups, 1, rows, width]
        if shape_of(wide.args[0]) != one or shape_of(x) != [*stack, groups * times, rows, width]:
            return None
        return wide.args[0], times

    def untransposed(self, x: relax.Expr) -> relax.Expr | None:
        """The value whose last two axes are exchanged in ``x``."""
        call = self.definitions.get(x) if isinstance(x, relax.Var) else None
        if call is None or kind_of(call) != "permute_dims":
            return None
        rank = len(shape_of(x))
        return call.args[0] if axes_of(call) == [*range(rank - 2), rank - 1, rank - 2] else None


def normalised(
    call: relax.Call, definitions: Mapping[relax.Var, relax.Expr]
) -> tuple[relax.Var, float, bool] | None:
    """What a division or product normalises, its epsilon, and whether the mean is subtracted.

    None if it does something else.
    """

    def args(expr: relax.Expr, kind: str) -> list[relax.Expr] | None:
        """The operands of the operator that computes ``expr``, if it is one of this kind."""
        definition = definitions.get(expr) if isinstance(expr, relax.Var) else None
        return (
            list(definition.args)
            if definition is not None and kind_of(definition) == kind
            else None
        )

    def mean_of(expr: relax.Expr) -> relax.Expr | None:
        """The operand of a mean along the last axis."""
        operands = args(expr, "mean")
        if operands is None:
            return None
        attrs, last = definitions[expr].attrs, len(shape_of(operands[0])) - 1
        axes = [] if attrs.axis is None else [int(axis) % (last + 1) for axis in attrs.axis]
        return operands[0] if axes == [last] and bool(attrs.keepdims) else None

    def inside_root(expr: relax.Expr) -> list[relax.Expr] | None:
        """The operands of the sum of whose root ``call`` takes the inverse."""
        if kind_of(call) == "multiply" and (inverse := args(expr, "rsqrt")) is None:
            quotient = args(expr, "divide") or [None]
            inverse = args(quotient[1], "sqrt") if _is(quotient[0], 1) else None
        elif kind_of(call) != "multiply":
            inverse = args(expr, "sqrt")
        return None if inverse is None else args(inverse[0], "add")

    apart, root = call.args
    added = inside_root(root)
    if added is None or not isinstance(added[1], GenericConst) or added[1].value.numpy().size != 1:
        return None
    squares = mean_of(added[0])
    if squares is None or args(squares, "multiply") != [apart, apart]:
        return None
    x, mean = args(apart, "subtract") or (apart, None)
    is_centred = mean is not None and mean_of(mean) == x
    return x if is_centred else apart, float(added[1].value.numpy().item()), is_centred


def _is(expr: relax.Expr, number: float) -> bool:
    """Whether an operand is this constant."""
    return isinstance(expr, GenericConst) and bool((expr.value.numpy() == number).all())
