"""When a few kernels run, one after the other on each processor: the search's own small simulator.

    Step("conv.", 0, ..), Step("conv.", 1, ..), Step("relu", 0, reads both)   ->   the clock's times

It means what `tvm_stretch.scheduling.simulate` means: a kernel waits for what it reads, and its
processor is busy while it receives, once, what others wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Step:
    """A kernel, or a part of one.

    Attributes:
        tensor: the tensor that it writes.
        place: its processor.
        ns: what it takes.
        reads: tensors, and which part of each; None for all of it.
        bytes: that it writes.
        part: which part of the tensor it writes; None for all of it.
        joins: whether what it writes takes the place of the parts that it reads.
    """

    tensor: str
    place: int
    ns: int
    reads: tuple[tuple[str, int | None], ...]
    bytes: int
    part: int | None = None
    joins: bool = False


@dataclass
class Piece:
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
    tensors: dict[str, list[Piece]]

    def copy(self) -> Clock:
        """Another clock with the same past."""
        tensors = {
            name: [Piece(p.place, p.finish, p.bytes, p.part, set(p.holders)) for p in pieces]
            for name, pieces in self.tensors.items()
        }
        return Clock(list(self.free), self.hand_over, tensors)

    def run(self, steps: Sequence[Step]) -> None:
        """Run the steps in their order."""
        for step in steps:
            begin, receiving = self.free[step.place], 0
            for tensor, part in step.reads:
                pieces = self.tensors[tensor]
                own = [piece for piece in pieces if piece.part == part] if part is not None else []
                for piece in own or pieces:
                    begin = max(begin, piece.finish)
                    if step.place != piece.place and step.place not in piece.holders:
                        receiving += self.hand_over(piece.place, step.place, piece.bytes)
                        piece.holders.add(step.place)
            finish = begin + receiving + step.ns
            self.free[step.place] = finish
            written = Piece(step.place, finish, step.bytes, step.part)
            before = [] if step.joins else self.tensors.get(step.tensor, [])
            self.tensors[step.tensor] = [*before, written]

    def keep(self, tensors: Sequence[str]) -> None:
        """Forget every tensor but these."""
        self.tensors = {name: self.tensors[name] for name in tensors}

    def when(self, tensors: Sequence[str]) -> int:
        """When all of these are written."""
        return max((p.finish for name in tensors for p in self.tensors[name]), default=0)
