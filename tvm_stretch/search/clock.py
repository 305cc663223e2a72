"""When a few kernels run, one after the other on each processor: the search's own small simulator.

    Step("conv.", 0, ..), Step("conv.", 1, ..), Step("relu", 0, reads both)   ->   the clock's times

It means what `tvm_stretch.scheduling.simulate` means, which a test compares: a kernel waits for
what it reads, and its processor is busy while it receives, once, what others wrote. That simulator
runs one `Problem`, whose operators and tensors are all known and numbered; a search tries thousands
of ways to go on from a state, reads parts of tensors, and forgets what nothing reads any more.
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
    ns: int  # what it takes
    # tensors, and which part of each; None for all of it
    reads: tuple[tuple[Tensor, int | None], ...]
    bytes: int  # that it writes
    part: int | None = None  # which part of the tensor it writes; None for all of it
    joins: bool = False  # whether what it writes takes the place of the parts that it reads


@dataclass
class Written:
    """A part of a tensor that was written, and who has it."""

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

    def copy(self) -> Clock:
        """Another clock with the same past."""
        tensors = {
            name: [Written(p.place, p.finish, p.bytes, p.part, set(p.holders)) for p in parts]
            for name, parts in self.tensors.items()
        }
        return Clock(list(self.free), self.hand_over, tensors)

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
            written = Written(step.place, finish, step.bytes, step.part)
            before = [] if step.joins else self.tensors.get(step.tensor, [])
            self.tensors[step.tensor] = [*before, written]

    def keep(self, tensors: Sequence[str]) -> None:
        """Forget every tensor but these."""
        self.tensors = {name: self.tensors[name] for name in tensors}

    def when(self, tensors: Sequence[str]) -> int:
        """When all of these are written."""
        return max((p.finish for name in tensors for p in self.tensors[name]), default=0)
