"""Models × engines × turns: what all benchmarks that compare answers and times have in common.

    Model           a network as ONNX, its inputs, and the answer that every engine must give
    load(...)       a model in an engine of the table in `engines.py`: a call without arguments
    race(...)       compares answers, then lets all engines take turns

Nothing is timed before its answer was compared. `commands.campaign` makes a table of the cases.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

import tvm_stretch as ts
from benchmarks.commands import Run, Samples, turns
from benchmarks.engines import load, own_cpu
from benchmarks.models import Model, model_of

__all__ = ["Model", "check", "compiled", "difference", "load", "model_of", "own_cpu", "race"]

TOLERANCE = 1e-3
"""Largest error, as a share of the tensor's largest value."""
LEAST = 1e-3
"""The least denominator: probabilities of 4e-6 come from 1 / (1 + exp(12)), within 1e-7."""


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


def check(
    who: str,
    got: object,
    want: Sequence[np.ndarray],
    most: float = TOLERANCE,
    least: float = 1e-30,
) -> float:
    """The difference of two answers; ends the program where it is too large."""
    error = difference(got, want, least)
    if not error <= most:
        raise SystemExit(f"{who}: expected an error of at most {most:g}, got {error:.1e}")
    return error


def compiled(model: Model, targets: Sequence[Any] = ("llvm",), **how: Any) -> ts.Model:
    """Our model, for one core unless ``how`` says otherwise."""
    given: dict[str, Any] = {"shapes": model.shapes, "cpu_threads": 1, **how}
    return ts.compile(model.onnx, list(targets), **given)


def race(
    who: str,
    runs: Mapping[str, Run],
    want: Sequence[np.ndarray],
    most: float = TOLERANCE,
    least: float = 1e-30,
    judged: Collection[str] | None = None,
    **how: Any,
) -> tuple[dict[str, float], Samples]:
    """The errors of all answers, and then the times of runs that take turns.

    Args:
        who: the case, for messages.
        runs: the engines by name.
        want: the answer.
        most: the largest error; one answer that is further away ends the program.
        least: as for `difference`.
        judged: engines whose answers are compared; by default all.
        how: arguments of `commands.turns`.
    """
    chosen = runs if judged is None else judged
    errors = {name: check(f"{who}, {name}", runs[name](), want, most, least) for name in chosen}
    return errors, turns(runs, **how)
