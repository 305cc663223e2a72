"""States that a run changes need no copies where the CPU alone reads and writes them, in all plans.

Other processors know a tensor by its address.

Caches of full length: a run writes its rows to the next cache, which has the others already.

    held       |aaaaaaaa|bbbbbbbb|      present = scatter_nd(held, places, rows)
    present    |aaaAaaaa|bbbBbbbb|      starts  = where the written rows A and B begin

The executor exchanges both memories after a run, so `present` is the cache of a run before. It
lacks the rows that were written since, and `starts` tells which. Before the next run the executor
copies these, or the whole cache where it does not know the missing rows: at first, after a run that
failed, and after a state was set. A run never writes to `held`.

Caches that grow stay where they are: a run appends rows and the window on the memory moves.

    held         |..|aaaaaaaa|..|bbbbbbbb|            two heads, each with a row that was dropped
    present         |aaaaaaaa|AA|bbbbbbbb|BB|         what a run adds replaces dropped rows
                     <------- slide

The network computes ``present = concat((held[.., grown:, ..], new))``, which is the next `held`
(`network/states.py`). If it begins `slide` bytes after `held`, the old rows lie where `present` has
them. A run that fails has only replaced dropped rows, so the state is as it was. Lengths append
different numbers of rows to one state, so each slides by bytes of its own; rows that are no part of
the state move along, as many as the longest length appends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tvm import tirx

from tvm_stretch.make.lowering.dependences import RegionSteps
from tvm_stretch.make.lowering.executor_graph import COPY_KERNEL, WRITE_KERNEL
from tvm_stretch.make.lowering.placed_tensors import Buffer, DraftNode, View, new_view
from tvm_stretch.network.attributes import WRITES_PLACES
from tvm_stretch.network.expressions import ALIGNMENT, dtype_bytes
from tvm_stretch.network.states import Kept

Plan = tuple[Sequence[View], list[View], Sequence[RegionSteps]]
"""Inputs, results and regions; the last inputs are states."""


@dataclass(frozen=True)
class Written:
    """The rows that a run writes to a state."""

    starts: int  # position of the result that has their first bytes
    row: int  # bytes of a row


def write_states(
    plans: Sequence[Plan],  # results are added to each
    states: Sequence[Kept],
    results: int,  # the caller's
    kernels: Mapping[str, tirx.PrimFunc],
) -> list[Written | None]:
    """For each state, what a run writes if the other rows need no copy.

    The steps that copied and wrote it only write then.
    """
    writes: list[Written | None] = []
    for place, state in enumerate(states):
        index = len(plans[0][1])
        own = [_writer(plan, place - len(states), state, kernels) for plan in plans]
        steps = [one for one in own if one is not None]
        sizes = {_row_bytes(step) for _, step in steps}
        if state.grown or state.result < results or len(steps) < len(plans) or len(sizes) != 1:
            writes.append(None)
            continue
        for (_, outputs, _), (region, step) in zip(plans, steps, strict=True):
            outputs.append(_write(region, step, index))
        writes.append(Written(index, sizes.pop()))
    return writes


def _writer(
    plan: Plan, place: int, state: Kept, kernels: Mapping[str, tirx.PrimFunc]
) -> tuple[RegionSteps, DraftNode] | None:
    """The one step that makes the next state, if it copies the state and writes places."""
    inputs, outputs, regions = plan
    held, present = inputs[place], outputs[state.result]
    writers = []
    for region in regions:
        for step in region.steps:
            written = present.buffer in [view.buffer.root for view in step.outputs]
            read = held.buffer in [view.buffer.root for view in step.inputs]
            if region.processor and (read or written):
                return None
            if written:
                writers.append((region, step))
    if len(writers) != 1:
        return None
    step = writers[0][1]
    function = kernels.get(step.kernel)
    if function is None or WRITES_PLACES not in (function.attrs or {}) or len(step.inputs) != 3:
        return None
    old, *given = step.inputs
    whole = [(old, held), (step.outputs[0], present)]
    same = all(view.buffer is port.buffer and view.is_whole_buffer for view, port in whole)
    return writers[0] if same and all(view.layout.is_dense for view in given) else None


def _row_bytes(step: DraftNode) -> int:
    """Bytes of what a place holds."""
    old, places, _ = step.inputs
    return prod(old.shape[places.shape[-1] :]) * dtype_bytes(old.dtype)


def _write(region: RegionSteps, step: DraftNode, index: int) -> View:
    """Let a step only write rows, and where they begin, which is the result."""
    _, places, rows = step.inputs
    starts = new_view("output", (prod(places.shape[:-1]),), "int64", index)
    outputs = (*step.outputs, starts)
    writing = replace(step, kernel=WRITE_KERNEL, inputs=(places, rows), outputs=outputs)
    region.steps[region.steps.index(step)] = writing
    return starts


Found = tuple[RegionSteps, DraftNode]


def slide_states(
    # of each plan: inputs, results and regions; the last inputs are states
    plans: Sequence[tuple[Sequence[View], Sequence[View], Sequence[RegionSteps]]],
    states: Sequence[Kept],
    results: int,  # the caller's
) -> list[tuple[int, ...]]:
    """For each state, the bytes by which its memory slides in a run of each plan, or zeros.

    The copies that sliding replaces are removed from the regions.
    """
    slides = []
    for place, state in enumerate(states):
        copies_of = []
        for inputs, outputs, regions in plans:
            held = inputs[len(inputs) - len(states) + place].buffer
            copies_of.append(_copies(held, outputs[state.result].buffer, regions))
        own = tuple(_distance([step for _, step in copies]) for copies in copies_of)
        if not state.grown or state.result < results or 0 in own:
            slides.append((0,) * len(plans))
            continue
        for region, step in (one for copies in copies_of for one in copies):
            region.steps.remove(step)
        slides.append(own)
    return slides


def _copies(held: Buffer, present: Buffer, regions: Sequence[RegionSteps]) -> list[Found]:
    """The steps that copy parts of `held` to `present`; none if another processor reads either."""
    copies = []
    for region in regions:
        for step in region.steps:
            roots = [view.buffer.root for view in (*step.inputs, *step.outputs)]
            if region.processor and (held in roots or present in roots):
                return []
            if step.kernel == COPY_KERNEL and roots == [held, present]:
                copies.append((region, step))
    return copies


def _distance(copies: Sequence[DraftNode]) -> int:
    """The aligned number of bytes from all targets to their sources; 0 if there is none."""
    distances = set()
    for copy in copies:
        source, target = copy.inputs[0].layout, copy.outputs[0].layout
        same = source.strides == target.strides and source.shape == target.shape
        distances.add(source.start - target.start if same else 0)
    distance = distances.pop() if len(distances) == 1 else 0
    return distance if distance > 0 and distance % ALIGNMENT == 0 else 0
