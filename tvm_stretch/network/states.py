"""Attributes of ``main`` for the executor: states, and values that kernels can bear.

States are inputs that hold what an output had after the last run: caches of keys, states of
recurrences. Guards are checked after each run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tvm_stretch.base.errors import InputError
from tvm_stretch.network.codec import from_text, to_text

if TYPE_CHECKING:
    from tvm import relax

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


def read_guards(main: relax.Function, key: str = GUARDS) -> tuple[int | None, list[Guard]]:
    """How many results the caller gets (None: all), and the guards."""
    text = (main.attrs or {}).get(key)
    if text is None:
        return None, []
    results, guards = from_text(tuple[int, tuple[Guard, ...]], str(text))
    return results, list(guards)


LIMITS = "limits"
"""As `GUARDS`, for results that a frontend wants checked."""

CONDITIONS = "conditions"
"""The attribute of ``main``: text of the `Condition` of each operator that has one."""


@dataclass(frozen=True)
class Condition:
    """One bool without which nothing reads what an operator computes."""

    input: str  # the name of the input that it is, otherwise empty
    result: int  # otherwise its position among the results of ``main``
    wanted: bool  # whether it has to be true, or false


def read_conditions(main: relax.Function) -> dict[str, Condition]:
    """The conditions of operators, by name."""
    text = (main.attrs or {}).get(CONDITIONS)
    return {} if text is None else from_text(dict[str, Condition], str(text))


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
        Greedy(output='logits', length='')
    """

    output: str  # name of the output, such as ``logits``
    # name of the dimension of `lengths=` along which a run may read several values, which
    # `Model.feed` gives; the next value is one
    length: str = ""


@dataclass(frozen=True)
class Sample(Greedy):
    """The next value of an input of indices: drawn from an output, as language models do.

    The probabilities are softmax(output / temperature). In the last dimension `top_k`
    leaves that many of the greatest scores, then `top_p` the fewest whose probabilities add up to
    it, then `min_p` those with at least this part of the greatest probability.
    `Model.set_sampling` changes all of that without another compilation.

    Examples:
        >>> states = {"token": ts.Sample("logits", temperature=0.8, top_p=0.95, seed=1)}
        >>> states["token"].top_k
        0
    """

    temperature: float = 1.0  # 0: as `Greedy`
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0  # the same seed gives the same values after `Model.reset`

    def __post_init__(self) -> None:
        """Refuse what no distribution has.

        Raises:
            InputError: a number is out of its range.
        """
        for name, most in _SAMPLING.items():
            value, whole = getattr(self, name), name in ("top_k", "seed")
            fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
            if not (fits and 0 <= value <= most):
                raise InputError(
                    f"expected {'an integer' if whole else 'a number'} of 0 to {most} for {name}, "
                    f"got {value!r}; see docs/states.md"
                )

    @property
    def sampling(self) -> dict[str, float]:
        """What decides the draws."""
        return {name: getattr(self, name) for name in _SAMPLING}


_SAMPLING = {"temperature": 1e6, "top_k": 2**31 - 1, "top_p": 1, "min_p": 1, "seed": 2**63 - 1}
"""The numbers of a `Sample`, in the order of the executor's ``set_sampling``, and their limits."""


@dataclass(frozen=True)
class Counter:
    """The next value of an input of integers, such as a position: by `step` more.

    A name as step is that of a dimension of `lengths=`: its size in the run.

    Examples:
        >>> states = {"position": ts.Counter(), "past.*": "present.*"}  # of ts.compile
        >>> states["position"]
        Counter(...)
    """

    step: int | str = 1


Source = str | Greedy | Counter
"""Where a state's next value comes from: an output's name, or a rule."""


@dataclass(frozen=True)
class Kept:
    """Where the next value of a parameter comes from.

    A cache that grows keeps the rows that a run appends: its first `grown` rows along `axis` are
    those that the run before dropped, and no part of the caller's state.
    """

    result: int  # position of the result that it holds after a run
    axis: int = 0
    grown: int = 0
    scores: int = -1  # position of the result from which the value is drawn; -1: it is as computed
    sampling: Mapping[str, float] = field(default_factory=dict)  # how, as of `Sample`
    # by how much it falls for each value that is taken back after a run read it: a counter by one,
    # a cache that a run writes rows to by nothing, for a counter tells which of them are read; -1:
    # it cannot be taken back
    rewind: int = -1


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
