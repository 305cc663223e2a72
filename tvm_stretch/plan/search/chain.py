"""Chooses an option for each piece of the chain by dynamic programming, hand-overs included.

A state says which processors hold the tensors that a piece reads, and in which parts. For each
state only the predecessor that ends first is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from tvm_stretch.base.compiling import uncollected
from tvm_stretch.base.progress import step
from tvm_stretch.network.operator_graph import Group
from tvm_stretch.network.properties.meeting_points import amortise
from tvm_stretch.plan.scheduling.clock import Clock, Written
from tvm_stretch.plan.search.costs import Costs
from tvm_stretch.plan.search.limits import ALPHAS, NO_LIMITS, Limits
from tvm_stretch.plan.search.objective import Price
from tvm_stretch.plan.search.options import Option, Options, Widths
from tvm_stretch.plan.search.pieces import Network, Piece
from tvm_stretch.plan.search.splitting import LENGTHS, Splitting
from tvm_stretch.targets.kernels.layers import Along

CLEARLY_LESS = (0.99, 0.97)
"""Splits and schedules go before shares alone, which compute nothing twice, only below this factor:
first for costs that were not measured, then for measured ones."""

_BETTER = 0.9998
"""One segment is split into several only below this factor: processors wait where they meet, and
the longer, the more other programs run."""


@dataclass(frozen=True)
class Chain:
    """The options that together compute the network, and when they are predicted to be done."""

    options: tuple[Option, ...]
    ns: int

    @property
    def only_shares(self) -> bool:
        """Whether all options are shares, which compute nothing twice."""
        return not any(option.splits or option.is_schedule for option in self.options)


@dataclass
class _State:
    clock: Clock
    forms: Mapping[str, Widths]
    before: _State | None = None
    option: Option | None = None

    def options(self) -> Iterator[Option]:
        """The options, from the last piece to the first."""
        state: _State | None = self
        while state is not None and state.option is not None:
            yield state.option
            state = state.before


@dataclass
class ChainSearch:
    """See the module docstring."""

    network: Network  # the network to plan
    costs: Costs  # of its kernels
    # the place of each group whose place is given; pieces that have such groups have no other
    # options
    designed: Mapping[str, int] = field(default_factory=dict)
    limits: Limits = NO_LIMITS
    price: Price = lambda ns, _busy: ns  # the state with the smaller one is kept
    _followed: dict[object, list[Option]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.options = Options(self.network, self.costs, self.limits)
        self.splitting = Splitting(self.network, self.costs, self.limits)
        self._spans = self._rows_of()

    def best(self, splits: bool = True) -> Chain:
        """The fastest chain of all options.

        Args:
            splits: whether they may be splits by rows or by channels, or scheduled.
        """
        pieces = self.network.pieces
        states: list[dict[object, _State]] = [{} for _ in range(len(pieces) + 1)]
        states[0][()] = _State(self._begin(), {})
        for index in range(len(pieces)):
            step()
            fixed = list(self._fixed(index)) if splits else []
            for state in list(states[index].values()):
                for option in self._follow(index, state.forms):
                    self._extend(states, state, option, index, 1)
                for option, length in fixed:
                    if not self._kept_apart(pieces[index], state.forms):
                        self._extend(states, state, option, index, length)
        last = min(states[-1].values(), key=lambda s: self.price(self._done(s), s.clock.busy))
        return Chain(tuple(reversed(list(last.options()))), self._done(last))

    def _begin(self) -> Clock:
        """The caller's inputs are with the first processor."""
        inputs = {
            name: [Written(0, 0, self.network.operators.bytes(name))]
            for name in self.network.graph.inputs
        }
        return Clock([0] * len(self.costs.processors), self.costs.enter, inputs)

    def _done(self, state: _State) -> int:
        """The time at which the first processor, the caller's, has the outputs."""
        outputs = self.network.pieces[-1].exits
        clock = state.clock
        held = [piece for name in outputs for piece in clock.tensors[name]]
        coming = [self.costs.hand_over(p.place, 0, p.bytes) for p in held if p.place]
        return clock.when(outputs) + max(coming, default=0)

    def _fixed(self, index: int) -> Iterator[tuple[Option, int]]:
        """Options that do not depend on the state, and how many pieces they compute."""
        pieces = self.network.pieces
        if len(self.costs.processors) < 2:
            return
        scheduled = self.options.scheduled(pieces[index])
        if scheduled is not None:
            yield scheduled, 1
        for option in self.splitting.channels(pieces[index]):
            yield option, 1
        for length in sorted(self._spans[index]):
            for option in self.splitting.rows(pieces[index : index + length]):
                yield option, length

    def _rows_of(self) -> list[set[int]]:
        """For each piece, how many pieces from there on may be split by rows together.

        The lengths in LENGTHS, and lengths between meeting points worth their cost on these
        processors (NN-Stretch, equation 4). A sequence is also split as a whole, because bands of
        tokens compute nothing twice.
        """
        count, costs = len(self.network.pieces), self.costs
        spans = [{n for n in LENGTHS if i + n <= count} for i in range(count)]
        for i, longest in self.splitting.sequences().items():
            spans[i].add(longest)
        places = range(len(costs.processors))
        latency = {}
        for group in self.network.graph.groups:
            times = (costs.whole(group, place) for place in places)
            latency[group.name] = min((ns for ns in times if ns is not None), default=0)
        order = {point.tensor: i for i, point in enumerate(self.network.points.points)}
        for alpha in ALPHAS:
            worth = amortise(self.network.points, latency, partial(costs.meeting, places), alpha)
            for start, end in pairwise(order[point.tensor] for point in worth):
                spans[start].add(end - start)
        return spans

    def _follow(self, index: int, forms: Mapping[str, Widths]) -> list[Option]:
        piece = self.network.pieces[index]
        if any(group.name in self.designed for group in piece.groups):
            apart = self._kept_apart(piece, forms)
            return [] if apart else list(self.options.designed(piece, self.designed))
        key = (index, tuple(forms.items()))
        if key not in self._followed:
            self._followed[key] = list(self.options.of_piece(piece, forms))
        return self._followed[key]

    def _kept_apart(self, piece: Piece, forms: Mapping[str, Widths]) -> bool:
        """Whether a kernel of the piece would stay in the parts that it reads."""
        return bool(forms) and any(
            self.options.kept_parts(group, forms) is not None for group in piece.groups
        )

    def _extend(
        self,
        states: list[dict[object, _State]],
        state: _State,
        option: Option,
        index: int,
        length: int,
    ) -> None:
        clock = state.clock.copy()
        clock.run(option.steps)
        exits = self.network.pieces[index + length - 1].exits
        clock.keep(exits)
        forms = {name: w for name, w in {**state.forms, **option.forms}.items() if name in exits}
        extended = _State(clock, forms, state, option)
        places = tuple(tuple(p.place for p in clock.tensors[name]) for name in exits)
        key = (places, tuple(sorted(forms.items())))
        best = states[index + length].get(key)
        # what comes later has more splits
        if best is None or self.price(clock.when(exits), clock.busy) < _BETTER * self.price(
            best.clock.when(exits), best.clock.busy
        ):
            states[index + length][key] = extended


@uncollected()
def rank(network: Network, costs: Costs, limits: Limits = NO_LIMITS) -> list[Chain]:
    """Ways to compute a network on several processors, the most promising first.

    The best chain of shares alone, and the best chain of all if that is another one. This takes at
    most two seconds for every network of the zoo. Kernels are lowered before and after it, and not
    again for the build.
    """
    _ask_for_all(network, costs)
    if len(costs.processors) < 2:
        return []
    chains = ChainSearch(network, costs, limits=limits)
    shares, chosen = chains.best(splits=False), chains.best()
    if chosen.options == shares.options:
        return [shares]
    clearly = chosen.ns < CLEARLY_LESS[costs.trusted] * shares.ns
    return [chosen, shares] if clearly else [shares, chosen]


def rank_by_price(network: Network, costs: Costs, limits: Limits) -> list[Chain]:
    """The best chains by other prices than latency, for an objective that has some."""
    prices = limits.objective.prices(costs.power) if len(costs.processors) > 1 else []
    chains = [ChainSearch(network, costs, limits=limits, price=price).best() for price in prices]
    return list({chain.options: chain for chain in chains}.values())


def _ask_for_all(network: Network, costs: Costs) -> None:
    """Ask for all kernels in one batch, with the halves that the options of their pieces need."""
    wanted: dict[Group, Sequence[Along]] = {}
    for piece in network.pieces:
        halves: tuple[Along, ...] = ("outputs",)
        if piece.start:
            between = network.operators.between(piece.start, piece.end)
            ends_in_parts = any(operator.kind == "concat" for operator in between)
            halves = ("outputs", "rows") if ends_in_parts else ("outputs", "rows", "inputs")
        wanted.update(dict.fromkeys(piece.groups, halves))
    costs.ask_for(network.graph.groups, wanted)
