"""Hexagon: Qualcomm's DSP with vectors of 128 bytes (HVX), emulated on machines without one.

    ts.compile(network, targets=["hexagon"])      # this machine's by FastRPC, or v66, emulated
    ts.compile(network, targets=["llvm", {"kind": "hexagon", "mcpu": "hexagonv68"}])
    ts.compile(network, targets=[{"kind": "hexagon", "device": "snapdragon-855"}])  # for a phone

Kernels are compiled by LLVM like the CPU's; `targets/hexagon/code/dsp_code.py` links them with what
the executor communicates with (native/transport.h): a server, or a library for FastRPC. Integers
are computed in vectors. Float operators run only on versions whose vectors hold floats and are
refused by others, because a DSP that computes one number at a time is slower than any CPU.
Exceptions are the ends of an integer network: quantising works on the bits of floats, in vectors,
and dequantising computes one number at a time.

A chip's kernels run on as many threads as it has vector units (dsp/fastrpc/team.c), an emulated
one's on one. TVM's tags (qcom/hexagon-v66) set `vtcm-capacity` and `num-cores`, which are accepted
and have no effect: the program asks the chip for both.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.target import Target

from tvm_stretch.base.errors import TargetError
from tvm_stretch.network.expressions import tensor_types
from tvm_stretch.network.integers import integer_of, operands_of
from tvm_stretch.network.steps import kind_of_steps, why_not_on_a_dsp
from tvm_stretch.passes.schedule_kernels import ScheduleKernels
from tvm_stretch.passes.use_fixed_point import UseFixedPoint
from tvm_stretch.run.autoload import load_native_library
from tvm_stretch.targets.cpu.code.object_code import compile_kernels
from tvm_stretch.targets.hexagon.code.dsp_code import (
    Launch,
    dsp_code,
    fastrpc_linker,
    has_zig,
    hexagon_linker,
)
from tvm_stretch.targets.kernels.float_bits import CONVERTING, scalar_calls
from tvm_stretch.targets.kernels.machine import KIB, VectorMachine
from tvm_stretch.targets.phases import kernel_phases
from tvm_stretch.targets.processor import (
    HOST_ONLY,
    Check,
    Code,
    Hardware,
    Kernels,
    Operators,
    OpRule,
    Processor,
    Speed,
)
from tvm_stretch.targets.registry import Attributes, ProcessorKind, register

from .chips import Chip

EMULATOR = "qemu-hexagon"
_EMULATED_PACKET_NS = 500.0
"""Time of a packet with vectors, emulated on a core of an EPYC of 2024: resnet34 at 224x224 takes
25.5 million packets, in 15 s."""

_EMULATED_CPU = "v67"
"""A version that every qemu since 7.2 knows; an emulator runs programs for older versions too."""


@dataclass(frozen=True)
class Version:
    """Properties of a generation of Hexagon, from Qualcomm and LLVM's tables."""

    cpu: str  # LLVM's name
    vector_float: bool  # whether vectors hold float16 and float32
    ghz: float  # clock of a typical phone's DSP
    threads: int = 4  # vector units with 128 bytes
    l2_bytes: int = 1024 * KIB  # size of the second-level cache
    vector_bytes: int = 128


VERSIONS = {
    version.cpu: version
    for version in (
        Version("hexagonv65", vector_float=False, ghz=1.2, threads=2),
        Version("hexagonv66", vector_float=False, ghz=1.2),
        Version("hexagonv67", vector_float=False, ghz=1.2),
        Version("hexagonv68", vector_float=True, ghz=1.5),
        Version("hexagonv69", vector_float=True, ghz=1.5),
        Version("hexagonv71", vector_float=True, ghz=1.5),
        Version("hexagonv73", vector_float=True, ghz=1.7),
        Version("hexagonv75", vector_float=True, ghz=1.9),
    )
}
_DEFAULT = "hexagonv66"  # of the Snapdragon 855

_MOST_BYTES = 2**30
"""Largest size of a tensor, because addresses have 32 bits."""

_LONGEST_MS = 86_400_000
_LONGEST_SPIN_US = 10_000
"""Longest time to spin: a side that spins does not notice that the other has died."""

# Attributes of a target that have an effect, and those that TVM's tags (qcom/hexagon-v66) add,
# which have none: the program asks the chip.
_OWN = ("kind", "mcpu", "device", "deadline_ms", "spin_us")
_TAGS = ("keys", "tag", "host", "mtriple", "mattr", "num-cores", "vtcm-capacity", "llvm-options")


def this_chip() -> Chip:
    """The Hexagon of this machine."""
    load_native_library()
    return Chip(**json.loads(tvm.get_global_func("tvm_stretch.describe_dsp")("")))


@functools.cache
def _newest_here() -> str:
    """The newest version that this machine's emulator knows: v73 of qemu 10."""
    if not shutil.which(EMULATOR):
        return _EMULATED_CPU
    command = (EMULATOR, "-cpu", "help")  # qemu 7.2 prints nothing
    versions = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return max(re.findall(r"^ *(v\d\d)$", versions, re.MULTILINE), default=_EMULATED_CPU)


def hexagon_processor(given: Attributes, host: Processor) -> Processor:
    """The DSP that a target describes, beside this CPU."""
    processor = _processor(given, host, this_chip(), _newest_here())
    if reason := _why_absent(given):
        raise TargetError(reason)
    return processor


def _processor(
    given: Attributes, host: Processor, chip: Chip, emulated_cpu: str = _EMULATED_CPU
) -> Processor:
    version, launch = _version(given, chip), _launch(given, chip, emulated_cpu)
    target, emulated = llvm_target(version), not launch.fastrpc
    threads = 1 if emulated else version.threads

    def refuse(call: relax.Call) -> str | None:
        return why_refused(call, version, emulated=emulated)

    vectors = VectorMachine(
        lanes=version.vector_bytes // 4,
        registers=32,
        broadcast_operand=False,
        l2_bytes=version.l2_bytes,
        threads=threads,
        multiply_adds=1.0,
        loads=1.0,
        latency=2,
        dot="vrmpybusv",
        dsp=True,
    )

    def build(kernels: Kernels, schedule: tvm.transform.Pass) -> tvm.runtime.Module:
        load_native_library()
        objects = compile_kernels(kernels, schedule, target)
        return dsp_code(objects, fastrpc_linker() if launch.fastrpc else hexagon_linker(), launch)

    def remark(calls: Mapping[str, relax.Call]) -> Mapping[str, str]:
        return scalar_calls(calls, version.cpu[7:], has_floats=version.vector_float)

    phases = (UseFixedPoint(), *kernel_phases(expand_math=True, epilogues=False))
    emulator = Hardware(driver=EMULATOR, packet_ns=1 / version.ghz)
    return Processor(
        name="hexagon",
        kind="dsp",
        target=target,
        threads=threads,
        machine=vectors,
        code=Code(phases, ScheduleKernels(vectors), build),
        speed=_speed(version, host, threads, emulated=emulated),
        operators=Operators(_rules(refuse), refuse, remark=remark),
        hardware=emulator if emulated else Hardware(driver="FastRPC", runs_here=launch.runs_here),
    )


def llvm_target(version: Version) -> Target:
    """The target of a version's kernels."""
    hvx = version.cpu.replace("hexagon", "+hvx")
    return Target(
        {
            "kind": "llvm",
            "mtriple": "hexagon-unknown-linux-musl",
            "mcpu": version.cpu,
            "mattr": [hvx, f"+hvx-length{version.vector_bytes}b"],
        }
    )


def _version(given: Attributes, chip: Chip) -> Version:
    unknown = sorted(set(given) - {*_OWN, *_TAGS})
    if unknown:
        raise TargetError(
            f"expected {', '.join(_OWN)} in target hexagon, got {unknown[0]!r}; leave it out"
        )
    own = f"hexagon{chip.version}"  # newer chips run code of older ones
    is_known = chip.can_be_called and "device" not in given and own in VERSIONS
    cpu = given.get("mcpu", own if is_known else _DEFAULT)
    if not isinstance(cpu, str) or cpu not in VERSIONS:
        raise TargetError(
            f"expected one of {', '.join(VERSIONS)} for mcpu of target hexagon, got {cpu!r}; "
            "choose the one of your device"
        )
    return VERSIONS[cpu]


def _launch(given: Attributes, chip: Chip, emulated_cpu: str) -> Launch:
    """How the executor reaches the DSP: one of another machine or of this one, or an emulator."""
    cpu = _version(given, chip).cpu
    numbers: dict[str, Any] = {}
    for name, least, most in (("deadline_ms", 1, _LONGEST_MS), ("spin_us", 0, _LONGEST_SPIN_US)):
        value = given.get(name, getattr(Launch, name))
        if type(value) is not int or not least <= value <= most:
            raise TargetError(
                f"expected a whole number from {least} to {most} for {name} of target hexagon, got "
                f"{value!r}; leave it out for {getattr(Launch, name)}"
            )
        numbers[name] = value
    device = given.get("device", EMULATOR)
    if not isinstance(device, str) or not device.strip():
        raise TargetError(
            f"expected the name of a device for device of target hexagon, got {device!r}; leave it "
            "out for the emulator"
        )
    if "device" in given:
        name = f"Hexagon {cpu[7:]} of {given['device']}"
        return Launch(name, fastrpc=True, runs_here=False, **numbers)
    if chip.can_be_called:
        return Launch(f"Hexagon {cpu[7:]}", fastrpc=True, **numbers)
    emulator = (EMULATOR, "-cpu", emulated_cpu)
    return Launch(f"Hexagon {cpu[7:]}, emulated", emulator, **numbers)


def _why_absent(given: Attributes) -> str:
    """Why this machine cannot use the target; a device elsewhere only needs the linker."""
    if not has_zig():
        return _NO_ZIG
    if "device" in given or shutil.which(EMULATOR) or this_chip().can_be_called:
        return ""
    return (
        f"expected {EMULATOR} for target hexagon, got none; install it (Debian: qemu-user), or "
        'compile for another machine: {"kind": "hexagon", "device": "<its name>"}'
    )


def _speed(version: Version, host: Processor, threads: int, *, emulated: bool) -> Speed:
    """Typical speed of 8-bit layers.

    For an emulated DSP it is the emulator's, because plans must not assume the chip's.

    A packet contains at most two products of 128 bytes by a scalar, and layers reach two thirds of
    that and more (`python -m benchmarks.dsp --packets`). The speed is expressed in cycles of a CPU
    core with the CPU's vectors and two multiply-adds. Hand-overs are those of the paper's
    future-based calls.
    """
    per_cycle = 2 * host.machine.lanes
    packets_per_ns = 1 / _EMULATED_PACKET_NS if emulated else version.ghz
    reached = threads * packets_per_ns * 2 * version.vector_bytes * 2 / 3
    return Speed(reached / per_cycle, bytes_per_ns=10.0, start_ns=1_000.0, handover_ns=30_000.0)


_NO_ZIG = (
    "expected zig for target hexagon, which links its programs, got none; install it with "
    "`pip install ziglang`"
)


def _on_device(given: Attributes, machine: Mapping[str, Any], host: Processor) -> Processor:
    """The device's chip, or its emulator; code for the chip if the target names one."""
    if "device" in given:
        return hexagon_processor(given, host)
    chip: Chip = machine["dsp"]
    if not chip.can_be_called and not chip.emulator:
        arch = f"hexagon{chip.version}"
        version = arch if arch in VERSIONS else f"<one of {', '.join(VERSIONS)}>"
        raise TargetError(
            f"expected a Hexagon on {machine['name']} that can be called, got: {chip} "
            f"({chip.why_no_library}); install {EMULATOR} there, or compile code for the chip, to "
            f'be exported: {{"kind": "hexagon", "mcpu": "{version}", "device": "<its name>"}}'
        )
    if not has_zig():
        raise TargetError(_NO_ZIG)
    return _processor(given, host, chip)


register(
    ProcessorKind(
        "hexagon",
        hexagon_processor,
        _why_absent,
        cost="qemu-user: 12 MB, ziglang: 100 MB",
        by_default=False,  # emulation is no gain, and no chip of a phone ran our programs yet
        nickname="dsp",
        on_device=_on_device,
    )
)


# --- the operator table ---------------------------------------------------------------------------

_HOST = "its implementation calls a function of the host"
_DIVISION = "HVX has no division: each number would be divided alone"
_DIVIDING: Sequence[str] = (
    *("floor_divide", "mod", "floor_mod", "power", "mean", "variance", "std"),
    *("nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d", "nn.adaptive_avg_pool2d"),
)


def _rules(refuse: Check) -> tuple[OpRule, ...]:
    """Operators that differ from others; their checks and notes go beyond ``refuse``."""

    def check(more: Check) -> Check:
        return lambda call: refuse(call) or more(call)

    dividing, divided = check(_because(_DIVISION)), check(_why_not_divided)
    return (
        *(OpRule(f"relax.{name}", check=_because(_HOST), note=_HOST) for name in HOST_ONLY),
        *(OpRule(f"relax.{name}", check=dividing, note=_DIVISION) for name in _DIVIDING),
        OpRule("relax.divide", check=divided, note=_DIVISION + "; of floats they are"),
    )


def _why_not_divided(call: relax.Call) -> str | None:
    return None if str(call.ty.dtype) == "float32" else f"{call.op.name}: {_DIVISION}"


def _because(reason: str) -> Check:
    return lambda call: f"{call.op.name}: {reason}"


def why_refused(call: relax.Call, version: Version, *, emulated: bool) -> str | None:
    """Refuse operators that TVM cannot legalise, and types that vectors of this version lack."""
    if not isinstance(call.op, tvm.ir.Op):
        return None
    name = call.op.name
    integer = integer_of(call)
    if integer is not None and integer.kind == "softmax":
        return f"{name}: its powers are floats, and {_DIVISION}"
    if integer is not None and integer.kind == "round" and integer.factors:
        return f"{name}: sums of this DSP share one factor, and here each channel has its own"
    if integer is not None:  # its factors are floats, which UseFixedPoint converts
        data = [operand for operand in operands_of(call) if not isinstance(operand, GenericConst)]
        reasons = (_why_not_tensor(ty, version, emulated) for e in data for ty in tensor_types(e))
        return next((f"{name}: {reason}" for reason in reasons if reason), None)
    if (steps := kind_of_steps(call)) is not None:
        return why_not_on_a_dsp(steps)
    if not call.op.has_attr("FLegalize") and name not in ("relax.call_tir", "relax.shape_of"):
        return f"TVM has no implementation of {name}"
    converts = name.removeprefix("relax.") in CONVERTING and sum(map(_is_large, call.args)) <= 1
    for expr in (call, *call.args):
        for ty in tensor_types(expr):
            if converts and str(ty.dtype) == "float32":
                continue
            if reason := _why_not_tensor(ty, version, emulated):
                return f"{name}: {reason}"
    return None


def _is_large(expr: relax.Expr) -> bool:
    """Whether an expression is computed and is not a single number."""
    shapes = [ty.shape for ty in tensor_types(expr)]
    return not isinstance(expr, GenericConst) and any(
        not isinstance(shape, relax.ShapeExpr) or any(dim != 1 for dim in shape.values)
        for shape in shapes
    )


def _why_not_tensor(ty: relax.TensorType, version: Version, emulated: bool) -> str | None:
    """Why kernels of this version cannot read or write such a tensor."""
    dtype = str(ty.dtype)
    name = version.cpu.replace("hexagon", "")
    if dtype in ("float16", "float32"):
        if not version.vector_float:
            return (
                f"vectors of {name} hold no {dtype}; v68's do, and integers run everywhere: make "
                "them of the network with ts.quantize"
            )
        if emulated:
            return f"{EMULATOR} has no {dtype} in vectors; {name} itself does: name a device"
    elif dtype not in _VECTOR_TYPES:
        return f"vectors of {name} hold no {dtype}"
    if isinstance(ty.shape, relax.ShapeExpr):
        size = prod(int(extent) for extent in ty.shape.values) * tvm.DataType(dtype).itemsize
        if size > _MOST_BYTES:
            return f"a tensor of {size / 2**30:.1f} GiB; a DSP has addresses of 32 bits"
    return None


_VECTOR_TYPES = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32")
