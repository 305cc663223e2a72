"""The memory planner: against a byte map, against the bound, on shapes of real networks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_stretch.lowering.memory_plan import (
    ALIGNMENT,
    Lifetime,
    MemoryPlan,
    align,
    find_lifetimes,
    lower_bound,
    plan_memory,
)

_STEPS = 12

lifetimes = st.lists(
    st.builds(
        lambda size, first, length: Lifetime(size, first, min(first + length, _STEPS - 1)),
        size=st.integers(0, 5000),
        first=st.integers(0, _STEPS - 1),
        length=st.integers(0, _STEPS),
    ),
    max_size=24,
)


def occupied(plan: MemoryPlan, lives: list[Lifetime], step: int) -> np.ndarray:
    """How many live buffers claim each byte of the arena at a step."""
    claims = np.zeros(plan.total, int)
    for life, offset in zip(lives, plan.offsets, strict=True):
        if life.first <= step <= life.last:
            claims[offset : offset + life.size] += 1
    return claims


@given(lifetimes)
def test_live_buffers_never_share_a_byte(lives: list[Lifetime]) -> None:
    plan = plan_memory(lives)
    for step in range(_STEPS):
        assert occupied(plan, lives, step).max(initial=0) <= 1


@given(lifetimes)
def test_offsets_are_aligned_and_inside(lives: list[Lifetime]) -> None:
    plan = plan_memory(lives)
    for life, offset in zip(lives, plan.offsets, strict=True):
        assert offset % ALIGNMENT == 0
        assert 0 <= offset <= offset + life.size <= plan.total


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
    for buffer, life in enumerate(find_lifetimes(sizes, accesses)):
        touching = [step for step, buffers in enumerate(accesses) if buffer in buffers]
        if touching:
            assert life == Lifetime(sizes[buffer], min(touching), max(touching))
        else:
            assert life.size == 0


def test_nothing_to_place() -> None:
    assert plan_memory([]) == MemoryPlan((), 0)


def test_chain_needs_two_buffers() -> None:
    lives = [Lifetime(1024, step, step + 1) for step in range(50)]
    assert plan_memory(lives).total == 2048


def test_small_buffer_goes_into_the_tightest_gap() -> None:
    lives = [
        Lifetime(1024, 0, 1),  # leaves a gap of 1024 bytes
        Lifetime(960, 0, 3),
        Lifetime(576, 0, 1),  # leaves a gap of 576 bytes
        Lifetime(512, 0, 3),
        Lifetime(448, 2, 3),
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
