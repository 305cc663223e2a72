"""Elements of a tensor along its axes, taken by indices that are known when compiling.

pad of 5 pixels by 2, reflecting   ->   take(x, [2, 1, 0, 1, 2, 3, 4, 3, 2])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax


def gathered(
    emit: Callable[[relax.Expr], relax.Expr], x: relax.Expr, places: Mapping[int, Any]
) -> relax.Expr:
    """The elements at the places of each axis; other axes stay as they are."""
    for axis, indices in places.items():
        x = emit(relax.op.take(x, relax.const(indices, "int32"), axis, mode="clip"))
    return x


def padded(size: int, pair: Sequence[int], mode: Any) -> Any:
    """Where each element of a padded axis comes from; ``mode`` is one of NumPy's."""
    return np.pad(np.arange(size), tuple(pair), mode)
