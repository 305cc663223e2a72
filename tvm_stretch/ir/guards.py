"""Which values a network's kernels can bear; the executor checks them after each run."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import relax

from tvm_stretch.ir.codec import from_text

GUARDS = "guards"
"""The attribute of ``main``: text of the number of the caller's results and a list of `Guard`."""


@dataclass(frozen=True)
class Guard:
    """The values that are allowed in a tensor.

    Attributes:
        input: name of the tensor if it is an input, otherwise empty.
        result: otherwise its position among the results of ``main``.
        low: least value; several values if each position in the last dimension has its own.
        high: greatest value; both are empty if the values must not be zero.
        what: describes the tensor in messages.
    """

    input: str
    result: int
    low: tuple[int, ...]
    high: tuple[int, ...]
    what: str


def read_guards(main: relax.Function) -> tuple[int | None, list[Guard]]:
    """How many results the caller gets (None: all), and the guards."""
    text = (main.attrs or {}).get(GUARDS)
    if text is None:
        return None, []
    results, guards = from_text(tuple[int, tuple[Guard, ...]], str(text))
    return results, list(guards)
