"""What a search reckons with is what the compiler makes: kernel by kernel, field by field."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest
import tvm
from helpers.integer_networks import IntegerNetwork
from helpers.relax_helpers import module, random_const
from helpers.search_helpers import costs, emit
from tvm import relax

from tutorials import zoo
from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.make.branching import branch
from tvm_stretch.make.kernels import GroupKernel, KernelLevel, kernels_alone, without_joining
from tvm_stretch.make.lowering.executor_graph import COPY_KERNEL, ProcessorSpec
from tvm_stretch.make.lowering.lower import lower
from tvm_stretch.make.pipeline import lower_regions
from tvm_stretch.make.placement import choose_plan
from tvm_stretch.network.operator_graph import Group
from tvm_stretch.passes.branch_segments import branch_segments
from tvm_stretch.passes.split_outputs import can_be_shared, split_outputs
from tvm_stretch.plan.cost.describe import describe, describe_copy
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.search import search
from tvm_stretch.plan.search.priced_kernels import Kernels
from tvm_stretch.plan.splits import RowSplit
from tvm_stretch.read import load_network
from tvm_stretch.targets.kernels.features import Features
from tvm_stretch.targets.processor import Processor
from tvm_stretch.targets.processors import make_processors

AARCH64 = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"}
AVX2 = {"kind": "llvm", "mcpu": "haswell"}
AVX512 = {"kind": "llvm", "mcpu": "skylake-avx512"}
ADRENO = {"kind": "opencl", "device": "adreno"}
MACHINES = {"neon": [AARCH64], "avx2": [AVX2], "avx512": [AVX512], "adreno": [AVX2, ADRENO]}
QUICK = ("squeezenet1_0", "resnet18")
LARGER = {"inception_v3": 107, "inception_v4": 107, "lstm": 3, "squeezenet1_0": 67}
EVERYWHERE = [
    *((name, machine) for name, machine in zip(QUICK, ("neon", "avx512"), strict=True)),
    *(
        pytest.param(name, machine, marks=pytest.mark.full)
        for name in zoo.names()
        for machine in MACHINES
    ),
]


@functools.cache
def network(name: str) -> tvm.IRModule:
    return load_network(zoo.build(name, size=LARGER.get(name, 64)))


def processor_of(machine: str) -> Processor:
    """The last of the machine's processors."""
    _, placeable = make_processors(MACHINES[machine], 1)
    return placeable[-1]


def compiled(
    mod: tvm.IRModule, plan: Plan | None, processors: list[Processor]
) -> Counter[Features]:
    """The nodes of the executor's graph."""
    owners = {}
    if plan is not None:
        branched = branch(mod, plan.shares, plan.splits)
        mod, owners = branched.mod, branched.owners
    names = [processor.name for processor in processors]
    chosen = choose_plan(mod["main"], names, processors, plan, owners)
    lowered = lower_regions(mod, chosen, processors)
    graph = lower(lowered, processors=[ProcessorSpec(p.name, p.kind) for p in processors]).graph
    found: Counter[Features] = Counter()
    for region in graph.regions:
        for node in (graph.nodes[index] for index in region.nodes):
            machine = processors[region.processor].machine
            if node.kernel == COPY_KERNEL:
                found[describe_copy(graph.tensors[node.inputs[0]].bytes, machine)] += 1
            else:
                found[describe(lowered[node.kernel], machine)] += 1
    return found


def listed(level: KernelLevel) -> Counter[Features]:
    return Counter(kernel.features for kernels in level.kernels.values() for kernel in kernels)


@pytest.mark.parametrize(("name", "machine"), EVERYWHERE)
def test_whole_kernels(name: str, machine: str) -> None:
    mod, processor = network(name), processor_of(machine)
    kernels = Kernels([processor])
    graph = kernels.lower(mod)
    assert Counter(kernels.alone(graph, 0)) == compiled(mod, None, [processor])
    promised = Counter(f for group in graph.groups for f in kernels.whole(group, 0))
    assert promised == compiled(mod, None, [without_joining(processor)])


def test_joined_kernels_of_one_processor() -> None:
    """A GPU alone computes some depthwise and 1x1 layers in one kernel."""
    kernels = Kernels([processor_of("adreno")])
    graph = kernels.lower(load_network(zoo.build("mobilenet_v1", size=32)))
    families = Counter(kernel.family for kernel in kernels.alone(graph, 0))
    apart = Counter(f.family for group in graph.groups for f in kernels.whole(group, 0))
    pairs = families["group_pair"]
    assert pairs > 0
    assert apart["depthwise"] == families["depthwise"] + pairs
    assert apart["group_conv"] == families["group_conv"] + pairs


def same_operators(group: Group, part: Group, suffix: str) -> bool:
    return [f"{op.name}{suffix}" for op in group.operators] == [op.name for op in part.operators]


def exactly(kernels: Iterable[Features], integers: bool) -> Counter[Features]:
    """Kernels; of integers what pads and converts is only guessed, also after the templates.

    Without VNNI a kernel writes int16 if the conversion for its reader is fused into it.
    """
    if not integers:
        return Counter(kernels)
    return Counter(replace(k, out_bytes=0) for k in kernels if k.family != "generic")


def are_integers(mod: tvm.IRModule) -> bool:
    return str(mod["main"].params[0].ty.dtype) == "uint8"


def checked_halves_of_channels(mod: tvm.IRModule, processor: Processor) -> int:
    """Of how many groups the first of two parts is what was promised."""
    kernels = Kernels([processor])
    graph = kernels.lower(mod)
    shares, checked = {}, 0
    for group in (g for g in graph.groups if can_be_shared(g.anchor.call)):
        channels = group.anchor.shape[1]
        half = kernels.half(group, 0, "outputs")
        if half is not None:
            first = round(channels * half[1])
            shares[group.anchor.name] = (first, channels - first)
    level = kernels_alone(split_outputs(mod, shares), processor)
    for group in graph.groups:
        part = level.graph.by_name.get(f"{group.name}.p0")
        if part is None or not same_operators(group, part, ".p0"):
            continue  # other operators are fused with a part, such as none of a joined sum
        half = kernels.half(group, 0, "outputs")
        if half is None or round(half[1] * group.anchor.shape[1]) != part.anchor.shape[1]:
            continue  # a depthwise convolution in the shares of what it reads
        promise = exactly(half[0], are_integers(mod))
        assert exactly(level.features(part.name), are_integers(mod)) == promise, group.name
        checked += 1
    return checked


@pytest.mark.parametrize(("name", "machine"), EVERYWHERE)
def test_halves_of_channels(name: str, machine: str) -> None:
    assert checked_halves_of_channels(network(name), processor_of(machine)) or name == "lstm"


@pytest.mark.parametrize("channels", [40, 16])  # vectors of 16: three, or one that stays whole
def test_halves_of_channels_without_a_template(channels: int) -> None:
    """Whole vectors are computed; what makes the whole mean plain is not the half's."""

    def means(x: relax.Expr) -> relax.Expr:
        y = relax.op.nn.conv2d(x, random_const(channels, 16, 3, 3))
        return relax.op.mean(relax.op.nn.relu(y), [2, 3], keepdims=True)

    mod = load_network(module(means, (1, 16, 10, 10)))
    assert checked_halves_of_channels(mod, processor_of("avx512")) == 2


def checked_halves_of_rows(mod: tvm.IRModule, processor: Processor, first: int = 0) -> int | None:
    """The same for bands, of some groups that may be cut that way; None where there are none."""
    kernels = Kernels([processor])
    graph = kernels.lower(mod)
    templates = ("nn.conv2d", "integer.conv2d", "nn.max_pool2d", "nn.avg_pool2d")
    some = [group for group in graph.groups if group.anchor.kind in templates][first::7]
    checked = 0
    for group in some:
        half = kernels.half(group, 0, "rows")
        data = group.anchor.inputs[0] if group.anchor.inputs else ""
        if half is None or len(group.reads) != 1:
            continue
        rows = round(half[1] * group.anchor.shape[2])
        split = RowSplit(data, group.name, (rows, group.anchor.shape[2] - rows))
        try:
            cut, _ = branch_segments(mod, [split])
        except UnsupportedError:
            continue
        level = kernels_alone(cut, processor)
        parts = [p for p in level.graph.groups if same_operators(group, p, ".r0")]
        if parts:
            (part,) = parts
            promised = half[0]
            if any(
                kernel.features.stages > 1 for kernel in slicing(level, f"{group.name}.r0.{data}.")
            ):
                promised = promised[1:]  # the kernel that cuts the rows also makes blocks of them
            promise = exactly(promised, are_integers(mod))
            assert exactly(level.features(part.name), are_integers(mod)) == promise, group.name
            checked += 1
    return checked if some else None


def slicing(level: KernelLevel, prefix: str) -> list[GroupKernel]:
    """The kernels that cut rows for a band."""
    return [k for name, each in level.kernels.items() if name.startswith(prefix) for k in each]


@pytest.mark.parametrize(("name", "machine"), EVERYWHERE)
@pytest.mark.full
def test_halves_of_rows(name: str, machine: str) -> None:
    """The first of two bands, of single groups that may be cut that way."""
    assert checked_halves_of_rows(network(name), processor_of(machine), first=1) != 0


@pytest.mark.parametrize("machine", ["avx512", "adreno"])
def test_halves_of_integers(machine: str) -> None:
    """Of words and, on OpenCL, of floats."""
    conv = ("conv", (3, 3), 2, (1, 1, 1, 1), 1, 1, 64)
    grouped = ("conv", (3, 3), 1, (1, 1, 1, 1), 1, 2, 64)
    depthwise = ("conv", (3, 3), 1, (1, 1, 1, 1), 1, 0, 64)
    mod = IntegerNetwork(0).main([conv, ("residual", 3, True), grouped, depthwise], (1, 48, 20, 9))
    assert mod is not None
    processor = processor_of(machine)
    assert checked_halves_of_channels(mod, processor) >= 3
    assert checked_halves_of_rows(mod, processor, first=1)


@pytest.mark.parametrize("stride", [1, 2])
def test_halves_of_rows_without_a_template(stride: int) -> None:
    """A band of a plain image reads the rows under its windows."""

    def averages(x: relax.Expr) -> relax.Expr:
        return relax.op.nn.avg_pool2d(x, strides=[stride, stride])

    mod = load_network(module(averages, (1, 16, 16, 10)))
    assert checked_halves_of_rows(mod, processor_of("avx512")) == 1


@pytest.mark.parametrize("layers", [["conv", "residual", "fork"], ["depthwise", "conv", "conv"]])
@pytest.mark.full
def test_plans_of_several_processors(layers: list[str]) -> None:
    mod, given = emit(layers, size=56, channels=64), costs(1.0, 1.0, 2.0)
    rivals = search(mod, given, most=2).rivals
    assert rivals
    for rival in rivals:
        assert rival.level is not None
        assert listed(rival.level) == compiled(mod, rival.plan, list(given.processors))
