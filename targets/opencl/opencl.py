"""OpenCL: GPUs, and CPUs that have an OpenCL driver (PoCL).

A CPU-type device is the host's CPU or one like it: it uses the CPU's kernels, one work-group per
core. The driver compiles them as well as LLVM does (tests measure it).

Limits of a device come from the target:

    {"kind": "opencl"}                         this machine's device, as its driver describes it
    {"kind": "opencl", "device": "gpu"}        any GPU of a phone
    {"kind": "opencl", "device": "adreno"}     Qualcomm's; also TVM's tag "qcom/adreno-opencl"

Attributes of a target that names a device may state larger or smaller limits than its family's:
``max_num_threads``, ``max_shared_memory_per_block``, ``texture_spatial_limit``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, cast

import tvm
from tvm import relax
from tvm.target import Target

from tvm_stretch.base.errors import TargetError
from tvm_stretch.network.expressions import tensor_types
from tvm_stretch.network.steps import is_block_product, kind_of_steps
from tvm_stretch.passes.join_depthwise import JoinDepthwise
from tvm_stretch.passes.schedule_kernels import ScheduleKernels
from tvm_stretch.passes.split_extremes import SplitExtremes
from tvm_stretch.run.autoload import load_native_library
from tvm_stretch.targets.cpu.cpu import speed_of_cores
from tvm_stretch.targets.opencl.code.areas import ScheduleAreas
from tvm_stretch.targets.opencl.code.opencl_code import compile_opencl
from tvm_stretch.targets.opencl.kernels.groups import QUAD
from tvm_stretch.targets.opencl.kernels.machine import GpuMachine, describe_gpu
from tvm_stretch.targets.phases import kernel_phases
from tvm_stretch.targets.processor import (
    HOST_ONLY,
    Arithmetic,
    Code,
    Hardware,
    Kernels,
    Operators,
    OpRule,
    Processor,
    Speed,
)
from tvm_stretch.targets.registry import Attributes, ProcessorKind, register, tvm_target

_HALF_PIXEL = 8  # bytes of four numbers of float16
_VIEWED_BYTES = 2**28
"""Images are used where they can view buffers of this size, or all that the device has."""


@dataclass(frozen=True)
class OpenCLDevice:
    """Limits of a device."""

    type: str  # ``gpu`` or ``cpu``
    name: str = "the device"  # in messages
    driver: str = ""  # its version
    fp16: bool = False  # half precision arithmetic
    fp64: bool = False  # double precision arithmetic
    max_group_size: int = 256  # work-items of one work-group
    local_bytes: int = 32 * 1024  # memory that the work-items of a group share
    local_on_chip: bool = True  # that memory is one of its own, not a part of the device's memory
    compute_units: int = 1  # work-groups that run at the same time
    # the largest tensor, and the largest scratch memory of a kernel
    max_buffer_bytes: int = 2**31 - 1
    image_pixels: int = 0  # of the largest image that views a buffer; 0 without images

    @property
    def machine(self) -> GpuMachine:
        """What kernel templates need to know of it, a GPU."""
        limits = self.max_group_size, self.local_bytes, self.local_on_chip
        viewed = min(self.max_buffer_bytes, _VIEWED_BYTES)
        has_images = 0 < viewed <= self.image_pixels * _HALF_PIXEL
        return describe_gpu(self.name, self.compute_units, *limits, has_images)


PHONE_GPU = OpenCLDevice(
    "gpu", "a phone's GPU", fp16=True, compute_units=2, max_buffer_bytes=128 * 2**20
)
"""Limits that every GPU of a phone meets; they are checked again when a model is loaded."""

FAMILIES: Mapping[str, OpenCLDevice] = {
    "gpu": PHONE_GPU,
    "mali": replace(PHONE_GPU, name="a Mali GPU", local_on_chip=False, compute_units=4),
    "adreno": OpenCLDevice(
        "gpu", "an Adreno GPU", fp16=True, max_buffer_bytes=256 * 2**20, image_pixels=2**27
    ),
}
"""Kinds of devices that a target may name."""


def names_device(target: Target) -> bool:
    """Whether a target is for the kind of device that it names, and not for this machine's."""
    return bool(str(target.attrs.get("device", "")))


def find_device() -> OpenCLDevice:
    """The device that this machine runs OpenCL on."""
    load_native_library()
    try:
        devices = json.loads(tvm.get_global_func("tvm_stretch.opencl_devices")())
    except (RuntimeError, ValueError) as error:
        raise TargetError(
            f"{str(error).strip().splitlines()[-1]}; to compile for another machine name its "
            "device: {'kind': 'opencl', 'device': 'gpu'}"
        ) from error
    return described_device(devices[0])


def described_device(limits: Mapping[str, Any]) -> OpenCLDevice:
    """The limits that a driver reports, here or elsewhere (`tvm_stretch.opencl_devices`).

    A driver that does not answer a question reports 0: such a device has one unit, whose groups
    have one work-item. A driver that reports too much is found out when a model is loaded.
    """
    return OpenCLDevice(
        "cpu" if limits["type"] == "cpu" else "gpu",
        limits["name"],
        driver=limits["driver"],
        fp16=limits["fp16"],
        fp64=limits["fp64"],
        max_group_size=max(1, limits["max_group_size"]),
        local_bytes=min(limits["local_bytes"], 2**31 - 1),
        local_on_chip=limits["local_is_fast"],
        compute_units=max(1, limits["compute_units"]),
        max_buffer_bytes=limits["max_buffer_bytes"],
        image_pixels=limits.get("max_image_pixels", 0) if limits["has_images"] else 0,
    )


def local_device() -> OpenCLDevice | None:
    """The device on which this machine runs OpenCL, if there is one."""
    try:
        return find_device()
    except TargetError:
        return None


def device_of(target: Target) -> OpenCLDevice:
    """The kind of device that a target names, or this machine's."""
    if not names_device(target):
        return find_device()
    family = str(target.attrs["device"])
    if family not in FAMILIES:
        raise TargetError(
            f"expected one of {', '.join(FAMILIES)} for device of target opencl, got {family!r}; "
            "use 'gpu' for any other"
        )
    return FAMILIES[family]


# A phone's GPU, in orders of magnitude: 20 cycles of a core with 4 lanes and two multiply-adds are
# 320 GFLOP/s, about a third of the peak of an Adreno 640 (Snapdragon 855: 0.9 TFLOP/s); memory is
# the CPU's. Hand-overs through PoCL took 40 to 140 us; GPUs of phones were not measured.
GPU = Speed(cycles_per_ns=20.0, bytes_per_ns=12.0, start_ns=10_000.0, handover_ns=50_000.0)

_CPU_START_NS = 3_000.0
"""Time of an empty kernel if the driver runs it on threads of the CPU (PoCL)."""


def opencl_processor(
    target: Target,  # ``opencl``; its attribute ``device`` names another machine's kind of device
    host: Processor,  # the CPU; the channel block of the network is its vector width
    device: OpenCLDevice,
) -> Processor:
    """The processor that an OpenCL target describes."""
    on_cpu = device.type == "cpu"
    is_real = bool(device.driver) or not names_device(target)
    driver = f"{device.name} {device.driver}".rstrip() if is_real else ""
    machine = replace(
        host.machine,
        threads=device.compute_units if on_cpu else 1,
        gpu=None if on_cpu else device.machine,
        lanes=host.machine.lanes if on_cpu else QUAD,
        widens_half=False,  # not without cl_khr_fp16
        dot="",  # OpenCL C cannot express LLVM's dot-product instructions
        float_integers=True,
    )

    def build(kernels: Kernels, schedule: tvm.transform.Pass) -> tvm.runtime.Module:
        load_native_library()
        code = compile_opencl(kernels, target, on_cpu=on_cpu, schedule=schedule)
        return cast(tvm.runtime.Module, tvm.get_global_func("tvm_stretch.create_opencl_code")(code))

    return Processor(
        name="opencl",
        kind="opencl",
        target=target,
        threads=machine.threads,
        machine=machine,
        code=Code(
            _phases(machine.gpu),
            ScheduleKernels(machine),
            build,
            areas=ScheduleAreas(machine) if on_cpu and is_real else None,
        ),
        speed=_speed(device),
        operators=Operators(
            _rules(),
            lambda call: _refuse(call, device),
            remark=(lambda calls: {}) if on_cpu else _slow_calls,
        ),
        arithmetic=Arithmetic(half=device.fp16, prefers_half=device.fp16 and not on_cpu),
        hardware=Hardware(not names_device(target), driver=driver, on_host_cores=on_cpu),
    )


def _phases(gpu: GpuMachine | None) -> tuple[tvm.transform.Pass, ...]:
    if gpu is None:
        return kernel_phases(expand_math=True)
    joins: Any = JoinDepthwise(gpu)  # mypy sees no pass
    phases = kernel_phases(expand_math=False)
    return (SplitExtremes(), *phases, joins)  # a GPU has instructions for exp


def oddities(machine: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Notes about each device that a machine describes (native/machine.cc)."""
    notes = {
        "it computes on the CPU's own cores, so plans leave the CPU fewer": lambda d: (
            d["type"] == "cpu"
        ),
        "it has no float16": lambda d: not d["fp16"],
        "it has no images, so weights are read from buffers": lambda d: not d["has_images"],
        "its compiler (LLVM 16) changes answers, so it may not optimise: kernels take about 1.4 "
        "times as long; install a PoCL of another LLVM": lambda d: d.get("misoptimises", False),
    }
    return [
        (
            f"{device['name']}, memory {device['memory']}",
            [t for t, is_so in notes.items() if is_so(device)],
        )
        for device in machine["opencl"]
    ]


def _speed(device: OpenCLDevice) -> Speed:
    if device.type != "cpu":
        scale = device.machine.cores / PHONE_GPU.machine.cores
        return replace(
            GPU,
            cycles_per_ns=GPU.cycles_per_ns * scale,
            bytes_per_ns=GPU.bytes_per_ns * scale,
        )
    cores = speed_of_cores(device.compute_units)
    return replace(cores, start_ns=_CPU_START_NS, handover_ns=GPU.handover_ns)


def _make(target: Attributes, host: Processor) -> Processor:
    described = tvm_target(target)
    return opencl_processor(described, host, device_of(described))


def _why_absent(target: Attributes) -> str:
    if names_device(tvm_target(target)):
        return ""
    try:
        find_device()
    except TargetError as error:
        return str(error)
    return ""


def _host_cores(target: Attributes) -> int:
    """The number of cores that a driver for the host's own CPU (PoCL) uses."""
    if names_device(tvm_target(target)):
        return 0
    device = find_device()
    return device.compute_units if device.type == "cpu" else 0


def _on_device(given: Attributes, machine: Mapping[str, Any], host: Processor) -> Processor:
    """The first device of the phone's driver with its reported limits, or the target's device."""
    if set(given) != {"kind"}:
        return _make(given, host)
    if not machine["opencl"]:
        raise TargetError(
            f"expected an OpenCL device on {machine['name']}, got none: "
            f"{machine['why_no_opencl']}; leave 'opencl' out of the targets"
        )
    device = described_device(machine["opencl"][0])
    family = next((name for name in FAMILIES if name in device.name.lower()), "gpu")
    target = Target({"kind": "opencl", "device": family}, host=host.target)
    return opencl_processor(target, host, device)


register(
    ProcessorKind(
        "opencl",
        _make,
        _why_absent,
        _host_cores,
        "PoCL, a driver for CPUs: 90 MB with what it needs",
        nickname="gpu",
        on_device=_on_device,
    )
)


# --- the operator table ---------------------------------------------------------------------------


def _rules() -> tuple[OpRule, ...]:
    """Operators that differ from others, for which `_refuse` decides."""
    return tuple(OpRule(f"relax.{name}", check=_on_host, note=_HOST) for name in HOST_ONLY)


_HOST = "its implementation calls a function of the host"


def _on_host(call: relax.Call) -> str:
    return f"{call.op.name}: {_HOST}"


def _slow_calls(calls: Mapping[str, relax.Call]) -> Mapping[str, str]:
    """Calls that use few of a GPU's work-items."""
    kinds = {name: kind_of_steps(call) for name, call in calls.items()}
    return {
        name: f"{kind}: its steps need each other, so few work-items compute all of it"
        for name, kind in kinds.items()
        if kind is not None and not is_block_product(kind)
    }


def _refuse(call: relax.Call, device: OpenCLDevice) -> str | None:
    """Refuse operators that TVM cannot legalise, and tensors beyond the device's limits."""
    if not isinstance(call.op, tvm.ir.Op):
        return None
    name = call.op.name
    if not call.op.has_attr("FLegalize") and name not in ("relax.call_tir", "relax.shape_of"):
        return f"TVM has no implementation of {name}"
    reasons = (
        _why_not_tensor(ty, device) for expr in (call, *call.args) for ty in tensor_types(expr)
    )
    return next((f"{name}: {reason}" for reason in reasons if reason is not None), None)


def _why_not_tensor(ty: relax.TensorType, device: OpenCLDevice) -> str | None:
    """Why kernels of the device cannot read or write such a tensor."""
    dtype = str(ty.dtype)
    if dtype == "float64" and not device.fp64:
        return f"{device.name} has no float64 (cl_khr_fp64)"
    if dtype == "float16" and not device.fp16:
        return f"{device.name} has no float16 (cl_khr_fp16)"
    if dtype.startswith(("float8_", "float6_", "float4_", "custom")):
        return f"OpenCL has no {dtype}"
    if not isinstance(ty.shape, relax.ShapeExpr):
        return None
    if ty.vdevice is not None and "texture" in str(ty.vdevice.memory_scope):
        return "a tensor in an image; this executor keeps tensors in buffers"
    size = prod(int(extent) for extent in ty.shape.values) * -(-tvm.DataType(dtype).bits // 8)
    if size > device.max_buffer_bytes:
        return (
            f"a tensor of {size / 2**20:.1f} MiB; a buffer of {device.name} holds "
            f"{device.max_buffer_bytes / 2**20:.1f} MiB"
        )
    if device.type != "cpu" and size > 2**31 - 1:
        return f"a tensor of {size / 2**30:.1f} GiB; kernels for GPUs count bytes in 32 bits"
    return None
