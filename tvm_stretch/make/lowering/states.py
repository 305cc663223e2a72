"""States that a run changes need no copies of what it leaves as it was.

Caches of full length: a run writes its rows to the next cache, which has the others already.

    held       |aaaaaaaa|bbbbbbbb|      present = scatter_nd(held, places, rows)
    present    |aaaAaaaa|bbbBbbbb|      starts  = where the written rows A and B begin

The executor exchanges both memories after a run, so `present` is the cache of a run before. It
lacks the rows that were written since, and `starts` tells which. Before the next run the executor
copies these, or the whole cache where it does not know the missing rows: at first, after a run that
failed, and after a state was set. A run never writes to `held`. Processors besides the CPU know a
tensor by its address; where one of them reads or writes such a cache, both memories keep their
places, and after a run the executor copies the written rows from `present` to `held`.

Caches that grow stay where they are, if the CPU alone reads and writes them in all plans: a run
appends rows and the window on the memory moves.

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

from tvm import s_tir, tirx
from tvm.ir import Expr

from tvm_stretch.make.lowering.dependences import RegionSteps
from tvm_stretch.make.lowering.executor_graph import COPY_KERNEL, WRITE_KERNEL
from tvm_stretch.make.lowering.placed_tensors import Buffer, DraftNode, View, new_view
from tvm_stretch.network.attributes import WRITES_PLACES
from tvm_stretch.network.expressions import ALIGNMENT, dtype_bytes
from tvm_stretch.network.states import Kept
from tvm_stretch.targets.kernels.loops import PARALLEL, block, const, load, loop, store, unravelled

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
    kernels: dict[str, tirx.PrimFunc],  # those that only write are added
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
            outputs.append(_write(region, step, index, kernels))
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
            if present.buffer in [view.buffer.root for view in step.outputs]:
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


def _write(
    region: RegionSteps, step: DraftNode, index: int, kernels: dict[str, tirx.PrimFunc]
) -> View:
    """Let a step only write rows, and where they begin, which is the result."""
    old, places, rows = step.inputs
    starts = new_view("output", (prod(places.shape[:-1]),), "int64", index)
    kernel, inputs = WRITE_KERNEL, [places, rows]
    if region.processor:  # what it does not write comes from the executor
        kernel, inputs = f"{step.kernel}_rows", [*step.outputs, *inputs]
        kernels[kernel] = _rows_kernel(old, places, rows)
    outputs = (*step.outputs, starts)
    writing = replace(step, kernel=kernel, inputs=tuple(inputs), outputs=outputs)
    region.steps[region.steps.index(step)] = writing
    return starts


def _rows_kernel(cache: View, places: View, rows: View) -> tirx.PrimFunc:
    """The kernel (present, places, rows) -> (present, starts) for a processor besides the CPU.

    Each of its items takes an element of all rows, in order: a later row may have the same place.
    """
    depth, count = places.shape[-1], prod(places.shape[:-1])
    row = prod(cache.shape[depth:])
    bytes_of_row = row * dtype_bytes(cache.dtype)

    before, at, values, present = (
        tirx.decl_buffer(view.shape, view.dtype) for view in (cache, places, rows, cache)
    )
    starts = tirx.decl_buffer((count,), "int64")

    def place(of: Expr) -> Expr:
        linear: Expr = const(0)
        for axis, size in enumerate(cache.shape[:depth]):
            index = load(at, *unravelled(of, places.shape[:-1]), axis).astype("int64")
            linear = linear * size + tirx.max(tirx.min(index, const(size - 1)), const(0))
        return linear

    def element(item: Expr) -> tirx.Stmt:
        def one(of: Expr) -> tirx.Stmt:
            value = load(values, *unravelled(of * row + item, rows.shape))
            return store(present, value, *unravelled(place(of) * row + item, cache.shape))

        return loop(count, one, "row")

    body = block(
        loop(row, element, "item", PARALLEL),
        loop(count, lambda of: store(starts, place(of) * bytes_of_row, of), "start", PARALLEL),
    )
    for name in ("write_rows", "root"):
        body = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], name, body))
    function = tirx.PrimFunc([before, at, values, present, starts], body)
    return function.with_attr("tirx.noalias", True)


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
