"""Attributes of ``main`` for the executor: states, and values that kernels can bear.

States are inputs that hold what an output had after the last run: caches of keys, states of
recurrences. Guards are checked after each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import relax

from tvm_stretch.network.codec import from_text, to_text

GUARDS = "guards"
"""The attribute of ``main``: text of the number of the caller's results and a list of `Guard`."""


@dataclass(frozen=True)
class Guard:
    """The values that are allowed in a tensor."""

    input: str  # name of the tensor if it is an input, otherwise empty
    result: int  # otherwise its position among the results of ``main``
    # least value; several values if each position in the last dimension has its own
    low: tuple[int, ...]
    high: tuple[int, ...]  # greatest value; both are empty if the values must not be zero
    what: str  # describes the tensor in messages


def read_guards(main: relax.Function) -> tuple[int | None, list[Guard]]:
    """How many results the caller gets (None: all), and the guards."""
    text = (main.attrs or {}).get(GUARDS)
    if text is None:
        return None, []
    results, guards = from_text(tuple[int, tuple[Guard, ...]], str(text))
    return results, list(guards)


STATES = "states"
"""The attribute of ``main``: text of the number of the caller's results, and for each of the last
parameters a `Kept`."""

CARRIED = "carried"
"""The attribute of ``main``: first values of parameters that the network itself declares as states,
by name; the result `next_name` of each is its next value."""


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


@dataclass(frozen=True)
class Kept:
    """Where the next value of a parameter comes from.

    A cache that grows keeps the rows that a run appends: its first `grown` rows along `axis` are
    those that the run before dropped, and no part of the caller's state.
    """

    result: int  # position of the result that it holds after a run
    axis: int = 0
    grown: int = 0


def next_name(name: str) -> str:
    """The name of the result that becomes a state which the network itself declares."""
    return f"next_{name}"


def write_states(results: int, states: Sequence[Kept]) -> str:
    """The text of the attribute `STATES`."""
    return to_text((results, tuple(states)))


def read_states(main: relax.Function) -> tuple[int | None, list[Kept]]:
    """How many results the caller gets (None: all that guards leave), and the states' results."""
    text = (main.attrs or {}).get(STATES)
    if text is None:
        return None, []
    results, states = from_text(tuple[int, tuple[Kept, ...]], str(text))
    return results, list(states)
