"""Single operators in shapes of real networks (`field_operators.txt`), beside ONNX Runtime.

    python -m benchmarks.field [words ...] [--turns 15]

Each is an ONNX model of one node; words are families and operators. One thread, by turns, answers
are compared first, and times are of the processor, so that other programs disturb them less.
Ratios above 1.0 are bold.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import tvm_stretch as ts
from benchmarks.commands import Run, Table, options, say, turns
from benchmarks.harness import Model, difference, load
from benchmarks.one_node import Operator, model_of, operators

TOLERANCE, HALF_TOLERANCE = 1e-3, 1e-2
LEAST_S = 1e-3
"""Processor time of one measurement of one engine, unless a single run takes longer."""


def families() -> dict[str, str]:
    """The tables of operators by name."""
    text = Path(__file__).with_name("field_operators.txt").read_text(encoding="utf-8")
    return dict(part.split("]\n", 1) for part in text.split("\n[")[1:])


def chosen(words: Sequence[str]) -> Iterator[Operator]:
    """Operators of the families and operators that are named, or all."""
    for family, table in families().items():
        for operator in operators(table):
            if not words or family in words or operator.op.rpartition(".")[2] in words:
                yield operator


def compared(model: Model, rounds: int) -> tuple[float, float, float, float]:
    """The error, microseconds of both, and the ratio; raises what refuses the network."""
    runs: dict[str, Run] = {"theirs": load("ort", model), "ours": load("ours", model)}
    error = difference(runs["ours"](), model.expected)
    samples = turns(runs, rounds, warm_up=0, clock=time.thread_time, least=LEAST_S)
    theirs, ours = (1e3 * samples.median(name) for name in runs)
    return error, theirs, ours, samples.ratio("ours", "theirs")


def cells(operands: str, error: float, theirs: float, ours: float, ratio: float) -> list[str]:
    """The numbers of a row."""
    most = HALF_TOLERANCE if "f16:" in operands else TOLERANCE
    wrong = f" (differs: {error:.1e})" if error > most else ""
    shown = f"**{ratio:.2f}**" if ratio > 1 else f"{ratio:.2f}"
    return [f"{theirs:.1f}", f"{ours:.1f}", shown + wrong]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table and its geometric mean."""
    args = options(
        *(__doc__, arguments, ("words*", (), "families and operators"), ("--turns", 15)),
    )
    table, ratios = Table("name", "operands", "ONNX Runtime, us", "ours, us", "ratio"), []
    for operator in chosen(args.words):
        name, operands = operator.op, operator.line
        try:
            model = model_of(operator)
        except Exception as error:  # of ONNX Runtime's checker
            say(f"{name} {operands}: {str(error)[-500:]}")
            continue
        try:
            figures = compared(model, args.turns)
        except ts.StretchError as refusal:
            table.row(name, operands, f"refused: {refusal}", "", "")
            continue
        table.row(name, operands, *cells(operands, *figures))
        ratios.append(figures[-1])
    if ratios:
        print(f"geometric mean {statistics.geometric_mean(ratios):.2f} of {len(ratios)}")


if __name__ == "__main__":
    main()
