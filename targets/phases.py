"""The phases between BlockChannels and the schedules, which are the same for every processor."""

from __future__ import annotations

import tvm
from tvm import relax

from tvm_stretch.passes.expand_math import ExpandMath
from tvm_stretch.passes.keep_nan import KeepNan
from tvm_stretch.passes.keep_views import KeepViews
from tvm_stretch.passes.mark_patterns import MarkPatterns
from tvm_stretch.passes.name_kernels import MarkOperators, NameKernels
from tvm_stretch.passes.round_bfloats import RoundBfloats
from tvm_stretch.passes.round_products import RoundProducts


def kernel_phases(
    *, expand_math: bool, doubles: bool = False, epilogues: bool = True
) -> tuple[tvm.transform.Pass, ...]:
    """From Relax with kernel templates to kernel-level Relax.

    Args:
        expand_math: whether exp, sigmoid and tanh become vector arithmetic, for processors without
            instructions for them.
        doubles: whether sines and cosines do, which takes vectors of float64.
        epilogues: whether elementwise operators that follow a template are fused into it, and
            neighbouring operators into table lookups.
    """
    return (
        KeepViews(),  # operators without templates become PrimFuncs; views stay operators
        relax.transform.AnnotateTIROpPattern(),
        MarkPatterns(epilogues),  # templates take epilogues, gathers compute their indices
        MarkOperators(),
        relax.transform.FuseOps(),  # epilogues into their kernels ..
        NameKernels(),  # .. which are named after their operators
        RoundBfloats(),  # while a PrimFunc is one operator
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
        KeepNan(),  # maximum and minimum propagate NaN and infinities
        RoundProducts(),  # before polynomials, which need no rounding in between
        *((ExpandMath(doubles),) if expand_math else ()),
    )
