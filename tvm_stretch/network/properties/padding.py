"""Whether a network may run on padded inputs: the part of the answer that counts stays the same.

    tokens (1, 50)  --padded-->  (1, 64)  --network for 64-->  (1, 64, 384)  --cut-->  (1, 50, 384)

The networks for two sizes of a dimension are walked side by side. The dimension is where their
shapes differ, and for each tensor it is shown that the smaller network's tensor is the beginning of
the larger one's. Layers of rows keep this, convolutions that look back do, and attention does where
the padding is hidden: by an input that is a mask, or because no position looks ahead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import tvm_ffi
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.base.errors import InputError
from tvm_stretch.network.expressions import shape_of, tensor_types
from tvm_stretch.network.operators import Calls, Leaf, kind_of, operands
from tvm_stretch.network.properties.known_values import Known
from tvm_stretch.network.properties.padding_rules import MixedError, Pair, Uses, rule_of


@dataclass(frozen=True)
class Masks:
    """Inputs whose padding has to have a certain value."""

    fill: int  # the value
    names: frozenset[str] = frozenset()  # of the inputs
    hiding: frozenset[str] = frozenset()  # of those that hide positions from softmax


def masks_of(
    small: relax.Function,  # the network for fewer positions of the dimension ``name``, canonical
    large: relax.Function,  # the network for more
    name: str,
) -> Masks:
    """The inputs that keep padding from changing the answer."""
    reasons = []
    for fill in (0, 1):
        walk = _Walk(Calls(small), Calls(large), fill)
        try:
            walk.run(small, large)
        except MixedError as reason:
            reasons.append(str(reason))
        else:
            return Masks(fill, frozenset(walk.masks), frozenset(walk.hiding))
    raise InputError(
        f"expected a network whose answer does not change by padding for the Length of {name!r}, "
        f"got one in which {reasons[0]}; list the lengths instead, or export it with a mask "
        "as input"
    )


class _Walk(Uses):
    """Both networks, operator by operator."""

    def __init__(self, small: Calls, large: Calls, fill: int) -> None:
        super().__init__()
        self.calls = (small, large)
        self.fill = fill
        self.pairs: dict[tuple[str, int | None], Pair] = {}

    def run(self, small: relax.Function, large: relax.Function) -> None:
        for one, other in zip(small.params, large.params, strict=True):
            self._add(one.name, None, self._input(one, other))
        bound = [calls.bound for calls in self.calls]
        if [kind_of(call) for _, call in bound[0]] != [kind_of(call) for _, call in bound[1]]:
            raise MixedError("operators differ from size to size")
        for (var, call), (_, other) in zip(*bound, strict=True):
            try:
                self._step(var, call, other)
            except MixedError as reason:
                raise MixedError(f"{var.name} ({kind_of(call)}) {reason}") from reason
        for calls in zip(*(list(c.leaves(c.result)) for c in self.calls), strict=True):
            if len({(leaf.name) for leaf in calls}) > 1:
                raise MixedError("results differ from size to size")

    def _input(self, one: relax.Var, other: relax.Var) -> Pair:
        pair = Pair(tuple(shape_of(one)), tuple(shape_of(other)))
        if not pair.varied:
            return pair
        here = np.ones(pair.large, bool)
        here[tuple(slice(0, size) for size in pair.small)] = False
        value = np.full(pair.large, self.fill).astype(str(other.ty.dtype))
        return replace(pair, known=Known(value, here, frozenset({one.name})))

    def _add(self, name: str, index: int | None, pair: Pair) -> None:
        self.pairs[name, index] = pair

    def _step(self, var: relax.Var, small: relax.Call, large: relax.Call) -> None:
        args = [
            list(self._args(*both)) for both in zip(operands(small), operands(large), strict=True)
        ]
        given = [pair for pairs in args for pair in pairs]
        sizes = [
            [tuple(map(int, ty.shape.values)) for ty in tensor_types(c)] for c in (small, large)
        ]
        doubtful = any(pair.doubtful for pair in given)
        results = [Pair(a, b, None, doubtful) for a, b in zip(*sizes, strict=True)]
        if any(pair.varied for pair in (*given, *results)):
            results = rule_of(kind_of(small))(self, (small, large), args, results)
        elif not tvm_ffi.structural_equal(small.attrs, large.attrs):
            raise MixedError("differs from size to size")
        is_tuple = isinstance(small.ty, relax.TupleType)
        for index, pair in enumerate(results):
            self._add(var.name, index if is_tuple else None, pair)

    def _args(self, small: relax.Expr, large: relax.Expr) -> Iterator[Pair]:
        """The tensors of an operand."""
        fields_of_args = [
            list(self._fields(*both)) for both in zip(self.calls, (small, large), strict=True)
        ]
        for one, other in zip(*fields_of_args, strict=True):
            if isinstance(one, Leaf) and isinstance(other, Leaf) and one.name == other.name:
                yield self.pairs[one.var.name, one.index]
            elif isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
                yield _constant(one, other)
            else:
                raise MixedError("reads other tensors from size to size")

    def _fields(self, calls: Calls, expr: relax.Expr) -> Iterator[Leaf | np.ndarray]:
        leaves: dict[relax.Var, Leaf] = {}

        def mark(leaf: Leaf) -> relax.Var:
            var = relax.Var(leaf.name, leaf.type)
            leaves[var] = leaf
            return var

        whole = calls.rebuild(expr, mark)
        for field in whole.fields if isinstance(whole, relax.Tuple) else [whole]:
            if field in leaves:
                yield leaves[field]
            elif isinstance(field, GenericConst):
                yield field.value.numpy()


def _constant(one: np.ndarray, other: np.ndarray) -> Pair:
    pair = Pair(one.shape, other.shape) if one.ndim == other.ndim else None
    if pair is None or any(s > n for s, n in zip(one.shape, other.shape, strict=True)):
        raise MixedError("has constants of other shapes from size to size")
    counts = other[tuple(slice(0, size) for size in one.shape)]
    if one.dtype != other.dtype or one.tobytes() != counts.tobytes():
        raise MixedError("has constants that change with the size")
    small = other.size <= 2**22 or pair.varied
    return replace(pair, known=Known(other, np.ones(other.shape, bool)) if small else None)
