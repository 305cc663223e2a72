"""The costs of a segment's branches for all depths and widths that a search tries.

width             32    48    64
first block       0.9   1.6   2.5 ms    a branch on the CPU that reads 64 channels;
five others       3.1   6.8  11.9       costs are linear in the channels that are read
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import lcm

import numpy as np
from numpy.typing import NDArray

from tvm_stretch.lab.stretching.block_layers import Layer, block_layers, count
from tvm_stretch.lab.stretching.segments import Run
from tvm_stretch.network.properties.block_widths import BlockWidths
from tvm_stretch.plan.search.costs import Costs

Array = NDArray[np.float64]

_MOST_WIDTHS, _MOST_DEPTHS = 12, 6
_FEWER_WIDTHS, _FEWER_DEPTHS = 9, 5
"""Limits for two branches, and lower ones for three, as the combinations multiply."""


@dataclass(frozen=True)
class Options:
    """The possible branches of one segment on one processor; arrays have an entry for each."""

    depths: Array  # numbers of blocks
    widths: Array  # numbers of channels
    # nanoseconds, multiply-adds and parameters of a branch that reads ``low`` channels
    fixed: Array
    slope: Array  # the increase of ``fixed`` for each further channel that is read
    low: int  # the number of channels read for ``fixed``

    def figures(self, read: int) -> Array:
        """Nanoseconds, multiply-adds and parameters of each branch that reads ``read`` channels."""
        figures: Array = self.fixed + self.slope * (read - self.low)
        return figures


class Pricing:
    """The costs of layers, asked of the cost models in batches."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self._blocks: dict[tuple[BlockWidths, int, int, int], Array] = {}

    def learn(self, layers: Iterable[Layer]) -> None:
        """Ask for many layers at once, which is much faster than one by one."""
        distinct = dict.fromkeys(layers)
        for place, processor in enumerate(self.costs.processors):
            kernels = dict.fromkeys(layer.features(processor.machine) for layer in distinct)
            self.costs.sum(list(kernels), place)

    def nanoseconds(self, layers: Iterable[Layer], place: int, together: bool = True) -> float:
        """The time of layers in sequence on a processor, while others work if ``together``."""
        machine = self.costs.processors[place].machine
        kernels = [layer.features(machine) for layer in layers]
        total = self.costs.sum(kernels, place)
        return total * (self.costs.slower(kernels, place) if together else 1.0)

    def figures(self, layers: Sequence[Layer], place: int, together: bool = True) -> Array:
        """Nanoseconds on a processor, multiply-adds and parameters."""
        return np.asarray([self.nanoseconds(layers, place, together), *count(layers)], "float64")

    def block(self, block: BlockWidths, read: int, width: int, place: int) -> Array:
        """`figures` of one block."""
        key = (block, read, width, place)
        if key not in self._blocks:
            self._blocks[key] = self.figures(block_layers(block, read, width), place)
        return self._blocks[key]


def unit_of(run: Run, lanes: int) -> int:
    """The unit of widths: whole groups, and whole vectors if the segment has many channels."""
    own = lcm(*(block.unit for block in run.blocks))
    for preferred in (lanes, 8):
        unit = lcm(own, preferred)
        if run.width % unit == 0 and 4 * unit <= run.width:
            return unit
    return own if own > 1 else min(8, run.width)


def widths_of(run: Run, lanes: int, least: float, branches: int) -> list[int]:
    """Widths that a branch may have, the narrowest first."""
    unit = unit_of(run, lanes)
    every = [w for w in range(unit, run.width + 1, unit) if w >= least * run.width]
    return _spread(every or [run.width], _MOST_WIDTHS if branches == 2 else _FEWER_WIDTHS)


def depths_of(run: Run, least: float, branches: int) -> list[int]:
    """Depths that a branch may have: at least a block of each stage."""
    every = [d for d in range(len(run.stages), run.depth + 1) if d >= least * run.depth]
    return _spread(every, _MOST_DEPTHS if branches == 2 else _FEWER_DEPTHS)


def _spread(values: Sequence[int], most: int) -> list[int]:
    """At most ``most`` values, evenly spaced, with the first and the last."""
    if len(values) <= most:
        return list(values)
    places = [round(i * (len(values) - 1) / (most - 1)) for i in range(most)]
    return [values[place] for place in dict.fromkeys(places)]


class Table:
    """The options of one segment on each processor.

    Args:
        run: the segment.
        pricing: the costs of its layers.
        places: the places of the processors that take part.
        merge: how its branches are merged.
        least: the least depth and width, as a share of the original's.
    """

    def __init__(
        self, run: Run, pricing: Pricing, places: Sequence[int], merge: str, least: float
    ) -> None:
        self.run, self.pricing, self.places, self.merge = run, pricing, places, merge
        self.depths = depths_of(run, least, len(places))
        processors = pricing.costs.processors
        self.widths = {
            place: widths_of(run, processors[place].machine.lanes, least, len(places))
            for place in places
        }

    def layers(self, reads: tuple[int, int]) -> Iterable[Layer]:
        """All layers of all options, for `Pricing.learn`."""
        for width in dict.fromkeys(w for widths in self.widths.values() for w in widths):
            for read in reads:
                yield from self.run.first_layers(read, width, self.merge, len(self.places))
            yield from self.run.other_layers(self.run.depth, width)
        yield from self.run.original()

    def options(self, place: int, reads: tuple[int, int]) -> Options:
        """The options of one processor, for the fewest and the most channels read."""
        low, high = reads
        rows = []
        for width in self.widths[place]:
            begin, end = (
                self.pricing.figures(
                    self.run.first_layers(read, width, self.merge, len(self.places)), place
                )
                for read in reads
            )
            slope = (end - begin) / max(1, high - low)
            for depth in self.depths:
                blocks = self.run.others(depth, width)
                others = [self.pricing.block(*block, place) for block in blocks]
                rows.append((depth, width, sum(others, begin), slope))
        return Options(
            np.asarray([depth for depth, *_ in rows], "float64"),
            np.asarray([width for _, width, *_ in rows], "float64"),
            np.stack([fixed for *_, fixed, _ in rows], 1),
            np.stack([slope for *_, slope in rows], 1),
            low,
        )

    def original(self, place: int) -> Array:
        """Nanoseconds, multiply-adds and parameters of the unstretched segment."""
        return self.pricing.figures(self.run.original(), place, together=False)


def slimness(depth: Array, width: Array, run: Run) -> Array:
    """Depth by width of branches, both as shares of the segment's."""
    return depth / run.depth / (width / run.width)


def gain_of_width(run: Run, pricing: Pricing, place: int) -> float:
    """How much longer a multiply-add takes if a branch is as deep as the segment, but narrow.

    It is compared with a branch of half the depth and the whole width; both have nearly as many
    multiply-adds. Processors with many lanes lose the most (NN-Stretch, figure 7).
    """
    half = max(len(run.stages), run.depth // 2)
    if half == run.depth:
        return 1.0
    times = []
    for depth, width in ((half, run.width), (run.depth, run.rounded((half / run.depth) ** 0.5))):
        layers = run.first_layers(run.read, width, "concat", 1) + run.other_layers(depth, width)
        times.append(pricing.nanoseconds(layers, place) / max(1, count(layers)[0]))
    return times[1] / times[0] if times[0] else 1.0
