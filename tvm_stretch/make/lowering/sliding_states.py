"""Caches that grow stay where they are: a run appends rows and the window on the memory moves.

    held         |..|aaaaaaaa|..|bbbbbbbb|            two heads, each with a row that was dropped
    present         |aaaaaaaa|AA|bbbbbbbb|BB|         what a run adds replaces dropped rows
                     <------- slide

`held` is the state, whose first rows of each head are no part of it (`network/states.py`). The
network computes ``present = concat((held[.., grown:, ..], new))``, which is the next `held`. If it
begins `slide` bytes after `held`, the old rows lie where `present` has them and need no copy. A run
that fails has only replaced dropped rows, so the state is as it was.

Lengths append different numbers of rows to one state, so each slides by bytes of its own; rows that
are no part of the state move along, as many as the longest length appends.

Nothing slides unless the CPU alone reads and writes both, in all plans: other processors know a
tensor by its address.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm_stretch.make.lowering.dependences import RegionSteps
from tvm_stretch.make.lowering.executor_graph import COPY_KERNEL
from tvm_stretch.make.lowering.placed_tensors import Buffer, DraftNode, View
from tvm_stretch.network.expressions import ALIGNMENT
from tvm_stretch.network.states import Kept

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
        found = []
        for inputs, outputs, regions in plans:
            held = inputs[len(inputs) - len(states) + place].buffer
            found.append(_copies(held, outputs[state.result].buffer, regions))
        own = tuple(_distance([step for _, step in copies]) for copies in found)
        if not state.grown or state.result < results or 0 in own:
            slides.append((0,) * len(plans))
            continue
        for region, step in (one for copies in found for one in copies):
            region.steps.remove(step)
        slides.append(own)
    return slides


def _copies(held: Buffer, present: Buffer, regions: Sequence[RegionSteps]) -> list[Found]:
    """The steps that copy parts of `held` to `present`; none if another processor reads either."""
    found = []
    for region in regions:
        for step in region.steps:
            roots = [view.buffer.root for view in (*step.inputs, *step.outputs)]
            if region.processor and (held in roots or present in roots):
                return []
            if step.kernel == COPY_KERNEL and roots == [held, present]:
                found.append((region, step))
    return found


def _distance(copies: Sequence[DraftNode]) -> int:
    """The aligned number of bytes from all targets to their sources; 0 if there is none."""
    distances = set()
    for copy in copies:
        source, target = copy.inputs[0].layout, copy.outputs[0].layout
        same = source.strides == target.strides and source.shape == target.shape
        distances.add(source.start - target.start if same else 0)
    distance = distances.pop() if len(distances) == 1 else 0
    return distance if distance > 0 and distance % ALIGNMENT == 0 else 0
