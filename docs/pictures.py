"""Draws the pictures of the page on concepts: `python docs/pictures.py` writes docs/concepts.svg.

Three ways to share work, as a network sees them; then a plan and what the arena holds meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

CPU, GPU, BOTH, INK, SOFT = "#9cc0ee", "#f3c08a", "#d7dce4", "#1b2230", "#626d7f"
WIDE, HIGH = 920, 640
Box = tuple[float, float, float, float, str, str]  # x, y, width, height, colour, words


def boxes(found: list[Box]) -> Iterator[str]:
    """Boxes with words in them."""
    for x, y, width, height, colour, words in found:
        yield (
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{colour}" '
            f'stroke="{SOFT}"/>'
        )
        yield text(x + width / 2, y + height / 2 + 4, words, "middle")


def text(x: float, y: float, words: str, anchor: str = "start", weight: str = "normal") -> str:
    """Words at a place."""
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}" fill="{INK}">'
        f"{escape(words)}</text>"
    )


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    """A line with a head."""
    return (
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{SOFT}" stroke-width="1.5" '
        'marker-end="url(#head)"/>'
    )


def branches(left: float) -> Iterator[str]:
    """Branches that the network has: each runs on a processor, they meet in a sum."""
    yield text(left + 120, 50, "branches", "middle", "bold")
    yield from boxes(
        [
            (left + 70, 70, 100, 30, BOTH, "conv 1"),
            (left + 5, 130, 100, 30, CPU, "conv 2"),
            (left + 5, 180, 100, 30, CPU, "conv 3"),
            (left + 135, 155, 100, 30, GPU, "conv 4"),
            (left + 70, 240, 100, 30, BOTH, "add"),
        ]
    )
    for x1, y1, x2, y2 in (
        (100, 100, 60, 128),
        (140, 100, 180, 153),
        (55, 160, 55, 178),
        (60, 210, 100, 238),
        (185, 185, 140, 238),
    ):
        yield arrow(left + x1, y1, left + x2, y2)
    yield text(left + 120, 295, "the meeting point waits for both", "middle")


def shares(left: float) -> Iterator[str]:
    """Shares of a layer's output channels lie side by side, so nothing is copied."""
    yield text(left + 120, 50, "shares of channels", "middle", "bold")
    yield from boxes(
        [
            (left + 20, 70, 200, 30, BOTH, "input: 64 channels"),
            (left + 20, 140, 130, 60, CPU, "channels 0-39"),
            (left + 150, 140, 70, 60, GPU, "40-63"),
            (left + 20, 240, 200, 30, BOTH, "output: one tensor"),
        ]
    )
    for x in (85, 185):
        yield arrow(left + x, 100, left + x, 138)
        yield arrow(left + x, 200, left + x, 238)
    yield text(left + 120, 295, "any layer; both read the same input", "middle")


def bands(left: float) -> Iterator[str]:
    """Bands of rows of several layers, with rows that both compute."""
    yield text(left + 120, 50, "bands of rows", "middle", "bold")
    for step, rows in enumerate((66, 63, 60)):
        x = left + 10 + 80 * step
        yield from boxes(
            [
                (x, 100, 60, rows, CPU, f"conv {step + 1}"),
                (x, 220 - rows, 60, rows, GPU, f"conv {step + 1}"),
            ]
        )
        if step:
            for y in (130, 190):
                yield arrow(x - 20, y, x - 2, y)
    yield text(left + 120, 85, "rows in the middle are computed twice", "middle")
    yield text(left + 120, 265, "several layers without a meeting", "middle")


def plan(top: float) -> Iterator[str]:
    """Regions over time; what waits; what lies in the arena."""
    yield text(20, top, "the plan of the first picture, as it runs", weight="bold")
    yield text(20, top + 50, "CPU")
    yield text(20, top + 100, "OpenCL")
    yield from boxes(
        [
            (90, top + 25, 150, 36, CPU, "r0: conv 1"),
            (260, top + 25, 260, 36, CPU, "r2: conv 2, conv 3"),
            (260, top + 75, 200, 36, GPU, "r1: conv 4"),
            (540, top + 25, 120, 36, CPU, "r3: add"),
        ]
    )
    yield arrow(240, top + 60, 260, top + 85)
    yield arrow(460, top + 90, 540, top + 55)
    yield text(680, top + 48, "a region: operators that one")
    yield text(680, top + 66, "processor runs as one unit;")
    yield text(680, top + 84, "it waits before its first one only")
    yield text(20, top + 165, "arena", weight="bold")
    yield from boxes(
        [
            (90, top + 145, 370, 30, BOTH, "conv 1"),
            (540, top + 145, 120, 30, CPU, "add"),
            (260, top + 180, 400, 30, CPU, "conv 2, then conv 3"),
            (260, top + 215, 400, 30, GPU, "conv 4"),
        ]
    )
    yield text(680, top + 165, "one block of memory for all")
    yield text(680, top + 183, "processors: the sum gets the bytes")
    yield text(680, top + 201, "of conv 1 once both have read it")


def picture() -> str:
    """The whole drawing."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" '
        'font-family="sans-serif" font-size="13">',
        '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="6" refY="3" orient="auto">'
        f'<path d="M0,0 L6,3 L0,6 z" fill="{SOFT}"/></marker></defs>',
        f'<rect width="{WIDE}" height="{HIGH}" fill="white"/>',
        f'<rect x="20" y="12" width="14" height="14" fill="{CPU}"/>',
        text(40, 24, "CPU"),
        f'<rect x="90" y="12" width="14" height="14" fill="{GPU}"/>',
        text(110, 24, "another processor"),
        f'<rect x="250" y="12" width="14" height="14" fill="{BOTH}"/>',
        text(270, 24, "either"),
        *branches(30),
        *shares(340),
        *bands(650),
        *plan(370),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("concepts.svg").write_text(picture(), encoding="utf-8")
