"""The CPU: kernels through LLVM, for x86-64 (AVX2, AVX-512) and aarch64 (NEON)."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.target import Target, codegen

from tvm_stretch.base.errors import TargetError
from tvm_stretch.network.codec import target_data
from tvm_stretch.passes.schedule_kernels import ScheduleKernels
from tvm_stretch.targets.kernels.machine import CORES, KIB, Core, VectorMachine
from tvm_stretch.targets.phases import kernel_phases
from tvm_stretch.targets.processor import Arithmetic, Code, Hardware, Operators, Processor, Speed
from tvm_stretch.targets.registry import ProcessorKind, register

HOST = "llvm"

# A big core of a phone of 2019 (Snapdragon 855: 2.84 GHz), and one such core's share of the
# memory's bandwidth; start and hand-over are those of this executor, measured on servers.
CORE = Speed(cycles_per_ns=2.8, bytes_per_ns=10.0, start_ns=300.0, handover_ns=1_000.0)


_X86_FEATURES = """
    sse3 ssse3 sse4.1 sse4.2 popcnt lzcnt movbe bmi bmi2 avx avx2 fma f16c gfni
    avxvnni avxifma avxvnniint8 avxneconvert xop fma4 tbm sse4a egpr
    avx512f avx512bw avx512dq avx512vl avx512cd avx512vnni avx512ifma avx512vbmi avx512vbmi2
    avx512bitalg avx512vpopcntdq avx512bf16 avx512fp16 amx-tile amx-bf16
"""
_ARM_FEATURES = """
    neon fullfp16 dotprod sve sve2 crc lse rdm rcpc fp16fml i8mm bf16 complxnum sha3 cssc mops
"""
CHECKED_CPU_FEATURES = frozenset(_X86_FEATURES.split() + _ARM_FEATURES.split())
"""CPU features that LLVM may use; an artifact requires them of the processor that loads it.

cpu_features.cc lists the same names."""


TILES = ("amx-bf16", "amx-tile", "avx512bf16")
"""The features that layers in bfloat16 need."""


def checked_features(target: Target) -> tuple[str, ...]:
    """The checked features that code for a target may use; LLVM uses tiles only if asked to."""
    features = CHECKED_CPU_FEATURES.intersection(map(str, codegen.llvm_get_cpu_features(target)))
    asked = {f"+{feature}" for feature in features}.intersection(target.attrs.get("mattr", ()))
    return tuple(sorted(f for f in features if not f.startswith("amx-") or f"+{f}" in asked))


def cpu_processor(target: Target, threads: int) -> Processor:
    """The CPU that ``target`` describes, with ``threads`` cores."""
    _check_names(target)
    target = complete_target(target)
    machine = vector_machine(target, threads)
    return Processor(
        name="cpu",
        target=target,
        threads=threads,
        machine=machine,
        code=Code(kernel_phases(expand_math=True, doubles=True), ScheduleKernels(machine)),
        speed=speed_of_cores(threads),
        operators=Operators(refuse=_refuse),
        arithmetic=Arithmetic(
            half=_computes_half(target),
            bfloat=all(codegen.target_has_features(name, target) for name in TILES),
        ),
        hardware=Hardware(not _names_other_machine(target.attrs), on_host_cores=True),
    )


# The CPU is always there, even if no target names it.
register(ProcessorKind(HOST, make=lambda _target, host: host, nickname="cpu"))


def speed_of_cores(threads: int) -> Speed:
    """The speed of ``threads`` cores; each core but the first adds three quarters of its own."""
    return replace(CORE, cycles_per_ns=CORE.cycles_per_ns * (1.0 + 0.75 * (threads - 1)))


_OTHER_TRIPLES = ("aarch64-linux-gnu", "x86_64-linux-gnu")


def _check_names(target: Target) -> None:
    """Refuse unknown names, because LLVM ignores cores and features that it does not know."""
    triple = str(target.attrs.get("mtriple", codegen.llvm_get_system_triple()))
    bare = Target({"kind": HOST, "mtriple": triple})
    vector_machine(bare, 1)  # refuses other triples before LLVM is asked about them
    cores = list(map(str, codegen.llvm_get_cpu_archlist(bare)))
    core = str(target.attrs.get("mcpu", ""))
    # LLVM does not list aliases such as apple-m1, but knows the features of such a core
    if core and core not in cores and not _is_core(core, triple):
        for other in _OTHER_TRIPLES:
            if _is_core(core, other):
                raise TargetError(
                    f"expected a core of {triple} for mcpu, got {core!r}; to compile for such a "
                    f"machine add its triple: 'mtriple': {other!r}"
                )
        _refuse_name("mcpu", core, f"a core of {triple}", cores)
    for given in map(str, target.attrs.get("mattr", ())):
        name = given[1:]
        if given[:1] not in ("+", "-") or name not in _features(triple, mattr=["+" + name]):
            features = {word for core in cores for word in _features(triple, mcpu=core)}
            written = [sign + word for sign in "+-" for word in features]
            _refuse_name("mattr", given, f"+ or - and a feature of {triple}", written)


def _is_core(name: str, triple: str) -> bool:
    """Whether LLVM knows the features of this core."""
    return _features(triple, mcpu=name) != _features(triple)


def _features(triple: str, **described: Any) -> set[str]:
    """Features of a core; a requested feature is included only if LLVM knows it."""
    target = Target({"kind": HOST, "mtriple": triple, **described})
    return set(map(str, codegen.llvm_get_cpu_features(target)))


def _refuse_name(field: str, given: str, expected: str, names: Sequence[str]) -> None:
    alike = difflib.get_close_matches(given.lower(), sorted(names), 3)
    advice = f"write {' or '.join(map(repr, alike))}" if alike else "look it up in LLVM's list"
    raise TargetError(f"expected {expected} for {field}, got {given!r}; {advice}")


def complete_target(target: Target) -> Target:
    """The target with a CPU: ``llvm`` alone means the host's own, with all its features.

    TVM adds the host's triple only if no CPU is named.
    """
    attrs: dict[str, Any] = dict(target.attrs)
    described = target_data(target)
    described.setdefault("mtriple", codegen.llvm_get_system_triple())
    if not ("mcpu" in attrs or "mattr" in attrs or _names_other_machine(attrs)):
        described["mcpu"] = codegen.llvm_get_system_cpu()
    return Target(described)


def _names_other_machine(attrs: Mapping[str, Any]) -> bool:
    here = codegen.llvm_get_system_triple().split("-")[0]
    return str(attrs.get("mtriple", here)).split("-")[0] != here


def vector_machine(target: Target, threads: int) -> VectorMachine:
    """The vector unit of a target, and the caches of its core."""
    triple = str(target.attrs.get("mtriple", codegen.llvm_get_system_triple()))
    if triple.startswith(("aarch64", "arm64")):
        lanes, registers, common = 4, 32, Core(32 * KIB, 512 * KIB)
    elif not triple.startswith("x86_64"):
        raise TargetError(
            f"expected an x86_64 or aarch64 triple for target llvm, got {triple!r}; "
            "name a supported CPU with mtriple"
        )
    elif codegen.target_has_features("avx512f", target):
        lanes, registers, common = 16, 32, Core(32 * KIB, 1024 * KIB)
    elif codegen.target_has_features("fma", target):
        lanes, registers, common = 8, 16, Core(32 * KIB, 512 * KIB)
    else:
        lanes, registers, common = 4, 16, Core(32 * KIB, 256 * KIB)
    name = str(target.attrs.get("mcpu", ""))
    core = CORES.get(name, common)
    caches = (core.l1_bytes, core.l2_bytes)
    if name == codegen.llvm_get_system_cpu() and not _names_other_machine(target.attrs):
        caches = own_caches() or caches
    is_arm = lanes == 4 and registers == 32
    return VectorMachine(
        lanes,
        registers,
        broadcast_operand=is_arm,
        l2_bytes=caches[1],
        threads=threads,
        multiply_adds=core.multiply_adds,
        loads=core.loads,
        latency=core.latency,
        l1_bytes=caches[0],
        in_order=core.in_order,
        asks_nearest=core.asks_nearest,
        crowded_rows=core.crowded_rows,
        dot=_dot(triple, target, lanes),
        widens_half=is_arm or bool(codegen.target_has_features("f16c", target)),
    )


def _computes_half(target: Target) -> bool:
    """Whether it computes float16; few x86 CPUs have instructions for it, and none was tried."""
    triple = str(target.attrs.get("mtriple", codegen.llvm_get_system_triple()))
    is_arm = triple.startswith(("aarch64", "arm64"))
    return is_arm and bool(codegen.target_has_features("fullfp16", target))


def _dot(triple: str, target: Target, lanes: int) -> str:
    """The best instruction of the target for products of 8-bit numbers; empty without one."""

    def has(*names: str) -> bool:
        return all(codegen.target_has_features(name, target) for name in names)

    if triple.startswith(("aarch64", "arm64")):
        return "usdot" if has("i8mm") else "sdot" if has("dotprod") else ""
    if lanes == 16:
        return "vpdpbusd.512" if has("avx512vnni") else "vpmaddwd.512" if has("avx512bw") else ""
    if lanes == 8:
        vnni = has("avxvnni") or has("avx512vnni", "avx512vl")
        return "vpdpbusd.256" if vnni else "vpmaddwd.256" if has("avx2") else ""
    return ""


@functools.cache
def own_caches(folder: str = "/sys/devices/system/cpu/cpu0/cache") -> tuple[int, int] | None:
    """Sizes of the first two levels of this machine's data caches, if the system reports them."""
    caches = {}
    for index in Path(folder).glob("index*"):
        try:
            kind, level, size = (
                (index / name).read_text().strip() for name in ("type", "level", "size")
            )
        except OSError:
            return None
        if kind != "Instruction" and size.endswith("K") and size[:-1].isdigit():
            caches[level] = int(size[:-1]) * KIB
    return (caches["1"], caches["2"]) if {"1", "2"} <= set(caches) else None


def _refuse(call: relax.Call) -> str | None:
    """Refuse operators that TVM cannot legalise."""
    if not isinstance(call.op, tvm.ir.Op):
        return None
    if call.op.has_attr("FLegalize") or call.op.name in _STRUCTURAL:
        return None
    return f"TVM has no implementation of {call.op.name}"


_STRUCTURAL: Sequence[str] = ("relax.call_tir", "relax.call_tir_with_grad", "relax.shape_of")
