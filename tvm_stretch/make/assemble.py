"""Assemble a model from kernel-level Relax.

For streams, a kernel may compute a part of its output and keep the rest:

    node conv: x, w -> y              node conv: x, w -> y, rectangle
    graph: y and z share bytes   ->   graph: every tensor has bytes of its own

The executor compares a frame with the one before and asks each kernel for the parts that can differ
(`stream.h`). Kernels without such a parameter compute everything if anything changed.

Other processors compute areas of the same tensors, in regions that belong to no plan:

    region r0, cpu:              node conv: x, w -> y, rectangle
    region areas of conv, opencl:     conv: x, w -> y, areas
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Var

from tvm_stretch.base.errors import TargetError
from tvm_stretch.base.formats import own_version
from tvm_stretch.make.code.generate import named_kernel
from tvm_stretch.make.lowering.executor_graph import (
    COPY_KERNEL,
    CPU,
    WRITE_KERNEL,
    Graph,
    Node,
    PlanSpec,
    ProcessorSpec,
    Region,
    Tensor,
)
from tvm_stretch.make.lowering.lower import lower
from tvm_stretch.make.lowering.memory_plan import align
from tvm_stretch.make.lowering.weights import WeightsBlob
from tvm_stretch.network.attributes import RECTANGLE
from tvm_stretch.network.codec import target_data
from tvm_stretch.network.expressions import ALIGNMENT
from tvm_stretch.network.rewriting import rewrite
from tvm_stretch.plan.plan import Plan
from tvm_stretch.run.parts import Parts
from tvm_stretch.targets.cpu.code.object_code import compile_kernels, link
from tvm_stretch.targets.cpu.cpu import checked_features
from tvm_stretch.targets.cpu.kernels.conv import ConvConfig
from tvm_stretch.targets.cpu.kernels.conv_tiles import blocking, cut_for_parts
from tvm_stretch.targets.cpu.kernels.window import WindowConfig
from tvm_stretch.targets.cpu.kernels.winograd import WinogradConfig
from tvm_stretch.targets.cpu.kernels.winograd_nest import least_area
from tvm_stretch.targets.kernels.fused import split_fused
from tvm_stretch.targets.kernels.loops import const
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import read_template
from tvm_stretch.targets.processor import Kernels, Processor


@dataclass(frozen=True)
class Planned:
    """A plan and the network's kernel-level Relax for it."""

    mod: tvm.IRModule  # see `lower` for what `main` may contain
    plan: Plan | None = None
    sizes: Mapping[str, int] | None = None  # of named dimensions, if plans have lengths


def assemble(
    planned: Sequence[Planned],  # the same network by plans between which the model can change
    # the CPU, which runs all that names no processor, and the others that regions name
    processors: Sequence[Processor],
    weights: WeightsBlob | None = None,  # contains the network's constants; see `lower`
    *,
    # also compile the devices' kernels for the CPU, which takes over if a device fails
    spare: bool = False,
    # whether kernels shall be able to compute parts of a frame (`Model.stream`)
    streams: bool = False,
    apart: bool = False,  # whether every feature map has bytes of its own
) -> Parts:
    """Compile the kernels of kernel-level Relax."""
    host, *devices = processors
    if host.target.kind.name != "llvm":
        raise TargetError(f"expected an llvm target for the CPU, got {host.target}; pass one")
    hosts = [host.target, *(device.target for device in devices if device.code.runs_host_code)]
    specs = [ProcessorSpec(own.name, own.kind, own.hardware.max_share) for own in processors]
    lowered = lower(
        *(one.mod for one in planned),
        processors=specs if devices else [CPU],
        threads=host.threads,
        weights=weights,
        lengths=[one.sizes for one in planned if one.sizes],
        alignment=max([ALIGNMENT, *(4 * device.machine.lanes for device in devices)]),
        streams=streams,
        apart=apart,
    )
    texts: list[dict[str, Any]] = [
        {} if one.plan is None else json.loads(one.plan.to_json()) for one in planned
    ]
    graph, functions = lowered.graph, lowered.kernels
    graph = replace(
        graph,
        plans=tuple(replace(spec, plan=own) for spec, own in zip(graph.plans, texts, strict=False)),
        package_version=own_version(),
        target=target_data(host.target),
        plan=texts[0],
        cpu_features=tuple(sorted({f for own in hosts for f in checked_features(own)})),
        spare=spare and bool(devices),
    )
    if streams:
        graph, functions = with_rectangles(graph, functions, host.machine)
        devices = [sharing_areas(device) for device in devices]
        graph, functions = with_areas(graph, functions, len(devices))
    processors = [host, *devices]
    graph, kernels = _name_kernels(functions, graph, processors)
    code = compile_kernels(kernels[0], host.code.schedule, host.target)
    for device, own in zip(devices, kernels[1:], strict=True):
        if device.code.runs_host_code or (spare and not streams):
            by = device if device.code.runs_host_code else host
            code.update(compile_kernels(own, by.code.schedule, by.target))
    modules = [
        device.code.build(own, device.code.schedule)
        for device, own in zip(devices, kernels[1:], strict=True)
    ]
    return Parts(graph, link(code, host.target), lowered.weights, tuple(modules), lowered.own_bytes)


def _name_kernels(
    functions: Kernels, graph: Graph, processors: Sequence[Processor]
) -> tuple[Graph, list[Kernels]]:
    """The graph with the kernels' final names, and the kernels of each processor.

    A kernel exists once for each set of strides of its tensors; `prepare` belongs to the CPU.
    """
    kernels: list[dict[str, tirx.PrimFunc]] = [{} for _ in processors]
    names: dict[tuple[Any, ...], str] = {}

    def renamed(node: Node, place: int) -> Node:
        processor = processors[place]
        if node.kernel in (COPY_KERNEL, WRITE_KERNEL):
            return node
        strides = tuple(graph.tensors[i].strides for i in (*node.inputs, *node.outputs))
        key = (node.kernel, place, strides if any(strides) else ())
        if key not in names:
            function = functions[node.kernel]
            if any(strides):
                function = with_strides(function, strides)
            # kernels that are linked with the CPU's differ from those in their names
            is_apart = processor.code.runs_host_code and processor.target != processors[0].target
            hint = str(processor.target) if is_apart else ""
            named = named_kernel(node.kernel, function, processor.code.schedule, hint)
            names[key] = str(named.attrs["global_symbol"])
            kernels[place][names[key]] = named
        return replace(node, kernel=names[key])

    owner = {node: region.processor for region in graph.regions for node in region.nodes}
    nodes = tuple(renamed(node, owner[index]) for index, node in enumerate(graph.nodes))
    prepare = tuple(renamed(node, 0) for node in graph.prepare)
    return replace(graph, nodes=nodes, prepare=prepare), [*kernels]


def with_strides(function: tirx.PrimFunc, strides: Sequence[tuple[int, ...]]) -> tirx.PrimFunc:
    """The kernel for parameters with these strides, in elements; without strides they are dense."""
    params = {
        param: _strided(param, own) for param, own in zip(function.params, strides, strict=True)
    }
    body = rewrite(function.body, (Var, lambda var: params.get(var, var)))
    return tirx.PrimFunc(list(params.values()), body, function.ret_type, function.attrs)


def _strided(param: tirx.Buffer, strides: tuple[int, ...]) -> tirx.Buffer:
    if not strides:
        return param
    return tirx.decl_buffer(
        param.shape,
        param.dtype,
        param.name,
        strides=[tirx.const(stride, "int64") for stride in strides],
    )


_IN_PARTS = (ConvConfig, WindowConfig, WinogradConfig)
_RECTANGLE_BYTES = 32

_AREAS = 64
_AREAS_SHAPE = (3 + 4 * _AREAS,)
"""Areas of a kernel that processors can share in a frame; the CPU computes more of them alone."""

_ROWS, _COLUMNS = 4, 16
"""An area of pixels that keeps a kernel busy for longer than its call takes."""


def with_rectangles(
    graph: Graph, kernels: Kernels, machine: VectorMachine
) -> tuple[Graph, Kernels]:
    """The graph and its kernels, those of convolutions and poolings with a rectangle."""
    rewritten = {name: _with_rectangle(kernel, machine) for name, kernel in kernels.items()}
    tensors, nodes, end = list(graph.tensors), [], align(graph.arena_bytes)
    for node in graph.nodes:
        rectangle_kernel = rewritten.get(node.kernel)
        if rectangle_kernel is None:
            nodes.append(node)
            continue
        nodes.append(_asking(node, len(tensors), rectangle_kernel[1]))
        tensors.append(Tensor((4,), "int64", "arena", 0, end, _RECTANGLE_BYTES))
        end += align(_RECTANGLE_BYTES)
    marked = {name: pair[0] for name, pair in rewritten.items() if pair is not None}
    changed = replace(graph, nodes=tuple(nodes), tensors=tuple(tensors), arena_bytes=end)
    return changed, {**kernels, **marked}


def _asking(node: Node, rectangle: int, reach: tuple[int, ...]) -> Node:
    return replace(node, outputs=(*node.outputs, rectangle), reach=reach)


def sharing_areas(device: Processor) -> Processor:
    """The processor as it computes areas beside the CPU.

    Raises:
        TargetError: it shares none.
    """
    if device.code.areas is None:
        raise TargetError(
            f"expected processors that share areas with the CPU for streams, got {device.name}; "
            "leave it out"
        )
    return replace(device, code=replace(device.code, schedule=device.code.areas))


def with_areas(graph: Graph, kernels: Kernels, devices: int) -> tuple[Graph, Kernels]:
    """The graph in which the devices, after the CPU, compute areas of nodes that can do parts."""
    if not devices:
        return graph, kernels
    tensors, nodes, regions = list(graph.tensors), list(graph.nodes), list(graph.regions)
    all_kernels, end = dict(kernels), graph.arena_bytes
    for node in graph.nodes:
        ids = (*node.inputs, *node.outputs[:-1])
        if not node.reach or any(tensors[i].dtype != "float32" for i in ids):
            continue
        areas = Tensor(_AREAS_SHAPE, "int64", "arena", 0, end, 8 * _AREAS_SHAPE[0])
        end += align(areas.bytes)
        own = replace(node, kernel=f"{node.kernel}_areas", reach=())
        outputs = (*node.outputs[:-1], len(tensors))
        tensors.append(areas)
        all_kernels[own.kernel] = _with_last_parameter(kernels[node.kernel], areas)
        for place in range(1, devices + 1):
            regions.append(Region(f"areas of {node.name}", place, (len(nodes),), (), (), ()))
            nodes.append(replace(own, outputs=outputs))
    plan = PlanSpec("plan", len(graph.regions), plan=graph.plan)
    return replace(
        graph,
        tensors=tuple(tensors),
        nodes=tuple(nodes),
        regions=tuple(regions),
        arena_bytes=end,
        plans=(plan,),
    ), all_kernels


def _with_last_parameter(func: tirx.PrimFunc, tensor: Tensor) -> tirx.PrimFunc:
    last = tirx.decl_buffer([const(extent) for extent in tensor.shape], tensor.dtype, "areas")
    return tirx.PrimFunc([*func.params[:-1], last], func.body, func.ret_type, func.attrs)


def _with_rectangle(
    func: tirx.PrimFunc, machine: VectorMachine
) -> tuple[tirx.PrimFunc, tuple[int, ...]] | None:
    """The kernel with a rectangle, and `Node.reach`; None if its template computes no parts."""
    fused = split_fused(func)
    config = None if fused is None else read_template(fused.config).on(machine)
    if fused is None or not isinstance(config, _IN_PARTS) or type(config) not in _IN_PARTS:
        return None
    if config.out_size[1] == 1:  # a dense layer
        return None
    operand = next(i for i, param in enumerate(func.params) if param.same_as(fused.operands[0]))
    asked = tirx.decl_buffer([const(4)], "int64", "rectangle")
    marked = tirx.PrimFunc([*func.params, asked], func.body, func.ret_type, func.attrs)
    windows = zip(config.stride, config.padding[:2], config.spans, strict=True)
    numbers = (number for axis in windows for number in axis)
    tile = config.tile if isinstance(config, WinogradConfig) else 1
    reach = (operand, *numbers, *_unit(config, machine), tile)
    return marked.with_attr(RECTANGLE, True), reach


def _unit(
    config: ConvConfig | WindowConfig | WinogradConfig, machine: VectorMachine
) -> tuple[int, int]:
    """Rows and columns that are computed together, or that are worth a call."""
    height, width = config.out_size
    if isinstance(config, WinogradConfig):
        rows, columns = least_area(config)
        return rows * config.tile, columns * config.tile
    if isinstance(config, WindowConfig):
        return min(height, _ROWS), min(width, _COLUMNS)
    cut = cut_for_parts(config, blocking(config, machine))
    row, image = cut.joined
    if (row, image) != (1, 1):
        return lcm(row, image) // image, width
    return min(height, _ROWS), min(width, _COLUMNS) if cut.chunks == 1 else width
