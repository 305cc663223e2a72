"""Values that are known where inputs are padded, through operators that compute masks.

mask          [? ? ? 0 0]           the last two places are padding
1 - mask      [? ? ? 1 1]
* -3.4e38     [? ? ? -3.4e38 ..]
scores + it   [? ? ? -inf -inf]     a number that is so small hides whatever it is added to
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

HIDDEN = -1e4
"""The largest number that hides a place from softmax: what BERT's masks add."""


@dataclass(frozen=True)
class Known:
    """Elements of a tensor that do not depend on what the caller gives."""

    value: np.ndarray
    here: np.ndarray  # whether the element is known
    inputs: frozenset[str] = frozenset()  # whose padding decides them

    def moved(self, move: Callable[[np.ndarray], np.ndarray]) -> Known:
        """The elements after an operator that only moves them."""
        return Known(move(self.value), move(self.here), self.inputs)

    def hides(self) -> np.ndarray:
        """Where softmax gives zero."""
        return self.here & (self.value <= HIDDEN)


BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
}
UNARY: dict[str, Callable[..., Any]] = {
    "negative": np.negative,
    "logical_not": np.logical_not,
    "bitwise_not": np.invert,
    "isnan": np.isnan,
    "isinf": np.isinf,
}
_FIXED = {"multiply": 0, "logical_and": False, "logical_or": True}
"""Numbers that decide the result whatever the other operand is; NaN and infinities aside."""


def pointwise(kind: str, args: Sequence[Known | None], dtype: str) -> Known | None:
    """Known elements of the result of a pointwise operator, whose operands may be unknown."""
    if all(arg is None for arg in args):
        return None
    inputs = frozenset[str]().union(*(arg.inputs for arg in args if arg is not None))
    nothing = Known(np.zeros((), dtype), np.zeros((), bool))
    given = [nothing if arg is None else arg for arg in args]
    values, here = [arg.value for arg in given], [arg.here for arg in given]
    with np.errstate(all="ignore"):
        if kind == "where":
            value = np.where(*values)
            known = here[0] & np.where(values[0], here[1], here[2])
        elif kind == "astype":
            value, known = values[0], here[0]
        elif kind in UNARY:
            value, known = UNARY[kind](values[0]), here[0]
        elif kind in BINARY:
            value, known = _of_two(kind, values, here)
        else:
            return None
    value, known = np.broadcast_arrays(value, known)
    if np.issubdtype(value.dtype, np.floating):
        known = known & ~np.isnan(value)
    return Known(value.astype(dtype), known, inputs) if known.any() else None


def _of_two(
    kind: str, values: list[np.ndarray], here: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    value, known = BINARY[kind](*values), here[0] & here[1]
    kind = kind.replace("bitwise", "logical") if value.dtype == bool else kind
    if kind in _FIXED:
        for one, is_known in zip(values, here, strict=True):
            decides = is_known & (one == _FIXED[kind])
            value, known = np.where(decides, _FIXED[kind], value), known | decides
    if kind in ("add", "subtract") and np.issubdtype(value.dtype, np.floating):
        hiding = here[0] & (values[0] <= HIDDEN)
        if kind == "add":
            hiding = hiding | (here[1] & (values[1] <= HIDDEN))
        value, known = np.where(hiding & ~known, -np.inf, value), known | hiding
    return value, known
