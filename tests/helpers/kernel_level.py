"""Kernel-level Relax from any Relax, with TVM's own passes and unscheduled kernels."""

from __future__ import annotations

import tvm
from tvm import relax


def to_kernel_level(mod: tvm.IRModule) -> tvm.IRModule:
    """Legalize and fuse; reshapes stay views, as lowering wants them."""
    passes = relax.transform
    return tvm.transform.Sequential(
        [
            passes.FoldBatchnormToConv2D(),
            passes.DecomposeOpsForInference(),
            passes.FoldConstant(),
            passes.CanonicalizeBindings(),
            passes.LegalizeOps(),
            passes.RewriteDataflowReshape(),
            passes.AnnotateTIROpPattern(),
            passes.FoldConstant(),
            passes.FuseOps(),
            passes.FuseTIR(),
            passes.DeadCodeElimination(),
        ]
    )(mod)
