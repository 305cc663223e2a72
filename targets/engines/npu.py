"""Qualcomm's tensor units (Hexagon HTP) of phones since 2021, through ONNX Runtime's QNN provider.

    ts.compile(network, ["llvm", "npu"])                                  # the HTP's emulator, here
    ts.compile(network, ["llvm", {"kind": "npu", "htp_arch": "75"}])      # v75, Snapdragon 8 Gen 3
    ts.compile(network, ["llvm", {"kind": "npu", "htp_arch": "73", "device": "snapdragon-8-gen-2"}])

`onnxruntime-qnn` (the extra ``npu``) brings the compiler and an emulator for Linux on x86-64.
Regions are compiled here to context binaries for the chip. Only integers of 8 bits and float16 are
placed there, because the HTP computes float32 in float16.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

from tvm import relax

from tvm_stretch.base.errors import TargetError
from tvm_stretch.network.expressions import tensor_types
from tvm_stretch.network.operators import kind_of
from tvm_stretch.targets.engines.code.engine_code import Engine
from tvm_stretch.targets.engines.code.onnx_operators import repetitions_of
from tvm_stretch.targets.hexagon.chips import Chip
from tvm_stretch.targets.processor import Speed

from .engine import Provider

# The start of a graph is a remote call to the DSP, which latencies of whole networks have in them
# (profiles/snapdragon-8-gen-2.toml). The HTP multiplies 8-bit matrices ten times as fast as the
# vectors of a Snapdragon 855's DSP, and reads memory as fast as the CPU.
HTP = Speed(
    cycles_per_ns=250.0,
    bytes_per_ns=30.0,
    start_ns=500.0,
    handover_ns=20_000.0,
    region_ns=60_000.0,
)

_TYPES = ("uint8", "int8", "float16")


def _refuse(call: relax.Call) -> str | None:
    """Refuse gathers, and types that the HTP lacks; conversions to float16 may have float32."""
    types = (*_TYPES, "float32") if kind_of(call) == "astype" else _TYPES
    for expr in (call, *(arg for arg in call.args if isinstance(arg, relax.Var))):
        for ty in tensor_types(expr) if isinstance(expr.ty, relax.TensorType) else ():
            if str(ty.dtype) not in types:
                return (
                    f"tensors of {ty.dtype}: the HTP computes integers of 8 bits and float16; "
                    "quantise, or ask for precision='float16'"
                )
    if kind_of(call) == "take" and repetitions_of(call) is None:
        return "take: the HTP's emulator gathers wrong numbers behind a sum, or crashes"
    return None


PROVIDER = Provider(
    "npu",
    Engine(
        "QNNExecutionProvider",
        device="Hexagon HTP, emulated",
        package="onnxruntime_qnn",
        library="libonnxruntime_providers_qnn.so",
        files=(("backend_path", "libQnnHtp.so"),),
        options=(("htp_arch", "73"),),
        memory=("QnnHtpShared", "enable_htp_shared_memory_allocator", "libcdsprpc.so"),
        contexts=True,
        deadline_ms=120_000,
    ),
    speed=HTP,
    refuse=_refuse,
    half=True,
    attributes=("htp_arch", "soc_model", "htp_performance_mode"),
    emulated=platform.machine() == "x86_64",
    app_files=(
        "tvm_stretch_engine (as libtvm_stretch_engine.so), libonnxruntime.so, "
        "libonnxruntime_providers_qnn.so, libQnnHtp.so, libQnnSystem.so, and the Stub and Skel of "
        "libQnnHtp for the chip (docs/engines.md)"
    ),
)


def _seen(machine: Mapping[str, Any]) -> dict[str, str]:
    """The version of a device's HTP."""
    chip: Chip = machine["dsp"]
    if not chip.has_tensor_unit:
        raise TargetError(
            f"expected an HTP on {machine['name']}, got: {chip}; name the version if you know "
            'better: {"kind": "npu", "htp_arch": "73", "device": "<its name>"}'
        )
    return {"htp_arch": chip.version[1:]}


PROVIDER.registered(install="onnxruntime-qnn", cost="98 MB", stands_for="hexagon", seen=_seen)
