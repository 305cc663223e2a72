"""Branch several segments of `main` at once, by rows or by channels, as a search has chosen.

branch_segments(mod, [RowSplit("max_pool2d", "relu4", (3, 2)),
                      ChannelSplit("relu4", "relu6", (1, 1))])
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm

from tvm_stretch.network.emitting.branches import Replacement, channel_branches, replace_segments
from tvm_stretch.network.emitting.row_branches import row_branches
from tvm_stretch.network.expressions import builder_with_kernels
from tvm_stretch.network.operators import Operators
from tvm_stretch.plan.splits import RowSplit, Split


def branch_segments(
    mod: tvm.IRModule, splits: Sequence[Split]
) -> tuple[tvm.IRModule, tuple[Replacement, ...]]:
    """The branched module, and for each split the names of its branches' operators.

    Raises:
        UnsupportedError: A segment cannot be split; the message says why.
        InputError: Ratios or names are invalid, or two segments share an operator.
    """
    operators, builder = Operators(mod["main"]), builder_with_kernels(mod)
    taken = {*operators.params, *(operator.name for operator in operators)}
    segments = tuple(
        row_branches(operators, split, builder, taken)
        if isinstance(split, RowSplit)
        else channel_branches(operators, split, builder, taken)
        for split in splits
    )
    return replace_segments(mod, segments, builder), segments


@tvm.transform.module_pass(opt_level=0, name="BranchSegments")
class BranchSegments:
    """`branch_segments` as a pass."""

    def __init__(self, *splits: Split) -> None:
        self.splits = splits

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return branch_segments(mod, self.splits)[0]
