"""Lengths: the sizes that named dimensions of a network may have when it runs.

lengths={"n": [64, 128], "batch": [1, 4]}      the sizes of the dimensions n and batch
    -> {"n": 64, "batch": 1}, {"n": 64, "batch": 4}, {"n": 128, "batch": 1}, ...
shapes={"tokens": ("batch", "n")}, the first of these -> {"tokens": (1, 64)}
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence

from tvm_stretch.errors import InputError

Lengths = Mapping[str, Iterable[int]]
"""The sizes of dimensions by name."""

Shape = Sequence[int | str]
"""Sizes, and names of dimensions that have several."""

_MOST = 64  # each length is a plan of its own, with kernels of its own


def read_lengths(lengths: Lengths | None) -> list[dict[str, int]]:
    """Every combination of the sizes, in the order in which they are given.

    Raises:
        InputError: a name has no sizes, a size is below 1 or given twice, or there are too many.
    """
    if lengths is None:
        return []
    if not isinstance(lengths, Mapping) or not lengths:
        raise InputError(
            f"expected a dictionary for lengths, got {lengths!r:.100}; give the sizes of each "
            "named dimension, such as {'n': [64, 128]}"
        )
    sizes = {str(name): _sizes(name, given) for name, given in lengths.items()}
    found = [dict(zip(sizes, one, strict=True)) for one in itertools.product(*sizes.values())]
    if len(found) > _MOST:
        raise InputError(
            f"expected at most {_MOST} lengths, got {len(found)}; each is compiled, so leave some "
            "out and pad inputs"
        )
    return found


def _sizes(name: str, given: Iterable[int]) -> list[int]:
    try:
        found = [operator.index(size) for size in itertools.islice(given, _MOST + 1)]
    except TypeError:
        found = []
    if not found or min(found) < 1 or len(set(found)) < len(found):
        raise InputError(
            f"expected different sizes of at least 1 for lengths[{name!r}], got {given!r:.100}; "
            "give a list of them"
        )
    return found


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
