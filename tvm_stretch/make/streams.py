"""Kernels of a model for streams: each may compute a part of its output and keep the rest.

    node conv: x, w -> y              node conv: x, w -> y, rectangle
    graph: y and z share bytes   ->   graph: every tensor has bytes of its own

The executor compares a frame with the one before and asks each kernel for the parts that can differ
(`stream.h`). Kernels without such a parameter compute everything if anything changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import lcm

from tvm import tirx

from tvm_stretch.make.lowering.executor_graph import Graph, Node, Tensor
from tvm_stretch.make.lowering.memory_plan import align
from tvm_stretch.network.attributes import RECTANGLE
from tvm_stretch.targets.cpu.kernels.conv import ConvConfig
from tvm_stretch.targets.cpu.kernels.conv_tiles import blocking, cut_for_parts
from tvm_stretch.targets.cpu.kernels.window import WindowConfig
from tvm_stretch.targets.cpu.kernels.winograd import WinogradConfig
from tvm_stretch.targets.cpu.kernels.winograd_nest import least_area
from tvm_stretch.targets.kernels.fused import split_fused
from tvm_stretch.targets.kernels.loops import const
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import read_template

Kernels = Mapping[str, tirx.PrimFunc]

_IN_PARTS = (ConvConfig, WindowConfig, WinogradConfig)
_RECTANGLE_BYTES = 32

_ROWS, _COLUMNS = 4, 16
"""An area of pixels that keeps a kernel busy for longer than its call takes."""


def with_rectangles(
    graph: Graph, kernels: Kernels, machine: VectorMachine
) -> tuple[Graph, Kernels]:
    """The graph and its kernels, those of convolutions and poolings with a rectangle."""
    found = {name: _with_rectangle(kernel, machine) for name, kernel in kernels.items()}
    tensors, nodes, end = list(graph.tensors), [], align(graph.arena_bytes)
    for node in graph.nodes:
        known = found.get(node.kernel)
        if known is None:
            nodes.append(node)
            continue
        nodes.append(_asking(node, len(tensors), known[1]))
        tensors.append(Tensor((4,), "int64", "arena", 0, end, _RECTANGLE_BYTES))
        end += align(_RECTANGLE_BYTES)
    marked = {name: pair[0] for name, pair in found.items() if pair is not None}
    changed = replace(graph, nodes=tuple(nodes), tensors=tuple(tensors), arena_bytes=end)
    return changed, {**kernels, **marked}


def _asking(node: Node, rectangle: int, reach: tuple[int, ...]) -> Node:
    return replace(node, outputs=(*node.outputs, rectangle), reach=reach)


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
    reach = (operand, *(number for axis in windows for number in axis), *_unit(config, machine))
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
