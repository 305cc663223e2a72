"""Single operators and networks that this project was not written for, beside ONNX Runtime.

    python -m benchmarks.field operators [words ...] [--turns 15]
    python -m benchmarks.field networks [names ...]

Operators (`field_operators.txt`) stand in shapes of real networks, each as an ONNX model of one
node. Networks (`field_networks.py`) have random weights and small configurations; they come from
timm, transformers and diffusers where those are installed. Both run one thread by turns, answers
are compared first, and times are of the processor, so that other programs disturb them less.
Ratios above 1.0 are bold.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import tvm_stretch as ts
from benchmarks.commands import Run, Table, options, say, turns
from benchmarks.harness import Model, compiled, difference
from benchmarks.one_node import model_of, operators

TOLERANCE, HALF_TOLERANCE = 1e-3, 1e-2
LEAST_S = 1e-3
"""Processor time of one measurement of one engine, unless a single run takes longer."""

Case: TypeAlias = tuple[str, str, Callable[[], Model]]
"""Its name, its operands, and what makes it."""


def families() -> dict[str, str]:
    """The tables of operators by name."""
    text = Path(__file__).with_name("field_operators.txt").read_text(encoding="utf-8")
    return dict(part.split("]\n", 1) for part in text.split("\n[")[1:])


def chosen(words: Sequence[str]) -> Iterator[Case]:
    """Operators of the families and operators that are named, or all."""
    for family, table in families().items():
        for operator in operators(table):
            if not words or family in words or operator.op.rpartition(".")[2] in words:
                yield operator.op, operator.line, partial(model_of, operator)


def named(names: Sequence[str]) -> Iterator[Case]:
    """Networks by name, or all, but those whose packages are missing."""
    from benchmarks import field_networks as networks

    for name in names or networks.NETWORKS:
        if packages := networks.missing(name):
            say(f"{name}: needs {packages}")
        else:
            yield name, "", partial(networks.network, name)


def compared(model: Model, rounds: int) -> tuple[float, float, float, float]:
    """The error, microseconds of both, and the ratio; raises what refuses the network."""
    our_model = compiled(model)
    error = difference(our_model(**model.inputs), model.expected)
    session, feed = model.session(), dict(model.inputs)
    runs: dict[str, Run] = {
        "theirs": lambda: session.run(None, feed),
        "ours": lambda: our_model(**feed),
    }
    counts = {name: _count(run) for name, run in runs.items()}
    repeated = {name: partial(_repeat, run, counts[name]) for name, run in runs.items()}
    samples = turns(repeated, rounds, warm_up=0, clock=time.thread_time)
    theirs, ours = (1e3 * samples.median(name) / counts[name] for name in runs)
    return error, theirs, ours, samples.ratio("ours", "theirs") * counts["theirs"] / counts["ours"]


def _repeat(run: Run, count: int) -> None:
    for _ in range(count):
        run()


def _count(run: Run) -> int:
    """The number of runs that take `LEAST_S`."""
    _repeat(run, 2)
    begin = time.thread_time()
    _repeat(run, 3)
    return max(1, round(3 * LEAST_S / max(time.thread_time() - begin, 3e-6)))


def cells(operands: str, error: float, theirs: float, ours: float, ratio: float) -> list[str]:
    """The numbers of a row."""
    most = HALF_TOLERANCE if "f16:" in operands else TOLERANCE
    wrong = f" (differs: {error:.1e})" if error > most else ""
    shown = f"**{ratio:.2f}**" if ratio > 1 else f"{ratio:.2f}"
    return [f"{theirs:.1f}", f"{ours:.1f}", shown + wrong]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table and its geometric mean."""
    args = options(
        *(__doc__, arguments, ("kind", "operators"), ("--turns", 15)),
        ("names*", (), "families, operators, or package/network"),
        kind=("operators", "networks"),
    )
    table, ratios = Table("name", "operands", "ONNX Runtime, us", "ours, us", "ratio"), []
    for name, operands, make in (chosen if args.kind == "operators" else named)(args.names):
        try:
            model = make()
        except Exception as error:  # another package's: its exporter, or ONNX Runtime's checker
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
