"""Keep integers from reading foreign memory or killing the process.

    take(x, i)     ->   take(x, min(max(where(i < 0, i + 4, i), 0), 3))     guard: i in [-4, 3]
    divide(a, b)   ->   divide(a, where(b == 0, 1, b))                      guard: b is not 0

No kernel can fail on such a value any more, on any processor, but the answer is useless. Therefore
the attribute ``guards`` of ``main`` lists the values that are allowed, and the executor checks them
after each run. It finds the values among the inputs; computed ones become further results of
``main``, after the caller's. Constants are checked here.

Negative indices count from the end, also where Relax does not define them. Indices that are
clipped into their range already are left alone, and so are operators that define what other indices
mean (``take`` in any mode but ``fast``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.base.errors import ModelError
from tvm_stretch.network.codec import to_text
from tvm_stretch.network.expressions import bindings_of, constant, constant_value, shape_of
from tvm_stretch.network.operators import kind_of
from tvm_stretch.network.provenance import is_made_up, same_source, source_of
from tvm_stretch.network.rewriting import Bindings
from tvm_stretch.network.states import GUARDS, LIMITS, Guard, read_guards

_SAME_VALUES = ("reshape", "expand_dims", "squeeze", "flatten", "permute_dims", "broadcast_to")
_DIVISIONS = ("divide", "floor_divide", "mod", "floor_mod")


def guard_operators(mod: tvm.IRModule) -> tvm.IRModule:
    """See the module docstring.

    Raises:
        ModelError: a constant index is out of its range, or a constant divisor is zero.
    """
    main = mod["main"]
    if GUARDS in (main.attrs or {}):
        return mod
    rewriter = _Rewriter(main)
    if not rewriter.changed:
        return mod
    updated = mod.clone()
    updated["main"] = rewriter.function()
    return updated


@tvm.transform.module_pass(opt_level=0, name="GuardOperators")
class GuardOperators:
    """`guard_operators` as a pass."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return guard_operators(mod)


def settle_guards(mod: tvm.IRModule) -> tvm.IRModule:
    """Check guarded values that have become constant, and drop their additional results.

    Raises:
        ModelError: as `guard_operators`.
    """
    main = mod["main"]
    count, guards = read_guards(main)
    if count is None:
        return mod
    results = returned_tensors(main)
    bound = _bound(main)
    left = []
    for guard in guards:
        value = None if guard.input else bound.get(results[guard.result], results[guard.result])
        if isinstance(value, GenericConst):
            _check(value.value.numpy(), guard.low, guard.high, guard.what)
        else:
            left.append(guard)
    used = {guard.result for guard in left if not guard.input}
    kept = [place for place in range(len(results)) if place < count or place in used]
    if len(kept) == len(results):
        return mod
    left = [g if g.input else replace(g, result=kept.index(g.result)) for g in left]
    fields = [results[place] for place in kept]
    updated = mod.clone()
    updated["main"] = returning(main, main.body.blocks, fields, count, left)
    return relax.transform.DeadCodeElimination()(updated)


@tvm.transform.module_pass(opt_level=0, name="SettleGuards")
class SettleGuards:
    """`settle_guards` as a pass, after constants were folded."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return settle_guards(mod)


class _Rewriter(Bindings):
    """One walk over the bindings of ``main``."""

    def __init__(self, main: relax.Function) -> None:
        super().__init__()
        self.main = main
        self.results = returned_tensors(main)
        count, listed = read_guards(main, LIMITS)
        self.count = len(self.results) if count is None else count
        self.guards: dict[tuple[Any, ...], Guard] = {(guard,): guard for guard in listed}
        self.changed = count is not None
        self.kept: list[relax.Var] = []
        self._values: dict[relax.Var, relax.Expr] = {}
        self._name = self._hint = ""
        for binding in bindings_of(main):
            self._visit(binding)

    def function(self) -> relax.Function:
        """``main`` with guards."""
        fields = [*map(self._output, self.results), *self.kept]
        blocks = [relax.DataflowBlock(self.bindings)]
        return returning(self.main, blocks, fields, self.count, [*self.guards.values()])

    def _output(self, result: relax.Expr) -> relax.Var:
        """A variable that can be read outside of the dataflow block."""
        result = self.builder.normalize(result)
        name = result.name if isinstance(result, relax.Var) else "lv"
        return self.bind_new(name, result, relax.Var)

    def _visit(self, binding: relax.Binding) -> None:
        value = getattr(binding, "value", None)
        rule = _RULES.get(kind_of(value)) if isinstance(value, relax.Call) else None
        if rule is not None:
            name, kind = binding.var.name, kind_of(value)
            self._name = kind if is_made_up(name) else f"{kind} {source_of(name)!r}"
            self._hint = same_source(binding.var) or "lv"
            safe = rule(self, value)
            if safe is not None:
                self.changed = True
                binding = relax.VarBinding(binding.var, self.builder.normalize(safe))
        if isinstance(binding, relax.VarBinding):
            self._values[binding.var] = binding.value
        self.bindings.append(binding)

    def emit(self, expr: relax.Expr) -> relax.Var:
        """Bind an expression before the operator that is being rewritten."""
        return self.bind_new(self._hint, expr)

    def definition(self, expr: relax.Expr) -> relax.Expr:
        """The expression that a variable is bound to."""
        while isinstance(expr, relax.Var) and expr in self._values:
            expr = self._values[expr]
        return expr

    def constant(self, expr: relax.Expr) -> np.ndarray | None:
        """The value of a constant."""
        return constant_value(expr, self.definition)

    def inside(
        self, index: relax.Expr, extents: Sequence[int], least: Sequence[int], most: Sequence[int]
    ) -> relax.Expr:
        """A non-negative index that is in range for all values of `index`, which gets a guard.

        Args:
            extents: numbers to add to negative indices; several for the positions of the last
                dimension.
        """
        dtype = str(index.ty.dtype)
        value = self.constant(index)
        if value is not None:
            _check(value, least, most, f"the indices of {self._name}")
            return _const(np.where(value < 0, value + _scalar_or_array(extents), value), dtype)
        if self._is_inside(index, most):
            return index
        self._guard(index, least, most)
        moved = index
        if any(low < 0 for low in least):
            shifted = self.emit(relax.op.add(index, _const(_scalar_or_array(extents), dtype)))
            negative = self.emit(relax.op.less(index, _const(0, dtype)))
            moved = self.emit(relax.op.where(negative, shifted, index))
        above = self.emit(relax.op.maximum(moved, _const(0, dtype)))
        return self.emit(relax.op.minimum(above, _const(_scalar_or_array(most), dtype)))

    def divisor(self, call: relax.Call) -> relax.Expr | None:
        """A divisor that is safe for every dividend; None if the given one is."""
        dividend, divisor = call.args
        dtype = str(divisor.ty.dtype)
        if "int" not in dtype:
            return None
        value = self.constant(divisor)
        signed = dtype.startswith("int")
        if value is not None:
            _check(value, (), (), f"the divisor of {self._name}")
        if value is not None and not (signed and (value == -1).any()):
            return None
        bad = None
        if value is None:
            self._guard(divisor, (), ())
            bad = self.emit(relax.op.equal(divisor, _const(0, dtype)))
        if signed:  # the quotient least / -1 overflows: it wraps, as when dividing by 1
            minus = self.emit(relax.op.equal(divisor, _const(-1, dtype)))
            # TVM's simplifier assumes that no integer is the least one, so a comparison would be
            # false.
            rest = self.emit(relax.op.bitwise_xor(dividend, _const(np.iinfo(dtype).min, dtype)))
            smallest = self.emit(relax.op.equal(rest, _const(0, dtype)))
            wraps = self.emit(relax.op.logical_and(minus, smallest))
            bad = wraps if bad is None else self.emit(relax.op.logical_or(bad, wraps))
        return self.emit(relax.op.where(bad, _const(1, dtype), divisor))

    def _guard(self, tensor: relax.Expr, low: Sequence[int], high: Sequence[int]) -> None:
        what = f"the indices of {self._name}" if low else f"the divisor of {self._name}"
        origin = self._origin(tensor) if len(low) < 2 else tensor
        names = [param.name for param in self.main.params if param.same_as(origin)]
        place = 0 if names else self._result(origin)
        key = (*names, place, tuple(low), tuple(high), what)
        name = names[0] if names else ""
        self.guards[key] = Guard(name, place, tuple(low), tuple(high), what)

    def _origin(self, tensor: relax.Expr) -> relax.Expr:
        """The tensor from which a tensor's values come, before reshapes and wider types."""
        value = self.definition(tensor)
        while kind_of(value) in _SAME_VALUES or _widens(value):
            tensor = value.args[0]
            value = self.definition(tensor)
        return tensor

    def _result(self, tensor: relax.Expr) -> int:
        """The position of a tensor among the results; it is added if it is none of them yet."""
        for place, result in enumerate([*self.results, *self.kept]):
            if self.definition(result).same_as(self.definition(tensor)):
                return place
        self.kept.append(self._output(tensor))
        self._values[self.kept[-1]] = tensor
        return len(self.results) + len(self.kept) - 1

    def _is_inside(self, index: relax.Expr, most: Sequence[int]) -> bool:
        value = self.definition(self._origin(index))
        if kind_of(value) != "clip":
            return False
        return int(value.args[1].value) >= 0 and int(value.args[2].value) <= min(most)


def _check(value: np.ndarray, low: Sequence[int], high: Sequence[int], what: str) -> None:
    """Refuse constants as the executor (guard.cc) refuses values of inputs."""
    wrong = (value < np.array(low)) | (value > np.array(high)) if low else value == 0
    if not wrong.any():
        return
    place = np.argwhere(wrong)[0].tolist()
    column = place[-1] if len(low) > 1 else 0
    expected = f"{low[column]} to {high[column]}" if low else "no zero"
    raise ModelError(
        f"expected {expected} for {what}, got {value[tuple(place)]} at {place}; correct the network"
    )


def returning(
    main: relax.Function,
    blocks: Sequence[relax.BindingBlock],
    fields: Sequence[relax.Expr],
    count: int,
    guards: Sequence[Guard],
) -> relax.Function:
    """``main`` with other bindings, results and guards; ``count`` results are the caller's."""
    one = len(fields) == 1
    result = fields[0] if one else relax.Tuple(fields)
    ret = fields[0].ty if one else relax.TupleType([field.ty for field in fields])
    body = relax.BlockBuilder().normalize(relax.SeqExpr(blocks, result))
    attrs = {k: v for k, v in dict(main.attrs or {}).items() if k not in (GUARDS, LIMITS)}
    if guards or count < len(fields):
        attrs[GUARDS] = to_text((count, list(guards)))
    function = relax.Function(main.params, body, ret, main.is_pure)
    return function.with_attrs(attrs) if attrs else function


def _const(value: Any, dtype: str) -> relax.Expr:
    return constant(np.asarray(value, dtype))


def _scalar_or_array(values: Sequence[int]) -> Any:
    """One number, or an array with one for each position in the last dimension."""
    return values[0] if len(values) == 1 else np.array(values)


def _bound(main: relax.Function) -> dict[relax.Var, relax.Expr]:
    return {binding.var: binding.value for binding in bindings_of(main)}


def returned_tensors(main: relax.Function) -> list[relax.Expr]:
    """The tensors that a function returns, also if it binds their tuple before."""
    bound, result = _bound(main), main.body.body
    while isinstance(bound.get(result), relax.Var | relax.Tuple):
        result = bound[result]
    if isinstance(result, relax.Tuple):
        return list(result.fields)
    if isinstance(result.ty, relax.TupleType):
        return [relax.TupleGetItem(result, place) for place in range(len(result.ty.fields))]
    return [result]


def _widens(value: relax.Expr) -> bool:
    """Whether an expression converts integers to larger ones."""
    if kind_of(value) != "astype":
        return False
    before, after = (str(e.ty.dtype) for e in (value.args[0], value))
    return np.can_cast(before, after) if "int" in before and "int" in after else False


def _with_arg(call: relax.Call, place: int, arg: relax.Expr) -> relax.Call | None:
    """The call with another argument; None if it is the same."""
    if arg.same_as(call.args[place]):
        return None
    args = list(call.args)
    args[place] = arg
    return relax.Call(call.op, args, call.attrs, call.ty_args)


def _from_both_ends(extents: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    return list(extents), [-extent for extent in extents], [extent - 1 for extent in extents]


def _take(rewriter: _Rewriter, call: relax.Call) -> relax.Expr | None:
    x, index = call.args
    if str(call.attrs.mode) != "fast" or not isinstance(index.ty, relax.TensorType):
        return None
    axis = call.attrs.axis
    extent = math.prod(shape_of(x)) if axis is None else shape_of(x)[int(axis)]
    safe = rewriter.inside(index, *_from_both_ends([extent]))
    return relax.op.take(x, safe, axis, mode="clip")  # TVM warns of mode "fast"


def _along_axis(rewriter: _Rewriter, call: relax.Call) -> relax.Expr | None:
    extent = shape_of(call.args[0])[int(call.attrs.axis)]
    return _with_arg(call, 1, rewriter.inside(call.args[1], *_from_both_ends([extent])))


def _nd(rewriter: _Rewriter, call: relax.Call) -> relax.Expr | None:
    first = int(call.attrs.batch_dims) if kind_of(call) == "gather_nd" else 0
    depth = shape_of(call.args[1])[-1]
    extents = shape_of(call.args[0])[first : first + depth]
    return _with_arg(call, 1, rewriter.inside(call.args[1], *_from_both_ends(extents)))


def _each_dimension(rewriter: _Rewriter, call: relax.Call) -> relax.Expr | None:
    indices = rewriter.definition(call.args[1])
    fields = indices.fields if isinstance(indices, relax.Tuple) else ()
    if not fields or not all("int" in str(field.ty.dtype) for field in fields):
        return None
    safe = [
        rewriter.inside(index, *_from_both_ends([extent]))
        for index, extent in zip(fields, shape_of(call.args[0]), strict=False)
    ]
    return _with_arg(call, 1, relax.Tuple(safe))


def _lengths(rewriter: _Rewriter, call: relax.Call) -> relax.Expr | None:
    extent = shape_of(call.args[0])[int(call.attrs.seq_axis)]
    return _with_arg(call, 1, rewriter.inside(call.args[1], [0], [0], [extent]))


def _division(rewriter: _Rewriter, call: relax.Call) -> relax.Expr | None:
    safe = rewriter.divisor(call)
    return None if safe is None else _with_arg(call, 1, safe)


_RULES: dict[str, Callable[[_Rewriter, relax.Call], relax.Expr | None]] = {
    "take": _take,
    "gather_elements": _along_axis,
    "scatter_elements": _along_axis,
    "gather_nd": _nd,
    "scatter_nd": _nd,
    "index_tensor": _each_dimension,
    "index_put": _each_dimension,
    "reverse_sequence": _lengths,
    **dict.fromkeys(_DIVISIONS, _division),
}
