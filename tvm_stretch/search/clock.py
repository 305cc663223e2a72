"""The times at which a few kernels run, in order on each processor: the search's own simulator.

    Step("conv.", 0, ..), Step("conv.", 1, ..), Step("relu", 0, reads both)   ->   the clock's times

The rules are those of `scheduling/simulate.py`, and a test compares the results: a kernel waits for
the tensors that it reads, and its processor is busy while it receives, once, a tensor of another
processor. That simulator runs one `Problem`, whose operators and tensors are all known and
numbered. A search continues thousands of times from a state, reads parts of tensors, and forgets
tensors without further readers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Tensor = str | tuple[str, str]
"""A tensor of the network by its name; or what it is, and of which tensor: a band, or a cut."""


@dataclass(frozen=True)
class Step:
    """A kernel, or a part of one."""

    tensor: Tensor  # the tensor that it writes
    place: int  # its processor
    ns: int  # nanoseconds of the kernel
    # tensors, and which part of each; None for all of it
    reads: tuple[tuple[Tensor, int | None], ...]
    bytes: int  # bytes of its result
    part: int | None = None  # which part of the tensor it writes; None for all of it
    joins: bool = False  # whether its result replaces the parts that it reads


@dataclass
class Written:
    """A part of a tensor that was written, and the processors that have it."""

    place: int
    finish: int
    bytes: int
    part: int | None = None
    holders: set[int] = field(default_factory=set)


@dataclass
class Clock:
    """The time at each processor, and the tensors that may still be read."""

    free: list[int]
    hand_over: Callable[[int, int, int], int]
    tensors: dict[Tensor, list[Written]]
    busy: list[int] = field(default_factory=list)  # nanoseconds of work of each processor

    def __post_init__(self) -> None:
        self.busy = self.busy or [0] * len(self.free)

    def copy(self) -> Clock:
        """A copy of the clock."""
        tensors = {
            name: [Written(p.place, p.finish, p.bytes, p.part, set(p.holders)) for p in parts]
            for name, parts in self.tensors.items()
        }
        return Clock(list(self.free), self.hand_over, tensors, list(self.busy))

    def run(self, steps: Sequence[Step]) -> None:
        """Run the steps in their order."""
        for step in steps:
            begin, receiving = self.free[step.place], 0
            for tensor, part in step.reads:
                parts = self.tensors[tensor]
                own = [read for read in parts if read.part == part] if part is not None else []
                for read in own or parts:
                    begin = max(begin, read.finish)
                    if step.place != read.place and step.place not in read.holders:
                        receiving += self.hand_over(read.place, step.place, read.bytes)
                        read.holders.add(step.place)
            finish = begin + receiving + step.ns
            self.free[step.place] = finish
            self.busy[step.place] += receiving + step.ns
            written = Written(step.place, finish, step.bytes, step.part)
            before = [] if step.joins else self.tensors.get(step.tensor, [])
            self.tensors[step.tensor] = [*before, written]

    def keep(self, tensors: Sequence[str]) -> None:
        """Forget every tensor but these."""
        self.tensors = {name: self.tensors[name] for name in tensors}

    def when(self, tensors: Sequence[str]) -> int:
        """The time at which all of these tensors are written."""
        return max((p.finish for name in tensors for p in self.tensors[name]), default=0)
