"""Hexagon: Qualcomm's DSP with its vectors of 128 bytes (HVX), emulated where there is no phone.

    ts.compile(network, targets=["hexagon"])                                    # v66, emulated
    ts.compile(network, targets=["llvm", {"kind": "hexagon", "mcpu": "hexagonv68"}])
    ts.compile(network, targets=[{"kind": "hexagon", "device": "snapdragon-855"}])  # for a phone

Kernels go through LLVM like the CPU's; `codegen/dsp_code.py` links them with a server, and the
executor talks to it (native/dsp). Integers run on vectors. Float does where the version has it in
its vectors; elsewhere it is refused: one number at a time, a DSP is slower than any CPU. Only the
ends of a network of integers are taken: what quantises them reads the bits of floats, in vectors,
what dequantises them computes one number at a time.

TVM's tags (qcom/hexagon-v66) bring `vtcm-capacity` and `num-cores`, which are taken and change
nothing: kernels read through the second-level cache, on one thread.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.target import Target
from tvm_stretch.passes.schedule_kernels import ScheduleKernels
from tvm_stretch.passes.use_fixed_point import UseFixedPoint

from tvm_stretch.codegen.dsp_code import Launch, dsp_code, has_zig, hexagon_linker
from tvm_stretch.codegen.object_code import compile_kernels
from tvm_stretch.errors import TargetError
from tvm_stretch.ir.expressions import tensor_types
from tvm_stretch.runtime.autoload import load_native_library

from .hexagon_chips import Chip
from .hexagon_floats import CONVERTING, scalar_calls
from .kernels.integers import integer_of, operands_of
from .kernels.machine import KIB, VectorMachine
from .kernels.steps import kind_of_steps
from .phases import kernel_phases
from .processor import HOST_ONLY, Check, Kernels, OpRule, Processor, Speed
from .registry import Attributes, ProcessorKind, register

EMULATOR = "qemu-hexagon"
_EMULATED_PACKET_NS = 500.0
"""With vectors, on a core of an EPYC of 2024: resnet34 at 224x224 takes 25.5 million, in 15 s."""

_EMULATED_CPU = "v67"
"""The newest that qemu 7.2 knows; it runs what older ones have."""


@dataclass(frozen=True)
class Version:
    """What a generation of Hexagon has, as its maker and LLVM's tables give it.

    Attributes:
        cpu: LLVM's name.
        vector_float: whether vectors hold float16 and float32.
        ghz: clock of a typical phone's.
        l2_bytes: second-level cache.
    """

    cpu: str
    vector_float: bool
    ghz: float
    l2_bytes: int = 1024 * KIB
    vector_bytes: int = 128


VERSIONS = {
    version.cpu: version
    for version in (
        Version("hexagonv65", vector_float=False, ghz=1.2),
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
"""Of a tensor: addresses have 32 bits."""

_LONGEST_MS = 86_400_000
_LONGEST_SPIN_US = 10_000
"""Who spins does not see that the other has died."""

# What these attributes of a target mean; TVM's tags (qcom/hexagon-v66) bring the ones that follow,
# which change nothing: kernels read through the second-level cache, not through a copy in VTCM.
_OWN = ("kind", "mcpu", "device", "deadline_ms", "spin_us")
_TAGS = ("keys", "tag", "host", "mtriple", "mattr", "num-cores", "vtcm-capacity", "llvm-options")


def hexagon_processor(said: Attributes, host: Processor) -> Processor:
    """The DSP that a target means, beside this CPU.

    Raises:
        TargetError: the target says what it should not, or names no device and there is no
            emulator here.
    """
    made = _of(said, host)
    if reason := _why_absent(said):
        raise TargetError(reason)
    return made


def _of(said: Attributes, host: Processor) -> Processor:
    version, launch = _version(said), _launch(said)
    target = llvm_target(version)

    def refuse(call: relax.Call) -> str | None:
        return why_refused(call, version, emulated=launch.runs_here)

    vectors = VectorMachine(
        lanes=version.vector_bytes // 4,
        registers=32,
        broadcast_operand=False,
        l2_bytes=version.l2_bytes,
        threads=1,
        multiply_adds=1.0,
        loads=1.0,
        latency=2,
        dot="vrmpybusv",
        packs_bytes=True,
    )

    def build(kernels: Kernels, schedule: tvm.transform.Pass) -> tvm.runtime.Module:
        load_native_library()
        objects = compile_kernels(kernels, schedule, target)
        return dsp_code(objects, hexagon_linker(), launch)

    return Processor(
        name="hexagon",
        kind="dsp",
        target=target,
        threads=1,
        rules=_rules(refuse),
        refuse=refuse,
        machine=vectors,
        phases=(UseFixedPoint(), *kernel_phases(expand_math=True, epilogues=False)),
        schedule=ScheduleKernels(vectors),
        build=build,
        speed=_speed(version, host, emulated=launch.runs_here),
        runs_here=launch.runs_here,
        driver=EMULATOR if launch.runs_here else "",
        packet_ns=1 / version.ghz if launch.runs_here else 0.0,
        remark=lambda calls: scalar_calls(calls, version.cpu[7:], has_floats=version.vector_float),
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


def _version(said: Attributes) -> Version:
    unknown = sorted(set(said) - {*_OWN, *_TAGS})
    if unknown:
        raise TargetError(
            f"expected {', '.join(_OWN)} in target hexagon, got {unknown[0]!r}; leave it out"
        )
    cpu = said.get("mcpu", _DEFAULT)
    if not isinstance(cpu, str) or cpu not in VERSIONS:
        raise TargetError(
            f"expected one of {', '.join(VERSIONS)} for mcpu of target hexagon, got {cpu!r}; "
            "choose the one of your device"
        )
    return VERSIONS[cpu]


def _launch(said: Attributes) -> Launch:
    """How the executor starts the program."""
    cpu = _version(said).cpu
    numbers: dict[str, Any] = {}
    for name, least, most in (("deadline_ms", 1, _LONGEST_MS), ("spin_us", 0, _LONGEST_SPIN_US)):
        value = said.get(name, getattr(Launch, name))
        if type(value) is not int or not least <= value <= most:
            raise TargetError(
                f"expected a whole number from {least} to {most} for {name} of target hexagon, got "
                f"{value!r}; leave it out for {getattr(Launch, name)}"
            )
        numbers[name] = value
    device = said.get("device", _EMULATED_CPU)
    if not isinstance(device, str) or not device.strip():
        raise TargetError(
            f"expected the name of a device for device of target hexagon, got {device!r}; leave it "
            "out for the emulator"
        )
    if "device" in said:
        return Launch(f"Hexagon {cpu[7:]} of {said['device']}", runs_here=False, **numbers)
    emulator = (EMULATOR, "-cpu", _EMULATED_CPU)
    return Launch(f"Hexagon {cpu[7:]}, emulated", emulator, **numbers)


def _why_absent(said: Attributes) -> str:
    """What this machine lacks for the target; a device elsewhere only needs the linker."""
    if not has_zig():
        return _NO_ZIG
    if "device" in said or shutil.which(EMULATOR):
        return ""
    return (
        f"expected {EMULATOR} for target hexagon, got none; install it (Debian: qemu-user), or "
        'compile for another machine: {"kind": "hexagon", "device": "<its name>"}'
    )


def _speed(version: Version, host: Processor, *, emulated: bool) -> Speed:
    """What typical layers of 8 bits reach on one thread.

    Where it is emulated, that is what runs: plans for it must not believe in the chip.

    A packet holds two products of 128 bytes by a scalar at best, and layers reach two thirds of
    that and more (`python -m benchmarks.dsp --packets`). It counts in cycles of a core of the
    CPU's vectors with two multiply-adds. Hand-overs are those of the paper's future-based calls.
    """
    per_cycle = 2 * host.machine.lanes
    packets_per_ns = 1 / _EMULATED_PACKET_NS if emulated else version.ghz
    reached = packets_per_ns * 2 * version.vector_bytes * 2 / 3
    return Speed(reached / per_cycle, bytes_per_ns=10.0, start_ns=1_000.0, handover_ns=30_000.0)


_NO_ZIG = (
    "expected zig for target hexagon, which links its programs, got none; install it with "
    "`pip install ziglang`"
)


def _on_device(said: Attributes, machine: Mapping[str, Any], host: Processor) -> Processor:
    """The device's emulator, or code for the chip that a target names."""
    if "device" in said:
        return hexagon_processor(said, host)
    chip: Chip = machine["dsp"]
    if not chip.emulator:
        known = f"hexagon{chip.version}"
        version = known if known in VERSIONS else f"<one of {', '.join(VERSIONS)}>"
        raise TargetError(
            f"expected a Hexagon on {machine['name']} that runs programs, got: {chip}; no program "
            f"was ever sent to a real one: install {EMULATOR} there, or compile code for the chip, "
            f'to be exported: {{"kind": "hexagon", "mcpu": "{version}", "device": "<its name>"}}'
        )
    if not has_zig():
        raise TargetError(_NO_ZIG)
    return _of(said, host)


register(
    ProcessorKind(
        "hexagon",
        hexagon_processor,
        _why_absent,
        by_default=False,  # an emulator is no gain, and a phone's chip runs no programs of ours yet
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
    """Operators that differ from the rest, of which ``refuse`` says why it does not take some."""

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
    """Whatever TVM can legalise runs, in the types that vectors of this version hold."""
    if not isinstance(call.op, tvm.ir.Op):
        return None
    name = call.op.name
    integer = integer_of(call)
    if integer is not None and integer.kind == "softmax":
        return f"{name}: its powers are floats, and {_DIVISION}"
    if integer is not None and integer.kind == "round" and integer.factors:
        return f"{name}: sums of this DSP share one factor, and here each channel has its own"
    if integer is not None:  # its factors are floats, which UseFixedPoint takes apart
        data = [operand for operand in operands_of(call) if not isinstance(operand, GenericConst)]
        reasons = (_why_not_tensor(ty, version, emulated) for e in data for ty in tensor_types(e))
        return next((f"{name}: {reason}" for reason in reasons if reason), None)
    if (steps := kind_of_steps(call)) is not None:
        return f"{steps}: its steps need each other, one number at a time"
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
    """Whether it is computed, and not a single number."""
    shapes = [ty.shape for ty in tensor_types(expr)]
    return not isinstance(expr, GenericConst) and any(
        not isinstance(shape, relax.ShapeExpr) or any(dim != 1 for dim in shape.values)
        for shape in shapes
    )


def _why_not_tensor(ty: relax.TensorType, version: Version, emulated: bool) -> str | None:
    """Why no kernel of this version reads or writes such a tensor."""
    dtype = str(ty.dtype)
    name = version.cpu.replace("hexagon", "")
    if dtype in ("float16", "float32"):
        if not version.vector_float:
            return f"vectors of {name} hold no {dtype}; those of v68 do, and integers everywhere"
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
