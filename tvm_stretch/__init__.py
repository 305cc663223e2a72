"""tvm_stretch: runs one trained CNN on several processors at the same time.

import tvm_stretch as ts
model = ts.compile("resnet50.onnx", targets=["llvm"])
y = model(x)
model.export("resnet50.so"); model = ts.load("resnet50.so")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tvm_stretch.base.errors import (
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
from tvm_stretch.base.progress import ctrl_c_waits

if TYPE_CHECKING:
    from tvm_stretch.api import problems, results, tune
    from tvm_stretch.api.compiler import compile, plan_for, plan_front, to_onnx
    from tvm_stretch.api.differences import compare
    from tvm_stretch.api.joining import join
    from tvm_stretch.api.options import Options
    from tvm_stretch.lab import stretching, training
    from tvm_stretch.lab.compress import compress
    from tvm_stretch.lab.compress_within import compress_within
    from tvm_stretch.lab.stretching.stretching import stretch
    from tvm_stretch.make.quantise import quantize
    from tvm_stretch.network.states import Counter, Greedy, Sample
    from tvm_stretch.phone.device import Device, connect
    from tvm_stretch.plan.plan import Plan
    from tvm_stretch.plan.search.objective import Objective
    from tvm_stretch.read.gguf.language_model import LanguageModel, read_gguf
    from tvm_stretch.read.lengths import Length
    from tvm_stretch.run.group import Group
    from tvm_stretch.run.load import load
    from tvm_stretch.run.meters import Meter
    from tvm_stretch.run.model import Model

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
    "LanguageModel",
    "Length",
    "Meter",
    "MeterError",
    "Model",
    "ModelError",
    "Objective",
    "Options",
    "Plan",
    "PlanError",
    "RunCancelledError",
    "RunError",
    "Sample",
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
    "join",
    "load",
    "plan_for",
    "plan_front",
    "problems",
    "quantize",
    "read_gguf",
    "results",
    "stretch",
    "stretching",
    "to_onnx",
    "training",
    "tune",
]

# Imported on first use, because the zoo and the errors need no TVM, and a phone has no compiler.
_MODULES = {
    "problems": "tvm_stretch.api.problems",
    "results": "tvm_stretch.api.results",
    "stretching": "tvm_stretch.lab.stretching",
    "training": "tvm_stretch.lab.training",
    "tune": "tvm_stretch.api.tune",
}
_LAZY = {
    "compare": "tvm_stretch.api.differences",
    "compress": "tvm_stretch.lab.compress",
    "compress_within": "tvm_stretch.lab.compress_within",
    "compile": "tvm_stretch.api.compiler",
    "connect": "tvm_stretch.phone.device",
    "Counter": "tvm_stretch.network.states",
    "Greedy": "tvm_stretch.network.states",
    "Sample": "tvm_stretch.network.states",
    "LanguageModel": "tvm_stretch.read.gguf.language_model",
    "Length": "tvm_stretch.read.lengths",
    "Device": "tvm_stretch.phone.device",
    "Group": "tvm_stretch.run.group",
    "Meter": "tvm_stretch.run.meters",
    "Model": "tvm_stretch.run.model",
    "Objective": "tvm_stretch.plan.search.objective",
    "Options": "tvm_stretch.api.options",
    "Plan": "tvm_stretch.plan.plan",
    "join": "tvm_stretch.api.joining",
    "load": "tvm_stretch.run.load",
    "plan_for": "tvm_stretch.api.compiler",
    "plan_front": "tvm_stretch.api.compiler",
    "to_onnx": "tvm_stretch.api.compiler",
    "quantize": "tvm_stretch.make.quantise",
    "read_gguf": "tvm_stretch.read.gguf.language_model",
    "stretch": "tvm_stretch.lab.stretching.stretching",
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
                return importlib.import_module(_MODULES[name])
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
