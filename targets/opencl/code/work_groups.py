"""Turn loop nests into work-groups, and a kernel into one function per launch.

    for t in T.parallel(8):                   for g in T.thread_binding(8, "blockIdx.x"):
        work(t)                        ->         work(g)
    rest()                                    for g in T.thread_binding(1, "blockIdx.x"):
                                                  rest()

TVM's own pipeline is not used because it narrows indices to 32 bits, with which a CPU's compiler
keeps one pointer for each element of a tile and spills them (measured 0.6x).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call, IRModule
from tvm.ir.expr import TensorLoad
from tvm.target import Target

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.make.code.float_arithmetic import round_bfloats, simplify_integers, widen_bfloats
from tvm_stretch.network.expressions import nodes_of
from tvm_stretch.network.rewriting import changed_block, rewrite
from tvm_stretch.passes.round_products import fenced

from .private_memory import bytes_of, place_temporaries, whole_lines

PREFETCH = "tvm_stretch_prefetch"
"""Macro with an address as its argument; ``opencl_code`` defines it for each compiler."""

_VECTOR_LANES = (16, 8, 4, 2)


@dataclass(frozen=True)
class DeviceCall:
    """A call of one function that the device runs."""

    entry: str  # the function's name
    function: tirx.PrimFunc  # the function, with its temporaries in memory that OpenCL supports
    # the origin of each of its pointers: ("buffer", index of the kernel's parameter),
    # ("scratch", first byte in the kernel's scratch memory), or as `place_temporaries` returns
    # it
    memory: tuple[tuple[str, int], ...]
    scratch: int  # bytes of memory through which the kernel's functions pass values to each other
    extents: dict[str, int]  # numbers of work-groups and work-items, by axis: ``blockIdx.x``, ...


def device_calls(
    name: str,  # of the kernel; names of its functions begin with it
    # a scheduled kernel; code that is not bound to work-items runs in one work-item
    function: tirx.PrimFunc,
    target: Target,
    *,
    on_cpu: bool,  # the device is a CPU, where indices have 64 bits, as in the kernel, and not 32
) -> list[DeviceCall]:
    """The functions that a kernel runs on the device, in order."""
    function = _bind_everything(_from_the_start(function)).with_attr("global_symbol", name)
    bound = tirx.transform.BindTarget(Target(target, host="llvm"))(IRModule({name: function}))
    own_barriers = _has_barriers(function)
    split = tvm.transform.Sequential(_pipeline(on_cpu, own_barriers))(bound)
    host = split[name]
    tensors = _Tensors(host)
    calls: list[DeviceCall] = []

    def visit(call: Call) -> None:
        if getattr(call.op, "name", "") != "tirx.call_ffi_kernel":
            return
        entry, tags = call.args[0].value, [str(tag) for tag in call.attrs.launch_params]
        end = len(call.args) - len(tags)
        extents = dict(zip(tags, map(int, call.args[end:]), strict=True))
        device, own = place_temporaries(split[entry])
        memory = (*tensors.find(call.args[1:end]), *own)
        calls.append(DeviceCall(entry, device, memory, tensors.scratch, extents))

    if nodes_of(host.body, tirx.BufferStore):
        raise UnsupportedError(f"expected work-items for all of kernel {name}, got some; report it")
    tvm_ffi.structural_walk(host.body, (Call, visit), order="post")
    return calls


def _from_the_start(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """TVM leaves open where a buffer of a kernel in plain loops begins, and would pass it."""
    moved = {
        param: tirx.decl_buffer(param.shape, str(param.dtype), param.name)
        for param in function.params
        if isinstance(getattr(param, "elem_offset", None), tirx.Var)
    }
    return function.specialize(moved) if moved else function


def _bind_everything(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Turn parallel loops into work-groups, and statements outside of them into one work-item."""
    body = rewrite(function.body, (Call, _portable_call))
    body = rewrite(body, (tirx.For, _portable_vector))
    return function.with_body(_bind(body))


def _bind(body: tirx.Stmt) -> tirx.Stmt:
    if _mentions_threads(body) or isinstance(body, tirx.AllocBuffer):
        return body
    body = _spread_images(body)
    if isinstance(body, s_tir.SBlockRealize) and body.block.name_hint == "root":
        return s_tir.SBlockRealize(
            body.iter_values, body.predicate, changed_block(body.block, body=_bind(body.block.body))
        )
    if isinstance(body, tirx.SeqStmt) and any(_is_parallel(part) for part in body.seq):
        return tirx.SeqStmt([_bind(part) for part in body.seq])
    if _is_parallel(body):
        return _work_groups(body.loop_var, body.min, body.extent, body.body)
    var = tirx.Var("group", "int64")
    return _work_groups(var, tirx.const(0, "int64"), tirx.const(1, "int64"), body)


def _spread_images(body: tirx.Stmt) -> tirx.Stmt:
    """Parallelise a loop over images, together with the parallel loops inside it.

    for n in range(3):                        for w in parallel(3 * 8):
        for t in parallel(8):                     work(w // 8, w % 8)
            work(n, t)                   ->   for w in parallel(3):
        rest(n)                                   rest(w)
    """
    if not isinstance(body, tirx.For) or body.kind != tirx.ForKind.SERIAL:
        return body
    parts = list(body.body.seq) if isinstance(body.body, tirx.SeqStmt) else [body.body]
    if any(isinstance(part, tirx.AllocBuffer) for part in parts):
        return body  # all statements after the allocation use the memory
    if not any(map(_is_parallel, parts)) or not _is_independent(body):
        return body
    spread = [_spread_part(body, part) for part in parts]
    return spread[0] if len(spread) == 1 else tirx.SeqStmt(spread)


def _spread_part(outer: tirx.For, part: tirx.Stmt) -> tirx.For:
    """``part`` for every iteration of ``outer``, in parallel."""
    var = tirx.Var("task", "int64")
    extent, values = outer.extent, {outer.loop_var: var + outer.min}
    if _is_parallel(part):
        extent = outer.extent * part.extent
        values = {
            outer.loop_var: var // part.extent + outer.min,
            part.loop_var: var % part.extent + part.min,
        }
        part = part.body
    work = rewrite(part, (tirx.Var, lambda old: values.get(old, old)))
    return tirx.For(var, tirx.const(0, "int64"), extent, tirx.ForKind.PARALLEL, work)


def _is_independent(loop: tirx.For) -> bool:
    """Whether each iteration has its own slice of every tensor that the loop writes."""
    own = [allocated.buffer for allocated in nodes_of(loop.body, tirx.AllocBuffer)]
    stores = nodes_of(loop.body, tirx.BufferStore)
    loads = nodes_of(loop.body, TensorLoad)

    def is_sliced(indices: Sequence[Any]) -> bool:
        return any(index.same_as(loop.loop_var) for index in indices)

    def is_in(buffer: tirx.Buffer, others: Sequence[tirx.Buffer]) -> bool:
        return any(buffer.same_as(other) for other in others)

    shared = [store for store in stores if not is_in(store.buffer, own)]
    written = [store.buffer for store in shared]
    again = [load for load in loads if is_in(load.source, written)]
    return all(is_sliced(access.indices) for access in (*shared, *again))


def _is_parallel(body: tirx.Stmt) -> bool:
    return isinstance(body, tirx.For) and body.kind == tirx.ForKind.PARALLEL


def _work_groups(
    var: tirx.Var, start: tvm.ir.Expr, extent: tvm.ir.Expr, body: tirx.Stmt
) -> tirx.Stmt:
    domain = tvm.ir.Range(start, start + extent)
    axis = tirx.IterVar(domain, tirx.Var("work_group", "int64"), 1, "blockIdx.x")
    return tirx.For(var, start, extent, tirx.ForKind.THREAD_BINDING, body, axis)


def _mentions_threads(body: tirx.Stmt) -> bool:
    return any(loop.kind == tirx.ForKind.THREAD_BINDING for loop in nodes_of(body, tirx.For))


def _has_barriers(function: tirx.PrimFunc) -> bool:
    """Whether a kernel contains its own barriers between work-items."""
    names = {getattr(call.op, "name", "") for call in nodes_of(function.body, Call)}
    return "tirx.tvm_storage_sync" in names


def _portable_call(call: Call) -> tvm.ir.Expr:
    """Replace LLVM's intrinsics: a prefetch by the prelude's macro, a fence by its operand.

    A fenced product stays until there are vectors (`float_arithmetic.opencl_product`).
    """
    name = getattr(call.op, "name", "")
    if fenced(call) is not None:
        return call
    if name == "tirx.call_llvm_pure_intrin":
        return call.args[1]
    if name == "tirx.call_llvm_intrin":
        return tirx.call_extern("void", PREFETCH, call.args[1], call.args[3])
    return call


def _portable_vector(loop: tirx.For) -> tirx.Stmt:
    """Split a vectorized loop into OpenCL's vector widths: 6 elements are 3 times 2."""
    if loop.kind != tirx.ForKind.VECTORIZED:
        return loop
    extent = int(loop.extent)
    loop = _chosen_once(loop)
    widths = _VECTOR_LANES if _has_vectors(loop) else ()
    width = next((lanes for lanes in widths if extent % lanes == 0), 1)
    if width == extent:
        return loop
    step, lane = tirx.Var("step", loop.loop_var.ty), tirx.Var("lane", loop.loop_var.ty)
    place = step * width + lane if width > 1 else step
    body = rewrite(loop.body, (tirx.Var, lambda var: place if var.same_as(loop.loop_var) else var))
    zero = tirx.const(0, str(loop.loop_var.ty.dtype))
    if width > 1:
        body = tirx.For(lane, zero, zero + width, tirx.ForKind.VECTORIZED, body)
    return tirx.For(step, zero, zero + extent // width, tirx.ForKind.SERIAL, body)


def _chosen_once(loop: tirx.For) -> tirx.For:
    """Replace selects whose condition is the same for all lanes by conditional expressions.

    TVM would broadcast the truth value as 1 instead of -1, and OpenCL C tests the highest bit.
    """
    differs = _lane_variables(loop)

    def chosen(select: tirx.Select) -> tvm.ir.Expr:
        if _mentions(select.condition, differs):
            return select
        return tirx.if_then_else(select.condition, select.true_value, select.false_value)

    body = rewrite(loop.body, (tirx.Select, chosen))
    return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body)


_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)


def _has_vectors(loop: tirx.For) -> bool:
    """Whether OpenCL has vector types for everything that a loop computes.

    It has none for ``bool``. A comparison of vectors returns integers as wide as its operands, with
    -1 for true: it can select between vectors of the same width, and is no number. A comparison
    that is the same for all lanes is 1, and several are joined if they have 32 bits alone.
    """
    dtypes = [
        *(load.source.dtype for load in nodes_of(loop.body, TensorLoad)),
        *(store.buffer.dtype for store in nodes_of(loop.body, tirx.BufferStore)),
        *(cast.value.ty.dtype for cast in nodes_of(loop.body, tirx.Cast)),
    ]
    differs = _lane_variables(loop)

    def has_vectors(chosen: tirx.Select) -> bool:
        compared = nodes_of(chosen.condition, *_COMPARISONS)
        vary = [comparison for comparison in compared if _mentions(comparison, differs)]
        bits = tvm.DataType(str(chosen.ty.dtype)).bits
        is_wide = all(tvm.DataType(str(one.a.ty.dtype)).bits == bits for one in vary)
        is_plain = len(compared) == 1 or (bits == 32 and len(vary) == len(compared))
        return not vary or (is_wide and is_plain)

    selects = nodes_of(loop.body, tirx.Select)
    return "bool" not in map(str, dtypes) and all(map(has_vectors, selects))


def _lane_variables(loop: tirx.For) -> list[tirx.Var]:
    """The loop's variable, and variables of blocks and lets that depend on it."""
    variables = [loop.loop_var]

    def visit(realized: s_tir.SBlockRealize) -> None:
        for axis, value in zip(realized.block.iter_vars, realized.iter_values, strict=True):
            if _mentions(value, variables):
                variables.append(axis.var)

    def named(let: tirx.Let) -> None:
        if _mentions(let.value, variables):
            variables.append(let.var)

    walks = [(s_tir.SBlockRealize, visit), (tirx.Let, named)]
    tvm_ffi.structural_walk(loop.body, walks, order="pre")
    return variables


def _mentions(expr: tvm.ir.Expr, variables: Sequence[tirx.Var]) -> bool:
    return any(var.same_as(other) for var in nodes_of(expr, tirx.Var) for other in variables)


@tvm.transform.module_pass(opt_level=0, name="KeepApart")
def _keep_apart(mod: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
    """StorageRewrite without reuse, which TVM leaves out where a later pass merges memory."""
    config = {**context.config, "tirx.merge_static_smem": True}
    with tvm.transform.PassContext(opt_level=context.opt_level, config=config):
        return tirx.transform.StorageRewrite()(mod)


def _pipeline(on_cpu: bool, own_barriers: bool) -> Sequence[tvm.transform.Pass]:
    t, s = tirx.transform, s_tir.transform
    narrow = [] if on_cpu else [t.NarrowDataType(32)]
    # ThreadSync cannot tell two halves of a buffer apart, and would add barriers between them.
    barriers = [] if own_barriers else [s.ThreadSync("shared")]
    # PoCL promotes arrays of vectors to registers, but no array that also holds single numbers
    # later on, so temporaries on a CPU share no memory: an attention took 3 times as long.
    storage = _keep_apart if on_cpu else t.StorageRewrite()
    return [
        s.CanonicalizeLoop(),
        s.LowerCrossThreadReduction(),
        s.LowerInitBlock(),
        s.PlanAndUpdateBufferAllocationLocation(),
        s.ConvertBlocksToOpaque(),
        s.LiftThreadBinding(),
        simplify_integers(
            t.StmtSimplify()
        ),  # otherwise the next pass divides by zero in a // 4 - a // 4
        s.CompactBufferAllocation(),
        s.LowerAutoCopy(),
        s.UnifyThreadBinding(),
        s.LowerMatchBuffer(),
        simplify_integers(t.StmtSimplify()),
        s.LowerOpaqueBlock(),
        t.FlattenBuffer(),
        widen_bfloats,  # bfloat16 is computed in float32, and kept in 16 bits
        *narrow,
        s.LoopPartition(),
        t.VectorizeLoop(True),
        round_bfloats,
        storage,
        t.UnrollLoop(),
        simplify_integers(t.StmtSimplify(), t.RemoveNoOp()),
        s.RewriteUnsafeSelect(),
        t.AnnotateEntryFunc(),
        *barriers,
        s.LowerThreadAllreduce(),
        t.SplitHostDevice(),
    ]


class _Tensors:
    """The kernel's tensor or scratch memory to which a pointer in the host's part belongs.

    Attributes:
        scratch: bytes of all scratch memory.
    """

    def __init__(self, host: tirx.PrimFunc) -> None:
        self.scratch = 0
        self.numbers: dict[Any, tuple[str, int]] = {
            param: ("buffer", index) for index, param in enumerate(host.params)
        }
        for allocated in nodes_of(host.body, tirx.AllocBuffer):
            self.numbers[allocated.buffer] = ("scratch", self.scratch)
            self.scratch += whole_lines(bytes_of(allocated.buffer))
        for declared in nodes_of(host.body, tirx.DeclBuffer):
            self.numbers[declared.buffer] = self.numbers[declared.data.args[0]]

    def find(self, pointers: Sequence[Call]) -> tuple[tuple[str, int], ...]:
        """The origin of each ``buffer.data``."""
        return tuple(self.numbers[pointer.args[0]] for pointer in pointers)
