"""tvm_stretch: runs one trained CNN on several processors at the same time.

import tvm_stretch as ts
model = ts.compile("resnet50.onnx", targets=["llvm"])
y = model(x)
model.export("resnet50.so"); model = ts.load("resnet50.so")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tvm_stretch.errors import (
    ArtifactError,
    CostModelError,
    DeviceError,
    InputError,
    InstallError,
    MeterError,
    ModelError,
    PlanError,
    RunCancelledError,
    RunError,
    ScheduleError,
    StretchError,
    TargetError,
    TrainingError,
    UnsupportedError,
)
from tvm_stretch.progress import ctrl_c_waits

if TYPE_CHECKING:
    from tvm_stretch import problems, results, stretching, training, tune
    from tvm_stretch.compiler import compile, plan_for, plan_front, to_onnx
    from tvm_stretch.differences import compare
    from tvm_stretch.frontend.lengths import Length
    from tvm_stretch.frontend.quantise import quantize
    from tvm_stretch.ir.states import Counter, Greedy
    from tvm_stretch.plan.plan import Plan
    from tvm_stretch.remote.device import Device, connect
    from tvm_stretch.runtime.group import Group
    from tvm_stretch.runtime.meters import Meter
    from tvm_stretch.runtime.model import Model, load
    from tvm_stretch.search.objective import Objective
    from tvm_stretch.stretching.compress import compress
    from tvm_stretch.stretching.compress_within import compress_within
    from tvm_stretch.stretching.stretching import stretch

__all__ = [
    "ArtifactError",
    "CostModelError",
    "Counter",
    "Device",
    "DeviceError",
    "Greedy",
    "Group",
    "InputError",
    "InstallError",
    "Length",
    "Meter",
    "MeterError",
    "Model",
    "ModelError",
    "Objective",
    "Plan",
    "PlanError",
    "RunCancelledError",
    "RunError",
    "ScheduleError",
    "StretchError",
    "TargetError",
    "TrainingError",
    "UnsupportedError",
    "compare",
    "compile",
    "compress",
    "compress_within",
    "connect",
    "load",
    "plan_for",
    "plan_front",
    "problems",
    "quantize",
    "results",
    "stretch",
    "stretching",
    "to_onnx",
    "training",
    "tune",
]

# Imported on first use, because the zoo and the errors need no TVM, and a phone has no compiler.
_MODULES = ("problems", "results", "stretching", "training", "tune")
_LAZY = {
    "compare": "tvm_stretch.differences",
    "compress": "tvm_stretch.stretching.compress",
    "compress_within": "tvm_stretch.stretching.compress_within",
    "compile": "tvm_stretch.compiler",
    "connect": "tvm_stretch.remote.device",
    "Counter": "tvm_stretch.ir.states",
    "Greedy": "tvm_stretch.ir.states",
    "Length": "tvm_stretch.frontend.lengths",
    "Device": "tvm_stretch.remote.device",
    "Group": "tvm_stretch.runtime.group",
    "Meter": "tvm_stretch.runtime.meters",
    "Model": "tvm_stretch.runtime.model",
    "Objective": "tvm_stretch.search.objective",
    "Plan": "tvm_stretch.plan.plan",
    "load": "tvm_stretch.runtime.model",
    "plan_for": "tvm_stretch.compiler",
    "plan_front": "tvm_stretch.compiler",
    "to_onnx": "tvm_stretch.compiler",
    "quantize": "tvm_stretch.frontend.quantise",
    "stretch": "tvm_stretch.stretching.stretching",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("tvm_stretch")
    if name not in _LAZY and name not in _MODULES:
        raise AttributeError(f"module 'tvm_stretch' has no attribute {name!r}")
    with ctrl_c_waits():  # an interrupted import of C++ may end the process
        try:
            if name in _MODULES:
                return importlib.import_module(f"tvm_stretch.{name}")
            return getattr(importlib.import_module(_LAZY[name]), name)
        except RuntimeError as error:
            if "after shutdown" not in str(error):  # threading's message, for example to torch
                raise
            raise InstallError(
                f"expected the first use of tvm_stretch before the interpreter ends, got: {error}; "
                f"use tvm_stretch.{name} earlier, too"
            ) from error


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
