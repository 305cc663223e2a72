"""Let kernel templates take epilogues.

    winograd_conv2d  op_pattern=8 (opaque)   ->   op_pattern=4 (elementwise followers fuse)

TVM derives a PrimFunc's pattern from its blocks and calls one of several blocks opaque.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm_stretch.targets.kernels.fused import ANNOTATION

_OUT_ELEMENTWISE_FUSABLE = 4


@tvm.transform.module_pass(opt_level=0, name="MarkTemplates")
class MarkTemplates:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Set ``op_pattern`` on every PrimFunc that holds an annotated block."""
        updated = tvm.IRModule(dict(mod.functions), attrs=mod.attrs)
        for var, func in mod.functions.items():
            if isinstance(func, tirx.PrimFunc) and _is_template(func):
                updated.update_func(var, func.with_attr("op_pattern", _OUT_ELEMENTWISE_FUSABLE))
        return updated


def _is_template(func: tirx.PrimFunc) -> bool:
    found: list[bool] = []

    def visit(block: s_tir.SBlock) -> None:
        found.append(ANNOTATION in block.annotations)

    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, visit), order="post")
    return any(found)
