"""The phases between BlockChannels and the schedules, the same for every processor."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm_stretch.passes.expand_math import ExpandMath
from tvm_stretch.passes.keep_nan import KeepNan
from tvm_stretch.passes.keep_views import keep_views
from tvm_stretch.passes.mark_cuts import MarkCuts
from tvm_stretch.passes.mark_gathers import MarkGathers
from tvm_stretch.passes.mark_templates import MarkTemplates
from tvm_stretch.passes.name_kernels import MarkOperators, NameKernels


def kernel_phases(*, expand_math: bool, epilogues: bool = True) -> tuple[tvm.transform.Pass, ...]:
    """From Relax with kernel templates to kernel-level Relax.

    Args:
        expand_math: whether exp, sigmoid and tanh become arithmetic on vectors; for processors
            that have no instructions for them.
        epilogues: whether templates take what is elementwise behind them, and tables what is
            beside them.
    """
    return (
        keep_views(),  # operators without a template to PrimFuncs; views stay operators
        relax.transform.AnnotateTIROpPattern(),
        MarkCuts(),  # what is no epilogue, though TVM takes it for elementwise
        MarkTemplates(epilogues),  # which of them may take epilogues
        MarkGathers(tables=epilogues),  # and which compute their own indices
        MarkOperators(),
        relax.transform.FuseOps(),  # epilogues into their kernels ..
        NameKernels(),  # .. which are named after their operators
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
        KeepNan(),  # maximum and minimum let NaN and infinities through
        *((ExpandMath(),) if expand_math else ()),
    )
