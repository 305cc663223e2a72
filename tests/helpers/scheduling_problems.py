"""Small scheduling problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from hypothesis import strategies as st

from tvm_stretch.plan.scheduling import FREE, Job, Problem, Tensor, TransferCost, linear_transfer

Costs = Sequence[Sequence[int | None]]


def problem(
    costs: Costs,
    tensors: Mapping[int, tuple[int, Sequence[int]]],
    *,
    transfer: TransferCost = FREE,
    processors: int | None = None,
    splittable: bool = False,
) -> Problem:
    """Operators o0, o1, … by their costs; tensors by their producer: bytes and consumers."""
    count = processors or len(costs[0])
    return Problem(
        tuple(f"p{i}" for i in range(count)),
        tuple(Job(f"o{i}", tuple(cost), splittable) for i, cost in enumerate(costs)),
        tuple(Tensor(f"t{i}", n, i, tuple(after)) for i, (n, after) in tensors.items()),
        ((transfer,) * count,) * count,
    )


def chain(costs: Costs, *, transfer: int = 0, splittable: bool = False) -> Problem:
    """Each operator reads the one before it."""
    tensors = {i: (32, [i + 1]) for i in range(len(costs) - 1)}
    constant = TransferCost(((0, transfer),))
    return problem(costs, tensors, transfer=constant, splittable=splittable)


def fan(costs: Costs, *, transfer: int = 0, read_bytes: int = 1) -> Problem:
    """All operators but the first and the last read the first; the last reads them."""
    last = len(costs) - 1
    tensors = {0: (read_bytes, list(range(1, last)))} | {i: (1, [last]) for i in range(1, last)}
    return problem(costs, tensors, transfer=TransferCost(((0, transfer),)))


@st.composite
def problems(
    draw: st.DrawFn, *, most: int = 6, processors: int | None = None, splittable: bool = False
) -> Problem:
    """Random acyclic graphs, with operators that some processors do not support."""
    count = processors or draw(st.integers(1, 3))
    size = draw(st.integers(1, most))
    cost = st.one_of(st.none(), st.integers(0, 12), st.integers(0, 12), st.integers(0, 12))
    operators = []
    for i in range(size):
        costs = draw(st.lists(cost, min_size=count, max_size=count))
        if all(c is None for c in costs):
            costs[draw(st.integers(0, count - 1))] = draw(st.integers(0, 12))
        if splittable and draw(st.booleans()):
            halo = Fraction(draw(st.integers(0, 4)), 4)
            kind = {"pointwise": True} if draw(st.booleans()) else {"halo": halo}
            operators.append(Job(f"o{i}", tuple(costs), True, **kind))
        else:
            operators.append(Job(f"o{i}", tuple(costs)))
    tensors = []
    for i in range(size - 1):
        after = draw(st.lists(st.integers(i + 1, size - 1), unique=True, max_size=3))
        tensors.append(Tensor(f"t{i}", draw(st.integers(0, 6)), i, tuple(after)))
    costs_of_pairs = st.builds(
        linear_transfer, st.integers(0, 3), st.integers(1, 3).map(lambda n: n * 1000)
    )
    transfers = tuple(tuple(draw(costs_of_pairs) for _ in range(count)) for _ in range(count))
    names = tuple(f"p{i}" for i in range(count))
    return Problem(names, tuple(operators), tuple(tensors), transfers, draw(st.booleans()))
