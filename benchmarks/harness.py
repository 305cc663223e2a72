"""Models × engines × turns: what all benchmarks that compare answers and times have in common.

    Model           a network as ONNX, its inputs, and the answer that every engine must give
    Engine          prepares a model, Callable[[Model], Run]: `ours`, `onnx_runtime`, `openvino`
    race(...)       prepares engines, compares their answers, then lets them take `turns`
    options(...)    the command line, from names and defaults
    Table, Rows     Markdown, row by row; figures that a JSON file keeps

Nothing is timed before its answer was compared. In each round another engine begins, so that a slow
moment of the machine hits all of them; ratios are medians of the ratios of one round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime

import tvm_stretch as ts
from tutorials import zoo

if TYPE_CHECKING:
    from torch.export import ExportedProgram

Tensors = Mapping[str, np.ndarray]
Run = Callable[[], Any]
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


# --- turns ----------------------------------------------------------------------------------------


@dataclass
class Samples:
    """Milliseconds of each run of each engine, round by round."""

    of: dict[str, list[float]]

    def median(self, name: str) -> float:
        """The median of an engine's runs."""
        return statistics.median(self.of[name])

    def spread(self, name: str) -> float:
        """Distance between the first and the third quartile, relative to the median."""
        first, middle, third = statistics.quantiles(self.of[name], n=4)
        return (third - first) / middle

    def ratio(self, name: str, other: str) -> float:
        """The median of the ratios of neighbouring runs."""
        return statistics.median(a / b for a, b in zip(self.of[name], self.of[other], strict=True))

    def least_ratio(self, name: str, other: str) -> float:
        """The ratio of the least times, for machines that do other work."""
        return min(self.of[name]) / min(self.of[other])


def turns(
    runs: Mapping[str, Run],
    rounds: int = 5,
    *,
    seconds: float = 0.0,
    warm_up: int = 1,
    times: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    rest: float = 0.0,
) -> Samples:
    """Times of runs that take turns; another one begins each round.

    Args:
        runs: calls by name.
        rounds: the least number of rounds.
        seconds: goes on for so long.
        warm_up: runs of a turn that do not count.
        times: runs of a turn that count.
        clock: in seconds.
        rest: pause before each turn, so that threads of the engine before stop spinning.
    """
    samples: dict[str, list[float]] = {name: [] for name in runs}
    end, number, order = time.perf_counter() + seconds, 0, list(runs)
    while number < rounds or time.perf_counter() < end:
        first = number % len(order)
        for name in order[first:] + order[:first]:
            if rest:
                time.sleep(rest)
            for _ in range(warm_up):
                runs[name]()
            for _ in range(times):
                begin = clock()
                runs[name]()
                samples[name].append(1e3 * (clock() - begin))
        number += 1
    return Samples(samples)


def race(
    model: Model, engines: Mapping[str, Engine], most: float = TOLERANCE, **how: Any
) -> tuple[Samples, dict[str, float]]:
    """Times of engines in `turns`, and their errors; a wrong answer ends the program."""
    runs = {name: engine(model) for name, engine in engines.items()}
    errors = {name: check(name, run(), model.expected, most) for name, run in runs.items()}
    return turns(runs, **how), errors


# --- commands -------------------------------------------------------------------------------------


def options(
    doc: str | None, arguments: Sequence[str] | None, *wanted: tuple[Any, ...], **choices: Any
) -> argparse.Namespace:
    """The command line.

    Args:
        doc: the module's description.
        arguments: instead of those of the process.
        wanted: ``("networks*", SIX)``, ``("--rounds", 9, "help")``. A default gives the type;
            a type has no default; False is a flag; a tuple takes several words.
        choices: words that are allowed, by name.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default, *help_ in wanted:
        plain, how = name.rstrip("*?+"), dict[str, Any](help=(help_ or [None])[0])
        how |= {"choices": choices[key]} if (key := plain.strip("-")) in choices else {}
        if name != plain:
            how["nargs"] = name[-1]
        if default is False:
            how["action"] = "store_true"
        elif isinstance(default, type):
            how["type"] = default
        else:
            of = default[0] if isinstance(default, (tuple, list)) and default else default
            how |= {"default": default, "type": type(of) if not isinstance(of, tuple) else str}
            if isinstance(default, (tuple, list)) and name == plain:
                how["nargs"] = "+"
        parser.add_argument(plain, **how)
    return parser.parse_args(arguments)


class Table:
    """A table in Markdown that is printed row by row."""

    def __init__(self, *heads: str) -> None:
        self.row(*heads)
        self.row(*["---"] * len(heads))

    def row(self, *cells: object) -> None:
        """Print a row; numbers have two digits."""
        texts = (f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells)
        print(f"| {' | '.join(texts)} |", flush=True)


@dataclass
class Rows:
    """Figures by name, which a JSON file keeps, if there is one: what it holds stays."""

    path: Path | None
    of: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path and self.path.exists():
            self.of |= json.loads(self.path.read_text(encoding="utf-8"))

    def keep(self, name: str, row: Any) -> Any:
        """Write a row."""
        self.of[name] = row
        if self.path:
            self.path.write_text(json.dumps(self.of, indent=1) + "\n", encoding="utf-8")
        return row


def say(line: str) -> None:
    """Tell something that belongs to no table."""
    print(line, file=sys.stderr, flush=True)
