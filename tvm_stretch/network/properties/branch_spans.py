"""Segments that exact branching may replace, and the spans that its branches get."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from tvm_stretch.base.errors import InputError, UnsupportedError
from tvm_stretch.base.files import is_finite
from tvm_stretch.network.operators import Operator, Operators, remember

Span = tuple[int, int]


def share(total: int, ratios: Sequence[float], unit: int = 1) -> tuple[Span, ...]:
    """Cut ``range(total)`` in the given ratios, at multiples of ``unit``.

    >>> share(56, (2, 1)), share(64, (0.3, 0.7), unit=8)
    (((0, 37), (37, 56)), ((0, 16), (16, 64)))
    """
    whole = sum(ratios)
    if len(ratios) < 2 or not all(is_finite(r) and r > 0 for r in ratios):
        raise InputError(
            f"expected two or more positive numbers for ratios, got {tuple(ratios)}; "
            "give one share per branch"
        )
    cuts = [0]
    for index in range(1, len(ratios)):
        exact = total * sum(ratios[:index]) / whole
        cuts.append(min(total, unit * math.floor(exact / unit + 0.5)))
    cuts.append(total)
    spans = tuple(pairwise(cuts))
    if any(begin >= end for begin, end in spans):
        raise UnsupportedError(
            f"expected at least {unit} of {total} for each of the ratios {tuple(ratios)}, got "
            f"{[end - begin for begin, end in spans]}; use fewer branches or more even ratios"
        )
    return spans


@remember  # a search asks once for each ratio
def closed_segment(
    operators: Operators, start: str, end: str, reads: bool = False
) -> tuple[Operator, ...]:
    """The operators between two tensors, if they exchange no other tensor with the rest.

    ``reads``: they may read tensors that do not depend on ``start``.
    """
    members = operators.between(start, end)
    names = {member.name for member in members}
    if end not in names:
        raise UnsupportedError(
            f"expected a tensor computed from {start!r} for end, got {end!r}; "
            "choose another segment"
        )
    for member in members:
        foreign = [name for name in member.inputs if name != start and name not in names]
        if foreign and not reads:
            raise _open(start, end, f"{member.name!r} reads {foreign[0]!r} from outside")
        readers = [name for name in operators.readers[member.name] if name not in names]
        if member.name != end and (readers or member.name in operators.outputs):
            who = repr(readers[0]) if readers else "the caller"
            raise _open(start, end, f"{who} outside reads {member.name!r}")
    return members


def _open(start: str, end: str, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"expected one tensor in and one out for segment {start!r} -> {end!r}, got: {what}; "
        "cut at meeting points"
    )
