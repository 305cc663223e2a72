"""What kernel templates need to know of a GPU, and the facts of those that are known by name."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

KIB = 1024

_HELD, _MOST_HELD = 4, 32  # numbers of a row that an item should hold, and can
_SHORTEST_ROW, _LARGEST_ROW_GROUP = 8, 256


class Winners:
    """Configurations by layer that measured best on one device: they go before models.

    The table never changes; it can be a part of keys of caches.
    """

    def __init__(self, found: Mapping[Any, Any] | None = None) -> None:
        self._found = dict(found or {})
        self._hash = hash(frozenset(self._found.items()))

    def find(self, layer: Hashable) -> Any:
        """The configuration of a layer; None if none was measured."""
        return self._found.get(layer)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Winners) and self._found == other._found

    def __hash__(self) -> int:
        return self._hash


class Asked(Winners):
    """A table that notes what it is asked for in vain."""

    def __init__(self, found: Mapping[Any, Any]) -> None:
        super().__init__(found)
        self.unknown: dict[Any, None] = {}

    def find(self, layer: Hashable) -> Any:
        """As of `Winners`; without a configuration the layer is one of `unknown` from now on."""
        known = super().find(layer)
        if known is None:
            self.unknown[layer] = None
        return known

    def __eq__(self, other: object) -> bool:
        return self is other  # caches must ask each table

    __hash__ = object.__hash__


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

    @property
    def barest(self) -> GpuMachine:
        """The GPU that asks least of a driver: it has groups of one item, and no images.

        It has more units than any layer has items, so each item computes one output.
        """
        alone = replace(self, units=1 << 40, max_group_items=1, plain_items=1, images=0)
        return replace(alone, local_on_chip=False, has_images=False)

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
