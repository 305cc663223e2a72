"""The parts of the papers, from catalogue.txt: what each shows, and the command that shows ours.

`trained` ones are accuracies of small networks trained here, beside predicted latencies;
`measured` figures come from this machine's clock, `emulated` ones from counted instructions,
`predicted` ones from the profile of a phone, `counted` ones from networks and plans alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PAPERS = {
    "nn-stretch": "NN-Stretch (Wei et al., MobiSys 2023)",
    "hope": "HOPE, a heterogeneity-oriented parallel execution engine for inference on mobiles",
    "pitfalls": "Potentials and Pitfalls of inference on heterogeneous mobile processors",
}


@dataclass(frozen=True)
class Part:
    """A table or figure.

    Attributes:
        paper: a key of `PAPERS`.
        number: such as ``table 2``.
        shows: what it shows.
        theirs: the figures that the paper's text or table states.
        how: ``measured``, ``trained``, ``emulated``, ``predicted`` or ``counted``; empty if there
            is none.
        command: arguments after ``python -m``; empty if ours needs what software cannot give.
        lacks: the thing that is missing; empty if ours is complete.
        minutes: of a command, measured on two cores of a server that did much other work.
    """

    paper: str
    number: str
    shows: str
    theirs: str
    how: str = ""
    command: tuple[str, ...] = ()
    lacks: str = ""
    minutes: int = 0

    @property
    def key(self) -> str:
        """The name of its file."""
        return f"{self.paper}.{self.number.replace(' ', '')}"


DRAWINGS = {
    "nn-stretch": ("figure 1", "figure 2", "figure 4", "figure 5", "figure 6", "table 5"),
    "hope": ("figure 1", "figure 2", "figure 3"),
    "pitfalls": ("figure 1", "table 1"),
}
"""What shows an idea, a part of a network or a list of phones, and no result."""


def _read() -> Iterator[Part]:
    """The lines of catalogue.txt."""
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line and not line.startswith("#"):
            paper, number, shows, theirs, how, minutes, command = line.split(" | ")
            if how == "lacks":
                yield Part(paper, number, shows, theirs, lacks=command)
            else:
                words = tuple(command.split(" "))
                yield Part(paper, number, shows, theirs, how, words, minutes=int(minutes))


PARTS: Sequence[Part] = tuple(_read())


def parts(paper: str = "", kind: str = "", number: str = "") -> Iterator[Part]:
    """The parts of a paper, its tables or figures alone, or one of them, or all."""
    for part in PARTS:
        own = (part.paper, *part.number.partition(" ")[::2])
        if all(word in ("", known) for word, known in zip((paper, kind, number), own, strict=True)):
            yield part
