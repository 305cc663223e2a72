"""The simulator: when each kernel runs, in order on each processor.

cpu     [conv1]······[recv conv2|add]
opencl  [recv conv1|conv2]

The rules are those of `problem.py`: a kernel waits for the tensors that it reads, and its processor
is busy while it receives, once, a tensor of another processor. A schedule of a `Problem` runs on
this clock (`simulate.py`), and so does the search, which continues thousands of times from a copy,
reads parts of tensors, and forgets tensors without further readers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

Tensor = Hashable
"""A tensor by its name or number; in a search also what it is, and of which: a band, or a cut."""


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

    def is_on(self, place: int) -> bool:
        """Whether a processor wrote it or has received it."""
        return place == self.place or place in self.holders


@dataclass
class Clock:
    """The time at each processor, and the tensors that may still be read."""

    free: list[int]
    hand_over: Callable[[int, int, int], int]  # nanoseconds from one processor to another
    tensors: dict[Tensor, list[Written]]
    busy: list[int] = field(default_factory=list)  # nanoseconds of work of each processor
    caching: bool = True  # whether a processor keeps what it received

    def __post_init__(self) -> None:
        self.busy = self.busy or [0] * len(self.free)

    def copy(self) -> Clock:
        """A copy of the clock."""
        tensors = {
            name: [Written(p.place, p.finish, p.bytes, p.part, set(p.holders)) for p in parts]
            for name, parts in self.tensors.items()
        }
        return Clock(list(self.free), self.hand_over, tensors, list(self.busy), self.caching)

    def times(self, place: int, ns: int, reads: Iterable[Written]) -> tuple[int, int]:
        """When a kernel would begin as the processor's next one, and when it would finish."""
        begin, receiving = self.free[place], 0
        for read in reads:
            if read.finish > begin:
                begin = read.finish
            if read.place != place and place not in read.holders:
                receiving += self.hand_over(read.place, place, read.bytes)
        return begin, begin + receiving + ns

    def occupy(self, place: int, ns: int, reads: Iterable[Written]) -> tuple[int, int]:
        """Run a kernel as the processor's next one; the result is that of `times`."""
        begin, finish = self.times(place, ns, reads)
        self.free[place] = finish
        self.busy[place] += finish - begin
        if self.caching:
            for read in reads:
                if read.place != place:
                    read.holders.add(place)
        return begin, finish

    def run(self, steps: Iterable[Step]) -> None:
        """Run the steps in their order."""
        for step in steps:
            reads: dict[int, Written] = {}
            for tensor, part in step.reads:
                parts = self.tensors[tensor]
                own = [read for read in parts if read.part == part] if part is not None else ()
                for read in own or parts:
                    reads[id(read)] = read
            _, finish = self.occupy(step.place, step.ns, reads.values())
            written = Written(step.place, finish, step.bytes, step.part)
            before = [] if step.joins else self.tensors.get(step.tensor, [])
            self.tensors[step.tensor] = [*before, written]

    def keep(self, tensors: Sequence[Tensor]) -> None:
        """Forget every tensor but these."""
        self.tensors = {name: self.tensors[name] for name in tensors}

    def when(self, tensors: Sequence[Tensor]) -> int:
        """The time at which all of these tensors are written."""
        return max((p.finish for name in tensors for p in self.tensors[name]), default=0)
