"""A timeline as a picture: one row for each processor, time runs to the right.

    timeline  ->  an SVG: kernels, transfers and waits as boxes, regions as frames around them, and
                  an arrow to each region from those of other processors that it needed

Titles of the boxes, which browsers show under the pointer, say what it was and how long it took.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from tvm_stretch.run.timeline import RegionTime, Timeline

_WIDTH, _LEFT, _TOP, _ROW = 900, 80, 46, 74
_LETTER = 6.5
"""Width of one, about."""
_FILL = {"kernel": "#7fb77e", "receive": "#f2c14e", "send": "#b8a13a", "wait": "#dddddd"}


def draw(timeline: Timeline) -> str:
    """An SVG of the run."""
    return "\n".join(_Picture(timeline).lines())


class _Picture:
    """Where things are: processors from top to bottom, nanoseconds from left to right."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.scale = (_WIDTH - _LEFT - 20) / max(timeline.duration, 1)
        self.tops = {name: _TOP + _ROW * row for row, name in enumerate(timeline.processors)}
        self.free = dict.fromkeys(self.tops, 0.0)
        """Where the next name may begin."""

    def lines(self) -> Iterator[str]:
        timeline = self.timeline
        height = _TOP + _ROW * len(self.tops) + 24
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
            'font-family="sans-serif" font-size="12">'
        )
        yield (
            '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="6" refY="3" '
            'orient="auto"><path d="M0,0 L6,3 L0,6 z" fill="#c0392b"/></marker></defs>'
        )
        yield f'<rect width="{_WIDTH}" height="{height}" fill="white"/>'
        yield _text(_LEFT, 18, f"{timeline.duration / 1e6:.2f} ms, overlap {timeline.overlap:.0%}")
        for number, (kind, colour) in enumerate(_FILL.items()):
            left = _WIDTH - 330 + 80 * number
            yield f'<rect x="{left}" y="8" width="12" height="12" fill="{colour}"/>'
            yield _text(left + 17, 18, kind)
        for name, top in self.tops.items():
            yield _text(10, top + 36, name, ' font-weight="bold"')
            yield self._box(0, timeline.duration, top + 16, 32, 'fill="#f6f6f6"', "idle")
        for region in timeline.regions:
            yield from self._region(region)
        for region in timeline.regions:
            yield from self._arrows(region)
        yield "</svg>\n"

    def _x(self, nanoseconds: int) -> float:
        return round(_LEFT + nanoseconds * self.scale, 1)

    def _box(self, start: int, end: int, top: float, height: float, style: str, title: str) -> str:
        width = max((end - start) * self.scale, 0.5)
        return (
            f'<rect x="{self._x(start)}" y="{top}" width="{width:.1f}" '
            f'height="{height}" {style}><title>{escape(title)}</title></rect>'
        )

    def _region(self, region: RegionTime) -> Iterator[str]:
        """Its spans, waits below the others, and around them a frame; its name if there is room."""
        top = self.tops[region.processor]
        for span in sorted(region.spans, key=lambda span: span.kind != "wait"):
            title = f"{span.kind}: {span.name}, {(span.end - span.start) / 1e3:.1f} us"
            style = f'fill="{_FILL[span.kind]}" stroke="white" stroke-width="0.5"'
            yield self._box(span.start, span.end, top + 16, 32, style, title)
        if not region.work:
            return
        frame = 'fill="none" stroke="#333"'
        yield self._box(region.start, region.end, top + 13, 38, frame, region.name)
        left = self._x(region.start)
        if left >= self.free[region.processor]:
            self.free[region.processor] = left + _LETTER * (len(region.name) + 1)
            yield _text(left, top + 9, region.name)

    def _arrows(self, region: RegionTime) -> Iterator[str]:
        """From what it waited for."""
        for source in self.timeline.regions:
            if source.name in region.after and source.work and region.work:
                above, below = (self.tops[r.processor] + 32 for r in (source, region))
                yield (
                    f'<line x1="{self._x(source.end)}" y1="{above}" x2="{self._x(region.start)}" '
                    f'y2="{below}" stroke="#c0392b" stroke-width="1.5" marker-end="url(#head)"/>'
                )


def _text(left: float, top: float, words: str, style: str = "") -> str:
    return f'<text x="{left}" y="{top}"{style}>{escape(words)}</text>'
