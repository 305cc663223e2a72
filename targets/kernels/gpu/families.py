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
    """GPUs that are alike.

    Attributes:
        name: what they are called.
        pattern: of the names that drivers give them, in small letters.
        facts: fields of `GpuMachine`.
        source: of the facts.
    """

    name: str
    pattern: str
    facts: Mapping[str, Any]
    source: str


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
        "CUDA C++ Programming Guide, technical specifications by compute capability (9.0)",
    ),
    Family(
        "Xclipse",
        r"xclipse",
        {"wave": 32, "multiply_adds": 64, "unit_items": 1024, "unit_local_bytes": 64 * KIB},
        "AMD, RDNA architecture whitepaper: Samsung's GPUs are of RDNA 2 and 3",
    ),
    Family(
        "AMD",
        r"radeon|\bgfx\d|amd",
        {"wave": 32, "multiply_adds": 64, "unit_items": 1024, "unit_local_bytes": 64 * KIB},
        "AMD, RDNA architecture whitepaper: 2 SIMDs of 32 lanes in a compute unit",
    ),
    Family(
        "Adreno 5xx",
        r"adreno.*\b5\d\d\b",
        {"wave": 64, "multiply_adds": 128, "unit_items": 1024},
        "Qualcomm, Snapdragon OpenCL General Programming and Optimization (80-NB295-11)",
    ),
    Family(
        "Adreno",
        r"adreno",
        {"wave": 64, "multiply_adds": 256, "unit_items": 1024},
        "the same; waves of 128 on some kernels since Adreno 6xx",
    ),
    Family(
        "Mali Bifrost",
        r"mali-g(31|51|52|71|72|76)\b",
        {"wave": 8, "multiply_adds": 24, "unit_items": 384, "unit_registers": 24 * KIB},
        "Arm, Mali GPU datasheet (G76: 24 multiply-adds a cycle); Bifrost and Valhall OpenCL "
        "Developer Guide (101574)",
    ),
    Family(
        "Mali Valhall",
        r"mali-g(57|68|77|78)\b",
        {"wave": 16, "multiply_adds": 32, "unit_items": 1024, "unit_registers": 32 * KIB},
        "Arm, Mali GPU datasheet (G77: 32 multiply-adds a cycle); the same guide",
    ),
    Family(
        "Mali Valhall and 5th generation",
        r"mali|immortalis",
        {"wave": 16, "multiply_adds": 64, "unit_items": 2048, "unit_registers": 64 * KIB},
        "Arm, Mali GPU datasheet (G710: 64 multiply-adds a cycle); the same guide",
    ),
    Family(
        "PowerVR",
        r"powervr|img ",
        {"wave": 32, "multiply_adds": 64, "unit_items": 512},
        "Imagination, PowerVR Rogue compute recommendations: tasks of 32 instances",
    ),
    Family(
        "Intel",
        r"intel|\biris\b|\barc\b",
        {"wave": 16, "multiply_adds": 128, "unit_items": 1792, "unit_local_bytes": 64 * KIB},
        "Intel, oneAPI GPU Optimization Guide: Xe-LP, 16 execution units of 8 lanes in a subslice",
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
