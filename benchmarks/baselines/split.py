"""µLayer and CoDL: layers computed in parts, each on another processor.

    conv 8 ms on cpu, 4 ms on gpu   ->   conv@cpu 1/3, 2.7 ms    conv@gpu 2/3, 2.7 ms

A layer is an operator with the pointwise operators that follow: bias, activation. Its parts
exchange no data before its end.

Channels (µLayer): each part of a layer reads the whole input, so parts exchange their results once
after every layer. Rows (CoDL): inside a chain of layers a part reads only rows of its own
processor, and also computes the halo rows that the following windows read; parts meet at the
chain's end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations, product

from tvm_stretch.plan.scheduling.problem import Job, Problem, Tensor
from tvm_stretch.plan.scheduling.result import Result, result_of
from tvm_stretch.plan.scheduling.simulate import Simulation

# Shares are multiples of 1/16, because channels come in blocks.
_GRAIN = 16
_LONGEST_CHAIN = 8
_MOST_CHOICES = 1 << 12  # of processors for branches

Layer = tuple[int, ...]
"""The operators of a layer: its anchor, then the pointwise operators that follow."""


@dataclass(frozen=True)
class SplitChain:
    """Layers, each the only reader of the one before, cut into the same shares.

    Attributes:
        layers: the layers, only one in a split by channels.
        shares: processor -> share; they sum to 1.
    """

    layers: tuple[Layer, ...]
    shares: dict[int, Fraction]

    @cached_property
    def operators(self) -> tuple[int, ...]:
        """The operators of all layers."""
        return tuple(operator for layer in self.layers for operator in layer)


def schedule_mulayer(problem: Problem) -> Result:
    """µLayer (Kim et al. 2019): every layer on all processors, in shares that finish together.

    A layer that no split makes faster stays whole, and so do layers of branches that are faster
    each on one processor (branch distribution). The estimate ignores synchronisation, so small
    layers become slow. Its types (8 bits on the CPU, half floats on the GPU) are in the costs.
    """
    began = time.perf_counter_ns()
    chains = mulayer_chains(problem)
    pinned = distributed_branches(problem, chains)
    left = [chain for chain in chains if not pinned.keys() & set(chain.operators)]
    names = {problem.operators[op].name: p for op, p in pinned.items()}
    return _carried_out("µLayer", split(problem, left), began, names)


def distributed_branches(problem: Problem, chains: Sequence[SplitChain]) -> dict[int, int]:
    """The processor of each operator in branches that are faster side by side than in shares."""
    shared = {op: chain for chain in chains for op in chain.operators}
    pinned: dict[int, int] = {}
    for branches in _parallel_branches(problem):
        operators = [op for branch in branches for op in branch]
        seen = {id(shared[op]): shared[op] for op in operators if op in shared}
        apart = sum(max(_chain_cost(problem, c, p) for p in c.shares) for c in seen.values())
        apart += sum(problem.cost(op, problem.fastest(op)) for op in operators if op not in shared)
        able = [p for p in range(len(problem.processors)) if _runs(problem, operators, p)]
        if len(able) ** len(branches) > _MOST_CHOICES:
            continue
        least, chosen = min(
            (_busiest(problem, branches, places), places)
            for places in product(able, repeat=len(branches))
        )
        if least < apart:
            pairs = zip(branches, chosen, strict=True)
            pinned |= {op: place for branch, place in pairs for op in branch}
    return pinned


def _runs(problem: Problem, operators: Sequence[int], processor: int) -> bool:
    return all(processor in problem.supported[op] for op in operators)


def _busiest(problem: Problem, branches: Sequence[Layer], places: Sequence[int]) -> int:
    """Nanoseconds of the processor that has the most to do."""
    busy = [0] * len(problem.processors)
    for branch, place in zip(branches, places, strict=True):
        busy[place] += sum(problem.cost(op, place) for op in branch)
    return max(busy)


def _parallel_branches(problem: Problem) -> Iterator[list[Layer]]:
    """Between two operators that all paths pass, the sets of operators without a path between."""
    waiting = [len(after) for after in problem.successors]
    alive: set[int] = set()
    inside: list[int] = []
    for operator in problem.sequence:
        for before in problem.predecessors[operator]:
            waiting[before] -= 1
            if not waiting[before]:
                alive.discard(before)
        alive.add(operator)
        if alive == {operator}:
            branches = _components(problem, inside)
            if len(branches) > 1:
                yield branches
            inside = []
        else:
            inside.append(operator)


def _components(problem: Problem, operators: Sequence[int]) -> list[Layer]:
    """The operators in sets that no tensor connects."""
    sets: list[list[int]] = []
    for operator in operators:
        reads = set(problem.predecessors[operator])
        joined = [one for one in sets if reads & set(one)]
        sets = [one for one in sets if one not in joined]
        sets.append([*(op for one in joined for op in one), operator])
    return [tuple(one) for one in sets]


def mulayer_chains(problem: Problem) -> list[SplitChain]:
    """The layers that would be faster split if exchanges took no time."""
    found = (_best_chain(problem, (layer,), exchange=False)[1] for layer in layers_of(problem))
    return [chain for chain in found if chain]


def schedule_codl(problem: Problem) -> Result:
    """CoDL (Jia et al. 2022): chains of layers on all processors, transfers in the estimate."""
    began = time.perf_counter_ns()
    return _carried_out("CoDL", split(problem, codl_chains(problem)), began)


def codl_chains(problem: Problem) -> list[SplitChain]:
    """The chains that are faster split, including the transfers at both ends.

    Every run of layers is cut so that the sum of its chains' estimates is least.
    """
    chains: list[SplitChain] = []
    for run in _linear_runs(problem):
        least: list[tuple[int, list[SplitChain]]] = [(0, [])]  # for the first layers of the run
        for end in range(1, len(run) + 1):
            options = []
            for begin in range(max(0, end - _LONGEST_CHAIN), end):
                ns, chain = _best_chain(problem, run[begin:end], exchange=True)
                before, earlier = least[begin]
                if chain or end - begin == 1:
                    options.append((before + ns, [*earlier, *([chain] if chain else [])]))
            least.append(min(options, key=lambda option: option[0]))
        chains.extend(least[-1][1])
    return chains


def layers_of(problem: Problem) -> list[Layer]:
    """All splittable operators, grouped into layers, in topological order."""
    found: list[list[int]] = []
    layer_of: dict[int, list[int]] = {}
    for operator in problem.sequence:
        if not problem.operators[operator].splittable:
            continue
        reads = problem.reads[operator]
        source = problem.tensors[reads[0]].producer if len(reads) == 1 else -1
        if problem.operators[operator].pointwise and source in layer_of:
            layer_of[operator] = layer_of[source]
        else:
            layer_of[operator] = []
            found.append(layer_of[operator])
        layer_of[operator].append(operator)
    return [tuple(layer) for layer in found]


def _carried_out(
    name: str, problem: Problem, began: int, pinned: Mapping[str, int] | None = None
) -> Result:
    """Schedule parts on their processors, the rest on one processor or each where it is cheapest.

    Operators that are ``pinned`` by name run there.

    Choosing the cheapest processor operator by operator would leave all on the processor that holds
    the network's inputs, so single processors are tried too.
    """
    fixed = pinned or {}
    best = _with_rest_on(problem, None, None, fixed)
    assert best is not None
    for home in range(len(problem.processors)):
        latest = max(best.finish.values(), default=0)
        best = _with_rest_on(problem, home, latest, fixed) or best
    return result_of(name, best, began)


def _with_rest_on(
    problem: Problem, home: int | None, limit: int | None, pinned: Mapping[str, int]
) -> Simulation | None:
    """Run unsplit operators on ``home``, or where they are cheapest; None if over the limit."""
    simulation = Simulation(problem)

    def takes(operator: int) -> Callable[[int], int]:
        return lambda p: problem.cost(operator, p) + simulation.receive_ns(operator, p)

    for operator in problem.sequence:
        supported = problem.supported[operator]
        wanted = pinned.get(problem.operators[operator].name, home)
        chosen = wanted if wanted in supported else min(supported, key=takes(operator))
        finish = simulation.append(operator, chosen)
        if limit is not None and finish >= limit:
            return None
    return simulation


def _linear_runs(problem: Problem) -> list[tuple[Layer, ...]]:
    """Runs of layers in which each layer is the only reader of the one before."""
    runs: dict[int, list[Layer]] = {}  # by the last layer's first operator
    last_of: dict[int, int] = {}  # the layer of operators that only one other layer reads
    for layer in layers_of(problem):
        inside = set(layer)
        readers = {r for op in layer for r in problem.successors[op]} - inside
        before = problem.predecessors[layer[0]]
        source = last_of.get(before[0], -1) if len(before) == 1 else -1
        runs[layer[0]] = [*(runs.pop(source) if source in runs else []), layer]
        if len(readers) == 1:
            last_of.update(dict.fromkeys(layer, layer[0]))
    return [tuple(run) for run in runs.values()]


def _best_chain(
    problem: Problem, layers: tuple[Layer, ...], *, exchange: bool
) -> tuple[int, SplitChain | None]:
    """Nanoseconds of the fastest way, and its shares; None if one processor is fastest."""
    operators = [operator for layer in layers for operator in layer]
    common = set.intersection(*(set(problem.supported[op]) for op in operators))
    alone = {p: sum(problem.cost(op, p) for op in operators) for p in sorted(common)}
    best: SplitChain | None = None
    least = min(alone.values(), default=0)
    enter = _entering_costs(problem, operators[0]) if exchange else [0] * len(problem.processors)
    for count in range(2, len(common) + 1):
        for processors in combinations(alone, count):
            ideal = 1 / sum(1 / max(1, alone[p]) for p in processors)
            if ideal + max(enter[p] for p in processors) > least:
                continue  # not even a perfect split would be faster
            chain = SplitChain(layers, _balanced({p: alone[p] for p in processors}))
            time = max(_chain_cost(problem, chain, p) for p in chain.shares)
            if exchange:
                time += _exchange_cost(problem, chain)
            if len(chain.shares) == count and time < least:
                best, least = chain, time
    return least, best


def _balanced(alone: Mapping[int, int]) -> dict[int, Fraction]:
    """Shares in proportion to speed; the fastest processor gets the rest of the rounding."""
    times = {p: max(1, ns) for p, ns in alone.items()}
    total = sum(1 / t for t in times.values())
    grains = {p: int(_GRAIN / t / total) for p, t in times.items()}
    grains[min(times, key=times.__getitem__)] += _GRAIN - sum(grains.values())
    return {p: Fraction(grain, _GRAIN) for p, grain in grains.items() if grain}


def _chain_cost(problem: Problem, chain: SplitChain, processor: int) -> int:
    computed = with_halos(problem, chain, processor)
    return sum(part_cost(problem, op, processor, share) for op, share in computed.items())


def _exchange_cost(problem: Problem, chain: SplitChain) -> int:
    """The largest transfer time of a processor: the chain's input and other processors' parts."""
    inside = set(chain.operators)
    enter = _entering_costs(problem, chain.operators[0])
    leave = [
        t
        for op in chain.layers[-1]
        for t in problem.writes[op]
        if not set(problem.tensors[t].consumers) <= inside
    ]
    costs = [0]
    for processor in chain.shares:
        cost = enter[processor]
        for other, share in chain.shares.items():
            if other != processor:
                sizes = (_share_of(problem.tensors[t].bytes, share) for t in leave)
                cost += sum(problem.transfers[other][processor](size) for size in sizes)
        costs.append(cost)
    return max(costs)


def _entering_costs(problem: Problem, operator: int) -> list[int]:
    """The time of each processor to receive the input from where the operator is fastest."""
    home = problem.fastest(operator)
    return [
        sum(problem.transfer_ns[t][home][p] for t in problem.reads[operator])
        for p in range(len(problem.processors))
    ]


def with_halos(problem: Problem, chain: SplitChain, processor: int) -> dict[int, Fraction]:
    """The share of rows that each operator computes, with the halo of the following layers.

    A band between two others has a halo at both ends.
    """
    ends = 1 if len(chain.shares) == 2 else 2
    share = chain.shares[processor]
    found: dict[int, Fraction] = {}
    for layer in reversed(chain.layers):
        found |= dict.fromkeys(reversed(layer), share)
        if problem.operators[layer[0]].halo:
            share = min(Fraction(1), share + ends * problem.operators[layer[0]].halo)
    return found


def part_cost(problem: Problem, operator: int, processor: int, share: Fraction) -> int:
    """Nanoseconds of a part: its share of the operator's time, plus a whole launch."""
    cost = problem.cost(operator, processor)
    launch = min(cost, problem.launch[processor]) if problem.launch else 0
    return launch + _share_of(cost - launch, share)


def _share_of(amount: int, share: Fraction) -> int:
    return -(-amount * share.numerator // share.denominator)


def split(problem: Problem, chains: Sequence[SplitChain]) -> Problem:
    """The problem with the operators of the chains in parts."""
    parts: dict[int, dict[int, int]] = {}  # operator -> processor -> part
    computed = {
        (op, processor): share
        for chain in chains
        for processor in chain.shares
        for op, share in with_halos(problem, chain, processor).items()
    }
    chain_of: dict[int, SplitChain] = {op: chain for chain in chains for op in chain.operators}
    operators: list[Job] = []
    whole_of: dict[int, int] = {}
    for index, operator in enumerate(problem.operators):
        if index not in chain_of:
            whole_of[index] = len(operators)
            operators.append(operator)
            continue
        parts[index] = {}
        for processor in chain_of[index].shares:
            parts[index][processor] = len(operators)
            share = chain_of[index].shares[processor]
            cost = part_cost(problem, index, processor, computed[index, processor])
            operators.append(_part(problem, index, processor, share, cost))
    tensors = []
    for tensor in problem.tensors:
        chain = chain_of.get(tensor.producer)
        sources = parts.get(tensor.producer) or {-1: whole_of[tensor.producer]}
        for processor, source in sources.items():
            readers: list[int] = []
            for consumer in tensor.consumers:
                if consumer not in parts:
                    readers.append(whole_of[consumer])
                elif chain is not None and consumer in chain.operators:
                    readers.append(parts[consumer][processor])
                else:
                    readers.extend(parts[consumer].values())
            share = chain.shares[processor] if chain else Fraction(1)
            size = _share_of(tensor.bytes, share)
            name = f"{tensor.name}@{problem.processors[processor]}" if chain else tensor.name
            tensors.append(Tensor(name, size, source, tuple(readers)))
    return Problem(
        problem.processors,
        tuple(operators),
        tuple(tensors),
        problem.transfers,
        problem.caching,
        problem.launch,
    )


def _part(problem: Problem, index: int, processor: int, share: Fraction, cost: int) -> Job:
    whole = problem.operators[index]
    only = tuple(cost if p == processor else None for p in range(len(problem.processors)))
    return Job(f"{whole.name}@{problem.processors[processor]}", only, whole=whole.name, share=share)
