"""Keep operators that cut or extend a tensor out of the kernels that compute it.

    pad      op_pattern=0 (elementwise)   ->   op_pattern=2 (injective)

A slice from the first element on, or padding after the last, reads each element where it writes it,
so TVM takes it for elementwise and fuses it into the template before it. The template would then
write all of its own result, which has another size than the fused one.
"""

from __future__ import annotations

import tvm
from tvm import tirx

_ELEMENTWISE, _INJECTIVE = 0, 2


@tvm.transform.module_pass(opt_level=0, name="MarkCuts")
class MarkCuts:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Set ``op_pattern`` of operators that are elementwise except for their shape."""
        updated = tvm.IRModule(dict(mod.functions), attrs=mod.attrs)
        for var, func in mod.functions.items():
            if isinstance(func, tirx.PrimFunc) and _cuts(func):
                updated.update_func(var, func.with_attr("op_pattern", _INJECTIVE))
        return updated


def _cuts(func: tirx.PrimFunc) -> bool:
    """Whether an elementwise result has another shape than all of its operands.

    An operand that is broadcast beside one of the result's shape, such as a bias, is no cut.
    """
    if (func.attrs or {}).get("op_pattern") != _ELEMENTWISE:
        return False
    tensors = [param for param in func.params if isinstance(param, tirx.Buffer)]
    *operands, result = [list(map(str, tensor.shape)) for tensor in tensors]
    return bool(operands) and result not in operands
