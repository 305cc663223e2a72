"""tvm_stretch: runs one trained CNN on several processors at the same time.

import tvm_stretch as ts
model = ts.compile("resnet50.onnx", targets=["llvm"])
y = model(x)
model.export("resnet50.so"); model = ts.load("resnet50.so")
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from tvm_stretch.errors import (
    ArtifactError,
    CostModelError,
    DeviceError,
    InputError,
    InstallError,
    ModelError,
    PlanError,
    RunError,
    ScheduleError,
    StretchError,
    TargetError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from tvm_stretch.compiler import compile, predict
    from tvm_stretch.measuring.calibrating import calibrate
    from tvm_stretch.measuring.measure import measure
    from tvm_stretch.measuring.probe import probe
    from tvm_stretch.plan.design import Design
    from tvm_stretch.plan.plan import Plan
    from tvm_stretch.runtime.model import Model, load
    from tvm_stretch.stretching.rules import Rules
    from tvm_stretch.stretching.stretching import stretch

__all__ = [
    "ArtifactError",
    "CostModelError",
    "Design",
    "DeviceError",
    "InputError",
    "InstallError",
    "Model",
    "ModelError",
    "Plan",
    "PlanError",
    "Rules",
    "RunError",
    "ScheduleError",
    "StretchError",
    "TargetError",
    "UnsupportedError",
    "calibrate",
    "compile",
    "load",
    "measure",
    "predict",
    "probe",
    "stretch",
]

# Imported on first use: the zoo and the errors need no TVM, a phone has no compiler.
_LAZY = {
    "calibrate": "tvm_stretch.measuring.calibrating",
    "compile": "tvm_stretch.compiler",
    "Model": "tvm_stretch.runtime.model",
    "Plan": "tvm_stretch.plan.plan",
    "load": "tvm_stretch.runtime.model",
    "measure": "tvm_stretch.measuring.measure",
    "predict": "tvm_stretch.compiler",
    "probe": "tvm_stretch.measuring.probe",
    "stretch": "tvm_stretch.stretching.stretching",
    "Design": "tvm_stretch.plan.design",
    "Rules": "tvm_stretch.stretching.rules",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.metadata.version("tvm_stretch")
    if name not in _LAZY:
        raise AttributeError(f"module 'tvm_stretch' has no attribute {name!r}")
    with _ctrl_c_waits():
        return getattr(importlib.import_module(_LAZY[name]), name)


@contextlib.contextmanager
def _ctrl_c_waits() -> Iterator[None]:
    """Modules in C++ may end the process if they are interrupted while they are imported."""
    usual = signal.getsignal(signal.SIGINT)
    if not callable(usual) or threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _number, frame: pressed.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if pressed:
            usual(signal.SIGINT, pressed[0])


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
