"""Caches of full length: a run writes its rows to the next cache, which has the others already.

    held       |aaaaaaaa|bbbbbbbb|      present = scatter_nd(held, places, rows)
    present    |aaaAaaaa|bbbBbbbb|      starts  = where the written rows A and B begin

The executor exchanges both memories after a run, so `present` is the cache of a run before. It
lacks the rows that were written since, and `starts` tells which. Before the next run the executor
copies these, or the whole cache where it does not know the missing rows: at first, after a run that
failed, and after a state was set. A run never writes to `held`.

Only the CPU may read and write both, in all plans: other processors know a tensor by its address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tvm import tirx

from tvm_stretch.make.lowering.dependences import RegionSteps
from tvm_stretch.make.lowering.executor_graph import WRITE_KERNEL
from tvm_stretch.make.lowering.placed_tensors import DraftNode, View, new_view
from tvm_stretch.network.expressions import dtype_bytes
from tvm_stretch.network.states import WRITES_PLACES, Kept

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
    found: list[Written | None] = []
    for place, state in enumerate(states):
        index = len(plans[0][1])
        own = [_writer(plan, place - len(states), state, kernels) for plan in plans]
        steps = [one for one in own if one is not None]
        sizes = {_row_bytes(step) for _, step in steps}
        if state.grown or state.result < results or len(steps) < len(plans) or len(sizes) != 1:
            found.append(None)
            continue
        for (_, outputs, _), (region, step) in zip(plans, steps, strict=True):
            outputs.append(_write(region, step, index))
        found.append(Written(index, sizes.pop()))
    return found


def _writer(
    plan: Plan, place: int, state: Kept, kernels: Mapping[str, tirx.PrimFunc]
) -> tuple[RegionSteps, DraftNode] | None:
    """The one step that makes the next state, if it copies the state and writes places."""
    inputs, outputs, regions = plan
    held, present = inputs[place], outputs[state.result]
    found = []
    for region in regions:
        for step in region.steps:
            written = present.buffer in [view.buffer.root for view in step.outputs]
            read = held.buffer in [view.buffer.root for view in step.inputs]
            if region.processor and (read or written):
                return None
            if written:
                found.append((region, step))
    if len(found) != 1:
        return None
    step = found[0][1]
    function = kernels.get(step.kernel)
    if function is None or WRITES_PLACES not in (function.attrs or {}) or len(step.inputs) != 3:
        return None
    old, *given = step.inputs
    whole = [(old, held), (step.outputs[0], present)]
    same = all(view.buffer is port.buffer and view.is_whole_buffer for view, port in whole)
    return found[0] if same and all(view.layout.is_dense for view in given) else None


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
