"""HOPE's integer linear program (section 2.1), solved with HiGHS.

Variables per operator i of a piece: b[i,p] in {0,1} (runs on p), start[i], end[i]; per pair without
a path: before[i,k] in {0,1}; per tensor t that i reads: x[t,i,q,p] in {0,1} (i receives t, written
on q, on p), so that a processor receives a tensor once:

    end[i] = start[i] + sum b[i,p] cost[i,p] + sum x[t,i,q,p] transfer[t,q,p]           (1)
    T >= end[i]                                                                          (2)
    start[k] >= end[i]                                   for i -> k                      (3)
    start[i] >= end[k] - M before[i,k] - M (2 - b[i,p] - b[k,p])      and vice versa     (5)
    sum over p of b[i,p] = 1                                                             (6)
    x[t,i,q,p] <= b[i,p]
    sum over readers i of x[t,i,q,p] >= b[producer,q] + b[k,p] - 1   for every reader k
    start[k] >= end[i] - M (1 - x[t,i,q,p]) - M (1 - b[k,p])         k reads t after i received it

Starts and ends have bounds, because the result has to be at least as fast as a known list schedule:
no operator starts before the shortest path to it ends, or ends too late for the shortest path from
it. The bounds are slightly wider than that: the solver works with tolerances, and would call a
program infeasible if its only solutions are as long as the known schedule. M is as small as these
bounds allow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Literal, TypeAlias

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from tvm_stretch.plan.scheduling.simulate import Simulation

# The limit of the solver's search nodes if its time is limited: the same on every machine.
_NODES = 200
_KNOWN = 1000.0  # times are scaled so that the list schedule of the piece takes this long
_HORIZON = 1.01 * _KNOWN
_ROUNDED = 1 - 1e-9  # a factor of bounds, so that rounding does not make them infeasible


PieceEnd: TypeAlias = Literal["proved", "found", "list"]
"""How solving a piece ended: proved optimal, the best solution within the limit of nodes, or the
list schedule because the solver found none that is as fast."""


def solve_piece(
    simulation: Simulation,  # a simulation of all operators that the piece depends on
    piece: Sequence[int],  # operators in topological order
    *,
    # the solver's time; if given, its nodes are limited too, and it ends at a gap of a thousandth
    seconds: float | None = None,
) -> PieceEnd:
    """Append the operators of a piece to the simulation so that the last one finishes first."""
    if not piece:
        return "proved"
    trial = simulation.copy()
    for operator in piece:
        supported = simulation.problem.supported[operator]
        trial.append(operator, min(supported, key=lambda p: trial.finish_on(operator, p)))
    program = _Program(simulation, piece, _end(trial, piece))
    limits = {"mip_rel_gap": 1e-3, "node_limit": _NODES, "time_limit": seconds}
    options = {"mip_rel_gap": 0.0} if seconds is None else limits
    solution = milp(
        program.objective(),
        integrality=np.array(program.integer),
        bounds=Bounds(np.array(program.lower), np.array(program.upper)),
        constraints=program.constraints(),
        options=options,
    )
    solved = None if solution.x is None else _solved(simulation, piece, program, solution.x)
    if solved is None or _end(solved, piece) > _end(trial, piece):
        _replay(simulation, piece, trial.placement, trial.start, trial.finish)
        return "list"
    _replay(simulation, piece, solved.placement, solved.start, solved.finish)
    return "proved" if solution.status == 0 else "found"


def _end(simulation: Simulation, piece: Sequence[int]) -> int:
    return max(simulation.finish[i] for i in piece)


def _solved(
    simulation: Simulation, piece: Sequence[int], program: _Program, values: np.ndarray
) -> Simulation:
    """A copy of the simulation with the solver's schedule of the piece appended."""
    placement = {
        i: max(program.problem.supported[i], key=lambda p: values[program.on[i, p]]) for i in piece
    }
    start = {i: values[program.start[i]] for i in piece}
    end = {i: values[program.end[i]] for i in piece}
    solved = simulation.copy()
    _replay(solved, piece, placement, start, end)
    return solved


def _replay(
    simulation: Simulation,
    piece: Sequence[int],
    placement: dict[int, int],
    start: Mapping[int, float],
    end: Mapping[int, float],
) -> None:
    """Append operators in the order of their middles, with exact integers, after predecessors.

    The order of starts would be ambiguous for an operator of zero length and the next one.
    """
    remaining = list(piece)
    while remaining:
        open_operators = [
            op
            for op in remaining
            if all(p in simulation.finish for p in simulation.problem.predecessors[op])
        ]
        operator = min(open_operators, key=lambda op: start[op] + end[op])
        simulation.append(operator, placement[operator])
        remaining.remove(operator)


class _Program:
    """The variables and constraints of one piece."""

    def __init__(self, simulation: Simulation, piece: Sequence[int], latest: int) -> None:
        self.simulation, self.piece, self.problem = simulation, piece, simulation.problem
        self.inside = set(piece)
        self.base = min(simulation.free) if simulation.finish else 0
        self.scale = _KNOWN / max(1, latest - self.base)
        self.integer: list[int] = []
        self.lower: list[float] = []
        self.upper: list[float] = []
        self.rows: list[tuple[dict[int, float], float]] = []  # coefficients, at least this
        self.last = self._variable(0, _HORIZON)
        least = {
            i: self.problem.cost(i, self.problem.fastest(i)) * self.scale * _ROUNDED for i in piece
        }
        head, tail = self._heads(least), self._tails(least)
        self.start = {i: self._variable(head[i], _HORIZON - tail[i] - least[i]) for i in piece}
        self.end = {i: self._variable(head[i] + least[i], _HORIZON - tail[i]) for i in piece}
        self.on = {(i, p): self._binary() for i in piece for p in self.problem.supported[i]}
        self.durations: dict[int, dict[int, float]] = {i: {} for i in piece}
        for i in piece:
            self._place_once(i)
            self._start_when_ready(i)
        for t in sorted({t for i in piece for t in self.problem.reads[i]}):
            self._receive(t)
        for i in piece:
            self._equal({self.end[i]: 1.0, self.start[i]: -1.0} | self.durations[i], 0.0)
            self._at_least({self.last: 1.0, self.end[i]: -1.0}, 0.0)
        self._one_at_a_time()
        self._load()

    def objective(self) -> np.ndarray:
        """Minimise the last end."""
        costs = np.zeros(len(self.lower))
        costs[self.last] = 1.0
        return costs

    def constraints(self) -> LinearConstraint:
        """All rows as one sparse matrix."""
        entries = [(r, c, v) for r, (row, _) in enumerate(self.rows) for c, v in row.items()]
        rows, columns, values = zip(*entries, strict=True)
        shape = (len(self.rows), len(self.lower))
        matrix = csr_array((values, (rows, columns)), shape=shape)
        return LinearConstraint(matrix, np.array([bound for _, bound in self.rows]), np.inf)

    def _variable(self, low: float, high: float, integer: int = 0) -> int:
        self.lower.append(low)
        self.upper.append(high)
        self.integer.append(integer)
        return len(self.lower) - 1

    def _binary(self) -> int:
        return self._variable(0, 1, 1)

    def _at_least(self, row: dict[int, float], bound: float) -> None:
        self.rows.append((row, bound))

    def _equal(self, row: dict[int, float], bound: float) -> None:
        self._at_least(row, bound)
        self._at_least({column: -value for column, value in row.items()}, -bound)

    def _scaled(self, time: int) -> float:
        return (time - self.base) * self.scale

    def _heads(self, least: Mapping[int, float]) -> dict[int, float]:
        """The earliest start of each operator."""
        heads: dict[int, float] = {}
        for i in self.piece:
            heads[i] = (
                max(
                    0.0,
                    min(self._scaled(self.simulation.free[p]) for p in self.problem.supported[i]),
                    *(self._scaled(self.simulation.finish[b]) for b in self._outside(i)),
                    *(heads[b] + least[b] for b in self.problem.predecessors[i] if b in heads),
                )
                * _ROUNDED
            )
        return heads

    def _tails(self, least: Mapping[int, float]) -> dict[int, float]:
        """The least time from the end of each operator to the end of the piece."""
        tails = dict.fromkeys(self.piece, 0.0)
        for i in reversed(self.piece):
            for before in self.problem.predecessors[i]:
                if before in self.inside:
                    tails[before] = max(tails[before], tails[i] + least[i])
        return tails

    def _outside(self, i: int) -> list[int]:
        return [b for b in self.problem.predecessors[i] if b not in self.inside]

    def _not_before(self, later: int, earlier: int, unless: Mapping[int, float], free: int) -> None:
        """``later`` starts after ``earlier`` ends if no binary of ``unless`` frees it.

        Args:
            later: the operator that has to wait.
            earlier: the operator that it waits for.
            unless: binaries with signs: -1 if the rule needs a one, 1 if it needs a zero.
            free: how many binaries have to be one.
        """
        most = self.upper[self.end[earlier]] - self.lower[self.start[later]]
        if most > 0:
            row = {self.start[later]: 1.0, self.end[earlier]: -1.0}
            self._at_least(row | {b: sign * most for b, sign in unless.items()}, -free * most)

    def _place_once(self, i: int) -> None:
        """Add (6), and the costs of computing for (1)."""
        supported = self.problem.supported[i]
        self._equal({self.on[i, p]: 1.0 for p in supported}, 1.0)
        for p in supported:
            self.durations[i][self.on[i, p]] = -self.problem.cost(i, p) * self.scale

    def _start_when_ready(self, i: int) -> None:
        """Add (3), and start after the earlier pieces on each processor."""
        for before in self.problem.predecessors[i]:
            if before in self.inside:
                self._at_least({self.start[i]: 1.0, self.end[before]: -1.0}, 0.0)
            else:
                self._at_least({self.start[i]: 1.0}, self._scaled(self.simulation.finish[before]))
        for p in self.problem.supported[i]:
            free = self._scaled(self.simulation.free[p])
            if free > 0:
                self._at_least({self.start[i]: 1.0, self.on[i, p]: -free}, 0.0)

    def _receive(self, t: int) -> None:
        """Add the transfers of one tensor to each processor that reads it."""
        tensor = self.problem.tensors[t]
        readers = [i for i in tensor.consumers if i in self.inside]
        for q, p in self._routes(t):
            cost = self.problem.transfer_ns[t][q][p] * self.scale
            here = [i for i in readers if p in self.problem.supported[i]]
            receive = {i: self._binary() for i in here}
            for i in here:
                self.durations[i][receive[i]] = -cost
                self._at_least({self.on[i, p]: 1.0, receive[i]: -1.0}, 0.0)
                self._received_by_someone(t, q, p, i, receive)
                if self.problem.caching:
                    self._after_it_was_received(i, p, receive)

    def _routes(self, t: int) -> Iterator[tuple[int, int]]:
        """Pairs of processors between which the tensor may need a transfer that costs time."""
        producer = self.problem.tensors[t].producer
        inside, received = producer in self.inside, self.simulation.received
        sources = (
            self.problem.supported[producer] if inside else (self.simulation.placement[producer],)
        )
        for q in sources:
            for p in range(len(self.problem.processors)):
                is_cached = self.problem.caching and (t, p) in received
                if self.problem.transfer_ns[t][q][p] > 0 and p != q and not is_cached:
                    yield q, p

    def _received_by_someone(
        self, t: int, q: int, p: int, reader: int, receive: dict[int, int]
    ) -> None:
        producer = self.problem.tensors[t].producer
        receivers = receive if self.problem.caching else {reader: receive[reader]}
        row = dict.fromkeys(receivers.values(), 1.0) | {self.on[reader, p]: -1.0}
        if producer in self.inside:
            self._at_least(row | {self.on[producer, q]: -1.0}, -1.0)
        else:
            self._at_least(row, 0.0)

    def _after_it_was_received(self, reader: int, p: int, receive: dict[int, int]) -> None:
        for i, received in receive.items():
            if i != reader:
                self._not_before(reader, i, {received: -1.0, self.on[reader, p]: -1.0}, 2)

    def _one_at_a_time(self) -> None:
        """Add (5) for pairs that no path orders."""
        ordered = self._ordered_pairs()
        for i, k in combinations(self.piece, 2):
            shared = set(self.problem.supported[i]) & set(self.problem.supported[k])
            if (i, k) in ordered or not shared:
                continue
            before = self._binary()  # 1: i runs before k
            for p in shared:
                both = {self.on[i, p]: -1.0, self.on[k, p]: -1.0}
                self._not_before(i, k, {before: 1.0} | both, 2)
                self._not_before(k, i, {before: -1.0} | both, 3)

    def _load(self) -> None:
        """Add T >= load of every used processor, which is implied but helps the solver."""
        for p in range(len(self.problem.processors)):
            on = [self.on[i, p] for i in self.piece if p in self.problem.supported[i]]
            free = min(_HORIZON, max(0.0, self._scaled(self.simulation.free[p])))
            load = {
                self.on[i, p]: self.durations[i].get(self.on[i, p], 0.0)
                for i in self.piece
                if p in self.problem.supported[i]
            }
            for used in on:
                self._at_least({self.last: 1.0} | load | {used: load[used] - free}, 0.0)

    def _ordered_pairs(self) -> set[tuple[int, int]]:
        """Pairs of the piece with a path from the first to the second."""
        ordered: set[tuple[int, int]] = set()
        for k in self.piece:
            for before in self.problem.predecessors[k]:
                if before in self.inside:
                    ordered.add((before, k))
                    ordered |= {(i, k) for i in self.piece if (i, before) in ordered}
        return ordered
