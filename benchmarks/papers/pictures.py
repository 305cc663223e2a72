"""Figures as SVG, all in one style: horizontal bars, drawn from the tables that commands print.

| network | single | HOPE:LP |        network    ████████ 109.5
| --- | --- | --- |              ->               ███████   99.8
| inception | 109.5 | 99.8 |            in two colours
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#9cc0ee", "#f3c08a", "#a9d6a4", "#d9a7c7", "#c9c08a", "#b3b8c4", "#e89a9a", "#8fd0cf")
INK, SOFT = "#1b2230", "#626d7f"
WIDE, LEFT, BAR, GAP, TOP, LETTER = 860, 250, 12, 10, 40, 7
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@dataclass(frozen=True)
class Bars:
    """The columns of a table that a picture shows."""

    labels: tuple[str, ...]  # of the columns that name a row
    values: tuple[str, ...]  # of the columns of numbers, each a bar of its own colour
    unit: str  # of the numbers


_HOPE = ("MOSAIC", "StarPU", "HOPE:GS", "HOPE:LP")
_TEAM = ("fastest alone, ms", "exact, ms", "stretched, ms")
PICTURES: Mapping[str, Bars] = {
    "nn-stretch.figure3": Bars(
        ("layer and its values",), ("CPU ms", "GPU ms", "handing over, ms"), "ms"
    ),
    "nn-stretch.figure7": Bars(("channels",), ("GFLOP/s on the GPU",), "GFLOP/s"),
    "nn-stretch.figure9": Bars(("network", "processors"), _TEAM, "ms"),
    "nn-stretch.figure11": Bars(
        ("predicted ms",), ("CPU", "GPU", "µLayer", "CoDL", "stretched"), "ms"
    ),
    "nn-stretch.figure12": Bars(("capacity",), ("ms",), "ms"),
    "hope.figure4": Bars(("network",), (*_HOPE, "ours"), "ms"),
    "hope.figure5": Bars(("network", "MHz of the CPU"), _HOPE, "ms"),
    "hope.figure6": Bars(("less than µLayer",), ("1:3 HOPE:LP, %", "1:1 HOPE:LP, %"), "%"),
    "hope.figure7": Bars(("network",), ("big alone", *_HOPE[1:]), "ms"),
    "pitfalls.figure3": Bars(("network",), ("GPU refuses", "DSP refuses"), "% of the operators"),
    "pitfalls.figure5": Bars(("the network on",), ("ms a run", "pictures dropped, %"), "ms, %"),
}
"""By the key of a part."""


def draw(bars: Bars, output: str) -> str | None:
    """The picture of the first table that has all columns; None if there is none."""
    for heads, rows in tables(output):
        if {*bars.labels, *bars.values} <= {*heads}:
            named = [dict(zip(heads, row, strict=True)) for row in rows]
            return "\n".join(_drawn(bars, named)) + "\n"
    return None


def tables(output: str) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Heads and rows of each table in Markdown; rows without heads are none."""
    lines: list[list[str]] = []
    for line in [*output.splitlines(), ""]:
        if line.startswith("|"):
            lines.append([cell.strip() for cell in line.strip().strip("|").split("|")])
        else:
            if len(lines) > 1 and set(lines[1]) == {"---"}:
                heads, _, *rows = lines
                yield heads, [row for row in rows if len(row) == len(heads)]
            lines = []


def _drawn(bars: Bars, rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    found = [[_NUMBER.search(row[name]) for name in bars.values] for row in rows]
    numbers = [[float(match[0]) if match else None for match in group] for group in found]
    most = max((n for group in numbers for n in group if n is not None), default=1.0) or 1.0
    step = len(bars.values) * BAR + GAP
    high = TOP + len(rows) * step + 10
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {high}" '
        'font-family="sans-serif" font-size="12">'
    )
    yield f'<rect width="{WIDE}" height="{high}" fill="white"/>'
    x = 10.0
    for name, colour in zip(bars.values, COLOURS, strict=False):
        yield f'<rect x="{x:g}" y="12" width="12" height="12" fill="{colour}"/>'
        yield _text(x + 16, 22, name)
        x += 30 + LETTER * len(name)
    yield _text(x, 22, f"({bars.unit})", colour=SOFT)
    for index, (row, group) in enumerate(zip(rows, numbers, strict=True)):
        y = TOP + index * step
        label = ", ".join(row[name] for name in bars.labels)
        yield _text(LEFT - 8, y + step / 2, label[:38], anchor="end")
        for place, number in enumerate(group):
            if number is not None:
                yield from _bar(y + place * BAR, max(0.0, number) / most, number, COLOURS[place])
    yield "</svg>"


def _bar(y: float, share: float, number: float, colour: str) -> Iterator[str]:
    width = share * (WIDE - LEFT - 70)
    yield f'<rect x="{LEFT}" y="{y:g}" width="{width:.1f}" height="{BAR - 2}" fill="{colour}"/>'
    yield _text(LEFT + width + 4, y + BAR - 3, f"{number:g}", colour=SOFT)


def _text(x: float, y: float, words: str, anchor: str = "start", colour: str = INK) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(words)}'
        "</text>"
    )
