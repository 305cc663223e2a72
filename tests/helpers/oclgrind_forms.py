"""Small layers with the tiles that the zoo's layers get on a GPU, for an interpreter of kernels.

conv 3x3, 512 to 512, 28 x 28 on an H100: tile (8, 8, 2, 4, 2, 1, 1)
->  3x3, 20 to 131, 5 x 5 with the same tile: a whole group and a part of one each way
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.kernel_code import layers
from tutorials import zoo
from tvm_stretch.targets.kernels.layers import ConvShape
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import choose
from tvm_stretch.targets.opencl.kernels.conv import GroupConvConfig, tile_of
from tvm_stretch.targets.opencl.kernels.dense import RowConfig
from tvm_stretch.targets.opencl.kernels.groups import QUAD
from tvm_stretch.targets.opencl.kernels.machine import describe_gpu
from tvm_stretch.targets.opencl.kernels.tiles import Tile
from tvm_stretch.targets.opencl.kernels.window import GroupWindowConfig
from tvm_stretch.targets.opencl.kernels.winograd import GroupWinogradConfig

GPUS = {
    "NVIDIA H100": (132, 1024, 48 * 1024),
    "QUALCOMM Adreno(TM) 640": (2, 1024, 32 * 1024),
}
"""Units, work-items of a group, bytes of local memory, by the names that drivers give."""


@dataclass(frozen=True)
class Small:
    """A layer, and the tile that it is to get: of a convolution, or of windows with their items."""

    shape: ConvShape
    tile: tuple[int, ...] = ()
    items: int = 0
    winograd: int = 0  # side of a tile of outputs; its products have the tile then


def small_layers(gpu: str, networks: Iterable[str] | None = None) -> list[Small]:
    """The smallest layer for each form that layers of the zoo have on a GPU, and kind of tile.

    Other numbers of a tile only change how often loops and written out statements repeat.
    """
    machine = VectorMachine(QUAD, 32, False, 1 << 20, 1, gpu=describe_gpu(gpu, *GPUS[gpu], True))
    found: dict[Any, Small] = {}
    for name in zoo.names() if networks is None else networks:
        for shape in layers(name) if name != "lstm" else ():
            small = _small(shape, machine)
            key = _kind(small), _form(shape)
            known = found.get(key)
            if known is None or small.shape.multiply_adds < known.shape.multiply_adds:
                found[key] = small
    return list(found.values())


def _kind(small: Small) -> tuple[Any, ...]:
    """Which loops, branches and exchanges a kernel with the tile has."""
    if small.items or not small.tile:
        return small.tile, small.items > 0
    tile = Tile(*small.tile)
    several = (tile.pixels, tile.quads, tile.depth, tile.slices, tile.splits)
    return (small.winograd, *(number > 1 for number in several))


def _form(shape: ConvShape) -> tuple[Any, ...]:
    """What loops depend on besides the tile."""
    plain = shape.in_channels < QUAD
    return shape.kernel, shape.stride, shape.dilation, plain, shape.groups > 1, shape.is_depthwise


def _small(shape: ConvShape, machine: VectorMachine) -> Small:
    plain = shape.in_channels < QUAD and shape.groups == 1
    config = choose(shape, machine, 1 if plain else QUAD)
    if isinstance(config, GroupWindowConfig):
        rows, columns = config.tile
        layer = _resized(shape, 6, 6, (2 * rows + 1, 2 * columns + 1), 6)
        return Small(layer, config.tile, config.group_items)
    if isinstance(config, RowConfig):
        return Small(_resized(shape, 4 * config.lines + 5, 4 * QUAD + 3, (1, 1), 1))
    if isinstance(config, GroupWinogradConfig):
        tile = tile_of(config.product)
        inputs = QUAD * (2 * tile.depth * tile.slices * tile.splits + 1) - 1
        layer = _of_groups(shape, tile, max(2 * QUAD, inputs))
        if shape.groups == 1:  # the planes' groups of channels consist of whole tiles
            layer = replace(layer, out_channels=2 * QUAD * tile.across * tile.quads - 3)
        return Small(layer, tile, winograd=config.tile)
    assert isinstance(config, GroupConvConfig)
    tile = tile_of(config)
    taps = shape.kernel[0] * shape.kernel[1]
    steps = 2 * tile.depth * tile.slices * tile.splits + 1
    inputs = shape.in_channels if plain else QUAD * -(-steps // taps) - 1
    return Small(_of_groups(shape, tile, max(1, inputs)), tile)


def _of_groups(shape: ConvShape, tile: Tile, inputs: int) -> ConvShape:
    """The layer with hardly more pixels and channels than a work-group has."""
    pixels, outputs = tile.down * tile.pixels + 3, QUAD * tile.across * tile.quads + 3
    width = min(5, shape.out_size[1])
    size = -(-pixels // width), width
    if shape.groups == 1:
        return _resized(shape, inputs, outputs, size, 1)
    each = shape.in_channels // shape.groups, shape.out_channels // shape.groups
    return _resized(shape, 2 * each[0], 2 * each[1], size, 2)


def _resized(
    shape: ConvShape, inputs: int, outputs: int, out: tuple[int, int], groups: int
) -> ConvShape:
    def extent(axis: int) -> int:
        window = shape.dilation[axis] * (shape.kernel[axis] - 1) + 1
        around = shape.padding[axis] + shape.padding[axis + 2]
        return max(1, (out[axis] - 1) * shape.stride[axis] + window - around)

    return ConvShape(
        1,
        inputs,
        (extent(0), extent(1)),
        outputs,
        shape.kernel,
        shape.stride,
        shape.padding,
        shape.dilation,
        groups,
    )


def code_of(small: Iterable[Small]) -> Iterator[str]:
    """Programs for `test_oclgrind.CASE` that check the layers."""
    for one in small:
        shape = one.shape
        scope = f"gpu.winograd_of({one.winograd}, *{{}})" if one.winograd else "gpu.tile_of(*{})"
        scope = "gpu.window_of({}, " + f"{one.items})" if one.items else scope
        with_tile = f"with {scope.format(tuple(one.tile))}:" if one.tile else "if True:"
        weight = shape.out_channels, shape.in_channels // shape.groups, *shape.kernel
        data = 1, shape.in_channels, *shape.in_size
        call = (
            f"relax.op.nn.conv2d(x, weight, strides={shape.stride}, padding={shape.padding}, "
            f"dilation={shape.dilation}, groups={shape.groups})"
        )
        checked = "check_rounded" if one.winograd else "check"
        yield (
            f"weight = random_const(*{weight})\n"
            f"print({str(one)!r}, flush=True)\n"
            f"{with_tile}\n"
            f"    gpu.{checked}(module(lambda x: relax.op.nn.relu({call}), {data}))\n"
        )
