"""Caches that grow stay where they are: a run appends rows and the window on the memory moves.

    held         |..|aaaaaaaa|..|bbbbbbbb|            two heads, each with a row that was dropped
    present         |aaaaaaaa|AA|bbbbbbbb|BB|         what a run adds replaces dropped rows
                     <------- slide

`held` is the state, whose first rows of each head are no part of it (`ir/states.py`). The network
computes ``present = concat((held[.., grown:, ..], new))``, which is the next `held`. If it begins
`slide` bytes after `held`, the old rows lie where `present` has them and need no copy. A run that
fails has only replaced dropped rows, so the state is as it was.

Nothing slides unless the CPU alone reads and writes both, in all plans: other processors know a
tensor by its address.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm_stretch.ir.states import Kept
from tvm_stretch.ir.views import ALIGNMENT
from tvm_stretch.lowering.dependences import RegionSteps
from tvm_stretch.lowering.executor_graph import COPY_KERNEL
from tvm_stretch.lowering.placed_tensors import Buffer, DraftNode, View

Found = tuple[RegionSteps, DraftNode]


def slide_states(
    # of each plan: inputs, results and regions; the last inputs are states
    plans: Sequence[tuple[Sequence[View], Sequence[View], Sequence[RegionSteps]]],
    states: Sequence[Kept],
    results: int,  # the caller's
) -> list[int]:
    """For each state, the bytes by which its memory slides in a run, or 0.

    The copies that sliding replaces are removed from the regions.
    """
    slides = []
    for place, state in enumerate(states):
        slide, copies = 0, list[Found]()
        for inputs, outputs, regions in plans:
            held = inputs[len(inputs) - len(states) + place].buffer
            own = _copy_of_rest(held, outputs[state.result].buffer, regions)
            if not state.grown or state.result < results or own is None:
                break
            slide = own[1].inputs[0].layout.start
            copies.append(own)
        if len(copies) != len(plans):
            slide, copies = 0, []
        for region, step in copies:
            region.steps.remove(step)
        slides.append(slide)
    return slides


def _copy_of_rest(held: Buffer, present: Buffer, regions: Sequence[RegionSteps]) -> Found | None:
    """The step that copies what a run keeps of `held` to the same place in `present`."""
    found = None
    for region in regions:
        for step in region.steps:
            roots = [view.buffer.root for view in (*step.inputs, *step.outputs)]
            if region.processor and (held in roots or present in roots):
                return None
            if step.kernel == COPY_KERNEL and roots == [held, present] and _is_shifted(step):
                found = region, step
    return found


def _is_shifted(step: DraftNode) -> bool:
    """Whether source and target differ by an aligned number of bytes at the front."""
    source, target = step.inputs[0].layout, step.outputs[0].layout
    return (
        target.start == 0
        and source.start % ALIGNMENT == 0
        and source.strides == target.strides
        and source.shape == target.shape
    )
