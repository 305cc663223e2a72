"""Compute layers of a transformer in bands of tokens, so that several processors share the work.

    h = layer_norm(x)                        h.r0 = layer_norm(x[:, :99])    h.r1 = ..(x[:, 99:])
    k = matmul(h, b)                         k.r0 = matmul(h.r0, b)          k.r1 = matmul(h.r1, b)
    y = softmax(h @ transpose(k)) @ k   ->   k = concat((k.r0, k.r1))
    z = add(x, matmul(y, c))                 y.r0 = softmax(h.r0 @ ..) @ k   y.r1 = ..
                                             z = concat((add(x[:, :99], ..), add(..)))

Everything but attention works token by token. Branches exchange keys and values once per attention
(`token_rows.py`) and nothing else, however many layers they compute, while shares of output
channels meet before every product and leave attention and normalisations to one processor. Each
element is computed as before, so the result is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.network.convolutions import operator_like
from tvm_stretch.network.emitting.branches import Emitter, Replacement
from tvm_stretch.network.expressions import RESHAPES, shape_of
from tvm_stretch.network.operators import Operator, Operators, operands
from tvm_stretch.network.properties.branch_spans import (
    BY_ELEMENT,
    Span,
    TokenRows,
    closed_segment,
    find_token_rows,
    share,
)
from tvm_stretch.network.steps import is_block_product
from tvm_stretch.plan.splits import RowSplit
from tvm_stretch.targets.cpu.kernels.nibbles import product_like


@dataclass(frozen=True)
class TokenPlan:
    """The tokens that each branch computes."""

    members: tuple[Operator, ...]  # the operators of the segment
    tokens: TokenRows
    bands: tuple[Span, ...]  # of each branch


def plan_token_split(operators: Operators, split: RowSplit) -> TokenPlan:
    """Compute the bands without building them.

    Raises:
        UnsupportedError: The segment cannot be split; the message says why.
        InputError: The ratios or the names of the tensors are invalid.
    """
    members = closed_segment(operators, split.start, split.end, True)
    tokens = find_token_rows(operators, members, split.start)
    if isinstance(tokens, str):
        raise UnsupportedError(
            f"expected operators that work on rows for segment {split.start!r} -> {split.end!r}, "
            f"got {tokens}; choose another segment"
        )
    return TokenPlan(members, tokens, share(tokens.count, split.ratios))


def token_branches(
    operators: Operators, split: RowSplit, builder: relax.BlockBuilder, taken: set[str]
) -> Replacement:
    """The bindings of the branches (see the module docstring)."""
    plan = plan_token_split(operators, split)
    emitter = Emitter(builder, {}, taken)
    branches = _Branches(operators, plan, emitter, split)
    branches.cut_from_outside()
    for member in plan.members:
        branches.compute(member)
    branches.join(split.end)
    return Replacement(
        end=split.end,
        removed=frozenset(member.name for member in plan.members),
        bindings=tuple(emitter.bindings),
        branches=tuple(map(tuple, branches.names)),
        joins=tuple(branches.whole),
        origins=emitter.origins,
    )


@dataclass
class _Branches:
    """Emits all branches side by side, because each reads keys and values of the others."""

    operators: Operators
    plan: TokenPlan
    emitter: Emitter
    split: RowSplit
    names: Sequence[list[str]] = field(init=False)  # of each branch's operators
    whole: dict[str, relax.Var] = field(default_factory=dict)  # tensors that were put together
    waiting: list[Operator] = field(default_factory=list)  # operators that read all rows

    def __post_init__(self) -> None:
        """No branch has computed anything."""
        self.names = [[] for _ in self.plan.bands]
        # by branch, the results for its own tokens, and those for all tokens
        self._parts: list[dict[str, relax.Var]] = [{} for _ in self.plan.bands]
        self._wholes: list[dict[str, relax.Var]] = [{} for _ in self.plan.bands]
        # rows of tensors that were computed before, by branch, name and axis
        self._cuts: dict[tuple[int, str, int], relax.Var] = {}

    def cut_from_outside(self) -> None:
        """Cut tensors from outside first: an attention with a slice inside is no single kernel."""
        tokens = self.plan.tokens
        for member in self.plan.members:
            if member.kind in BY_ELEMENT and member.name in tokens.by_rows:
                for name in dict.fromkeys(n for n in member.inputs if n not in tokens.axes):
                    for index in range(len(self.plan.bands)):
                        self._from_outside(index, member, self.operators.variables[name])

    def compute(self, operator: Operator) -> None:
        """Emit an operator in each branch; one that reads all rows waits until it is needed.

        So products that follow are computed before the branches meet, and they meet once for keys
        and values, which are put together before anything reads them.
        """
        tokens = self.plan.tokens
        if operator.name in tokens.by_rows:
            if operator.kind == "matmul" and not tokens.whole.isdisjoint(operator.inputs[-1:]):
                self._exchange()
            self._emit_all([operator], whole=False)
        if operator.name in tokens.whole:
            self.waiting.append(operator)

    def _exchange(self) -> None:
        """Put keys and values together, and emit all that waits for them."""
        for name in dict.fromkeys(name for other in self.waiting for name in other.inputs):
            if name in self.plan.tokens.joined:
                self.join(name)
        self._emit_all(self.waiting, whole=True)
        self.waiting = []

    def _emit_all(self, operators: Sequence[Operator], *, whole: bool) -> None:
        """Emit operators in each branch, for all tokens or for those of the branch."""
        emitted = self._wholes if whole else self._parts
        for index in range(len(self.plan.bands)):
            for operator in operators:
                value = self._value(index, operator, whole)
                var = self._emit(index, f"{operator.name}.r{index}", value, operator.name)
                emitted[index][operator.name] = var

    def join(self, name: str) -> relax.Var:
        """All rows of a tensor."""
        if name not in self.whole:
            parts = [parts[name] for parts in self._parts]
            value = relax.op.concat(parts, axis=self.plan.tokens.axes[name])
            self.whole[name] = self.emitter.emit_as(self.operators.variables[name], value)
        return self.whole[name]

    def _emit(self, index: int, name: str, value: relax.Expr, of: str) -> relax.Var:
        var = self.emitter.emit(name, value, of)
        self.names[index].append(var.name)
        return var

    def _value(self, index: int, operator: Operator, whole: bool) -> relax.Expr:
        """What an operator computes in one branch."""
        tuple_item = operator.binding.value
        if isinstance(tuple_item, relax.TupleGetItem):
            read = self._read(index, tuple_item.tuple_value, whole)
            return relax.TupleGetItem(read, tuple_item.index)
        args = [
            self._operand(index, operator, arg, whole or (operator.kind == "matmul" and place == 1))
            for place, arg in enumerate(operands(operator.call))
        ]
        if is_block_product(operator.kind):
            data = [arg for arg in args if isinstance(arg, relax.Var)]
            return product_like(self.emitter.builder, operator.call, data)
        if operator.kind not in (*RESHAPES, "broadcast_to"):
            return operator_like(self.emitter.builder, operator.call, args)
        shape = list(operator.shape)
        if not whole:
            begin, end = self.plan.bands[index]
            shape[self.plan.tokens.axes[operator.name]] = end - begin
        resized = relax.op.broadcast_to if operator.kind == "broadcast_to" else relax.op.reshape
        return resized(args[0], shape)

    def _operand(self, index: int, operator: Operator, arg: relax.Expr, whole: bool) -> relax.Expr:
        """An operand of one branch: its own rows, or all rows."""
        if isinstance(arg, relax.Var) and arg.name in self.plan.tokens.axes:
            return self._read(index, arg, whole)
        if isinstance(arg, relax.Tuple):
            fields = [self._operand(index, operator, field, whole) for field in arg.fields]
            return relax.Tuple(fields)
        if operator.kind.startswith("matmul") or whole:
            return arg
        return self._from_outside(index, operator, arg)

    def _read(self, index: int, var: relax.Var, whole: bool) -> relax.Var:
        if not whole:
            return self._rows(index, var.name)
        wholes = self._wholes[index]
        return wholes[var.name] if var.name in wholes else self._all_rows(var.name)

    def _all_rows(self, name: str) -> relax.Var:
        return self.operators.variables[name] if name == self.split.start else self.join(name)

    def _rows(self, index: int, name: str) -> relax.Var:
        if name == self.split.start:
            axis = self.plan.tokens.axes[name]
            return self._rows_of(index, self.operators.variables[name], axis)
        return self._parts[index][name]

    def _rows_of(self, index: int, whole: relax.Var, axis: int) -> relax.Var:
        """The branch's rows of a tensor that was computed before the segment."""
        key = index, whole.name, axis
        if key not in self._cuts:
            begin, end = self.plan.bands[index]
            cut = relax.op.strided_slice(whole, [axis], [begin], [end])
            label = f"{self.split.end}.r{index}.{whole.name}.{begin}to{end}"
            self._cuts[key] = self._emit(index, label, cut, whole.name)
        return self._cuts[key]

    def _from_outside(self, index: int, operator: Operator, arg: relax.Expr) -> relax.Expr:
        """A constant, or a tensor from outside; if its rows differ, only those of the branch."""
        if not isinstance(arg, GenericConst | relax.Var):
            return arg
        rank = len(shape_of(arg))
        axis = self.plan.tokens.axes[operator.name] - len(operator.shape) + rank
        if axis < 0 or shape_of(arg)[axis] == 1:
            return arg
        if isinstance(arg, relax.Var):
            return self._rows_of(index, arg, axis)
        rows = [slice(None)] * axis + [slice(*self.plan.bands[index])]
        return relax.const(arg.value.numpy()[tuple(rows)])
