"""Single operators and networks that this project was not written for, beside ONNX Runtime.

    python -m benchmarks.field operators [words ...] [--turns 15]
    python -m benchmarks.field networks [names ...]

Operators stand in shapes of real networks, each as an ONNX model of one node. Networks have
random weights and small configurations; they come from timm, transformers and diffusers where
those are installed. Both run one thread by turns, answers are compared first, and times are of
the processor, so that other programs disturb them less. Ratios above 1.0 are bold.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from benchmarks.field import cases_floats, cases_others
from benchmarks.field.compared import Compared, compared
from benchmarks.field.rows import operators, sample
from benchmarks.real_networks import Sample

FAMILIES = {
    "elementwise": cases_floats.ELEMENTWISE,
    "normalisations": cases_floats.NORMALISATIONS,
    "reductions": cases_floats.REDUCTIONS,
    "layers": cases_floats.LAYERS,
    "images": cases_floats.IMAGES,
    "moves": cases_others.MOVES,
    "integers": cases_others.INTEGERS,
    "quantised": cases_others.QUANTISED,
}
TOLERANCE, HALF_TOLERANCE = 1e-3, 1e-2

Case: TypeAlias = tuple[str, str, Callable[[], Sample]]
"""Its name, its operands, and what makes it."""


def chosen(words: Sequence[str]) -> Iterator[Case]:
    """Operators of the families and operators that are named, or all."""
    for family, table in FAMILIES.items():
        for operator in operators(table):
            if not words or family in words or operator.op.rpartition(".")[2] in words:
                yield operator.op, operator.line, partial(sample, operator)


def named(names: Sequence[str]) -> Iterator[Case]:
    """Networks by name, or all, but those whose packages are missing."""
    from benchmarks.field import networks

    for name in names or networks.NETWORKS:
        if packages := networks.missing(name):
            print(f"{name}: needs {packages}", file=sys.stderr)
        else:
            yield name, "", partial(networks.network, name)


def row(name: str, operands: str, found: Compared) -> str:
    """A row of the table."""
    if found.refused:
        return f"| {name} | {operands} | refused: {found.refused} | | |"
    most = HALF_TOLERANCE if "f16:" in operands else TOLERANCE
    wrong = f" (differs: {found.error:.1e})" if found.error > most else ""
    ratio = f"**{found.ratio:.2f}**" if found.ratio > 1 else f"{found.ratio:.2f}"
    return f"| {name} | {operands} | {found.theirs_us:.1f} | {found.ours_us:.1f} | {ratio}{wrong} |"


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table and its geometric mean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("operators", "networks"))
    parser.add_argument("names", nargs="*", help="families, operators, or package/network")
    parser.add_argument("--turns", type=int, default=15)
    given = parser.parse_args(argv)
    print("| name | operands | ONNX Runtime, us | ours, us | ratio |")
    print("| --- | --- | --- | --- | --- |")
    ratios = []
    for name, operands, make in (chosen if given.kind == "operators" else named)(given.names):
        try:
            made = make()
        except Exception as error:  # another package's: its exporter, or ONNX Runtime's checker
            print(f"{name} {operands}: {str(error)[-500:]}", file=sys.stderr)
            continue
        found = compared(made, given.turns)
        print(row(name, operands, found), flush=True)
        ratios += [] if found.refused else [found.ratio]
    if ratios:
        print(f"geometric mean {statistics.geometric_mean(ratios):.2f} of {len(ratios)}")


if __name__ == "__main__":
    main()
