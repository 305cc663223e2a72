"""The errors that tvm_stretch raises.

The message reads `expected X for <field>, got Y; <what to do>`, so it names the field, both values
and a way to fix it.
"""

from __future__ import annotations

from concurrent.futures import CancelledError
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_untold: dict[str, type[Exception]] = {}
_tell: Callable[[str, type[Exception]], object] = _untold.__setitem__


def tell_tvm() -> None:
    """Register these errors with TVM by name; called late, because tvm_ffi imports PyTorch."""
    import tvm_ffi

    global _tell
    _tell = tvm_ffi.register_error
    while _untold:
        _tell(*_untold.popitem())


def last_line(error: BaseException) -> str:
    """The last line of an error's message, after TVM's or torch's trace; or the error's type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


class StretchError(ValueError):
    """Base of all errors of this package, which keep their class when they pass through TVM.

    TVM knows an error's class by a unique name, by default the name of the class.
    """

    def __init_subclass__(cls, kind: str = "", **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        _tell(kind or cls.__name__, cls)


class ModelError(StretchError):
    """The network cannot be read: not a model, truncated, data missing, a shape left open."""


class UnsupportedError(StretchError):
    """The network is readable but has an operator that no chosen processor can run."""


class InputError(StretchError):
    """A call got the wrong number, name, shape, dtype or device of inputs."""


class RunError(StretchError):
    """A run cannot begin: memory is missing, or the model belongs to another process."""


class RunCancelledError(StretchError, CancelledError, kind="RunCancelled"):
    """A run was stopped by `cancel` of its future."""

    def __init__(
        self, message: str = "expected the run to end, got a call of cancel; run it again"
    ) -> None:
        super().__init__(message)


class DeviceError(StretchError):
    """A processor other than the CPU, its driver, or a remote device failed.

    With `spare=True`, the CPU runs the network instead.
    """


class ArtifactError(StretchError):
    """An exported artifact is truncated, damaged or made for another version or processor."""


class InstallError(StretchError):
    """A part of this package is missing where it was installed."""


class TargetError(StretchError):
    """A target is unknown or cannot be used on this machine."""


class ScheduleError(StretchError, kind="SchedulingError"):  # TVM has its own ScheduleError
    """A scheduling problem has no solution, or a schedule does not solve its problem."""


class PlanError(StretchError):
    """A plan is malformed, or does not fit the network or the targets."""


class CostModelError(StretchError):
    """A cost model or its dataset is damaged, of another schema or from another device."""


class TrainingError(StretchError):
    """Training gave values that are not finite, or a checkpoint is damaged or does not fit."""


class MeterError(StretchError):
    """There is no meter of energy, or it fails, jumps or stands still."""
