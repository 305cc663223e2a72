"""Cut ``main`` into regions by what processors support, without a plan.

    main(x):                            with an accelerator that has no pools, then the CPU
        conv = R.nn.conv2d(x, w)        r0(x), processor = "accelerator": conv, relu
        relu = R.nn.relu(conv)     ->   r1(relu), processor = "cpu": pool
        pool = R.nn.max_pool2d(relu)    main(x): pool = r1(r0(x))
        return pool

Every operator runs on the first of the processors that supports it; nothing is priced, so the order
of the processors decides. A search (``ts.plan_for``) finds where operators are fast instead, and
`TagOperators` with `PartitionRegions` cuts along its plan.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.network.operators import Calls
from tvm_stretch.passes.partition_regions import PartitionRegions
from tvm_stretch.passes.tag import TagOperators
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.regions import form_regions, place_operators
from tvm_stretch.targets.processor import Processor


@tvm.transform.module_pass(opt_level=0, name="PartitionBySupport")
class PartitionBySupport:
    """See the module docstring.

    Args:
        processors: the preferred ones first; for the usual ones ``targets.make_processors``.
    """

    def __init__(self, processors: Sequence[Processor]) -> None:
        self.processors = tuple(processors)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        main, names = mod["main"], tuple(processor.name for processor in self.processors)
        self._require_support(Calls(main))
        placed = place_operators(main, names, self.processors, {})
        plan = Plan(names, form_regions(main, placed))
        cut = tvm.transform.Sequential([TagOperators(plan), PartitionRegions()])
        partitioned: tvm.IRModule = cut(mod)
        return partitioned

    def _require_support(self, calls: Calls) -> None:
        for name, call in calls.calls.items():
            reasons = [(p.name, p.why_not(call)) for p in self.processors]
            if all(reason for _, reason in reasons):
                refusals = "; ".join(f"{name} on {who}: {reason}" for who, reason in reasons)
                raise UnsupportedError(
                    "expected operators that one of the processors supports, got others: "
                    f"{refusals}; add a processor, such as the CPU"
                )
