"""Configurations that measured best on one device: they go before the models of their templates.

Winners({ConvConfig(..): GroupConvConfig(..), Pair(..): PairTile(..), Pair(..): APART, ..})
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any


class Winners:
    """A table by layer, which never changes; it can be a part of keys of caches."""

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
