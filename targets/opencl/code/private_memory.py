"""Place temporaries of a kernel: TVM allocates them in global memory, which OpenCL cannot do.

launch blockIdx.x < 8:                     launch blockIdx.x < 8:
small = alloc(64, "global")                small = alloc(64, "local")     # private memory
large = alloc(2**20, "global")   ->        large = argument               # the work-item's
common = alloc(64, "shared")               common = argument              # the group's
"""

from __future__ import annotations

import math

import tvm
from tvm import tirx
from tvm.ir import PointerType, PrimType, Var

from tvm_stretch.network.expressions import nodes_of
from tvm_stretch.network.rewriting import rewrite

_STACK_BYTES = 2**16
"""Most private memory of a kernel; drivers for CPUs run it on an ordinary stack."""


def bytes_of(buffer: tirx.Buffer) -> int:
    """Size of a buffer, whose elements may be vectors."""
    elements = math.prod(int(extent) for extent in buffer.shape)
    return elements * tvm.DataType(str(buffer.dtype)).itemsize


def whole_lines(size: int) -> int:
    """The size rounded up so that no cache line or vector is shared with other memory."""
    return -(-size // 64) * 64


def place_temporaries(
    function: tirx.PrimFunc,  # the code of one launch
) -> tuple[tirx.PrimFunc, list[tuple[str, int]]]:
    """Put small temporaries into private memory; pass large ones and those of groups as arguments.

    Returns:
        The function, and its additional arguments: ("own", bytes for each work-item) or
        ("shared", bytes for each group). OpenCL declares the latter only in kernels, not in the
        functions that they call.
    """
    temporaries = [allocation.buffer for allocation in nodes_of(function.body, tirx.AllocBuffer)]
    moved: dict[Var, Var] = {}
    pointers: dict[Var, Var] = {}
    memory: list[tuple[str, int]] = []
    on_stack = 0
    for buffer in temporaries:
        dtype, scope = str(buffer.dtype), str(buffer.scope())
        size = bytes_of(buffer)
        if scope == "shared" or (scope == "global" and on_stack + size > _STACK_BYTES):
            name = f"temporary{len(pointers)}"
            pointers[buffer] = Var(name, PointerType(PrimType(dtype), scope))
            memory.append(("shared" if scope == "shared" else "own", size))
        elif scope == "global":
            on_stack += size
            moved[buffer] = tirx.decl_buffer(buffer.shape, dtype, buffer.name, scope="local")

    def declare(old: tirx.AllocBuffer) -> tirx.Stmt:
        pointer = pointers.get(old.buffer)
        return old if pointer is None else tirx.DeclBuffer(old.buffer, data=pointer)

    body = rewrite(function.body, (tirx.AllocBuffer, declare))
    body = rewrite(body, (Var, lambda var: moved.get(var, var)))
    params = [*function.params, *pointers.values()]
    return tirx.PrimFunc(params, body, function.ret_type, function.attrs), memory
