"""Decompose each kind of operator of an exported program once.

    conv2d(x, w), relu_, conv2d(y, v), ..   ->   conv2d(a, b)             one program of all kinds
    convolution(x, w, ..), relu, ..         <-   convolution(a, b, ..)    what torch makes of it

Torch decomposes a program by running it twice on tensors without data, which takes milliseconds a
node.  Layers repeat, so a program with one node of each kind, where kinds differ in arguments,
shapes or types, is far smaller.  What torch makes of it then replaces every node of its kind.
Sizes do not matter for the layers of `_FOR_ALL_SIZES`, which most networks repeat in many widths.

Operators that write to a tensor become those that return the result.  Where the tensor is read
later by another name, its nodes and their readers go to torch together, which makes them pure.
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Graph, Node

Table = Mapping[Any, Any]
Result = tuple["Node | None", int | None]
"""A node and the place among its results, if there are several."""

_ELEMENTWISE = ("relu", "hardtanh", "relu6", "silu", "hardsigmoid", "hardswish", "gelu", "sigmoid")
_FOR_ALL_SIZES = {
    f"{name}.default"
    for name in (*_ELEMENTWISE, "conv1d", "conv2d", "conv3d", "batch_norm", "dropout")
}
"""Operators that torch decomposes alike for all sizes of a rank, none of which it writes down."""
_TRAINING = 5
"""The place of this argument among those of batch_norm."""


def decompose(program: ExportedProgram, table: Table) -> ExportedProgram:
    """The result of ``program.run_decompositions(table)``, up to names of nodes."""
    joint = _joint(program)
    if joint is not None and all(map(_is_plain, program.graph.nodes)):
        kinds = _Kinds(table, joint)
        for node in program.graph.nodes:
            kinds.take(node)
        small = kinds.program(program).run_decompositions(dict(table))
        if _is_pure(small, len(kinds.inputs)):
            return _replaced(program, kinds, small)
    return program.run_decompositions(dict(table))


def _values(node: Node) -> list[Any]:
    value = node.meta.get("val")
    return [*value] if isinstance(value, list | tuple) else [value]


def _is_plain(node: Node) -> bool:
    """Whether it is an operator on tensors whose sizes are numbers."""
    import torch

    if node.op == "output":
        return True
    is_operator = node.target is operator.getitem or isinstance(node.target, torch._ops.OpOverload)
    if not (node.op == "placeholder" or (node.op == "call_function" and is_operator)):
        return False
    return all(
        value is None
        or (
            isinstance(value, torch._subclasses.FakeTensor)
            and value.layout == torch.strided
            and all(type(size) is int for size in value.shape)
        )
        for value in _values(node)
    )


def _writes(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and schema.is_mutable


def _pure(target: Any) -> Any:
    """The operator that returns what this one writes; None if there is no such operator."""
    import torch

    name, _, overload = target.__name__.partition(".")
    if target.namespace != "aten" or not name.endswith("_"):
        return None
    return getattr(getattr(torch.ops.aten, name[:-1], None), overload, None)


def _is_composite(target: Any) -> bool:
    """Whether torch writes it in other operators by itself."""
    import torch

    lifts = target.__name__.startswith("lift")  # of constants: torch takes it away
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return lifts or has_kernel(target.name(), "CompositeImplicitAutograd")


def _joint(program: ExportedProgram) -> set[Node] | None:
    """Nodes that torch must see together; None if the program changes what it is given."""
    place = {node: number for number, node in enumerate(program.graph.nodes)}
    named: dict[int, list[Node]] = defaultdict(list)  # by the memory of their tensors
    for node in filter(_is_plain, place):
        for value in _values(node):
            if value is not None:
                named[value.untyped_storage()._cdata].append(node)
    groups = {node: group for group in named.values() for node in group}
    joint: set[Node] = set()
    for node in filter(_writes, place):
        same = groups.get(node.args[0], [])
        if not same or any(one.op == "placeholder" for one in same):
            return None
        readers = {user for one in same for user in one.users}
        before = [one for one in same if place[one] < place[node]]
        late = any(place[user] > place[node] for one in before for user in one.users)
        if late or _pure(node.target) is None:
            if any(user.op == "output" for user in readers):
                return None
            joint |= {*same, *readers}
    return joint


@dataclass
class _Taken:
    """Where the small program has a node's results, and what they depend on."""

    inputs: list[Node]  # placeholders of the small program
    given: list[Node]  # nodes of the large program that take their places
    results: dict[Result, int]  # places among the outputs of the small program
    kind: Node | None  # the first node of the kind, by which `results` are named


class _Kinds:
    """The small program while it grows, and what becomes of each node of the large one."""

    def __init__(self, table: Table, joint: set[Node]) -> None:
        from torch.fx import Graph

        self.table, self.joint, self.graph = table, joint, Graph()
        self.first: dict[Any, _Taken] = {}  # by kind
        self.taken: dict[Node, _Taken] = {}
        self.inputs: list[Node] = []
        self.outputs: list[Node] = []
        self.copies: dict[Node, Node] = {}  # of nodes that torch sees together
        self.together = _Taken([], [], {}, None)

    def take(self, node: Node) -> None:
        """Add a node of the large program, if it is the first of its kind."""
        if node.op == "call_function" and node in self.joint:
            self._take_jointly(node)
        elif node.op == "call_function" and node.target is not operator.getitem:
            target = _pure(node.target) if _writes(node) else node.target
            if target is not node.target or target in self.table or _is_composite(target):
                self._take_alone(node, target)

    def _take_jointly(self, node: Node) -> None:
        for read in node.all_input_nodes:
            if read not in self.copies:
                self.copies[read] = self._input(read)
                self.together.inputs.append(self.copies[read])
                self.together.given.append(read)
        copy = self.copies[node] = self.graph.node_copy(node, self.copies.__getitem__)
        if any(user not in self.joint for user in node.users):
            self._output(node, copy, self.together.results)
            self.taken[node] = _Taken(**{**vars(self.together), "kind": node})

    def _take_alone(self, node: Node, target: Any) -> None:
        # a norm by the statistics of its batch becomes many operators of several shapes
        trains = any(argument is True for argument in node.args[: _TRAINING + 1])
        sized = target.__name__ not in _FOR_ALL_SIZES or trains
        key = (target, _key(node.args, sized), _key(tuple(sorted(node.kwargs.items())), sized))
        given: list[Node] = []
        _each_node(node, given.append)
        if key not in self.first:
            inputs = [self._input(read) for read in given]
            left = iter(inputs)
            copy = self.graph.node_copy(node, lambda _: next(left))
            copy.target = target
            self.first[key] = _Taken(inputs, given, {}, node)
            self._output(node, copy, self.first[key].results)
        first = self.first[key]
        self.taken[node] = _Taken(first.inputs, given, first.results, first.kind)

    def _input(self, read: Node) -> Node:
        last = self.inputs[-1] if self.inputs else None
        with self.graph.inserting_after(last) if last else self.graph.inserting_before():
            node = self.graph.placeholder(f"given{len(self.inputs)}")
        (value,) = _values(read)
        with value.fake_mode:
            node.meta["val"] = value.new_empty_strided(value.size(), value.stride())
        self.inputs.append(node)
        return node

    def _output(self, node: Node, copy: Node, results: dict[Result, int]) -> None:
        if not isinstance(node.meta["val"], list | tuple):
            results[node, None] = len(self.outputs)
            self.outputs.append(copy)
            return
        for number, value in enumerate(node.meta["val"]):
            if value is not None:
                results[node, number] = len(self.outputs)
                part = self.graph.call_function(operator.getitem, (copy, number))
                part.meta["val"] = value
                self.outputs.append(part)

    def program(self, whole: ExportedProgram) -> ExportedProgram:
        """The small program, which gets tensors only and returns all results."""
        from torch.export import exported_program as exported
        from torch.export import graph_signature as sig
        from torch.fx import GraphModule
        from torch.utils._pytree import tree_structure

        self.graph.output(tuple(self.outputs))
        reads = [sig.TensorArgument(node.name) for node in self.inputs]
        writes = [sig.TensorArgument(node.name) for node in self.outputs]
        signature = sig.ExportGraphSignature(
            [sig.InputSpec(sig.InputKind.USER_INPUT, one, None) for one in reads],
            [sig.OutputSpec(sig.OutputKind.USER_OUTPUT, one, None) for one in writes],
        )
        trees = tree_structure((tuple(self.inputs), {})), tree_structure(tuple(self.outputs))
        calls = [exported.ModuleCallEntry("", exported.ModuleCallSignature([], [], *trees))]
        return exported.ExportedProgram(
            *(GraphModule({}, self.graph), self.graph, signature, {}, {}, calls),
            verifiers=whole.verifiers,
        )


def _each_node(node: Node, visit: Any) -> None:
    """Visit the nodes among the arguments in the order in which `node_copy` does."""
    from torch.fx.node import map_arg

    map_arg((node.args, node.kwargs), visit)


def _key(argument: Any, sized: bool) -> Any:
    """What decides how torch decomposes an operator, of one of its arguments."""
    from torch.fx import Node

    if isinstance(argument, Node):
        (value,) = _values(argument)
        sizes = (tuple(value.shape), value.stride()) if sized else (value.ndim, _order(value))
        return value.dtype, sizes, value.is_conj()
    if isinstance(argument, list | tuple):
        return tuple(_key(part, sized) for part in argument)
    return repr(argument)  # 0.0 and -0.0, or 1 and True, are equal but not the same


def _order(value: Any) -> tuple[int, ...]:
    """The dimensions of a tensor by their distance in memory."""
    return tuple(sorted(range(value.ndim), key=lambda axis: (-value.stride()[axis], axis)))


def _is_pure(small: ExportedProgram, count: int) -> bool:
    """Whether torch made a program with these inputs, no constants, and nothing to write to."""
    kinds = {spec.kind.name for spec in small.graph_signature.output_specs}
    return len(small.graph_signature.input_specs) == count and kinds <= {"USER_OUTPUT"}


def _replaced(program: ExportedProgram, kinds: _Kinds, small: ExportedProgram) -> ExportedProgram:
    """The large program with what torch made of each kind."""
    from torch.fx import Graph, GraphModule

    graph, answers = Graph(), small.graph.output_node().args[0]
    inputs = [node for node in small.graph.nodes if node.op == "placeholder"]
    place = dict(zip(kinds.inputs, inputs, strict=True))
    copies: dict[Any, Node] = {}
    copied: dict[Node | None, dict[Node, Node]] = defaultdict(dict)
    for node in program.graph.nodes:
        source, number = _source(node, kinds)
        taken = kinds.taken.get(source)
        if taken is None and (node not in kinds.joint or node.op != "call_function"):
            copies[node] = graph.node_copy(node, copies.__getitem__)
            if node.op == "placeholder":  # whose names are in the signature, even `input`
                copies[node].name = node.name
        if taken is None or (taken.kind, number) not in taken.results:
            continue
        memory = copied[None if source in kinds.joint else source]
        for read, given in zip(taken.inputs, taken.given, strict=True):
            if given in copies:  # those of joint nodes come one after the other
                memory[place[read]] = copies[given]
        answer = answers[taken.results[taken.kind, number]]
        copies[node] = _copy(answer, memory, graph, node.meta["val"])
    graph.eliminate_dead_code()
    signature = deepcopy(program.graph_signature)
    names = {node.name: new.name for node, new in copies.items()}
    for spec in signature.output_specs:
        spec.arg.name = names.get(spec.arg.name, spec.arg.name)
    return _as(program, GraphModule(program.graph_module, graph), signature)


def _as(program: ExportedProgram, module: Any, signature: Any) -> ExportedProgram:
    """A program with another graph; modules' inputs and outputs, which nothing here reads, go."""
    from torch.export import ExportedProgram

    first = program.module_call_graph[0]
    call = replace(first, signature=replace(first.signature, inputs=[], outputs=[]))
    return ExportedProgram(
        *(module, module.graph, signature, program.state_dict, program.range_constraints, [call]),
        *(program.example_inputs, program.constants),
        verifiers=program.verifiers,
    )


def _source(node: Node, kinds: _Kinds) -> Any:
    """The operator that computes what a node is, and its place among several results."""
    is_part = node.target is operator.getitem and node not in kinds.taken
    return node.args if is_part else (node, None)


def _copy(node: Node, memory: dict[Node, Node], graph: Graph, value: Any) -> Node:
    """Copy a node of the small program and what it depends on; `value` has the copy's sizes."""
    from torch.fx.node import map_arg

    waiting = [node]
    while waiting:
        one = waiting[-1]
        missing = [read for read in one.all_input_nodes if read not in memory]
        if not missing and one not in memory:
            args = map_arg((one.args, one.kwargs), memory.__getitem__)
            name = re.sub(r"_\d+$", "", one.name)
            memory[one] = graph.create_node(one.op, one.target, *args, name)
            memory[one].meta = _resized(one.meta, node.meta["val"], value)
        waiting = waiting + missing if missing else waiting[:-1]
    return memory[node]


def _resized(meta: dict[str, Any], first: Any, value: Any) -> dict[str, Any]:
    """What torch notes of a node, where tensors like the result of the first of a kind change."""
    if first.shape == value.shape:
        return meta

    def other(part: Any) -> Any:
        if isinstance(part, list | tuple):
            return type(part)(map(other, part))
        return value if part is not None and part.shape == first.shape else part

    return {**meta, "val": other(meta["val"])}
