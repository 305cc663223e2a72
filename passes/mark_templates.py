"""Let kernel templates take epilogues.

    winograd_conv2d  op_pattern=8 (opaque)   ->   op_pattern=4 (elementwise followers fuse)

TVM derives a PrimFunc's pattern from its blocks and calls a function of several blocks opaque.
Where stores are packed (`hvx_stores.py`), templates stay opaque: an addition after the rounding of
their sums would break the pattern of packed stores, and the rounding would work on single numbers
of 64 bits.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from tvm_stretch.targets.kernels.fused import ANNOTATION

_OUT_ELEMENTWISE_FUSABLE, _OPAQUE = 4, 8


@tvm.transform.module_pass(opt_level=0, name="MarkTemplates")
class MarkTemplates:
    """See the module docstring.

    Args:
        epilogues: whether templates take epilogues.
    """

    def __init__(self, epilogues: bool = True) -> None:
        self.pattern = _OUT_ELEMENTWISE_FUSABLE if epilogues else _OPAQUE

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Set ``op_pattern`` on every PrimFunc that holds an annotated block."""
        updated = tvm.IRModule(dict(mod.functions), attrs=mod.attrs)
        for var, func in mod.functions.items():
            if isinstance(func, tirx.PrimFunc) and _is_template(func):
                updated.update_func(var, func.with_attr("op_pattern", self.pattern))
        return updated


def _is_template(func: tirx.PrimFunc) -> bool:
    found: list[bool] = []

    def visit(block: s_tir.SBlock) -> None:
        found.append(ANNOTATION in block.annotations)

    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, visit), order="post")
    return any(found)
