"""Regions of several processors: graphs interpreted in random orders, with mirrors of memory."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import tvm
from helpers.random_networks import networks, plans
from helpers.relax_helpers import answers, module, random_inputs
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.make.lowering.executor_graph import (
    COPY_KERNEL,
    CPU,
    Graph,
    Node,
    ProcessorSpec,
    Region,
    Tensor,
)
from tvm_stretch.make.lowering.lower import Lowered, lower
from tvm_stretch.network.operators import Calls
from tvm_stretch.passes.keep_views import KeepViews
from tvm_stretch.passes.name_operators import NameOperators
from tvm_stretch.passes.partition_regions import PartitionRegions
from tvm_stretch.passes.tag import TagOperators
from tvm_stretch.plan.plan import Plan, PlannedRegion

PROCESSORS = (CPU, ProcessorSpec("gpu", "fake"), ProcessorSpec("dsp", "fake"))
NAMES = tuple(spec.name for spec in PROCESSORS)


def compute(kernel: str, inputs: list[np.ndarray]) -> np.ndarray:
    """What a kernel of `random_networks` computes; concat and split are views there."""
    if kernel == COPY_KERNEL:
        return inputs[0]
    if kernel.startswith("relu"):
        return np.maximum(inputs[0], 0)
    if "negative" in kernel:
        return -inputs[0]
    return inputs[0] * inputs[1] if kernel.startswith("multiply") else inputs[0] + inputs[1]


class Memory:
    """The memories of one processor, full of garbage at first."""

    def __init__(self, graph: Graph, weights: np.ndarray, seed: int) -> None:
        noise = np.random.default_rng(seed)

        def garbage(size: int) -> np.ndarray:
            return noise.integers(0, 120, size, dtype=np.uint8)

        self.bytes = {("arena", 0): garbage(graph.arena_bytes), ("constant", 0): weights}
        self.bytes[("prepared", 0)] = garbage(graph.prepared_bytes)
        for kind, ports in (("input", graph.inputs), ("output", graph.outputs)):
            for i, port in enumerate(ports):
                self.bytes[(kind, i)] = garbage(graph.tensors[port.tensor].bytes)

    def window(self, tensor: Tensor) -> np.ndarray:
        memory = self.bytes[(tensor.kind, tensor.buffer)]
        return memory[tensor.offset : tensor.offset + tensor.bytes]

    def array(self, tensor: Tensor) -> np.ndarray:
        return self.window(tensor).view(tensor.dtype).reshape(tensor.shape)


class Machine:
    """Runs a graph; every processor but the first has memory of its own."""

    def __init__(self, lowered: Lowered) -> None:
        self.graph = lowered.graph
        weights = np.array(lowered.weights.numpy())
        self.memories = [Memory(self.graph, weights, i) for i in range(len(PROCESSORS))]
        self.done: set[int] = set()

    def run(self, inputs: list[np.ndarray], seed: int) -> list[np.ndarray]:
        """The outputs, after steps of all processors in one of the orders that are allowed."""
        graph, host = self.graph, self.memories[0]
        for i, value in enumerate(inputs):
            host.bytes[("input", i)][...] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        for node in graph.prepare:
            self.call(node, host)
        for memory in self.memories[1:]:
            memory.bytes[("prepared", 0)][...] = host.bytes[("prepared", 0)]
        generator = random.Random(seed)
        workers = {p: self.work(p) for p in range(len(PROCESSORS))}
        idle: set[int] = set()
        while workers:
            ready = [p for p in workers if p not in idle]
            assert ready, "the processors wait for each other"
            processor = generator.choice(ready)
            match next(workers[processor], "end"):
                case "end":
                    del workers[processor]
                case "waits":
                    idle.add(processor)
                case _:
                    idle.clear()
        return [host.array(graph.tensors[port.tensor]) for port in graph.outputs]

    def work(self, processor: int) -> Iterator[str]:
        """One processor's regions, a step at a time."""
        memory, host = self.memories[processor], self.memories[0]
        for index, region in enumerate(self.graph.regions):
            if region.processor != processor:
                continue
            while not self.done.issuperset(region.after):
                yield "waits"
            for tensor in region.receives:
                self.copy(tensor, host, memory)
                yield "received"
            for node in region.nodes:
                self.call(self.graph.nodes[node], memory)
                yield "computed"
            for tensor in region.sends:
                self.copy(tensor, memory, host)
                yield "sent"
            self.done.add(index)
            yield "completed"

    def copy(self, tensor: int, source: Memory, target: Memory) -> None:
        window = self.graph.tensors[tensor]
        target.window(window)[...] = source.window(window)

    def call(self, node: Node, memory: Memory) -> None:
        tensors = self.graph.tensors
        result = compute(node.kernel, [memory.array(tensors[i]).copy() for i in node.inputs])
        (output,) = node.outputs
        memory.array(tensors[output])[...] = result.reshape(tensors[output].shape)


def lower_planned(mod: tvm.IRModule, plan: Plan) -> Lowered:
    mod = KeepViews()(PartitionRegions()(TagOperators(plan)(mod)))
    return lower(mod, processors=PROCESSORS)


@given(st.data())
def test_any_order_on_any_processors_computes_the_same(data: st.DataObject) -> None:
    mod = data.draw(networks(least_steps=6, most_steps=24))
    lowered = lower_planned(mod, data.draw(plans(mod, NAMES)))
    inputs = random_inputs(mod)
    expected = answers(mod, *inputs)
    for seed in range(8):
        for got, want in zip(Machine(lowered).run(inputs, seed), expected, strict=True):
            np.testing.assert_array_equal(got, want)
    assert Graph.from_json(lowered.graph.to_json()) == lowered.graph
    check_links(lowered.graph)


def check_links(graph: Graph) -> None:
    """Every node in one region; `after` names earlier regions of others, none that follows."""
    assert [n for r in graph.regions for n in r.nodes] == list(range(len(graph.nodes)))
    assert graph.regions[0].processor == 0 or graph.regions[0].nodes
    before: list[set[int]] = []
    for index, region in enumerate(graph.regions):
        same = [i for i in range(index) if graph.regions[i].processor == region.processor]
        implied = {i for other in (*region.after, *same[-1:]) for i in before[other]}
        for other in region.after:
            assert other < index and graph.regions[other].processor != region.processor
            assert other not in implied, "follows from another one"
        before.append(implied | set(region.after) | set(same))


def chain(count: int) -> tvm.IRModule:
    """relu, relu1, ...: each reads the one before."""

    def body(x: relax.Expr) -> relax.Expr:
        for _ in range(count):
            x = relax.op.nn.relu(x)
        return x

    return NameOperators()(module(body, (1, 4, 4, 4)))


def plan(*regions: tuple[str, list[str]]) -> Plan:
    return Plan(
        NAMES, tuple(PlannedRegion(f"r{i}", p, tuple(o)) for i, (p, o) in enumerate(regions))
    )


def described(graph: Graph, region: Region) -> tuple[list[str], list[str]]:
    """Kinds of memory that the region receives from and sends to."""
    return tuple([graph.tensors[t].kind for t in ids] for ids in (region.receives, region.sends))


def test_chain_over_two_processors() -> None:
    graph = lower_planned(
        chain(3), plan(("cpu", ["relu"]), ("gpu", ["relu1"]), ("cpu", ["relu2"]))
    ).graph
    assert [region.after for region in graph.regions] == [(), (0,), (1,)]
    assert described(graph, graph.regions[0]) == (["input"], ["arena"])
    assert described(graph, graph.regions[1]) == (["arena"], ["arena"])
    assert described(graph, graph.regions[2]) == (["arena"], ["output"])


def test_one_processor_sends_to_the_caller_only() -> None:
    (region,) = lower_planned(chain(3), plan(("gpu", ["relu", "relu1", "relu2"]))).graph.regions
    assert (region.after, len(region.receives), len(region.sends)) == ((), 1, 1)


def residual_network() -> tvm.IRModule:
    def body(x: relax.Expr) -> relax.Expr:
        first = relax.op.nn.relu(x)
        second = relax.op.negative(first)
        return relax.op.multiply(relax.op.add(second, first), first)

    return NameOperators()(relax.transform.Normalize()(module(body, (1, 4, 4, 4))))


def test_a_tensor_is_received_once() -> None:
    mod = residual_network()
    names = list(Calls(mod["main"]).calls)
    relu, negative, add, multiply = (
        next(n for n in names if stem in n) for stem in ("relu", "negative", "add", "multiply")
    )
    graph = lower_planned(
        mod, plan(("cpu", [relu]), ("gpu", [negative]), ("cpu", [add]), ("gpu", [multiply]))
    ).graph
    counts = [(len(r.receives), len(r.sends)) for r in graph.regions]
    assert counts == [(1, 1), (1, 1), (1, 1), (1, 1)], "the last one has relu's result already"
    assert graph.regions[3].after == (2,)


def test_branches_side_by_side_do_not_share_memory() -> None:
    """One after the other, the branches would use the same two buffers."""

    def body(x: relax.Expr) -> relax.Expr:
        left = right = x
        for _ in range(4):
            left, right = relax.op.nn.relu(left), relax.op.negative(right)
        return relax.op.add(left, right)

    mod = NameOperators()(module(body, (1, 4, 4, 4)))
    names = list(Calls(mod["main"]).calls)
    sides = [[n for n in names if stem in n] for stem in ("relu", "neg", "add")]
    lowered = lower_planned(mod, plan(("cpu", sides[0]), ("gpu", sides[1]), ("cpu", sides[2])))
    assert lowered.graph.arena_bytes == 4 * 256
    inputs = random_inputs(mod)
    (expected,) = answers(mod, *inputs)
    for seed in range(20):
        (got,) = Machine(lowered).run(inputs, seed)
        np.testing.assert_array_equal(got, expected)


def test_parts_of_a_concat_come_from_their_writers() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        parts = [relax.op.nn.relu(x), relax.op.negative(x)]
        return relax.op.nn.relu(relax.op.concat(parts, axis=1))

    mod = NameOperators()(module(body, (1, 4, 4, 4)))
    first, second, concat, last = Calls(mod["main"]).calls
    graph = lower_planned(
        mod, plan(("cpu", [first]), ("gpu", [second]), ("dsp", [concat]), ("gpu", [last]))
    ).graph
    assert len(graph.regions) == 3, "a region of views only is none"
    assert {node.kernel for node in graph.nodes}.isdisjoint({COPY_KERNEL})
    (received,) = graph.regions[2].receives
    assert graph.tensors[received].bytes == 256, "half of the concat is its own"
    assert graph.regions[2].after == (0,)


def test_copies_of_inputs_are_done_by_the_cpu() -> None:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 4), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit_output(relax.op.nn.relu(x), name_hint="relu")
        bb.emit_func_output(relax.Tuple([x, y, y]))
    graph = lower_planned(bb.get(), plan(("gpu", ["relu"]))).graph
    assert [(region.name, region.processor) for region in graph.regions] == [
        ("r0", 1),
        ("outputs", 0),
    ]
    kernels = [graph.nodes[n].kernel for n in graph.regions[0].nodes]
    assert kernels == ["relu", COPY_KERNEL], "a second copy is made where the first one is"


def test_regions_for_unknown_processors_are_refused() -> None:
    mod = KeepViews()(PartitionRegions()(TagOperators(plan(("gpu", ["relu"])))(chain(1))))
    with pytest.raises(UnsupportedError, match=r"^expected .*'r0', got 'gpu'; "):
        lower(mod)
