"""Searches the plan of a network of many equal layers with three of them, and repeats it for all.

    30 layers  ->  3 layers: prices, builds, measurements  ->  the first one: as the first of three
                                                               28 between: as the second
                                                               the last one: as the third

A language model of 30 layers is priced, built and measured in the time that three of them take.
Few enough weights for a CPU's caches stay there while plans are measured; plans run in turns, so
that each run finds what the others left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import tvm

from tvm_stretch.base.errors import PlanError, UnsupportedError
from tvm_stretch.make.branching import branch
from tvm_stretch.make.pipeline import Job
from tvm_stretch.network.expressions import bindings_of, variables_of
from tvm_stretch.network.operators import Calls
from tvm_stretch.network.properties.equal_layers import (
    KEPT,
    EqualLayers,
    find_equal_layers,
    with_fewer_layers,
)
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.plan.search.decision import Decision
from tvm_stretch.plan.splits import Split

_WORTH = 500
"""Bindings that a search must save; smaller networks are searched whole."""


@dataclass(frozen=True)
class FewerLayers:
    """A network and the same with fewer layers."""

    whole: tvm.IRModule
    mod: tvm.IRModule
    run: EqualLayers

    @staticmethod
    def find(mod: tvm.IRModule) -> FewerLayers | None:
        """The network with fewer layers, if that saves much."""
        run = find_equal_layers(mod["main"])
        if run is None or run.removed < _WORTH:
            return None
        fewer = with_fewer_layers(mod, run)
        return None if fewer is None else FewerLayers(mod, fewer, run)

    def decision(
        self,
        shorter: Decision,  # that for fewer layers
        job: Job,  # the whole network
    ) -> Decision | None:
        """The decision for all layers; None if the plan does not repeat from layer to layer."""
        note = f"searched with {KEPT} of {self.run.count} equal layers"
        own = replace(shorter.job, mod=self.whole, observer=job.observer).by(None)
        if shorter.plan is not None:
            try:
                own = own.by(self._repeated(shorter.plan))
                _ = own.plan  # checks the order of the regions
            except (PlanError, UnsupportedError):
                return None
        rows = [replace(one, what=f"{one.what} ({note})") for one in shorter.considered or ()]
        return replace(shorter, job=own, considered=rows or None, trial=None).noted(note)

    def repeats(self, plan: Plan) -> bool:
        """Whether the plan is one for all layers, too."""
        try:
            self._repeated(plan)
        except (PlanError, UnsupportedError):
            return False
        return True

    def _repeated(self, plan: Plan) -> Plan:
        """The plan for all layers.

        Raises:
            PlanError: it does not repeat from layer to layer.
        """
        shares = {
            self._image(name, layer): widths
            for name, widths in plan.shares.items()
            for layer in self._layers(self._kept(name))
        }
        splits = tuple(split for one in plan.splits for split in self._splits(one))
        cut = replace(plan, shares=shares, splits=splits, regions=(), refusals=(), remarks=())
        return replace(cut, regions=tuple(self._regions(plan, cut)))

    @cached_property
    def _places(self) -> dict[str, tuple[int, int]]:
        """Where each operator and input of the network with fewer layers is.

        Inputs are where they are read first: position and number among the inputs read there.
        """
        return {
            name: (position, number)
            for position, names in reversed([*enumerate(_names(self.mod))])
            for number, name in enumerate(names)
        }

    @cached_property
    def _names(self) -> list[list[str]]:
        """The operator at each position of the whole network, and the inputs that it reads."""
        return _names(self.whole)

    def _kept(self, name: str) -> int:
        """The layer, of three, of an operator or input; -1 before and 3 after them."""
        return replace(self.run, count=KEPT).layer_of(self._places[name][0])

    def _layers(self, kept: int) -> range:
        """The layers of the whole network that one of the three layers stands for."""
        first = kept if kept < KEPT - 1 else kept + self.run.count - KEPT
        return range(first, self.run.count - 1 if kept == 1 else first + 1)

    def _image(self, name: str, layer: int) -> str:
        """What an operator or input is in a layer of the whole network."""
        position, number = self._places[name]
        return self._names[position + (layer - self._kept(name)) * self.run.period][number]

    def _splits(self, split: Split) -> Iterator[Split]:
        """The split of each layer; or one split that begins and ends in layers that occur once."""
        start, end = self._kept(split.start), self._kept(split.end)
        if 1 not in (start, end):
            first, last = self._layers(start)[0], self._layers(end)[0]
            names = self._image(split.start, first), self._image(split.end, last)
            yield replace(split, start=names[0], end=names[1])
            return
        if start < 0 or end > KEPT - 1 or start == KEPT - 1:
            raise _uneven()
        for layer in self._layers(end):
            before = self._image(split.start, layer - (end - start))
            yield replace(split, start=before, end=self._image(split.end, layer))

    def _regions(self, plan: Plan, cut: Plan) -> Iterator[PlannedRegion]:
        """The regions of all layers; one that goes on in the next layer does so in each.

        Args:
            cut: the whole network's plan without regions.
        """
        few, all_of = _parts(self.mod, plan), _parts(self.whole, cut)
        origin = {name: base for base, names in few.items() for name in names}
        pieces: list[dict[int, list[str]]] = [{} for _ in range(KEPT + 2)]
        for number, region in enumerate(plan.regions):
            for name in region.operators:
                own = pieces[self._kept(origin[name]) + 1]
                own.setdefault(number, []).append(name)
        merged: list[tuple[int, list[str]]] = []
        going_on: dict[str, list[str]] = {}  # the region of each processor that is not at its end
        for kept, here in enumerate(pieces):
            for layer in self._layers(kept - 1):
                before, going_on = going_on, {}
                for number, names in here.items():
                    processor = plan.regions[number].processor
                    goes_on = kept > 0 and number in pieces[kept - 1]
                    into = before.get(processor) if goes_on else None
                    if into is None:
                        merged.append((number, into := []))
                    for name in names:
                        base = origin[name]
                        parts = all_of.get(self._image(base, layer), [])
                        if len(parts) != len(few[base]):
                            raise _uneven()
                        into.append(parts[few[base].index(name)])
                    if kept + 1 < len(pieces) and number in pieces[kept + 1]:
                        going_on[processor] = into
        for index, (number, names) in enumerate(merged):
            region = plan.regions[number]
            yield PlannedRegion(f"r{index}", region.processor, tuple(names), why=region.why)


def _uneven() -> PlanError:
    return PlanError("expected a plan that repeats from layer to layer, got another")


def _names(mod: tvm.IRModule) -> list[list[str]]:
    params = {*mod["main"].params}
    return [
        [binding.var.name, *(var.name for var in variables_of(binding.value) if var in params)]
        for binding in bindings_of(mod["main"])
    ]


def _parts(mod: tvm.IRModule, plan: Plan) -> dict[str, list[str]]:
    """By operator of the network, the operators that a plan's shares and splits make of it."""
    branched = branch(mod, plan.shares, plan.splits)
    parts: dict[str, list[str]] = {}
    for name in Calls(branched.mod["main"]).calls:
        base = branched.parts[name].operators[0] if name in branched.parts else name
        parts.setdefault(base, []).append(name)
    return parts
