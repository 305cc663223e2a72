"""Inputs that hold what an output had after the last run: caches of keys, states of recurrences."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import relax

from tvm_stretch.ir.codec import from_text

STATES = "states"
"""The attribute of ``main``: text of the number of the caller's results, and for each of the last
parameters the position of its result."""


@dataclass(frozen=True)
class Greedy:
    """The next value of an input of indices: where an output is greatest in its last dimension.

    Examples:
        >>> states = {"token": ts.Greedy("logits"), "past.*": "present.*"}  # of ts.compile
        >>> states["token"]
        Greedy(output='logits')
    """

    output: str  # name of the output, such as ``logits``


@dataclass(frozen=True)
class Counter:
    """The next value of an input of integers, such as a position: by `step` more.

    Examples:
        >>> states = {"position": ts.Counter(), "past.*": "present.*"}  # of ts.compile
        >>> states["position"]
        Counter(...)
    """

    step: int = 1


def read_states(main: relax.Function) -> tuple[int | None, list[int]]:
    """How many results the caller gets (None: all that guards leave), and the states' results."""
    text = (main.attrs or {}).get(STATES)
    if text is None:
        return None, []
    results, states = from_text(tuple[int, tuple[int, ...]], str(text))
    return results, list(states)
