"""Which values a network's kernels can bear; the executor checks them after each run."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import relax

from tvm_stretch.network.codec import from_text

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
