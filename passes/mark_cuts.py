"""Keep what cuts or extends a tensor out of the kernels that compute it.

    pad      op_pattern=0 (elementwise)   ->   op_pattern=2 (injective)

A slice from the first element on, or padding behind the last, reads each element where it writes
it, so TVM takes it for elementwise and fuses it into the template before it: that writes all of its
own result, which may be more or less than what is left of it.
"""

from __future__ import annotations

import tvm
from tvm import tirx

_ELEMENTWISE, _INJECTIVE = 0, 2


@tvm.transform.module_pass(opt_level=0, name="MarkCuts")
class MarkCuts:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Set ``op_pattern`` on what is elementwise but for its shape."""
        updated = tvm.IRModule(dict(mod.functions), attrs=mod.attrs)
        for var, func in mod.functions.items():
            if isinstance(func, tirx.PrimFunc) and _cuts(func):
                updated.update_func(var, func.with_attr("op_pattern", _INJECTIVE))
        return updated


def _cuts(func: tirx.PrimFunc) -> bool:
    """Whether an elementwise result has the shape of nothing that it is computed from.

    What is broadcast beside an operand of the result's shape, as a bias, leaves it elementwise.
    """
    if (func.attrs or {}).get("op_pattern") != _ELEMENTWISE:
        return False
    tensors = [param for param in func.params if isinstance(param, tirx.Buffer)]
    *operands, result = [list(map(str, tensor.shape)) for tensor in tensors]
    return bool(operands) and result not in operands
