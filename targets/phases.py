"""The phases between BlockChannels and the schedules, the same for every processor.

LegalizeOps            every operator without a template to a PrimFunc; views stay operators
FuseOps, FuseTIR       epilogues into their kernels, which NameKernels names after their operators
KeepNan                maximum and minimum let NaN and infinities through
ExpandMath             exp, sigmoid, tanh as arithmetic on vectors, where the processor has nothing
                       better
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm_stretch.passes.expand_math import ExpandMath
from tvm_stretch.passes.keep_nan import KeepNan
from tvm_stretch.passes.keep_views import keep_views
from tvm_stretch.passes.mark_templates import MarkTemplates
from tvm_stretch.passes.name_kernels import MarkOperators, NameKernels


def kernel_phases(*, expand_math: bool) -> tuple[tvm.transform.Pass, ...]:
    """The phases of the module docstring, in order."""
    return (
        keep_views(),
        relax.transform.AnnotateTIROpPattern(),
        MarkTemplates(),
        MarkOperators(),
        relax.transform.FuseOps(),
        NameKernels(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
        KeepNan(),
        *((ExpandMath(),) if expand_math else ()),
    )
