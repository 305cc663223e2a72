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
    from tvm_stretch import training
    from tvm_stretch.comparing import compare_plans
    from tvm_stretch.compiler import compile, plan_for
    from tvm_stretch.frontend.quantise import quantize
    from tvm_stretch.measuring.calibrating import calibrate
    from tvm_stretch.measuring.fleet import Fleet
    from tvm_stretch.measuring.measure import measure
    from tvm_stretch.measuring.probe import probe
    from tvm_stretch.plan.design import Design
    from tvm_stretch.plan.plan import Plan
    from tvm_stretch.problems import NetworkProblem, network_problem
    from tvm_stretch.remote.device import Device, connect
    from tvm_stretch.runtime.model import Model, load
    from tvm_stretch.stretching.design_rules import Rules
    from tvm_stretch.stretching.stretching import stretch

__all__ = [
    "ArtifactError",
    "CostModelError",
    "Design",
    "Device",
    "DeviceError",
    "Fleet",
    "InputError",
    "InstallError",
    "Model",
    "ModelError",
    "NetworkProblem",
    "Plan",
    "PlanError",
    "Rules",
    "RunCancelledError",
    "RunError",
    "ScheduleError",
    "StretchError",
    "TargetError",
    "TrainingError",
    "UnsupportedError",
    "calibrate",
    "compare_plans",
    "compile",
    "connect",
    "load",
    "measure",
    "network_problem",
    "plan_for",
    "probe",
    "quantize",
    "stretch",
    "training",
]

# Imported on first use, because the zoo and the errors need no TVM, and a phone has no compiler.
_LAZY = {
    "compare_plans": "tvm_stretch.comparing",
    "calibrate": "tvm_stretch.measuring.calibrating",
    "compile": "tvm_stretch.compiler",
    "connect": "tvm_stretch.remote.device",
    "Device": "tvm_stretch.remote.device",
    "Fleet": "tvm_stretch.measuring.fleet",
    "Model": "tvm_stretch.runtime.model",
    "Plan": "tvm_stretch.plan.plan",
    "load": "tvm_stretch.runtime.model",
    "measure": "tvm_stretch.measuring.measure",
    "network_problem": "tvm_stretch.problems",
    "NetworkProblem": "tvm_stretch.problems",
    "plan_for": "tvm_stretch.compiler",
    "probe": "tvm_stretch.measuring.probe",
    "quantize": "tvm_stretch.frontend.quantise",
    "stretch": "tvm_stretch.stretching.stretching",
    "Design": "tvm_stretch.plan.design",
    "Rules": "tvm_stretch.stretching.design_rules",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("tvm_stretch")
    if name == "training":  # needs torch
        return importlib.import_module("tvm_stretch.training")
    if name not in _LAZY:
        raise AttributeError(f"module 'tvm_stretch' has no attribute {name!r}")
    with ctrl_c_waits():  # an interrupted import of C++ may end the process
        try:
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
