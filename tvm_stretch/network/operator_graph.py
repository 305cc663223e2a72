"""The operator graph: the operators of a canonical function in groups that run together.

    lv  = R.nn.conv2d(x, w)              group lv2: conv2d, add, relu   one kernel
    lv1 = R.add(lv, b)            ->     group lv3: max_pool2d          one kernel
    lv2 = R.nn.relu(lv1)                 group lv5: conv2d
    lv3 = R.nn.max_pool2d(x)             group lv8: add                 reads lv2 and lv5, not lv6:
    lv5 = R.nn.conv2d(lv3, w1)                                          a concat is no kernel, since
    lv6 = R.concat((lv2, lv5))                                          its parts are written into
    it
    lv8 = R.add(lv6, b1)

A group is named after its last operator, whose result is the only one that other groups read.  Cost
models, schedulers and passes all look at networks this way; the operators themselves come from
`tvm_stretch.network.operators`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import tvm
from tvm import relax

from tvm_stretch.base.errors import ScheduleError
from tvm_stretch.network.expressions import PIECES, RESHAPES, is_view
from tvm_stretch.network.operators import POINTWISE, Operator, Operators, bytes_of

# Operators whose kernels take the elementwise operators that follow them.
ANCHORS = ("nn.conv", "matmul", "nn.max_pool", "nn.avg_pool", "nn.adaptive_avg_pool", "call_tir")


@dataclass(frozen=True, eq=False)
class Group:
    """Operators that become one kernel."""

    name: str  # of the last operator
    operators: tuple[Operator, ...]  # in program order
    reads: tuple[str, ...]  # groups and parameters of the network that it reads
    bytes: int  # of its result
    read_bytes: int  # of all operands, including constants
    multiply_adds: int  # of its convolutions and matrix products

    @property
    def is_joint(self) -> bool:
        """Whether one kernel computes several products, such as those of an attention."""
        return sum(operator.multiply_adds > 0 for operator in self.operators) > 1

    @cached_property
    def anchor(self) -> Operator:
        """The operator that determines the kind of the kernel."""
        return max(self.operators, key=lambda op: (op.multiply_adds, op.kind not in POINTWISE))


class OperatorGraph:
    """The kernels of one function, in an order in which they can run.

    Args:
        function: canonical Relax, or its `Operators`.
        members: the operators of each group, as `tvm_stretch.make.kernels` returns them; others
            are views. By default every operator that is no view is a group.
    """

    def __init__(
        self,
        function: relax.Function | Operators,
        members: Sequence[Sequence[str]] | None = None,
    ) -> None:
        self.operators = function if isinstance(function, Operators) else Operators(function)
        self.inputs = self.operators.params
        if members is None:
            members = [(op.name,) for op in self.operators if is_computed(op)]
        grouped = {name for names in members for name in names}
        self._views = {op.name for op in self.operators} - grouped
        self._sources: dict[str, tuple[str, ...]] = {}
        self.groups = tuple(self._group([self.operators[n] for n in names]) for names in members)
        self._check_order()
        self.outputs = self.sources(self.operators.outputs)

    @cached_property
    def by_name(self) -> dict[str, Group]:
        """Groups by their names."""
        return {group.name: group for group in self.groups}

    def sources(self, tensors: Sequence[str]) -> tuple[str, ...]:
        """The groups and parameters that hold the tensors, with views and tuples resolved."""
        sources: dict[str, None] = {}
        for tensor in tensors:
            if tensor not in self._views:
                sources[tensor] = None
                continue
            if tensor not in self._sources:
                self._sources[tensor] = self.sources(self.operators[tensor].inputs)
            sources.update(dict.fromkeys(self._sources[tensor]))
        return tuple(sources)

    def _check_order(self) -> None:
        """Refuse an order in which a group cannot run, because searches need its operands' times.

        A group that reads a view of itself is in order.
        """
        later = {group.name for group in self.groups}
        for group in self.groups:
            later.remove(group.name)
            for name in later.intersection(group.reads):
                raise ScheduleError(
                    f"expected kernels in an order in which they can run, got {group.name} before "
                    f"{name}, whose result it reads; this is a fault of the compiler, report it"
                )

    def _group(self, operators: list[Operator]) -> Group:
        name = operators[-1].name
        inside = {op.name for op in operators}
        outer = [t for op in operators for t in op.inputs if t not in inside]
        constants = sum(_constant_bytes(op) for op in operators)
        return Group(
            name=name,
            operators=tuple(operators),
            reads=self.sources(outer),
            bytes=self.operators.bytes(name),
            read_bytes=constants + sum(map(self.operators.bytes, dict.fromkeys(outer))),
            multiply_adds=sum(op.multiply_adds for op in operators),
        )


def is_computed(operator: Operator) -> bool:
    """Whether the operator needs a kernel in each run."""
    return bool(operator.inputs) and not _is_view(operator)


def _is_view(operator: Operator) -> bool:
    """Whether the operator is a view of memory, as `keep_views` leaves it."""
    if operator.kind in RESHAPES or not isinstance(operator.binding.value, relax.Call):
        return True  # tuples, their fields, aliases
    return operator.kind in PIECES and is_view(operator.call)


def _constant_bytes(operator: Operator) -> int:
    """Bytes of the operator's constants."""
    waiting, total = list(operator.call.args[:]), 0
    while waiting:
        part = waiting.pop()
        if isinstance(part, tvm.ir.GenericConst):
            total += bytes_of(part.ty)
        elif isinstance(part, relax.Tuple):
            waiting += part.fields[:]
    return total
