"""Models × engines × turns: what all benchmarks that compare answers and times have in common.

    Model           a network as ONNX, its inputs, and the answer that every engine must give
    Engine          prepares a model, Callable[[Model], Run]: `ours`, `onnx_runtime`, `openvino`
    race(...)       prepares engines, compares their answers, then lets them take turns

Nothing is timed before its answer was compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime

import tvm_stretch as ts
from benchmarks.commands import Run, Samples, turns
from tutorials import zoo

if TYPE_CHECKING:
    from torch.export import ExportedProgram

Tensors = Mapping[str, np.ndarray]
TOLERANCE = 1e-3
"""Largest error, as a share of the tensor's largest value."""
LEAST = 1e-3
"""The least denominator: probabilities of 4e-6 come from 1 / (1 + exp(12)), within 1e-7."""


# --- models ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """A network as ONNX, its inputs, and its program if torch made it."""

    onnx: bytes
    inputs: Tensors
    program: ExportedProgram | None = None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the inputs, because files of packages leave dimensions open."""
        return {name: value.shape for name, value in self.inputs.items()}

    @cached_property
    def expected(self) -> list[np.ndarray]:
        """ONNX Runtime's answer with exact sums of integers."""
        return self.session(exact=True).run(None, dict(self.inputs))

    def session(self, exact: bool = False, threads: int = 1) -> onnxruntime.InferenceSession:
        """ONNX Runtime, and all but its threads as it comes.

        Without VNNI its fast kernels let sums of 8-bit products saturate; ``exact`` ones do not.
        """
        options = onnxruntime.SessionOptions()
        if exact:
            options.add_session_config_entry("session.x64quantprecision", "1")
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        return onnxruntime.InferenceSession(self.onnx, options, ["CPUExecutionProvider"])


def model_of(network: onnx.ModelProto | str, size: int | None = None) -> Model:
    """A network with fixed shapes, or one of the zoo by name; inputs are standard normal."""
    proto = zoo.build(network, size=size) if isinstance(network, str) else network
    weights, rng = {t.name for t in proto.graph.initializer}, np.random.default_rng(0)
    ports = [port for port in proto.graph.input if port.name not in weights]
    shapes = [[d.dim_value for d in port.type.tensor_type.shape.dim] for port in ports]
    inputs = {p.name: rng.standard_normal(s, "float32") for p, s in zip(ports, shapes, strict=True)}
    return Model(proto.SerializeToString(), inputs)


def difference(got: object, want: Sequence[np.ndarray], least: float = LEAST) -> float:
    """Largest difference as a share of the largest value; infinite if types, shapes or NaN differ.

    Values that are no floats differ by steps: a share of 1 and not of the largest value.
    """
    outputs = [np.asarray(y) for y in (got if isinstance(got, (tuple, list)) else [got])]
    if [(y.shape, y.dtype) for y in outputs] != [(y.shape, y.dtype) for y in want]:
        return float("inf")
    return max((_difference(y, w, least) for y, w in zip(outputs, want, strict=True)))


def _difference(got: np.ndarray, want: np.ndarray, least: float) -> float:
    a, b = got.astype("float64"), want.astype("float64")
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    error = float(np.max(np.abs(a - b), where=~same, initial=0.0))
    if not np.isfinite(error):
        return float("inf")
    largest = float(np.abs(b[np.isfinite(b)]).max())
    return error / max(largest, least) if want.dtype.kind == "f" else error


def check(who: str, got: object, want: Sequence[np.ndarray], most: float = TOLERANCE) -> float:
    """The difference of two answers; ends the program where it is too large."""
    error = difference(got, want, 1e-30)
    if not error <= most:
        raise SystemExit(f"{who}: expected an error of at most {most:g}, got {error:.1e}")
    return error


# --- engines --------------------------------------------------------------------------------------

Engine = Callable[[Model], Run]


def cpu(mcpu: str | None) -> Any:
    """The target of our kernels: this machine, or another core whose code it can run."""
    return {"kind": "llvm", "mcpu": mcpu} if mcpu else "llvm"


def compiled(model: Model, targets: Sequence[Any] = ("llvm",), **how: Any) -> ts.Model:
    """Our model, for one core unless ``how`` says otherwise."""
    given: dict[str, Any] = {"shapes": model.shapes, "cpu_threads": 1, **how}
    return ts.compile(model.onnx, list(targets), **given)


def ours(*targets: Any, **how: Any) -> Engine:
    """Ours for these targets."""

    def prepare(model: Model) -> Run:
        made = compiled(model, targets or ("llvm",), **how)
        return lambda: made(**model.inputs)

    return prepare


def onnx_runtime(exact: bool = False, threads: int = 1) -> Engine:
    """A session of ONNX Runtime."""

    def prepare(model: Model) -> Run:
        session, feed = model.session(exact, threads), dict(model.inputs)
        return lambda: session.run(None, feed)

    return prepare


def openvino(as_it_comes: bool = False) -> Engine:
    """OpenVINO in float32, or in the precision that it chooses by itself; one thread."""

    def prepare(model: Model) -> Run:
        import openvino

        core = openvino.Core()
        network, feed = core.read_model(model.onnx), dict(model.inputs)
        network.reshape({name: list(shape) for name, shape in model.shapes.items()})
        limits: dict[str, Any] = {"INFERENCE_NUM_THREADS": 1}
        limits |= {} if as_it_comes else {"INFERENCE_PRECISION_HINT": "f32"}
        request = core.compile_model(network, "CPU", limits).create_infer_request()
        request.infer(feed)
        return lambda: request.infer(feed)

    return prepare


# --- a race ---------------------------------------------------------------------------------------


def race(
    model: Model, engines: Mapping[str, Engine], most: float = TOLERANCE, **how: Any
) -> tuple[Samples, dict[str, float]]:
    """Times of engines in `turns`, and their errors; a wrong answer ends the program."""
    runs = {name: engine(model) for name, engine in engines.items()}
    errors = {name: check(name, run(), model.expected, most) for name, run in runs.items()}
    return turns(runs, **how), errors
