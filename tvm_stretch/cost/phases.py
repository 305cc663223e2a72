"""Quantities of a kernel whose weighted sum approximates its latency.

    conv 64 -> 64   ->   {"start": 300, "multiply": 81234, "tiles": 5120, "output": 6720, ...}

Each is in nanoseconds of an imaginary core, so 1 is a sensible first weight. `family.py` learns
non-negative weights from measurements, and then the remaining errors.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

from tvm_stretch.cost.features import (
    ConvFeatures,
    Features,
    GenericFeatures,
    RunFeatures,
    TransferFeatures,
    WindowFeatures,
    WinogradFeatures,
)
from tvm_stretch.targets.kernels.loops import balanced

Phases = dict[str, float]

_L1_BYTES, _L2_BYTES, _L3_BYTES = 32e3, 512e3, 16e6
"""Cache sizes at which accesses get slower; steps are smooth, so other sizes only shift them."""

_GIGAHERTZ = 2.5
_CHEAP = 8
"""Cheap operations for each element of an epilogue; more indicate an exponential or quotient."""


def phases(kernel: Features) -> Phases:
    """The quantities of one kernel; all kernels of a family have the same names."""
    found = {"start": 300.0}
    if isinstance(kernel, RunFeatures):
        return found | {"launches": 1000.0 * kernel.launches}
    if isinstance(kernel, TransferFeatures):
        return found | {"bytes": kernel.in_bytes / 10}
    found |= {
        "cold_start": 300.0 * _missing(kernel.round_bytes, _L2_BYTES),
        "cold_l3": 300.0 * _missing(kernel.round_bytes, _L3_BYTES),
    }
    found |= _memory(kernel)
    for kind, own in _BY_KIND.items():
        if isinstance(kernel, kind):
            return found | own(kernel)
    return found


def hints(kernel: Features) -> list[float]:
    """Ratios that help the trees: how well registers and caches are used."""
    elements = max(1.0, kernel.out_bytes / kernel.item_bytes)
    found = [kernel.epilogue_flops / elements, kernel.flops / max(1, kernel.total_bytes)]
    if isinstance(kernel, ConvFeatures):
        found.append(kernel.flops / (32 * max(1.0, _tile_cycles(kernel)[0])))
        found.append(math.log2(1 + _slab_bytes(kernel)))
    return found


def _missing(distance: float, size: float) -> float:
    """Share of data last touched ``distance`` bytes ago that a cache of this size has lost."""
    return 1.0 / (1.0 + (size / max(distance, 1.0)) ** 2)


def _memory(kernel: Features) -> Phases:
    """Traffic of weights since the last round, and of inputs since they were written."""
    weights, read, written = kernel.weight_bytes, kernel.in_bytes, kernel.out_bytes
    if isinstance(kernel, GenericFeatures):
        read = min(read, kernel.item_bytes * kernel.loads)  # a slice reads only a part
    beyond_l2 = _missing(kernel.round_bytes, _L2_BYTES)
    beyond_l3 = _missing(kernel.round_bytes, _L3_BYTES)
    since = kernel.reuse_bytes + read  # the end of a tensor evicts its beginning
    cheap = _CHEAP * written / kernel.item_bytes
    return {
        "weights_memory": weights * beyond_l3 / 12,
        "weights_cache": weights * beyond_l2 * (1 - beyond_l3) / 30,
        "input": read / 60 * _missing(since, _L1_BYTES),
        "input_cache": read * _missing(since, _L2_BYTES) / 30,
        "input_memory": read * _missing(since, _L3_BYTES) / 12,
        "output": written / 30,
        "large_output": written * _missing(written, _L2_BYTES) / 12,
        "epilogue": min(kernel.epilogue_flops, cheap) / 20,
        "functions": max(0.0, kernel.epilogue_flops - cheap) / 20,
    }


def _conv(kernel: ConvFeatures) -> Phases:
    cycles, tiles, accumulators = _tile_cycles(kernel)
    blocks = -(-kernel.out_channels // kernel.vector_lanes)
    passes = kernel.in_bytes * -(-blocks // kernel.tile_out_vectors)
    multiply = cycles / _GIGAHERTZ
    return {
        "multiply": multiply,
        "tiles": tiles * 5,
        "accumulators": accumulators / 2,
        "weights_again": multiply * _missing(_slab_bytes(kernel), _L1_BYTES / 2),
        "input_again": passes / 60 * _missing(kernel.in_bytes, _L1_BYTES),
        "large_input_again": passes / 30 * _missing(kernel.in_bytes, _L2_BYTES),
    }


def _tile_cycles(kernel: ConvFeatures) -> tuple[float, float, float]:
    """Cycles of the register tiles, number of tiles, and number of accumulators."""
    height, width = kernel.out_height_pixels, kernel.out_width_pixels
    taps = kernel.kernel_height_taps * kernel.kernel_width_taps
    one_row = taps == 1 and kernel.stride_pixels == 1
    row, rows = (height * width, 1) if one_row else (width, height)
    steps = kernel.reduce_lanes * taps
    full, tail = divmod(-(-kernel.out_channels // kernel.vector_lanes), kernel.tile_out_vectors)
    sizes = Counter(balanced(row, kernel.tile_pixels))
    cycles = tiles = accumulators = 0.0
    for vectors, count in ((kernel.tile_out_vectors, full), (tail, 1)):
        for size, times in sizes.items() if vectors and count else ():
            number = count * times * rows
            cycles += number * steps * max(size * vectors / 2, (vectors + size) / 1.6, 4.0)
            tiles += number
            accumulators += number * size * vectors
    return cycles, tiles, accumulators


def _slab_bytes(kernel: ConvFeatures) -> float:
    """Weights of one group of output channels, which every tile reads."""
    taps = kernel.kernel_height_taps * kernel.kernel_width_taps
    width = kernel.item_bytes * kernel.tile_out_vectors * kernel.vector_lanes
    return float(width * kernel.reduce_lanes * taps)


def _winograd(kernel: WinogradFeatures) -> Phases:
    square = (kernel.tile_side_pixels + 2) ** 2
    parts = kernel.groups // kernel.merged_groups
    lanes = kernel.vector_lanes
    inputs = -(-kernel.reduce_lanes // lanes)
    outputs = -(-kernel.out_channels // parts // lanes)
    full, tail = divmod(outputs, kernel.register_out_vectors)
    steps = sum(
        count * max(size * vectors / 2, (size + vectors) / 1.6, 4.0)
        for vectors, count in ((kernel.register_out_vectors, full), (tail, min(tail, 1)))
        for size in balanced(kernel.tiles, kernel.register_tiles)
    )
    product = square * parts * kernel.reduce_lanes * steps
    between = kernel.item_bytes * square * kernel.tiles * (inputs + outputs) * lanes
    return {
        "multiply": kernel.product_stages * product / _GIGAHERTZ,
        "input_transform": kernel.input_stages * kernel.tiles * parts * inputs * square / 2,
        "output_transform": kernel.product_stages * kernel.tiles * parts * outputs * square / 2,
        "steps": kernel.product_stages * square * parts * outputs * kernel.reduce_lanes,
        "between": between * _missing(between, _L2_BYTES) / 30,
        "rows_of_tiles": math.sqrt(kernel.tiles) * parts * inputs * 5,
    }


def _window(kernel: WindowFeatures) -> Phases:
    taps = kernel.kernel_height_taps * kernel.kernel_width_taps
    blocks = kernel.channels / kernel.vector_lanes
    pixels = blocks * kernel.out_height_pixels * kernel.out_width_pixels
    return {
        "multiply": pixels * taps / _GIGAHERTZ,
        "pixels": pixels,
        "rows": blocks * kernel.out_height_pixels * 5,
        "blocks": blocks * 10,
        "outside": pixels * taps * kernel.outside_taps_permille / 1000,
    }


def _generic(kernel: GenericFeatures) -> Phases:
    is_scalar = kernel.inner_elements % kernel.vector_lanes != 0
    return {
        "steps": kernel.steps / 20,
        "loads": kernel.loads / 20,
        "gathers": float(kernel.gathers),
        "calls": float(kernel.calls),
        "conditions": kernel.conditions / 4,
        "scalar": kernel.steps / 2 if is_scalar else 0.0,
        "flops": kernel.flops / 20,
    }


_BY_KIND: dict[type[Features], Callable[..., Phases]] = {
    ConvFeatures: _conv,
    WinogradFeatures: _winograd,
    WindowFeatures: _window,
    GenericFeatures: _generic,
}
