"""Ours beside ONNX Runtime: answers first, then processor time by turns, one thread each."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

import tvm_stretch as ts
from benchmarks.real_networks import Sample, compile_sample

LEAST_S = 1e-3
"""Processor time of one measurement of one engine, unless a single run takes longer."""


@dataclass(frozen=True)
class Compared:
    """What both say of a network.

    Attributes:
        error: Largest difference of an output, as a share of its largest value.
        ours_us: Median of processor time.
        ratio: Median of the ratios of neighbours in time; empty times if ours refused.
        refused: The error that refused the network.
    """

    error: float = 0.0
    theirs_us: float = 0.0
    ours_us: float = 0.0
    ratio: float = 0.0
    refused: str = ""


def compared(sample: Sample, turns: int) -> Compared:
    """Compile, compare and measure."""
    try:
        model = compile_sample(sample)
        got = model(**sample.inputs)
    except ts.StretchError as refusal:
        return Compared(refused=str(refusal))
    error = difference(got, sample.expected())
    session, feed = sample.session(), dict(sample.inputs)
    mine = _timed(lambda: model(**feed))
    other = _timed(lambda: session.run(None, feed))
    pairs = [(other(), mine()) for _ in range(turns)]
    theirs_us, ours_us = (statistics.median(column) * 1e6 for column in zip(*pairs, strict=True))
    ratio = statistics.median(ours / theirs for theirs, ours in pairs)
    return Compared(error, theirs_us, ours_us, ratio)


def _timed(run: Callable[[], object]) -> Callable[[], float]:
    """A measurement of one run, repeated so that it takes `LEAST_S`."""

    def seconds(count: int) -> float:
        begin = time.thread_time()
        for _ in range(count):
            run()
        return (time.thread_time() - begin) / count

    seconds(2)
    count = max(1, round(LEAST_S / max(seconds(3), 1e-6)))
    return lambda: seconds(count)


def difference(got: object, want: Sequence[np.ndarray]) -> float:
    """Largest difference as a share of the largest value; infinite if types, shapes or NaN differ.

    Values that are no floats differ by steps: a share of 1 and not of the largest value.
    """
    outputs = [np.asarray(y) for y in (got if isinstance(got, tuple) else [got])]
    if [(y.shape, y.dtype) for y in outputs] != [(y.shape, y.dtype) for y in want]:
        return float("inf")
    return max((_difference(y, w) for y, w in zip(outputs, want, strict=True)))


def _difference(got: np.ndarray, want: np.ndarray) -> float:
    is_float = want.dtype.kind == "f"
    a, b = got.astype("float64"), want.astype("float64")
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    error = float(np.max(np.abs(a - b), where=~same, initial=0.0))
    if not np.isfinite(error):
        return float("inf")
    return error / max(float(np.abs(b[np.isfinite(b)]).max()), 1e-3) if is_float else error
