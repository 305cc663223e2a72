"""Place buffers in one arena so that no two live buffers overlap.

    buffer   bytes   touched by steps    offset
    a          256   0, 1                     0
    b          128      1, 2                256
    c          256         2, 3               0     a is dead when c is written, so c takes its
    place

Because several processors run steps at the same time, whether a buffer is dead depends on which
step happens before which: two buffers share memory only if every step that touches one of them is
complete before any step that touches the other begins.

There are three steps: the caller derives the **lifetimes**, a **sweep** over time computes how much
is live at once (no plan can be smaller), and then the **offsets** are chosen, largest buffer first.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tvm_stretch.network.expressions import ALIGNMENT

_GOOD_ENOUGH = 1.02
_ATTEMPTS = 64


@dataclass(frozen=True)
class Lifetime:
    """`size` bytes, and the time in which they are needed: sets of steps as bits of integers."""

    size: int  # number of bytes
    steps: int  # the steps that touch them
    earlier: int  # the steps that are complete before the first of `steps` begins

    @property
    def first(self) -> int:
        """The lowest step that touches the buffer."""
        return (self.steps & -self.steps).bit_length() - 1

    @property
    def last(self) -> int:
        """The highest step that touches the buffer."""
        return self.steps.bit_length() - 1

    def precedes(self, other: Lifetime) -> bool:
        """Whether this buffer is dead before the other one is written."""
        return self.steps & ~other.earlier == 0

    def overlaps(self, other: Lifetime) -> bool:
        """Whether both may be live at the same time."""
        return not (self.precedes(other) or other.precedes(self))


@dataclass(frozen=True)
class MemoryPlan:
    """Where each buffer starts, and the size of the arena that holds them all."""

    offsets: tuple[int, ...]
    total: int


def align(size: int, alignment: int = ALIGNMENT) -> int:
    """`size`, rounded up to a multiple of `alignment`."""
    return -(-size // alignment) * alignment


# Step 1: lifetimes.


def find_lifetimes(
    sizes: Sequence[int],  # bytes of each buffer
    # for each step, the buffers that it reads or writes. Tensors that share memory count as one
    # buffer, whose lifetime is the union of theirs.
    accesses: Sequence[Iterable[int]],
    # for each step, the steps (bits, all of them lower) that happen before it; by default steps run
    # one after the other
    earlier: Sequence[int] | None = None,
) -> list[Lifetime]:
    """Which steps touch each buffer, and which steps are complete before."""
    if earlier is None:
        earlier = [(1 << step) - 1 for step in range(len(accesses))]
    touched = [0] * len(sizes)
    before = [-1] * len(sizes)
    for step, buffers in enumerate(accesses):
        for buffer in buffers:
            touched[buffer] |= 1 << step
            before[buffer] &= earlier[step]
    # A buffer without steps needs no memory.
    return [
        Lifetime(size, steps, mask) if steps else Lifetime(0, 0, 0)
        for size, steps, mask in zip(sizes, touched, before, strict=True)
    ]


# Step 2: sweep.


def lower_bound(lifetimes: Sequence[Lifetime], alignment: int = ALIGNMENT) -> int:
    """The most bytes that are live at one step, assuming that steps run one after the other."""
    change: defaultdict[int, int] = defaultdict(int)
    for life in lifetimes:
        change[life.first] += align(life.size, alignment)
        change[life.last + 1] -= align(life.size, alignment)
    return max(itertools.accumulate(change[step] for step in sorted(change)), default=0)


# Step 3: offsets.


def plan_memory(lifetimes: Sequence[Lifetime], alignment: int = ALIGNMENT) -> MemoryPlan:
    """Choose offsets, multiples of `alignment`, so that live buffers never overlap.

    Placing the largest buffer first is nearly always optimal for CNNs. If it is not, the order is
    changed at random a fixed number of times (seeded, so that the same graph gives the same plan),
    and the smallest arena wins.
    """
    sizes = [align(life.size, alignment) for life in lifetimes]
    rivals: list[list[int]] = [[] for _ in lifetimes]
    for i, j in itertools.combinations(range(len(lifetimes)), 2):
        if lifetimes[i].overlaps(lifetimes[j]):
            rivals[i].append(j)
            rivals[j].append(i)
    bound = lower_bound(lifetimes, alignment)
    order = sorted(
        range(len(sizes)), key=lambda i: (-sizes[i], lifetimes[i].first - lifetimes[i].last, i)
    )
    best = _place(order, sizes, rivals)
    generator = random.Random(0)
    for _ in range(_ATTEMPTS):
        if best.total <= _GOOD_ENOUGH * bound:
            break
        candidate = _move_culprit_forward(order, best, sizes, generator)
        plan = _place(candidate, sizes, rivals)
        if plan.total <= best.total:
            best, order = plan, candidate
    return best


def plan_apart(lifetimes: Sequence[Lifetime], alignment: int = ALIGNMENT) -> MemoryPlan:
    """Every buffer in bytes of its own, one after the other."""
    sizes = [align(life.size, alignment) for life in lifetimes]
    ends = list(itertools.accumulate(sizes, initial=0))
    return MemoryPlan(tuple(ends[:-1]), ends[-1])


def _place(
    order: Sequence[int], sizes: Sequence[int], rivals: Sequence[Sequence[int]]
) -> MemoryPlan:
    """Place the buffers in this order, each into the tightest gap that fits (or at the top)."""
    offsets = [0] * len(sizes)
    placed = [False] * len(sizes)
    total = 0
    for index in order:
        taken = [(offsets[j], offsets[j] + sizes[j]) for j in rivals[index] if placed[j]]
        offsets[index] = _tightest_gap(sizes[index], sorted(taken))
        placed[index] = True
        total = max(total, offsets[index] + sizes[index])
    return MemoryPlan(tuple(offsets), total)


def _tightest_gap(size: int, taken: Sequence[tuple[int, int]]) -> int:
    """Start of the smallest gap between the sorted `taken` ranges that holds `size` bytes."""
    best_start, best_room = -1, 0
    end = 0
    for start, stop in taken:
        room = start - end
        if room >= size and (best_start < 0 or room < best_room):
            best_start, best_room = end, room
        end = max(end, stop)
    return end if best_start < 0 else best_start


def _move_culprit_forward(
    order: Sequence[int], plan: MemoryPlan, sizes: Sequence[int], generator: random.Random
) -> list[int]:
    """Let a buffer at the top of the arena be placed earlier."""
    culprits = [i for i in order if plan.offsets[i] + sizes[i] > 0.9 * plan.total]
    culprit = generator.choice(culprits)
    changed = [i for i in order if i != culprit]
    changed.insert(generator.randrange(order.index(culprit) + 1), culprit)
    return changed
