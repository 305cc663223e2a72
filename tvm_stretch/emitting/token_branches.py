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

from tvm_stretch.analysis.branch_spans import Span, closed_segment, share
from tvm_stretch.analysis.token_rows import TokenRows, find_token_rows
from tvm_stretch.emitting.branches import Emitter, Replacement
from tvm_stretch.errors import UnsupportedError
from tvm_stretch.ir.convolutions import operator_like
from tvm_stretch.ir.expressions import shape_of
from tvm_stretch.ir.operators import Operator, Operators, operands
from tvm_stretch.ir.views import RESHAPES
from tvm_stretch.plan.splits import RowSplit


@dataclass(frozen=True)
class TokenPlan:
    """The tokens that each branch computes."""

    members: tuple[Operator, ...]  # the operators of the segment
    tokens: TokenRows
    count: int  # of tokens
    bands: tuple[Span, ...]  # of each branch


def plan_token_split(operators: Operators, split: RowSplit) -> TokenPlan:
    """Compute the bands without building them.

    Raises:
        UnsupportedError: The segment cannot be split; the message says why.
        InputError: The ratios or the names of the tensors are invalid.
    """
    members = closed_segment(operators, split.start, split.end)
    tokens = find_token_rows(operators, members, split.start)
    if isinstance(tokens, str):
        raise UnsupportedError(
            f"expected operators that work on rows for segment {split.start!r} -> {split.end!r}, "
            f"got {tokens}; choose another segment"
        )
    count = operators.shape(split.end)[tokens.axes[split.end]]
    return TokenPlan(members, tokens, count, share(count, split.ratios))


def token_branches(
    operators: Operators, split: RowSplit, builder: relax.BlockBuilder, taken: set[str]
) -> Replacement:
    """The bindings of the branches (see the module docstring)."""
    plan = plan_token_split(operators, split)
    emitter = Emitter(builder, {}, taken)
    made = _Branches(operators, plan, emitter, split)
    for member in plan.members:
        made.compute(member)
    made.join(split.end)
    return Replacement(
        end=split.end,
        removed=frozenset(member.name for member in plan.members),
        bindings=tuple(emitter.bindings),
        branches=tuple(map(tuple, made.names)),
        joins=tuple(made.whole),
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
        self._parts: list[dict[str, relax.Var]] = [{} for _ in self.plan.bands]

    def compute(self, operator: Operator) -> None:
        """Emit an operator in each branch; one that reads all rows waits until it is needed.

        So products that follow are computed before the branches meet, and they meet once for keys
        and values.
        """
        if operator.name in self.plan.tokens.whole:
            self.waiting.append(operator)
            return
        if not self.plan.tokens.whole.isdisjoint(operator.inputs):
            waiting, self.waiting = self.waiting, []
            for other in waiting:
                self._emit_parts(other)
        self._emit_parts(operator)

    def _emit_parts(self, operator: Operator) -> None:
        for index in range(len(self.plan.bands)):
            listed = enumerate(operands(operator.call))
            args = [self._operand(index, operator, place, arg) for place, arg in listed]
            value = self._call(index, operator, args)
            name = f"{operator.name}.r{index}"
            self._parts[index][operator.name] = self._emit(index, name, value, operator.name)

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

    def _operand(self, index: int, operator: Operator, place: int, arg: relax.Expr) -> relax.Expr:
        """An operand of one branch: its own rows, or all rows."""
        whole = self.plan.tokens.whole
        if isinstance(arg, relax.Var):
            if arg.name in whole:
                return self._parts[index][arg.name]
            if operator.name in whole or (operator.kind == "matmul" and place == 1):
                return self._all_rows(arg.name)
            return self._rows(index, arg.name)
        if operator.kind == "matmul" or operator.name in whole:
            return arg
        return self._constant(index, operator, arg)

    def _all_rows(self, name: str) -> relax.Var:
        return self.operators.variables[name] if name == self.split.start else self.join(name)

    def _rows(self, index: int, name: str) -> relax.Var:
        parts = self._parts[index]
        if name == self.split.start and name not in parts:
            begin, end = self.plan.bands[index]
            whole, axis = self.operators.variables[name], self.plan.tokens.axes[name]
            cut = relax.op.strided_slice(whole, [axis], [begin], [end])
            label = f"{self.split.end}.r{index}.{name}.{begin}to{end}"
            parts[name] = self._emit(index, label, cut, name)
        return parts[name]

    def _constant(self, index: int, operator: Operator, arg: relax.Expr) -> relax.Expr:
        """A constant operand; if its rows differ, only those of the branch."""
        if not isinstance(arg, GenericConst):
            return arg
        rank = len(shape_of(arg))
        axis = self.plan.tokens.axes[operator.name] - len(operator.shape) + rank
        if axis < 0 or shape_of(arg)[axis] == 1:
            return arg
        rows = [slice(None)] * axis + [slice(*self.plan.bands[index])]
        return relax.const(arg.value.numpy()[tuple(rows)])

    def _call(self, index: int, operator: Operator, args: list[relax.Expr]) -> relax.Expr:
        if operator.kind not in RESHAPES:
            return operator_like(self.emitter.builder, operator.call, args)
        shape = list(operator.shape)
        if operator.name not in self.plan.tokens.whole:
            begin, end = self.plan.bands[index]
            shape[self.plan.tokens.axes[operator.name]] = end - begin
        return relax.op.reshape(args[0], shape)
