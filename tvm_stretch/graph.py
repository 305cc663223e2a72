"""The operator graph: what a canonical function computes, in the units that run.

    lv  = R.nn.conv2d(x, w)              group lv2: conv2d, add, relu   one kernel
    lv1 = R.add(lv, b)            ->     group lv3: max_pool2d          one kernel
    lv2 = R.nn.relu(lv1)                 group lv5: conv2d
    lv3 = R.nn.max_pool2d(x)             group lv8: add                 reads lv2 and lv5, not lv6:
    lv5 = R.nn.conv2d(lv3, w1)                                          a concat is no kernel, its
    lv6 = R.concat((lv2, lv5))                                          parts are written into it
    lv8 = R.add(lv6, b1)

A group is called after its last operator, whose result is the only one that leaves it.  Cost
models, schedulers and passes all look at networks this way; operators themselves are those of
`tvm_stretch.passes.operators`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import tvm
from tvm import relax

from tvm_stretch.errors import InputError
from tvm_stretch.passes.keep_views import is_view
from tvm_stretch.passes.operators import POINTWISE, VIEWS, Operator, Operators, bytes_of
from tvm_stretch.scheduling.problem import Operator as Task
from tvm_stretch.scheduling.problem import Problem, Tensor, TransferCost
from tvm_stretch.scheduling.result import Result

# Operators whose kernels take elementwise operators behind them.
_ANCHORS = ("nn.conv", "matmul", "nn.max_pool", "nn.avg_pool", "nn.adaptive_avg_pool", "call_tir")
# Operators whose output channels can be computed in shares.
_SPLITTABLE = (*_ANCHORS, *POINTWISE)

Costs = Mapping[str, Sequence[int | None]] | Callable[["Group"], Sequence[int | None]]


@dataclass(frozen=True, eq=False)
class Group:
    """Operators that become one kernel.

    Attributes:
        name: of the last operator.
        operators: in program order.
        reads: groups and parameters of the network whose results it reads.
        bytes: of its result.
        read_bytes: of everything it reads, constants too.
        multiply_adds: of its convolutions and matrix products.
    """

    name: str
    operators: tuple[Operator, ...]
    reads: tuple[str, ...]
    bytes: int
    read_bytes: int
    multiply_adds: int

    @cached_property
    def anchor(self) -> Operator:
        """The operator that decides what kind of kernel it is."""
        return max(self.operators, key=lambda op: (op.multiply_adds, op.kind not in POINTWISE))


class OperatorGraph:
    """The kernels of one function, in an order in which they can run.

    Args:
        function: canonical Relax, or what `Operators` made of it.
        fuse: one group per kernel; False gives one group per operator.
        where: something of each operator, such as its processor; only equal ones are fused.
    """

    def __init__(
        self,
        function: relax.Function | Operators,
        *,
        fuse: bool = True,
        where: Mapping[str, object] | None = None,
    ) -> None:
        self.operators = function if isinstance(function, Operators) else Operators(function)
        self._where = where or {}
        self.inputs = self.operators.params
        self._views = {op.name for op in self.operators if _is_view(op)}
        self._sources: dict[str, tuple[str, ...]] = {}
        members = self._fuse() if fuse else {op.name: [op] for op in self._kernels()}
        self.groups = tuple(self._group(name, ops) for name, ops in members.items())
        self.outputs = self.sources(self.operators.outputs)

    @classmethod
    def of(cls, mod: tvm.IRModule, *, fuse: bool = True) -> OperatorGraph:
        """The graph of ``main``."""
        return cls(mod["main"], fuse=fuse)

    @cached_property
    def by_name(self) -> dict[str, Group]:
        """Groups by their names."""
        return {group.name: group for group in self.groups}

    def sources(self, tensors: Sequence[str]) -> tuple[str, ...]:
        """What really holds the tensors: views and tuples replaced by what they look at."""
        found: dict[str, None] = {}
        for tensor in tensors:
            if tensor not in self._views:
                found[tensor] = None
                continue
            if tensor not in self._sources:
                self._sources[tensor] = self.sources(self.operators[tensor].inputs)
            found.update(dict.fromkeys(self._sources[tensor]))
        return tuple(found)

    def _kernels(self) -> list[Operator]:
        """Operators that are more than views, and read something that is not constant."""
        return [op for op in self.operators if op.name not in self._views and op.inputs]

    def _fuse(self) -> dict[str, list[Operator]]:
        """Each elementwise operator joins the kernels before it that nobody else reads.

        A kernel holds at most one operator that is not elementwise; of several kernels that would
        take it, the operator joins the last one with an anchor, so that the others are ready.
        """
        members: dict[str, list[Operator]] = {}
        position = {operator.name: index for index, operator in enumerate(self._kernels())}
        for operator in self._kernels():
            joined = [operator]
            if operator.kind in POINTWISE:
                hosts = self._closed(members, self._hosts(members, operator), operator)
                anchored = [name for name in hosts if _anchor_count(members[name])]
                last = max(anchored, key=position.__getitem__, default=None)
                hosts = [name for name in hosts if name not in anchored or name == last]
                hosts = self._closed(members, hosts, operator)
                before = [op for name in hosts for op in members.pop(name)]
                joined = sorted(before, key=lambda op: position[op.name]) + joined
            members[operator.name] = joined
        return members

    def _hosts(self, members: dict[str, list[Operator]], operator: Operator) -> list[str]:
        """Kernels before the operator, behind no other than elementwise ones."""
        found: list[str] = []
        ahead = list(operator.inputs)
        while ahead:
            name = ahead.pop()
            kernel = members.get(name)
            if kernel is None or name in found:
                continue
            if self._where.get(name) != self._where.get(operator.name):
                continue
            if all(op.kind in POINTWISE or op.kind.startswith(_ANCHORS) for op in kernel):
                found.append(name)
                if not _anchor_count(kernel):
                    ahead.extend(tensor for op in kernel for tensor in op.inputs)
        return found

    def _closed(
        self, members: dict[str, list[Operator]], hosts: list[str], operator: Operator
    ) -> list[str]:
        """Those of the kernels whose results only they themselves and the operator read."""
        while True:
            inside = {op.name for name in hosts for op in members[name]} | {operator.name}
            kept = [
                name
                for name in hosts
                if inside.issuperset(self.operators.readers[name])
                and name not in self.operators.outputs
            ]
            if kept == hosts:
                return kept
            hosts = kept

    def _group(self, name: str, operators: list[Operator]) -> Group:
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

    def problem(
        self,
        processors: Sequence[str],
        costs: Costs,
        transfers: Sequence[Sequence[TransferCost]],
        *,
        caching: bool = True,
        launch: Sequence[int] = (),
        splittable: bool = False,
    ) -> Problem:
        """The scheduling problem of this network.

        The caller's inputs and outputs belong to the first processor: the operators ``inputs`` and
        ``outputs`` run there at no cost.

        Args:
            processors: their names.
            costs: nanoseconds on each processor by group, None where unsupported.
            transfers: of each pair of processors.
            caching: whether processors keep tensors that they received.
            launch: what every kernel of a processor takes.
            splittable: whether schedulers may split operators by channels.
        """
        at_home = (0, *[None] * (len(processors) - 1))
        names = ["inputs", *(group.name for group in self.groups), "outputs"]
        tasks = [Task("inputs", at_home), *(self._task(g, costs, splittable) for g in self.groups)]
        tasks.append(Task("outputs", at_home))
        index = dict.fromkeys(self.inputs, 0) | {n: i for i, n in enumerate(names) if i > 0}
        readers: dict[str, set[int]] = {}
        reads = [*((index[g.name], g.reads) for g in self.groups), (len(names) - 1, self.outputs)]
        for reader, read in reads:
            for tensor in read:
                if tensor in index:  # others are constant
                    readers.setdefault(tensor, set()).add(reader)
        tensors = [
            Tensor(name, self.operators.bytes(name), index[name], tuple(sorted(after)))
            for name, after in readers.items()
        ]
        return Problem(
            tuple(processors),
            tuple(tasks),
            tuple(tensors),
            tuple(map(tuple, transfers)),
            caching,
            tuple(launch),
        )

    def processor_of(self, result: Result) -> dict[str, str]:
        """The processor of every operator by a schedule of `problem`, for `form_regions`.

        A view runs where it is read first, or else where what it looks at was written.
        """
        names = result.problem.processors
        placed = {
            task.name: names[processor]
            for task, processor in zip(result.problem.operators, result.placement, strict=True)
        }
        found = {op.name: placed[g.name] for g in self.groups for op in g.operators}
        views = [op for op in self.operators if op.name not in found]
        for view in reversed(views):
            readers = (found[r] for r in self.operators.readers[view.name] if r in found)
            found[view.name] = next(readers, "")
        for view in views:
            sources = (found[name] for name in view.inputs if found.get(name))
            found[view.name] = found[view.name] or next(sources, names[0])
        return {
            op.name: found[op.name]
            for op in self.operators
            if isinstance(op.binding.value, relax.Call)
        }

    def _task(self, group: Group, costs: Costs, splittable: bool) -> Task:
        try:
            cost = costs(group) if callable(costs) else costs[group.name]
        except KeyError:
            raise InputError(
                f"expected costs of the kernel {group.name} ({group.anchor.kind}), got none; "
                "measure it or leave it to a cost model"
            ) from None
        splits = splittable and group.anchor.kind.startswith(_SPLITTABLE)
        return Task(group.name, tuple(cost), splits)


def _is_view(operator: Operator) -> bool:
    """Whether the operator only looks at memory another way, as `keep_views` leaves it."""
    if operator.kind in VIEWS or not isinstance(operator.binding.value, relax.Call):
        return True  # tuples, their fields, other names
    if operator.kind in ("concat", "split", "strided_slice"):
        return is_view(operator.call)
    return False


def _anchor_count(operators: list[Operator]) -> int:
    return sum(op.kind not in POINTWISE for op in operators)


def _constant_bytes(operator: Operator) -> int:
    """Weights that the operator reads."""
    waiting, total = list(operator.call.args[:]), 0
    while waiting:
        part = waiting.pop()
        if isinstance(part, tvm.ir.GenericConst):
            total += bytes_of(part.ty)
        elif isinstance(part, relax.Tuple):
            waiting += part.fields[:]
    return total
