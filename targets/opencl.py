"""OpenCL: GPUs, and CPUs that have an OpenCL driver (PoCL).

Phases, after BlockChannels brought in the kernel templates:

      LegalizeOps            every operator without a template to a PrimFunc; views stay operators
      FuseOps, FuseTIR       epilogues into their kernels
      KeepNan                maximum and minimum let NaN and infinities through
      schedule               a CPU's loop nests, or work-items for a GPU

A CPU-type device is a processor of the same make as the host: its kernels are the host's, one
work-group for each core. The driver compiles them as well as LLVM does (tests measure it).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import tvm
from tvm import relax
from tvm.target import Target
from tvm_stretch.passes.schedule_kernels import ScheduleKernels

from tvm_stretch.runtime.autoload import load_native_library
from tvm_stretch.runtime.opencl_code import compile_opencl

from .opencl_device import OpenCLDevice, names_device
from .phases import kernel_phases
from .processor import Kernels, OpRule, Processor

_GROUP_ITEMS = 64
"""Enough to fill the widest wavefronts of phones; small enough for every device."""


def opencl_processor(target: Target, host: Processor, device: OpenCLDevice) -> Processor:
    """The processor behind an OpenCL target.

    Args:
        target: ``opencl``; its attribute ``device`` names another machine's kind of device.
        host: the CPU; the channel block of the network is its vector width.
        device: what the kernels are made for.
    """
    on_cpu = device.type == "cpu"
    machine = replace(
        host.machine,
        threads=device.compute_units if on_cpu else 1,
        group_items=1 if on_cpu else min(_GROUP_ITEMS, device.max_group_size),
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
        rules=_rules(),
        refuse=lambda call: _refuse(call, device),
        machine=machine,
        phases=kernel_phases(expand_math=on_cpu),  # a GPU has instructions for exp
        schedule=ScheduleKernels(machine),
        build=build,
        runs_here=not names_device(target),
    )


# --- the operator table ---------------------------------------------------------------------------

_HOST_ONLY: Sequence[str] = (
    "sort",
    "argsort",
    "topk",
    "unique",
    "nonzero",
    "cumsum",
    "cumprod",
    "multinomial_from_uniform",
    "vision.non_max_suppression",
    "vision.all_class_non_max_suppression",
)


def _rules() -> tuple[OpRule, ...]:
    """Operators that differ from the rest; all others: `_refuse`."""
    return tuple(OpRule(f"relax.{name}", check=_on_host, note=_HOST) for name in _HOST_ONLY)


_HOST = "its implementation calls a function of the host"


def _on_host(call: relax.Call) -> str:
    return f"{call.op.name}: {_HOST}"


def _refuse(call: relax.Call, device: OpenCLDevice) -> str | None:
    """Whatever TVM can legalise runs, in the types that the device has."""
    if not isinstance(call.op, tvm.ir.Op):
        return None
    name = call.op.name
    if not call.op.has_attr("FLegalize") and name not in ("relax.call_tir", "relax.shape_of"):
        return f"TVM has no implementation of {name}"
    for expr in (call, *call.args):
        if not isinstance(expr.ty, relax.TensorType):
            continue
        reason = _why_not_dtype(str(expr.ty.dtype), device)
        if reason is not None:
            return f"{name}: {reason}"
    return None


def _why_not_dtype(dtype: str, device: OpenCLDevice) -> str | None:
    if dtype == "float64" and not device.fp64:
        return "the device has no float64 (cl_khr_fp64)"
    if dtype == "float16" and not device.fp16:
        return "the device has no float16 (cl_khr_fp16)"
    if dtype.startswith(("bfloat", "float8", "float6", "float4", "custom")):
        return f"OpenCL has no {dtype}"
    return None
