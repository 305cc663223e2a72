"""Pieces with branches: large layers in shares, the other kernels where a scheduler puts them.

    conv2d  1.6 ms ─┐              cpu     [conv2d.p0][conv2d1][   ]
    conv2d1 0.3 ms ─┤ add    ->    opencl  [conv2d.p1][conv2d2][add]
    conv2d2 0.4 ms ─┘

Which layers are large enough is tried out: all that `Options` would share, only those that lose
little of the processors' time by it, none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tvm_stretch.scheduling.heft import schedule_heft
from tvm_stretch.scheduling.problem import Operator as Task
from tvm_stretch.scheduling.problem import Problem, Tensor
from tvm_stretch.search.clock import Step
from tvm_stretch.search.costs import Costs
from tvm_stretch.search.network import Network, Piece
from tvm_stretch.search.options import Option, Options, Widths
from tvm_stretch.search.rules import ALPHAS

_EFFICIENT = (0.0, 0.75, 0.85, 0.92)
"""Shares of a layer count as large enough if the processors need at most its ideal time by this."""

_LARGE, _EFFICIENT_IN_LARGE = 200, (0.85,)
"""A piece of so many kernels takes a scheduler 50 ms or more: fewer trials."""


@dataclass
class Mixing:
    """Makes the options of the pieces of one network that a scheduler has a hand in."""

    network: Network
    costs: Costs
    options: Options

    def of_piece(self, piece: Piece, forms: Mapping[str, Widths]) -> Iterator[Option]:
        """The options, given the form in which the piece's entries come."""
        if len(self.costs.processors) < 2 or not self._forks(piece):
            return
        for shares in self._choices(piece):
            option = self._scheduled(piece, forms, shares)
            if option is not None:
                yield option

    def _forks(self, piece: Piece) -> bool:
        readers: dict[str, int] = {}
        for group in piece.groups:
            for name in self.network.reads(group):
                readers[name] = readers.get(name, 0) + 1
        return any(count > 1 for count in readers.values())

    def _choices(self, piece: Piece) -> list[Mapping[str, Widths]]:
        """Which layers are computed in shares: fewer and fewer."""
        every = self.options.worthwhile_shares(piece, ALPHAS[0])
        efficiency = {
            group.anchor.name: self.options.efficiency(group, every[group.anchor.name])
            for group in piece.groups
            if group.anchor.name in every
        }
        found: list[Mapping[str, Widths]] = [{}]
        for least in _EFFICIENT if len(piece.groups) < _LARGE else _EFFICIENT_IN_LARGE:
            shares = {name: w for name, w in every.items() if efficiency[name] >= least}
            if shares not in found:
                found.append(shares)
        return found

    def _scheduled(
        self, piece: Piece, forms: Mapping[str, Widths], shares: Mapping[str, Widths]
    ) -> Option | None:
        base = self.options.follow(piece, forms, shares, self.options.best_place, "")
        steps = base.steps
        result = schedule_heft(self._problem(steps))
        groups = {group.name: group for group in piece.groups}
        placed = {
            step.tensor: result.placement[i]
            for i, step in enumerate(steps, start=1)
            if step.part is None
        }
        if len(set(placed.values())) < 2:
            return None  # then it is shares, or one processor
        found = []
        for index in result.sequence:
            if index:
                step = steps[index - 1]
                whole = step.part is None
                place = result.placement[index]
                found.append(self.options.whole_step(groups[step.tensor], place) if whole else step)
        what = f"scheduled by {result.scheduler}"
        return Option(what, tuple(found), placed, base.forms, shares)

    def _problem(self, steps: Sequence[Step]) -> Problem:
        """Steps as operators; operator 0 has the entries, on the first processor."""
        places = range(len(self.costs.processors))
        by_name = self.network.graph.by_name
        tasks = [Task("entries", tuple(0 if p == 0 else None for p in places))]
        writers: dict[str, list[int]] = {}
        for index, step in enumerate(steps, start=1):
            if step.part is None:
                costs = tuple(self.costs.whole(by_name[step.tensor], p) for p in places)
            else:
                costs = tuple(step.ns if p == step.place else None for p in places)
            tasks.append(Task(_name(step), costs))
            writers.setdefault(step.tensor, []).append(index)
        readers: dict[tuple[str, int], dict[int, None]] = {}
        for index, step in enumerate(steps, start=1):
            for tensor, part in step.reads:
                of = writers.get(tensor, [0])
                own = [w for w in of if w and part is not None and steps[w - 1].part == part]
                for writer in own or of:
                    readers.setdefault((tensor, writer), {})[index] = None
        tensors = [
            Tensor(
                _name(steps[writer - 1]) if writer else tensor,
                steps[writer - 1].bytes if writer else self.network.operators.bytes(tensor),
                writer,
                tuple(after),
            )
            for (tensor, writer), after in readers.items()
        ]
        names = tuple(processor.name for processor in self.costs.processors)
        transfers = tuple(map(tuple, self.costs.transfers()))
        return Problem(names, tuple(tasks), tuple(tensors), transfers)


def _name(step: Step) -> str:
    return step.tensor if step.part is None else f"{step.tensor}.p{step.part}"
