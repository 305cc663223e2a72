"""Where temporaries of a kernel lie: TVM says in global memory, where OpenCL cannot have them.

launch blockIdx.x < 8:                     launch blockIdx.x < 8:
small = alloc(64, "global")      ->        small = alloc(64, "local")     # private memory
large = alloc(2**20, "global")             large = argument               # the work-item's
"""

from __future__ import annotations

import math

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import PointerType, PrimType, Var

_STACK_BYTES = 2**16
"""What a kernel may keep in private memory; drivers for CPUs run it on an ordinary stack."""


def place_temporaries(function: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[int]]:
    """Private memory for small temporaries, arguments for large ones.

    Args:
        function: what one launch runs.

    Returns:
        The function, and how many bytes each of its last arguments needs for each work-item.
    """
    found: list[Var] = []
    tvm_ffi.structural_walk(function.body, (tirx.AllocBuffer, lambda s: found.append(s.buffer)))
    moved: dict[Var, Var] = {}
    pointers: dict[Var, Var] = {}
    sizes: list[int] = []
    on_stack = 0
    for buffer in (each for each in found if each.scope() == "global"):
        dtype = str(buffer.dtype)
        size = math.prod(int(extent) for extent in buffer.shape) * tvm.DataType(dtype).itemsize
        if on_stack + size > _STACK_BYTES:
            pointers[buffer] = Var(buffer.name, PointerType(PrimType(dtype), "global"))
            sizes.append(size)
        else:
            on_stack += size
            moved[buffer] = tirx.decl_buffer(buffer.shape, dtype, buffer.name, scope="local")

    def declare(old: tirx.AllocBuffer) -> tirx.Stmt:
        pointer = pointers.get(old.buffer)
        return old if pointer is None else tirx.DeclBuffer(old.buffer, data=pointer)

    body = tvm_ffi.structural_map(function.body, (tirx.AllocBuffer, declare))
    body = tvm_ffi.structural_map(body, (Var, lambda var: moved.get(var, var)))
    params = [*function.params, *pointers.values()]
    return tirx.PrimFunc(params, body, function.ret_type, function.attrs), sizes
