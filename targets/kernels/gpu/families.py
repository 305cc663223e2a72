"""GPUs by the names that their drivers give: facts that no driver tells, each with its source.

    "QUALCOMM Adreno(TM) 640"  ->  waves of 64, 256 multiply-adds a cycle, ..

What a driver does tell (units, limits of groups, kind of local memory) is always asked of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .machine import KIB, GpuMachine


@dataclass(frozen=True)
class Family:
    """GPUs that are alike."""

    name: str  # what they are called
    pattern: str  # of the names that drivers give them, in small letters
    facts: Mapping[str, Any]  # fields of `GpuMachine`
    source: str  # of the facts


_DATASHEET = "Arm, Mali GPU datasheet 2021"
_UNKNOWN = "not checked; an order of magnitude"

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
        },
        "published device queries of CUDA (Maxwell, Pascal: waves of 32, 128 cores, 2,048 threads, "
        f"65,536 registers in a multiprocessor); local memory of Hopper: {_UNKNOWN}",
    ),
    Family(
        "Xclipse",
        r"xclipse",
        {"wave": 32, "multiply_adds": 64, "unit_items": 1024, "unit_local_bytes": 64 * KIB},
        f"{_UNKNOWN}; taken to be as AMD's",
    ),
    Family(
        "AMD",
        r"radeon|\bgfx\d|amd",
        {"wave": 32, "multiply_adds": 64, "unit_items": 1024, "unit_local_bytes": 64 * KIB},
        f"AMD, RDNA architecture whitepaper: {_UNKNOWN}",
    ),
    Family(
        "Adreno 5xx",
        r"adreno.*\b5\d\d\b",
        {"wave": 64, "multiply_adds": 128, "unit_items": 1024},
        f"Qualcomm, Snapdragon OpenCL General Programming and Optimization: {_UNKNOWN}",
    ),
    Family(
        "Adreno",
        r"adreno",
        {"wave": 64, "multiply_adds": 256, "unit_items": 1024},
        "azhirnov/cpu-gpu-arch on GitHub (waves of 64 or 128; Adreno 640: 384 multiply-adds in"
        f" each of two units, which its own measurements do not reach); else {_UNKNOWN}",
    ),
    Family(
        "Mali Bifrost, narrow",
        r"mali-g(31|51|71|72)\b",
        {"wave": 4, "multiply_adds": 12, "unit_items": 384, "unit_registers": 24 * KIB},
        f"{_DATASHEET} (G71 and G72: warps of 4, 384 threads, 24 operations a clock); registers: "
        f"{_UNKNOWN}",
    ),
    Family(
        "Mali Bifrost",
        r"mali-g(52|76)\b",
        {"wave": 8, "multiply_adds": 24, "unit_items": 768, "unit_registers": 24 * KIB},
        f"{_DATASHEET} (G76: warps of 8, 768 threads, 48 operations a clock); registers: "
        f"{_UNKNOWN}",
    ),
    Family(
        "Mali Valhall",
        r"mali-g(57|68|77|78)\b",
        {"wave": 16, "multiply_adds": 32, "unit_items": 1024, "unit_registers": 32 * KIB},
        f"{_DATASHEET} (warps of 16, 1,024 threads, 64 operations a clock); registers: {_UNKNOWN}",
    ),
    Family(
        "Mali Valhall and 5th generation",
        r"mali|immortalis",
        {"wave": 16, "multiply_adds": 64, "unit_items": 2048, "unit_registers": 64 * KIB},
        _UNKNOWN,
    ),
    Family(
        "PowerVR",
        r"powervr|img ",
        {"wave": 32, "multiply_adds": 64, "unit_items": 512},
        f"Imagination, PowerVR Compute Development Recommendations: {_UNKNOWN}",
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
    device: str, units: int, max_group_items: int, local_bytes: int, local_on_chip: bool
) -> GpuMachine:
    """A GPU from what its driver reports and from facts of its family."""
    gpu = GpuMachine(
        units,
        max_group_items=max_group_items,
        local_bytes=local_bytes,
        local_on_chip=local_on_chip,
        unit_local_bytes=local_bytes,
    )
    family = family_of(device)
    return gpu if family is None else replace(gpu, **family.facts)
