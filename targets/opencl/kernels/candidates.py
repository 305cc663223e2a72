"""Configurations of any layer to try on a GPU, and what a file of measurements may hold."""

from __future__ import annotations

from dataclasses import replace

from tvm_stretch.targets.cpu.kernels.conv import ConvConfig
from tvm_stretch.targets.cpu.kernels.window import WindowConfig
from tvm_stretch.targets.kernels.layers import taken

from .conv import GroupConvConfig, group_conv_candidates, tile_of, tiled
from .dense import RowConfig, row_candidates
from .item_conv import ItemConvConfig, item_conv_candidates
from .machine import GpuMachine
from .tiles import TILE_NUMBERS, Sizes, covers, fits, tile_cycles, tiles_of
from .window import GroupWindowConfig, group_window_candidates
from .winograd import (
    GroupWinogradConfig,
    group_winograd_candidates,
    group_winograd_cycles,
    plain_layer,
)

Bare = ConvConfig | WindowConfig
Layer = Bare | GroupWinogradConfig

CONFIGS: dict[str, type[Layer]] = {
    kind.template: kind
    for kind in (
        GroupConvConfig,
        RowConfig,
        ItemConvConfig,
        GroupWindowConfig,
        GroupWinogradConfig,
    )
}
"""By the names of their templates."""


_MANY = 400
_WORTH = 2.0  # times as slow as direct sums by the model, which may be wrong by as much


def group_candidates(layer: Layer, gpu: GpuMachine, count: int) -> tuple[Layer, ...]:
    """Up to ``count`` configurations of a layer to try, the best by the model first.

    The best of each kind of tile: the model errs more between kinds than within one. Among
    8 such tiles, one was within 10 % of the best of all in 99 of 100 measured layers (H100).
    """
    bare = bare_layer(layer)
    if isinstance(bare, WindowConfig):
        windows = group_window_candidates(bare, gpu)
        seen = _seen_otherwise(windows[0], gpu)
        return (*windows[: max(1, count - len(seen))], *seen)[:count]
    every = group_conv_candidates(bare, gpu, _MANY)
    kinds = {_kind(config): config for config in reversed(every)}
    first = sorted(kinds.values(), key=every.index)
    direct = (*first, *(config for config in every if config not in first))
    others = _winograd(bare, gpu, count // 4) + _seen_otherwise(direct[0], gpu)
    found: list[Layer] = [*direct[: max(1, count - len(others))], *others]
    return tuple(found[:count])


def _winograd(layer: ConvConfig, gpu: GpuMachine, count: int) -> tuple[GroupWinogradConfig, ...]:
    """``count`` configurations of each tile that may be faster than direct sums."""
    found = group_winograd_candidates(layer, gpu, count)
    if not found:
        return ()
    direct = tile_cycles(Sizes.of(layer), tiles_of(layer, gpu)[0], gpu).total
    return tuple(c for c in found if group_winograd_cycles(c, gpu) < _WORTH * direct)


def _seen_otherwise(config: Bare, gpu: GpuMachine) -> tuple[Bare, ...]:
    """The same configuration with more and fewer operands in images, where there are images."""
    if not gpu.has_images or not isinstance(config, GroupConvConfig | GroupWindowConfig):
        return ()
    seen = {replace(config, images=n).image_operands: n for n in reversed(_image_counts(gpu))}
    own = config.image_operands
    return tuple(replace(config, images=n) for read, n in seen.items() if read != own)


def _image_counts(gpu: GpuMachine) -> tuple[int, ...]:
    """How many operands may be images."""
    return (0, 1, 2) if gpu.has_images else (0,)


def _kind(config: ConvConfig) -> object:
    if not isinstance(config, GroupConvConfig):
        return config
    return config.pixels, config.item_quads, config.slices, config.splits > 1


def without_sharing(layer: Layer, gpu: GpuMachine) -> Layer:
    """What asks least of a driver: groups of one item."""
    bare = bare_layer(layer)
    if isinstance(bare, WindowConfig):
        return taken(GroupWindowConfig, bare, tile=(1, 1), group_items=1)
    return item_conv_candidates(bare, replace(gpu, plain_items=1))[0]


def bare_layer(config: Layer) -> Bare:
    """The layer that a configuration computes, as it is asked for."""
    if isinstance(config, WindowConfig):
        return taken(WindowConfig, config)
    if isinstance(config, GroupWinogradConfig):
        return plain_layer(config)
    return taken(ConvConfig, config, oc_blocks=1, pixels=1)


def is_possible(config: Layer, gpu: GpuMachine) -> bool:
    """Whether the model could have proposed a configuration for such a GPU."""
    layer = bare_layer(config)
    if isinstance(layer, WindowConfig):
        images = config.images if isinstance(config, GroupWindowConfig) else 0
        known = group_window_candidates(layer, replace(gpu, images=images))
        is_known = config in (*known, without_sharing(layer, gpu))
        return is_known and images in _image_counts(gpu)
    if isinstance(config, GroupWinogradConfig):
        return config in group_winograd_candidates(layer, gpu, _MANY)
    if isinstance(config, RowConfig):
        return config in row_candidates(layer, gpu)
    if not isinstance(config, GroupConvConfig):
        return config in (*item_conv_candidates(layer, gpu), without_sharing(layer, gpu))
    tile = tile_of(config)
    return (
        all(number in numbers for number, numbers in zip(tile, TILE_NUMBERS, strict=True))
        and tiled(layer, tile, config.images) == config
        and config.images in _image_counts(gpu)
        and covers(layer, Sizes.of(layer), tile.across * tile.quads, tile.down * tile.pixels)
        and fits(tile, gpu)
    )
