"""Architectures of decoders in GGUF files: what the files do not say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """What files of one architecture do not say."""

    turned: bool = False  # rows of queries and keys are those of interleaved rotary positions
    gelu: bool = False  # instead of SiLU
    scaled: bool = False  # rows of the table are multiplied by the root of their width
    window: Callable[[int], bool] = lambda layer: False  # layers that see a window of tokens
    local_base: float = 0.0  # of rotary positions in layers with a window, if it is another one
    wide: int = 0  # layers of the variant whose scores are scaled by the width of all heads


FAMILIES = {
    "llama": Family(turned=True),
    "qwen2": Family(),
    "qwen3": Family(),
    "gemma": Family(gelu=True, scaled=True),
    "gemma2": Family(gelu=True, scaled=True, window=lambda layer: layer % 2 == 0, wide=46),
    "gemma3": Family(
        gelu=True, scaled=True, window=lambda layer: layer % 6 != 5, local_base=10000.0, wide=62
    ),
}


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder."""

    layers: int
    width: int
    inner: int  # width of the feed-forward part
    heads: int
    groups: int  # heads of keys and values
    head: int  # numbers of a head
    turns: int  # numbers of a head that positions turn
    words: int
    places: int  # of a cache
