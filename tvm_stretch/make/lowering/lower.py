"""Kernel-level Relax -> executor graph.

    lv  = R.call_tir(cls.conv, (x, w), …)        node conv: x, w -> lv
    lv1 = R.reshape(lv, (1, 64))                 no node: a second tensor on the bytes of lv
    lv2 = R.concat((a, b), axis=1)               no node: a and b are written into lv2's memory
    lv5 = R.strided_slice(lv, rows 8 to 16)      no node: a tensor with strides
    lv3 = R.call_tir(cls.pack, (constant,), …)   `prepare` node: run once, when the artifact loads
    lv4 = cls.r0(lv, lv2)                        the nodes of one region

`main` either calls functions, each a region of the processor that its attribute `processor` names,
or kernels, which then are one region of the CPU. Regions that only contain views are dropped.

A `tvm_stretch.copy` node replaces a view that would start at an address that kernels must not read
(`ALIGNMENT`), and fills the part of a concat whose memory lies elsewhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import tvm
from tvm import relax, tirx

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.make.lowering.conditions import skip_unread
from tvm_stretch.make.lowering.dependences import Links, RegionSteps, happens_before, link_regions
from tvm_stretch.make.lowering.executor_graph import (
    CPU,
    Graph,
    Guard,
    LengthSpec,
    PlanSpec,
    Port,
    ProcessorSpec,
    Region,
    State,
)
from tvm_stretch.make.lowering.placed_tensors import (
    DraftNode,
    TensorTable,
    View,
    in_pieces,
    place_buffers,
)
from tvm_stretch.make.lowering.states import Written, slide_states, write_states
from tvm_stretch.make.lowering.walk import Walk
from tvm_stretch.make.lowering.weights import WeightsBlob
from tvm_stretch.network.expressions import ALIGNMENT, tensor_bytes
from tvm_stretch.network.states import CARRIED, Kept, read_conditions, read_guards, read_states


@dataclass(frozen=True)
class Lowered:
    """A graph, the bytes of its constants and the functions of its kernels.

    The first `own_bytes` of the weights belong to the network, independently of its plan.
    """

    graph: Graph
    weights: tvm.runtime.Tensor
    own_bytes: int
    kernels: Mapping[str, tirx.PrimFunc]


def lower(
    # `main` may only contain calls of regions (or `call_tir` and view operators), tuples and
    # constants; a region may contain the same except calls of regions
    mod: tvm.IRModule,
    # the same network with other plans. Their regions come after those of `mod` and use the same
    # memory, because only one plan runs at a time.
    *others: tvm.IRModule,
    # the processors that the attribute `processor` may name, the CPU first
    processors: Sequence[ProcessorSpec] = (CPU,),
    threads: int = 1,  # number of threads that the kernels were scheduled for
    # contains the network's constants; by default constants come in order of use
    weights: WeightsBlob | None = None,
    # of tensors in the arena, in bytes; parts of other tensors need not keep it
    alignment: int = ALIGNMENT,
    # sizes of named dimensions, for each module, if the modules are one network for inputs of
    # several lengths; then each module has ports of its own
    lengths: Sequence[Mapping[str, int]] = (),
    streams: bool = False,  # whether the executor may keep tensors for the next run
    apart: bool = False,  # whether every tensor in the arena has bytes of its own
) -> Lowered:
    """Turn the function `main` of kernel-level Relax into a graph.

    Raises:
        UnsupportedError: `main` contains anything else, or a shape is not static.
    """
    weights = weights or WeightsBlob()
    walk = Walk(mod, [processor.name for processor in processors], weights)
    walks = [walk, *(walk.over(one) for one in others)]
    visited = [_visit(one) for one in walks]
    held, states = read_states(mod["main"])
    initial = _initial(mod["main"], weights)
    seen = [(own.inputs, outputs, own.regions) for own, outputs in zip(walks, visited, strict=True)]
    slides = slide_states(seen, states, held or 0)
    written = write_states(seen, states, held or 0, walk.kernels)
    drafts = [
        _draft(own, outputs, alignment, shared=not (streams or apart))
        for own, outputs in zip(walks, visited, strict=True)
    ]
    walk.prepare = [*in_pieces(walk.prepare)]
    for region in (region for draft in drafts for region in draft.regions):
        region.steps = [*in_pieces(region.steps)]
    read = [view for draft in drafts for step in draft.steps for view in step.inputs]
    prepared_bytes = place_buffers(walk.prepare, "prepared", kept=read)
    table = TensorTable()
    ports = [_ports(draft, table) for draft in (drafts if lengths else drafts[:1])]
    first = ports[0]
    graph = Graph(
        inputs=first.inputs,
        held=first.held,
        states=_states(states, slides, written, initial),
        outputs=first.outputs,
        kept=first.kept,
        guards=first.guards,
        lengths=tuple(
            replace(own, name=length_name(sizes), sizes=dict(sizes), slides=tuple(own_slides))
            for own, sizes, *own_slides in zip(ports, lengths, *slides, strict=False)
        ),
        prepare=tuple(map(table.add_step, walk.prepare)),
        nodes=tuple(table.add_step(step) for draft in drafts for step in draft.steps),
        processors=tuple(processors),
        regions=_number_regions(drafts, table),
        tensors=tuple(table.ids),
        arena_bytes=max(draft.arena_bytes for draft in drafts),
        weights_bytes=weights.bytes,
        prepared_bytes=prepared_bytes,
        threads=threads,
        streams=streams,
        plans=tuple(
            PlanSpec(f"plan{number}", len(draft.regions))
            for number, draft in enumerate(drafts if others or lengths else ())
        ),
    )
    return Lowered(graph, weights.tensor(), weights.own_bytes, walk.kernels)


def _states(
    states: Sequence[Kept],
    slides: Sequence[tuple[int, ...]],
    written: Sequence[Written | None],
    initial: Mapping[int, int],
) -> tuple[State, ...]:
    """The states, and how each comes to its next value."""
    return tuple(
        State(
            state.result,
            state.axis,
            state.grown,
            max(own),
            starts=rows.starts if rows else -1,
            row=rows.row if rows else 0,
            initial=initial.get(place - len(states), -1),
            scores=state.scores,
            sampling=dict(state.sampling),
            rewind=state.rewind,
        )
        for place, (state, own, rows) in enumerate(zip(states, slides, written, strict=True))
    )


def _initial(main: relax.Function, weights: WeightsBlob) -> dict[int, int]:
    """Offsets of the first values of states, if they are not zeros, by the place from the end."""
    values = (main.attrs or {}).get(CARRIED, {})
    places = {param.name: place - len(main.params) for place, param in enumerate(main.params)}
    return {
        places[str(name)]: weights.add(value)
        for name, value in values.items()
        if tensor_bytes(value).any()
    }


def length_name(sizes: Mapping[str, int]) -> str:
    """``batch=1, n=64``."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


@dataclass(frozen=True)
class _Draft:
    """One plan of the network as regions; its tensors have no numbers yet."""

    main: relax.Function
    inputs: Sequence[View]
    outputs: Sequence[View]
    regions: Sequence[RegionSteps]
    links: Sequence[Links]
    arena_bytes: int

    @property
    def steps(self) -> list[DraftNode]:
        """All steps, in the order of the regions."""
        return [step for region in self.regions for step in region.steps]


def _visit(walk: Walk) -> list[View]:
    """Walk over one module; returns its results."""
    outputs = walk.visit_main(relax.analysis.remove_all_unused(walk.mod["main"]))
    if conditions := read_conditions(walk.mod["main"]):
        names = [param.name for param in walk.mod["main"].params]
        inputs = dict(zip(names, walk.inputs, strict=False))
        skip_unread(walk.regions, inputs, outputs, conditions)
    walk.done.extend(walk.regions)
    return outputs


def _draft(walk: Walk, outputs: Sequence[View], alignment: int, *, shared: bool) -> _Draft:
    """Place the tensors of one module in the arena."""
    regions = [r for r in walk.regions if r.steps] or [RegionSteps("main", 0)]
    links, before = link_regions(regions, outputs)
    steps = [step for region in regions for step in region.steps]
    order = happens_before(regions, before)
    arena_bytes = place_buffers(steps, "arena", earlier=order, alignment=alignment, shared=shared)
    return _Draft(walk.mod["main"], walk.inputs, outputs, regions, links, arena_bytes)


def _ports(draft: _Draft, table: TensorTable) -> LengthSpec:
    """Inputs, outputs, states and guards of one draft, as a length that has no name yet."""
    main = relax.analysis.remove_all_unused(draft.main)
    inputs = tuple(map(Port, (p.name for p in main.params), map(table.add, draft.inputs)))
    results, guards = read_guards(main)
    held, states = read_states(main)
    results = len(draft.outputs) if results is None else results
    results = results if held is None else held
    names = [*names_of_outputs(main, results)]
    names += [f"kept{i}" for i in range(results, len(draft.outputs))]
    ports = tuple(map(Port, names, map(table.add, draft.outputs)))
    places = {port.name: port.tensor for port in inputs}
    return LengthSpec(
        name="",
        sizes={},
        inputs=inputs[: len(inputs) - len(states)],
        held=inputs[len(inputs) - len(states) :],
        outputs=ports[:results],
        kept=ports[results:],
        guards=tuple(
            Guard(places[g.input] if g.input else ports[g.result].tensor, g.low, g.high, g.what)
            for g in guards
        ),
    )


def names_of_outputs(main: relax.Function, count: int) -> Sequence[str]:
    """The outputs' names: those of the source, in the attribute `output_names`, or numbers."""
    names = [str(name) for name in (main.attrs or {}).get("output_names", [])]
    names = names or [f"output{i}" for i in range(count)]
    if len(names) != count:
        raise UnsupportedError(
            f"expected {count} names for the outputs, got {names}; give one per output"
        )
    return names


def _number_regions(drafts: Sequence[_Draft], table: TensorTable) -> tuple[Region, ...]:
    """The regions of all plans, with numbers for their nodes and tensors."""
    numbers = itertools.count()
    regions: list[Region] = []
    for draft in drafts:
        first = len(regions)
        for region, link in zip(draft.regions, draft.links, strict=True):
            regions.append(
                Region(
                    name=region.name,
                    processor=region.processor,
                    nodes=tuple(next(numbers) for _ in region.steps),
                    after=tuple(first + other for other in link.after),
                    receives=tuple(map(table.add_window, link.receives)),
                    sends=tuple(map(table.add_window, link.sends)),
                )
            )
    return tuple(regions)
