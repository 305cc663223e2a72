"""Skip kernels whose results a condition of the data leaves unread.

    y = where(c, conv(x), relu(x))      node conv: when c      node relu: when not c

`passes/keep_conditions.py` made each condition a result of the network and listed the operators
that depend on it. A kernel is skipped if all of its operators depend on the same condition, which
an earlier kernel of the order computes. What a skipped kernel would have written is read by
selections alone, which then take their other operand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tvm_stretch.make.lowering.dependences import RegionSteps
from tvm_stretch.make.lowering.placed_tensors import DraftNode, View
from tvm_stretch.network.states import Condition


def skip_unread(
    regions: Sequence[RegionSteps],
    inputs: Mapping[str, View],
    results: Sequence[View],
    conditions: Mapping[str, Condition],
) -> None:
    """Give the steps of the CPU's regions their conditions.

    Args:
        regions: of one plan, in order.
        inputs: of ``main``, by name.
        results: what ``main`` returns.
        known: the condition of each operator that has one.
    """
    written = {view.buffer.root for view in inputs.values()}
    for region in regions:
        for place, step in enumerate(region.steps):
            condition = _common(step, conditions)
            if condition is not None and region.processor == 0:
                flag = inputs.get(condition.input) or results[condition.result]
                if flag.buffer.root in written:
                    region.steps[place] = replace(step, when=(flag, condition.wanted))
            written.update(view.buffer.root for view in step.outputs)


def _common(step: DraftNode, condition_of: Mapping[str, Condition]) -> Condition | None:
    """The condition of all operators that a kernel computes; helpers may help others, too."""
    conditions = {condition_of.get(name) for name in step.provenance.operators}
    return conditions.pop() if len(conditions) == 1 else None
