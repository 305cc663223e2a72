"""Lengths: the sizes that named dimensions of a network may have when it runs.

lengths={"n": Length(1, 512)}                  any size: inputs are padded to one of a few sizes
lengths={"n": [64, 128], "batch": [1, 4]}      the sizes of the dimensions n and batch
    -> {"n": 64, "batch": 1}, {"n": 64, "batch": 4}, {"n": 128, "batch": 1}, ...
shapes={"tokens": ("batch", "n")}, the first of these -> {"tokens": (1, 64)}
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tvm_stretch.base.errors import InputError


@dataclass(frozen=True)
class Length:
    """Any size of a dimension within limits, for ``lengths`` of `compile`.

    The compiler chooses a few sizes by its cost model, and a run pads its inputs to the next one.
    A network in which padding could change the answer is refused.

    Attributes:
        low: the least size.
        high: the greatest size.
        waste: the time for padding that may be predicted for a run, as a share of the time without.

    Examples:
        >>> lengths = {"n": ts.Length(1, 512)}  # of ts.compile
        >>> lengths["n"].waste
        0.5
    """

    low: int
    high: int
    waste: float = 0.5

    def __post_init__(self) -> None:
        """Refuse limits between which there is nothing to choose."""
        sizes = [s for s in (self.low, self.high) if isinstance(s, int) and not isinstance(s, bool)]
        if len(sizes) < 2 or not 1 <= self.low < self.high <= _LONGEST:
            raise InputError(
                f"expected sizes of 1 to {_LONGEST} for low and high of a Length, the first one "
                f"smaller, got {self.low!r} and {self.high!r}; give other limits, or a list"
            )
        if not isinstance(self.waste, int | float) or not 0.1 <= self.waste <= 10:
            raise InputError(
                f"expected 0.1 to 10 for waste of a Length, got {self.waste!r}; with 0.5, padding "
                "may take half of the time that a run takes without"
            )


Lengths = Mapping[str, Iterable[int] | Length]
"""The sizes of dimensions by name."""

Shape = Sequence[int | str]
"""Sizes, and names of dimensions that have several."""

_LONGEST = 2**24
_MOST = 64  # each length is a plan of its own, with kernels of its own


def read_lengths(lengths: Lengths) -> dict[str, list[int] | Length]:
    """The sizes of each dimension, checked."""
    if not isinstance(lengths, Mapping) or not lengths:
        raise InputError(
            f"expected a dictionary for lengths, got {lengths!r:.100}; give the sizes of each "
            "named dimension, such as {'n': [64, 128]}"
        )
    return {str(name): _sizes(name, given) for name, given in lengths.items()}


def _sizes(name: str, given: Iterable[int] | Length) -> list[int] | Length:
    if isinstance(given, Length):
        return given
    try:
        sizes = [operator.index(size) for size in itertools.islice(given, _MOST + 1)]
    except TypeError:
        sizes = []
    if not sizes or min(sizes) < 1 or len(set(sizes)) < len(sizes):
        raise InputError(
            f"expected different sizes of at least 1 for lengths[{name!r}], got {given!r:.100}; "
            "give a list of them, or ts.Length(1, 128) for any"
        )
    return sizes


def combined(sizes: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """Every combination of the sizes, in the order in which they are given."""
    every = [dict(zip(sizes, one, strict=True)) for one in itertools.product(*sizes.values())]
    if len(every) > _MOST:
        raise InputError(
            f"expected at most {_MOST} lengths, got {len(every)}; each is compiled, so leave some "
            "out and pad inputs"
        )
    return every


def sized(
    shapes: Mapping[str, Shape] | None, sizes: Mapping[str, int]
) -> dict[str, Sequence[int]] | None:
    """The shapes, with sizes for names.

    Raises:
        InputError: a name has no size.
    """
    if not isinstance(shapes, Mapping):
        return shapes
    return {name: _sized(name, shape, sizes) for name, shape in shapes.items()}


def _sized(name: str, shape: Shape, sizes: Mapping[str, int]) -> Sequence[int]:
    if not isinstance(shape, Sequence) or isinstance(shape, str):
        raise InputError(
            f"expected one integer per dimension for shapes[{name!r}], got {shape!r:.100}; "
            "give every size"
        )
    unknown = [size for size in shape if isinstance(size, str) and size not in sizes]
    if unknown:
        raise InputError(
            f"expected sizes for the dimension {unknown[0]!r} of shapes[{name!r}], got none; give "
            f"them, such as lengths={{{unknown[0]!r}: [64, 128]}}"
        )
    return [sizes[size] if isinstance(size, str) else size for size in shape]
