"""Compile scheduled kernels by LLVM, with only those of TVM's passes that they need.

    for lane in T.vectorized(16): out[n, c, y, x, lane] = ..  ->  store <16 x float> ..

TVM's own pipeline also serves GPUs. On loop nests of templates two thirds of its time goes into
passes that change nothing, and LLVM simplifies the rest. Besides, TVM's kernels check each of
their arguments, which is half of the code of a small kernel; ours trust the executor.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.target import Target

from tvm_stretch.make.code.float_arithmetic import simplify_integers
from tvm_stretch.network.codec import target_data
from tvm_stretch.network.rewriting import rewrite
from tvm_stretch.targets.kernels.fused import ONCE
from tvm_stretch.targets.kernels.machine import CORES

_t, _s = tirx.transform, s_tir.transform

_FROM_BLOCKS = (
    _s.CanonicalizeLoop(),
    _s.LowerInitBlock(),
    _s.PlanAndUpdateBufferAllocationLocation(),
    _s.ConvertBlocksToOpaque(),
    _s.CompactBufferAllocation(),
    _s.LowerMatchBuffer(),
    simplify_integers(_s.StmtSimplify()),
    _s.LowerOpaqueBlock(),
)
_FLAT = (_t.FlattenBuffer(), _t.BF16ComputeLegalize())
_NARROW = (_t.NarrowDataType(32), _s.LoopPartition())
_VECTORS = (_t.VectorizeLoop(True), _t.StorageRewrite())
_UNROLLED = (_t.UnrollLoop(),)  # late: earlier, every pass would visit each unrolled statement
_SIMPLE = (
    simplify_integers(_s.RenormalizeSplitPattern(), _t.StmtSimplify(), _t.RemoveNoOp()),
    _s.RewriteUnsafeSelect(),
)
_FUNCTIONS = (
    _t.FP8ComputeLegalize(),
    _t.AnnotateEntryFunc(),
    _t.SplitHostDevice(),
    _t.MakePackedAPI(),
    _t.SkipAssert(),
    _t.FP8StorageLegalize(),
    _t.BF16StorageLegalize(),
    _t.LowerTVMBuiltin(),
)
_LAST = (_t.LowerIntrin(),)


def llvm_module(mod: tvm.IRModule, target: Target) -> tvm.runtime.Module:
    """The machine code of scheduled kernels, each under its ``global_symbol``."""
    target = _with_level(mod, _in_order(target))
    passes = [_t.BindTarget(target), _without_scopes, _equal_or_not, *_passes(mod, target)]
    lowered = tvm.transform.Sequential(passes)(mod)
    return tvm.get_global_func("target.build.llvm")(lowered, target)


def _in_order(target: Target) -> Target:
    """Keep single loads for cores that execute in order, each scheduled ahead of its use.

    LLVM pairs loads after scheduling, which moves half of them away from their places; cortex-a55
    and a53 load 64 bits at a time, so a pair gains nothing.
    """
    core = CORES.get(str(target.attrs.get("mcpu", "")))
    if core is None or not core.in_order:
        return target
    described = target_data(target)
    features = [*described.get("mattr", ()), "+slow-paired-128"]
    return Target({**described, "mattr": features})


def _with_level(mod: tvm.IRModule, target: Target) -> Target:
    """Lower the optimisation level for kernels that run once: LLVM's full effort takes longest."""
    if all(ONCE in (kernel.attrs or {}) for kernel in mod.functions.values()):
        target = Target({"opt-level": 1, **target_data(target)})
    return target.with_host(target)


def _passes(mod: tvm.IRModule, target: Target) -> Sequence[tvm.transform.Pass]:
    machine = str(target.attrs["mtriple"]).split("-")[0]
    if machine in ("x86_64", "aarch64", "arm64") and not _has_blocks(mod):
        return (*_FLAT, *_VECTORS, *_UNROLLED, *_FUNCTIONS, *_LAST)
    has_hvx = "+hvx-length128b" in [*map(str, target.attrs.get("mattr", ()))]
    scratch = (_whole_vectors,) if has_hvx else ()
    lowered = (*_FROM_BLOCKS, *_FLAT, *_NARROW, *_VECTORS, *_UNROLLED, *_SIMPLE, *_FUNCTIONS)
    return (*lowered, *scratch, *_LAST)


@tirx.transform.prim_func_pass(opt_level=0, name="WithoutScopes")
def _without_scopes(
    func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext
) -> tirx.PrimFunc:
    """Drop TVM's marks of sequential scatters, about which its own code generator warns."""

    def unmarked(node: tirx.AttrStmt) -> tirx.Stmt:
        return node.body if str(node.attr_key) == "pragma_scope" else node

    return func.with_body(rewrite(func.body, (tirx.AttrStmt, unmarked)))


@tirx.transform.prim_func_pass(opt_level=0, name="EqualOrNot")
def _equal_or_not(
    func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext
) -> tirx.PrimFunc:
    """Write `a != b` of floats as `not a == b`: TVM's code for it is false for NaN."""

    def compared(node: tirx.NE) -> tvm.ir.Expr:
        is_float = "float" in str(node.a.ty.dtype)
        return tirx.Not(tirx.EQ(node.a, node.b)) if is_float else node

    return func.with_body(rewrite(func.body, (tirx.NE, compared)))


@tirx.transform.prim_func_pass(opt_level=0, name="WholeVectors")
def _whole_vectors(
    func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext
) -> tirx.PrimFunc:
    """Align scratch to 128 bytes, which `targets/hexagon/dsp/kernel_support.c` guarantees."""

    def promised(node: tirx.SeqStmt) -> tirx.Stmt:
        statements = list(node.seq)
        for number, statement in reversed([*enumerate(statements[:-1])]):
            if isinstance(statement, tirx.DeclBuffer) and _is_allocated(statement):
                rest = tirx.SeqStmt(statements[number + 1 :])
                size = tirx.const(128, "int32")
                aligned = tirx.AttrStmt(statement.buffer, "storage_alignment", size, rest)
                statements[number + 1 :] = [aligned]
        return tirx.SeqStmt(statements) if len(statements) < len(node.seq) else node

    return func.with_body(rewrite(func.body, (tirx.SeqStmt, promised)))


def _is_allocated(declared: tirx.DeclBuffer) -> bool:
    """Whether it is scratch of the thread's pool and no view of another buffer."""
    return getattr(getattr(declared.data, "op", None), "name", "").endswith("AllocWorkspace")


def _has_blocks(mod: tvm.IRModule) -> bool:
    """Whether a kernel comes from TVM's schedules; loop nests of templates have no blocks."""
    found: list[s_tir.SBlock] = []
    for kernel in mod.functions.values():
        tvm_ffi.structural_walk(kernel.body, (s_tir.SBlock, found.append))
    return bool(found)
