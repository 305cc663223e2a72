"""What kernel templates need to know of a GPU, and the facts of those that are known by name."""

from __future__ import annotations

from dataclasses import dataclass, field

from .winners import Winners

KIB = 1024

_HELD, _MOST_HELD = 4, 32  # numbers of a row that an item should hold, and can
_SHORTEST_ROW, _LARGEST_ROW_GROUP = 8, 256


@dataclass(frozen=True)
class GpuMachine:
    """A GPU: what its driver says of it, and what its maker does."""

    units: int  # compute units: work-groups run on one each
    wave: int = 32  # work-items that take their steps together
    multiply_adds: int = 128  # of float32, that start in a cycle of one unit
    unit_items: int = 1024  # work-items that one unit holds at a time
    unit_registers: int = 32 * KIB  # of 32 bits, that these share
    unit_local_bytes: int = 32 * KIB  # local memory that the groups on one unit share
    max_group_items: int = 256  # the most work-items that a group may have
    local_bytes: int = 32 * KIB  # the most local memory that a group may have
    # local memory is a memory of its own, not a part of the device's memory
    local_on_chip: bool = True
    has_images: bool = False  # an image can view any buffer, four numbers in a pixel
    # operands of a convolution that it reads fastest as such images: 1 weights, 2 the input too
    images: int = 0
    plain_items: int = 64  # work-items of a group that shares nothing
    # configurations that measured best; they do not change how a configuration is written, so
    # they are no part of the text that names a machine
    winners: Winners = field(default=Winners(), repr=False)

    @property
    def cores(self) -> float:
        """CPU cores of 4 lanes and two multiply-adds a cycle that do as much in a cycle."""
        return self.units * self.multiply_adds / 8

    def row_items(self, extent: int) -> int:
        """Work-items of a group that holds a row of numbers in registers; 0 if it cannot.

        A power of two, so that they can add up by halves.
        """
        items = self._joined_items(extent, 4)
        return items if _SHORTEST_ROW <= extent <= _MOST_HELD * items else 0

    def sum_items(self, extent: int) -> int:
        """Work-items of a group that adds up quads of numbers; 0 if it cannot."""
        return self._joined_items(extent, 16)

    def _joined_items(self, extent: int, item_bytes: int) -> int:
        wanted = min(max(extent // _HELD, self.wave), _LARGEST_ROW_GROUP, self.max_group_items)
        items = 1 << (max(1, wanted).bit_length() - 1)
        return items if self.local_on_chip and item_bytes * items <= self.local_bytes else 0
