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
    """The last line of an error's message, after TVM's or torch's trace; or the error's type.

    Torch adds the node that it executed, advice, a trace and a hint after the reason.
    """
    reason = str(error)
    for addition in ("While executing ", "consider using data-dependent"):
        reason = reason.partition(f"\n\n{addition}")[0]
    return (reason.strip().splitlines() or [type(error).__name__])[-1]


class StretchError(ValueError):
    """Base of all errors of this package, which keep their class when they pass through TVM.

    TVM knows an error's class by a unique name, by default the name of the class.

    Examples:
        >>> try:
        ...     ts.compile("missing.onnx")
        ... except ts.StretchError as error:
        ...     print(error)
        expected a file with a network, got no file at missing.onnx; check the path
    """

    def __init_subclass__(cls, kind: str = "", **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        _tell(kind or cls.__name__, cls)


class ModelError(StretchError):
    """The network cannot be read: not a model, truncated, data missing, a shape left open.

    Examples:
        >>> ts.compile(b"no network")
        Traceback (most recent call last):
        tvm_stretch.base.errors.ModelError: expected ...
    """


class UnsupportedError(StretchError):
    """The network is readable but has an operator that no chosen processor can run.

    Examples:
        >>> issubclass(ts.UnsupportedError, ts.StretchError)  # its text names operator and reason
        True
    """


class InputError(StretchError):
    """A call got the wrong number, name, shape, dtype or device of inputs.

    Examples:
        >>> model = ts.compile("resnet18.onnx")
        >>> model(np.zeros((1, 3, 7, 7), "float32"))
        Traceback (most recent call last):
        tvm_stretch.base.errors.InputError: expected float32[1, 3, 224, 224] for input 'x', got ...
    """


class RunError(StretchError):
    """A run cannot begin: memory is missing, or the model belongs to another process.

    Examples:
        >>> def answer(model, x):
        ...     try:
        ...         return model(x)
        ...     except ts.RunError:  # the model is whole: try again when there is memory
        ...         return None
        >>> answer(ts.compile("resnet18.onnx"), np.zeros((1, 3, 224, 224), "float32")).shape
        (1, 1000)
    """


class RunCancelledError(StretchError, CancelledError, kind="RunCancelled"):
    """A run was stopped by `cancel` of its future.

    Examples:
        >>> model = ts.compile("resnet18.onnx")
        >>> future = model.run_async(np.zeros((1, 3, 224, 224), "float32"))
        >>> _ = future.cancel()  # the run ends where it is
        >>> try:
        ...     answer = future.result()
        ... except ts.RunCancelledError:
        ...     answer = None
    """

    def __init__(
        self, message: str = "expected the run to end, got a call of cancel; run it again"
    ) -> None:
        super().__init__(message)


class DeviceError(StretchError):
    """A processor other than the CPU, its driver, or a remote device failed.

    With `spare=True`, the CPU runs the network instead.

    Examples:
        >>> ts.connect("127.0.0.1:1", "pixel-8")
        Traceback (most recent call last):
        tvm_stretch.base.errors.DeviceError: expected pixel-8 from the tracker 127.0.0.1:1, got ...
    """


class ArtifactError(StretchError):
    """An exported artifact is truncated, damaged or made for another version or processor.

    Examples:
        >>> ts.load("resnet18.onnx")
        Traceback (most recent call last):
        tvm_stretch.base.errors.ArtifactError: expected a 64-bit ELF library for resnet18.onnx, got
        ...
    """


class InstallError(StretchError):
    """A part of this package is missing where it was installed.

    Examples:
        >>> issubclass(ts.InstallError, ts.StretchError)  # its text names the extra to install
        True
    """


class TargetError(StretchError):
    """A target is unknown or cannot be used on this machine.

    Examples:
        >>> ts.compile("resnet18.onnx", targets=["cuda"])
        Traceback (most recent call last):
        tvm_stretch.base.errors.TargetError: expected target ...llvm..., got 'cuda'; ...
    """


class ScheduleError(StretchError, kind="SchedulingError"):  # TVM has its own ScheduleError
    """A scheduling problem has no solution, or a schedule does not solve its problem.

    Examples:
        >>> from tvm_stretch.plan.scheduling import Problem, schedule_heft
        >>> schedule_heft(Problem("net", ("cpu",), (), (), {}))
        Traceback (most recent call last):
        tvm_stretch.base.errors.ScheduleError: expected ...
    """


class PlanError(StretchError):
    """A plan is malformed, or does not fit the network or the targets.

    Examples:
        >>> ts.Plan.read({"processors": ["cpu"]})
        Traceback (most recent call last):
        tvm_stretch.base.errors.PlanError: expected ('tvm_stretch.plan', 1) for the format ...
    """


class CostModelError(StretchError):
    """A cost model or its dataset is damaged, of another schema or from another device.

    Examples:
        >>> ts.tune.calibrate("missing.csv", {}, name="mine")
        Traceback (most recent call last):
        tvm_stretch.base.errors.CostModelError: expected ...
    """


class TrainingError(StretchError):
    """Training gave values that are not finite, or a checkpoint is damaged or does not fit.

    Examples:
        >>> net = ts.training.to_torch("resnet18.onnx")
        >>> images = np.full((4, 3, 224, 224), np.nan, "float32")
        >>> ts.training.recalibrate(net, images)
        Traceback (most recent call last):
        tvm_stretch.base.errors.TrainingError: expected ...
    """


class MeterError(StretchError):
    """There is no meter of energy, or it fails, jumps or stands still.

    Examples:
        >>> stuck = ts.Meter("stuck", "joules", lambda: 5.0)
        >>> ts.compile("resnet18.onnx").benchmark(3, energy=stuck)
        Traceback (most recent call last):
        tvm_stretch.base.errors.MeterError: expected ...
    """
