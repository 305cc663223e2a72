"""What kernel templates need to know of a GPU, and the facts of those that are known by name.

GPUs by the names that their drivers give: facts that no driver tells, each with its source.

    "QUALCOMM Adreno(TM) 640"  ->  waves of 64, 256 multiply-adds a cycle, ..

What a driver does tell (units, limits of groups, kind of local memory) is always asked of it.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

KIB = 1024

_HELD, _MOST_HELD = 4, 32  # numbers of a row that an item should hold, and can
_SHORTEST_ROW, _LARGEST_ROW_GROUP = 8, 256


class Winners:
    """Configurations by layer that measured best on one device: they go before models.

    The table never changes; it can be a part of keys of caches.
    """

    def __init__(self, winners: Mapping[Any, Any] | None = None) -> None:
        self._winners = dict(winners or {})
        self._hash = hash(frozenset(self._winners.items()))

    def find(self, layer: Hashable) -> Any:
        """The configuration of a layer; None if none was measured."""
        return self._winners.get(layer)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Winners) and self._winners == other._winners

    def __hash__(self) -> int:
        return self._hash


class WinnersWithGaps(Winners):
    """A table that notes for which layers it has no configuration."""

    def __init__(self, winners: Mapping[Any, Any]) -> None:
        super().__init__(winners)
        self.unknown: dict[Any, None] = {}

    def find(self, layer: Hashable) -> Any:
        """As of `Winners`; without a configuration the layer is one of `unknown` from now on."""
        winner = super().find(layer)
        if winner is None:
            self.unknown[layer] = None
        return winner

    def __eq__(self, other: object) -> bool:
        return self is other  # caches must ask each table

    __hash__ = object.__hash__


@dataclass(frozen=True)
class GpuMachine:
    """A GPU: what its driver says of it, and what its maker does."""

    units: int  # compute units: work-groups run on one each
    wave: int = 32  # work-items that take their steps together
    multiply_adds: int = 128  # of float32, that start in a cycle of one unit
    unit_items: int = 1024  # work-items that one unit holds at a time
    unit_registers: int = 32 * KIB  # of 32 bits, that these share
    unit_local_bytes: int = 32 * KIB  # local memory that the groups on one unit share
    max_group_items: int = 256  # the most work-items that a group may have
    local_bytes: int = 32 * KIB  # the most local memory that a group may have
    # local memory is a memory of its own, not a part of the device's memory
    local_on_chip: bool = True
    has_images: bool = False  # an image can view any buffer, four numbers in a pixel
    # operands of a convolution that it reads fastest as such images: 1 weights, 2 the input too
    images: int = 0
    plain_items: int = 64  # work-items of a group that shares nothing
    # configurations that measured best; they do not change how a configuration is written, so
    # they are no part of the text that names a machine
    winners: Winners = field(default=Winners(), repr=False)

    @property
    def cores(self) -> float:
        """CPU cores of 4 lanes and two multiply-adds a cycle that do as much in a cycle."""
        return self.units * self.multiply_adds / 8

    @property
    def barest(self) -> GpuMachine:
        """The GPU that asks least of a driver: it has groups of one item, and no images.

        It has more units than any layer has items, so each item computes one output.
        """
        alone = replace(self, units=1 << 40, max_group_items=1, plain_items=1, images=0)
        return replace(alone, local_on_chip=False, has_images=False)

    def row_items(self, extent: int) -> int:
        """Work-items of a group that holds a row of numbers in registers; 0 if it cannot.

        A power of two, so that they can add up by halves.
        """
        items = self._joined_items(extent, 4)
        return items if _SHORTEST_ROW <= extent <= _MOST_HELD * items else 0

    def sum_items(self, extent: int) -> int:
        """Work-items of a group that adds up quads of numbers; 0 if it cannot."""
        return self._joined_items(extent, 16)

    def _joined_items(self, extent: int, item_bytes: int) -> int:
        wanted = min(max(extent // _HELD, self.wave), _LARGEST_ROW_GROUP, self.max_group_items)
        items = 1 << (max(1, wanted).bit_length() - 1)
        return items if self.local_on_chip and item_bytes * items <= self.local_bytes else 0


@dataclass(frozen=True)
class Family:
    """GPUs that are alike."""

    name: str  # what they are called
    pattern: str  # of the names that drivers give them, in small letters
    facts: Mapping[str, Any]  # fields of `GpuMachine`
    source: str  # of the facts


_DATASHEET = "Arm, Mali GPU datasheet 2021"
_MESA_ADRENO = "Mesa, src/freedreno/common/freedreno_devices.py"
_TFLITE = "TensorFlow, lite/delegates/gpu"
_TEXTURES = f"images: {_TFLITE}/cl/environment.cc and common/tasks/conv_generic.cc, for Adreno"
_RDNA = {
    "wave": 32,
    "multiply_adds": 128,
    "unit_items": 2048,
    "unit_registers": 128 * KIB,
    "unit_local_bytes": 128 * KIB,
}
_MESA_AMD = (
    "Mesa, src/amd/common/ac_gpu_info.c (GFX10.3: a compute unit has two SIMDs of 32 lanes, each "
    "with 16 waves and 1,024 registers a lane; two units, which drivers report as one, share 128 "
    "KiB of local memory)"
)
_GUESS = "no source found: an order of magnitude, which ts.tune.measure replaces by measured tiles"

FAMILIES = (
    Family(
        "NVIDIA",
        r"nvidia|geforce|quadro|tesla|\brtx\b",
        {
            "wave": 32,
            "multiply_adds": 128,
            "unit_items": 2048,
            "unit_registers": 64 * KIB,
            "unit_local_bytes": 220 * KIB,
            "has_images": False,
        },
        "published device queries of CUDA (Maxwell, Pascal: waves of 32, 128 cores, 2,048 threads, "
        "65,536 registers in a multiprocessor); local memory: NVIDIA, Hopper Tuning Guide (228 KiB "
        "in a multiprocessor, 1 KiB of each group for the driver); images gain nothing on an H100: "
        "benchmarks/log/gpu.md",
    ),
    Family(
        "Xclipse",
        r"xclipse",
        _RDNA,
        f"Geekbench on Exynos 2200 (RDNA 2, 6 units reported as 3); {_MESA_AMD}",
    ),
    Family("AMD", r"radeon|\bgfx\d|amd", _RDNA, _MESA_AMD),
    Family(
        "Adreno 5xx",
        r"adreno.*\b5\d\d\b",
        {
            "wave": 32,
            "multiply_adds": 128,
            "unit_items": 1024,
            "unit_registers": 12 * KIB,
            "images": 2,
        },
        f"{_MESA_ADRENO} and ir3_compiler.c (waves of 32, 64 x 16 items and 48 quads of registers "
        f"for each of 64 in a unit); {_TEXTURES}; multiply-adds: {_GUESS}",
    ),
    Family(
        "Adreno",
        r"adreno",
        {
            "wave": 64,
            "multiply_adds": 256,
            "unit_items": 1024,
            "unit_registers": 48 * KIB,
            "images": 2,
        },
        f"{_TFLITE}/common/gpu_info.cc (6xx: waves of 64 or 128, 16 in a unit, 128 x 96 quads of "
        f"registers; 7xx has 96 too, {_MESA_ADRENO}); {_TEXTURES}; multiply-adds: "
        "azhirnov/cpu-gpu-arch on GitHub (Adreno 640: 384 in each of two units, which its own "
        "measurements do not reach)",
    ),
    Family(
        "Mali Bifrost, narrow",
        r"mali-g(31|51|71|72)\b",
        {"wave": 4, "multiply_adds": 12, "unit_items": 384, "unit_registers": 24 * KIB},
        f"{_DATASHEET} (G71 and G72: warps of 4, 384 threads, 24 operations a clock); registers: "
        f"{_GUESS}",
    ),
    Family(
        "Mali Bifrost",
        r"mali-g(52|76)\b",
        {"wave": 8, "multiply_adds": 24, "unit_items": 768, "unit_registers": 24 * KIB},
        f"{_DATASHEET} (G76: warps of 8, 768 threads, 48 operations a clock); registers: {_GUESS}",
    ),
    Family(
        "Mali Valhall",
        r"mali-g(57|68|77|78)\b",
        {"wave": 16, "multiply_adds": 32, "unit_items": 1024, "unit_registers": 32 * KIB},
        f"{_DATASHEET} (warps of 16, 1,024 threads, 64 operations a clock); registers: {_GUESS}",
    ),
    Family(
        "Mali Valhall and 5th generation",
        r"mali|immortalis",
        {"wave": 16, "multiply_adds": 64, "unit_items": 2048, "unit_registers": 64 * KIB},
        "AnandTech, Arm announces new Mali-G710 (warps of 16, two engines of two clusters: 64 "
        f"multiply-adds, twice the G78's core); threads and registers: twice too; 5th generation: "
        f"{_GUESS}",
    ),
    Family(
        "PowerVR",
        r"powervr|img ",
        {"wave": 32, "multiply_adds": 32, "unit_items": 512, "images": 2},
        "Imagination, PowerVR Compute Development Recommendations (tasks of up to 32 threads, 16 "
        "pipes in a cluster) and PowerVR Rogue USC (two multiply-adds of float32 a cycle in a "
        f"pipe); images: {_TFLITE}/cl/environment.cc; threads: {_GUESS}",
    ),
    Family(
        "Intel",
        r"intel|\biris\b|\barc\b",
        {"wave": 16, "multiply_adds": 128, "unit_items": 1792, "unit_local_bytes": 64 * KIB},
        "Intel, GPU Occupancy Calculator of oneAPI's samples: Xe-LP and Arc have 16 execution "
        "units in a subslice, 8 threads in each of Arc's, 64 KiB for a group",
    ),
)
"""The first whose pattern is found names a device."""


def family_of(device: str) -> Family | None:
    """The family of a device, if its name says it."""
    name = device.lower()
    return next((one for one in FAMILIES if re.search(one.pattern, name)), None)


def describe_gpu(
    device: str,
    units: int,
    max_group_items: int,
    local_bytes: int,
    local_on_chip: bool,
    has_images: bool = False,
) -> GpuMachine:
    """A GPU from what its driver reports and from facts of its family."""
    gpu = GpuMachine(
        units,
        max_group_items=max_group_items,
        local_bytes=local_bytes,
        local_on_chip=local_on_chip,
        unit_local_bytes=local_bytes,
        has_images=has_images,
    )
    family = family_of(device)
    facts = {} if family is None else dict(family.facts)
    if not has_images:
        facts.pop("images", None)
    return replace(gpu, **facts)
