"""The memory planner: against a byte map, against the bound, on shapes of real networks."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tvm_stretch.make.lowering.memory_plan import (
    ALIGNMENT,
    Lifetime,
    MemoryPlan,
    align,
    find_lifetimes,
    lower_bound,
    plan_memory,
)

_STEPS = 12


def life(size: int, first: int, last: int) -> Lifetime:
    """Needed from step `first` to step `last` of steps that run one after the other."""
    return Lifetime(size, 1 << first | 1 << last, (1 << first) - 1)


lifetimes = st.lists(
    st.builds(
        lambda size, first, length: life(size, first, min(first + length, _STEPS - 1)),
        size=st.integers(0, 5000),
        first=st.integers(0, _STEPS - 1),
        length=st.integers(0, _STEPS),
    ),
    max_size=24,
)


def occupied(plan: MemoryPlan, lives: list[Lifetime], step: int) -> np.ndarray:
    """How many live buffers claim each byte of the arena at a step."""
    claims = np.zeros(plan.total, int)
    for one, offset in zip(lives, plan.offsets, strict=True):
        if one.first <= step <= one.last:
            claims[offset : offset + one.size] += 1
    return claims


# the last one needs 512 bytes where a gap has 128
@example([life(1024, 0, 11), life(896, 0, 2), life(832, 0, 11), life(768, 4, 6), life(512, 5, 6)])
@given(lifetimes)
def test_live_buffers_never_share_a_byte(lives: list[Lifetime]) -> None:
    plan = plan_memory(lives)
    for step in range(_STEPS):
        assert occupied(plan, lives, step).max(initial=0) <= 1


@given(lifetimes)
def test_offsets_are_aligned_and_inside(lives: list[Lifetime]) -> None:
    plan = plan_memory(lives)
    for one, offset in zip(lives, plan.offsets, strict=True):
        assert offset % ALIGNMENT == 0
        assert 0 <= offset <= offset + one.size <= plan.total


@given(lifetimes)
def test_bound_is_what_a_byte_count_says(lives: list[Lifetime]) -> None:
    live = [
        sum(align(x.size) for x in lives if x.first <= step <= x.last) for step in range(_STEPS)
    ]
    assert lower_bound(lives) == max(live)
    assert plan_memory(lives).total >= max(live)


@given(st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=8))
def test_lifetime_reaches_from_first_to_last_access(accesses: list[list[int]]) -> None:
    sizes = [100 + i for i in range(6)]
    for buffer, found in enumerate(find_lifetimes(sizes, accesses)):
        touching = [step for step, buffers in enumerate(accesses) if buffer in buffers]
        if touching:
            assert found.size == sizes[buffer]
            assert (found.first, found.last) == (min(touching), max(touching))
        else:
            assert found.size == 0


@dataclass
class Parallel:
    """Steps of several processors: who waits for whom, and what each step touches."""

    waits: list[set[int]]
    sizes: list[int]
    accesses: list[set[int]]

    def orders(self, count: int) -> list[list[int]]:
        """Random orders in which the steps may run, none of which knows of `earlier`."""
        generator, found = random.Random(0), []
        for _ in range(count):
            left, order = set(range(len(self.waits))), []
            while left:
                ready = sorted(step for step in left if not self.waits[step] & left)
                order.append(generator.choice(ready))
                left.remove(order[-1])
            found.append(order)
        return found

    def earlier(self) -> list[int]:
        """All that a step waits for, directly or not."""
        masks: list[int] = []
        for waits in self.waits:
            mask = 0
            for other in waits:
                mask |= masks[other] | 1 << other
            masks.append(mask)
        return masks


@st.composite
def parallel_steps(draw: st.DrawFn) -> Parallel:
    """Each step waits for the one before it on its processor, and for some others."""
    buffers = draw(st.integers(1, 10))
    count = draw(st.integers(1, 14))
    processors = [draw(st.integers(0, 2)) for _ in range(count)]
    waits, accesses = [], []
    for step, processor in enumerate(processors):
        same = [i for i in range(step) if processors[i] == processor]
        others = draw(st.sets(st.integers(0, step - 1), max_size=2)) if step else set()
        waits.append(others | set(same[-1:]))
        accesses.append(draw(st.sets(st.integers(0, buffers - 1), max_size=3)))
    return Parallel(waits, [draw(st.integers(0, 500)) for _ in range(buffers)], accesses)


@given(parallel_steps())
def test_buffers_share_bytes_only_if_one_is_dead_in_every_order(case: Parallel) -> None:
    plan = plan_memory(find_lifetimes(case.sizes, case.accesses, case.earlier()))
    for order in case.orders(20):
        owner = np.full(plan.total, -1)
        done: set[int] = set()  # buffers that lost a byte to another one
        for step in order:
            for buffer in case.accesses[step]:
                window = slice(plan.offsets[buffer], plan.offsets[buffer] + case.sizes[buffer])
                done |= set(owner[window].tolist()) - {-1, buffer}
                owner[window] = buffer
            assert not done & case.accesses[step]


@given(parallel_steps())
def test_parallel_steps_never_need_less_than_the_same_steps_in_a_row(case: Parallel) -> None:
    parallel = find_lifetimes(case.sizes, case.accesses, case.earlier())
    in_a_row = find_lifetimes(case.sizes, case.accesses)
    assert lower_bound(parallel) == lower_bound(in_a_row) <= plan_memory(parallel).total
    for i, j in itertools.combinations(range(len(case.sizes)), 2):
        assert parallel[i].overlaps(parallel[j]) or not in_a_row[i].overlaps(in_a_row[j])


def test_branches_on_two_processors_share_nothing() -> None:
    accesses = [{0}, {0, 1}, {1, 2}, {0, 3}, {3, 4}, {2, 4}]  # 0 forks; 1-2 and 3-4 beside it
    row = [0, 0b1, 0b11, 0b1, 0b1001, 0b11111]
    lives = find_lifetimes([64] * 5, accesses, row)
    assert lives[1].overlaps(lives[3]) and lives[1].overlaps(lives[4])
    assert not find_lifetimes([64] * 5, accesses)[1].overlaps(find_lifetimes([64] * 5, accesses)[4])


def test_nothing_to_place() -> None:
    assert plan_memory([]) == MemoryPlan((), 0)


def test_chain_needs_two_buffers() -> None:
    lives = [life(1024, step, step + 1) for step in range(50)]
    assert plan_memory(lives).total == 2048


def test_small_buffer_goes_into_the_tightest_gap() -> None:
    lives = [
        life(1024, 0, 1),  # leaves a gap of 1024 bytes
        life(960, 0, 3),
        life(576, 0, 1),  # leaves a gap of 576 bytes
        life(512, 0, 3),
        life(448, 2, 3),
    ]
    plan = plan_memory(lives)
    assert plan.offsets[4] == plan.offsets[2]


def test_same_input_gives_same_plan() -> None:
    lives = nasnet_like(seed=3)
    assert plan_memory(lives) == plan_memory(lives)


def residual(blocks: int, sizes: list[int]) -> list[Lifetime]:
    """A residual network: the input of each block lives until the block's addition."""
    accesses: list[list[int]] = []
    buffers: list[int] = [sizes[0]]
    shortcut = 0
    for block in range(blocks):
        size = sizes[block * len(sizes) // blocks]
        first, second = len(buffers), len(buffers) + 1
        buffers += [size // 4, size]
        accesses += [[shortcut, first], [first, second, shortcut]]
        shortcut = second
    return find_lifetimes(buffers, accesses)


def nasnet_like(seed: int, cells: int = 18) -> list[Lifetime]:
    """Cells of five blocks that read the two cells before; each cell's result is one concat."""
    generator = np.random.default_rng(seed)
    buffers: list[int] = []
    accesses: list[list[int]] = []

    def node(inputs: list[int], size: int) -> int:
        buffers.append(size)
        accesses.append([*inputs, len(buffers) - 1])
        return len(buffers) - 1

    before, last = node([], 1_000_000), node([], 1_000_000)
    for cell in range(cells):
        part = 200_000 >> (cell // 6)
        left, right = node([before], part), node([last], part)
        buffers.append(6 * part)
        result = len(buffers) - 1
        ready = [left, right]
        for _ in range(5):
            sources = generator.choice(ready, 2)
            branches = []
            for source in sources:
                hidden = node([int(source)], part)
                branches.append(node([hidden], part))
            accesses.append([*branches, result])
            ready.append(result)
        before, last = last, result
    return find_lifetimes(buffers, accesses)


def inception_like(blocks: int = 11) -> list[Lifetime]:
    """Blocks of four branches that write into one concat."""
    buffers = [900_000]
    accesses: list[list[int]] = []
    source = 0
    for block in range(blocks):
        size = 800_000 >> (block // 4)
        buffers.append(size)
        result = len(buffers) - 1
        for depth in range(4):
            current = source
            for _ in range(depth):
                buffers.append(size // (2 + depth))
                accesses.append([current, len(buffers) - 1])
                current = len(buffers) - 1
            accesses.append([current, result])
        source = result
    return find_lifetimes(buffers, accesses)


@pytest.mark.parametrize(
    "lives",
    [
        residual(16, [802_816, 401_408, 200_704, 100_352]),
        inception_like(),
        *(nasnet_like(seed) for seed in range(8)),
    ],
)
def test_arena_is_close_to_the_bound(lives: list[Lifetime]) -> None:
    assert plan_memory(lives).total <= 1.25 * lower_bound(lives)
