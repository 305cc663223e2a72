"""Machine code of the kernels, generated once for running and for exporting.

TVM generates code twice, in the JIT for running and again for `export_library`; for ResNet-50 that
takes five seconds each time. Each kernel is an object file of its own, so that the cache can keep
it (`generate.py`); linking 60 of them takes a twentieth of a second.

Compile scheduled kernels by LLVM, with only those of TVM's passes that they need.

    for lane in T.vectorized(16): out[n, c, y, x, lane] = ..  ->  store <16 x float> ..

TVM's own pipeline also serves GPUs. On loop nests of templates two thirds of its time goes into
passes that change nothing, and LLVM simplifies the rest. Besides, TVM's kernels check each of
their arguments, which is half of the code of a small kernel; ours trust the executor.
"""

from __future__ import annotations

import functools
import os
import platform
import struct
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call
from tvm.support import cc
from tvm.target import Target

from tvm_stretch.base.elf import MACHINES
from tvm_stretch.base.errors import TargetError
from tvm_stretch.base.files import writing
from tvm_stretch.make.code.float_arithmetic import round_bfloats, simplify_integers, widen_bfloats
from tvm_stretch.make.code.generate import generate
from tvm_stretch.network.attributes import ONCE
from tvm_stretch.network.codec import target_data
from tvm_stretch.network.expressions import nodes_of
from tvm_stretch.network.rewriting import rewrite, without_scopes
from tvm_stretch.passes.round_products import is_fence
from tvm_stretch.targets.cpu.code.vector_conditions import same_for_all_lanes, whole_vectors_first
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
_FLAT = (_t.FlattenBuffer(), widen_bfloats)
_NARROW = (_t.NarrowDataType(32), _s.LoopPartition())
_VECTORS = (
    whole_vectors_first,
    same_for_all_lanes,
    _t.VectorizeLoop(True),
    round_bfloats,
    _t.StorageRewrite(),
)
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
    first, scratch = ((_without_fences,), (_whole_vectors,)) if has_hvx else ((), ())
    lowered = (*_FROM_BLOCKS, *_FLAT, *_NARROW, *_VECTORS, *_UNROLLED, *_SIMPLE, *_FUNCTIONS)
    return (*first, *lowered, *scratch, *_LAST)


@tirx.transform.prim_func_pass(opt_level=0, name="WithoutScopes")
def _without_scopes(
    func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext
) -> tirx.PrimFunc:
    """About these marks, TVM's own code generator warns."""
    return func.with_body(without_scopes(func.body))


@tirx.transform.prim_func_pass(opt_level=0, name="WithoutFences")
def _without_fences(
    func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext
) -> tirx.PrimFunc:
    """Replace fences by their operands: LLVM's scheduler for HVX knows no fence and hangs."""

    def operand(call: Call) -> tvm.ir.Expr:
        return call.args[1] if is_fence(call) else call

    return func.with_body(rewrite(func.body, (Call, operand)))


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
    return any(nodes_of(kernel.body, s_tir.SBlock) for kernel in mod.functions.values())


_MACHINE_OFFSET = 18
_C_ALONE = ("-nostdlib", "-lm", "-lc", "-lgcc")
"""Kernels need nothing of C++, and g++ takes three times as long to link its library."""


@dataclass(frozen=True, repr=False)
class ObjectCode:
    """Object files with kernels that are not linked yet."""

    objects: tuple[bytes, ...]  # the bytes of each file; at least one
    functions: tuple[str, ...]  # names of the kernels
    target: str  # JSON of the target for which they were generated

    @property
    def runs_here(self) -> bool:
        """Whether the code is for this kind of machine."""
        (machine,) = struct.unpack_from("<H", self.objects[0], _MACHINE_OFFSET)
        return MACHINES.get(machine) == platform.machine()

    def load(self) -> tvm.runtime.Module:
        """Link and load the kernels into this process, once for all models of this code.

        Raises:
            TargetError: there is no compiler to link with, or no space for the library.
        """
        return self._loaded

    @functools.cached_property
    def _loaded(self) -> tvm.runtime.Module:
        with writing("the kernels", TargetError), tempfile.TemporaryDirectory() as folder:
            library = Path(folder, "kernels.so")
            sources = self.write(Path(folder))
            try:
                cc.create_shared(str(library), list(map(str, sources)), _C_ALONE)
            except Exception as error:  # there is no compiler, or it does not work
                raise TargetError(
                    f"expected a C++ compiler that links the kernels, got {error}; "
                    "install g++ or clang++"
                ) from error
            # TVM's own load_module keeps every library loaded until the process ends.
            return tvm_ffi.load_module(library, keep_module_alive=False)

    def write(self, folder: Path) -> list[Path]:
        """Write the object files into a folder; returns their paths."""
        paths = [folder / f"kernel{index}.o" for index in range(len(self.objects))]
        for path, data in zip(paths, self.objects, strict=True):
            path.write_bytes(data)
        return paths

    def as_static_library(self) -> tvm.runtime.Module:
        """A module that only names the kernels, for an executor that will be exported."""
        with writing("the kernels", TargetError), tempfile.TemporaryDirectory() as folder:
            return tvm.runtime.load_static_library(
                str(self.write(Path(folder))[0]), list(self.functions)
            )


def link(kernels: Mapping[str, bytes], target: tvm.target.Target) -> ObjectCode:
    """The kernels' object files, in an order that depends only on their names."""
    names = sorted(kernels)
    objects = [kernels[name] for name in names] or [_object_code(tvm.IRModule(), target)]
    return ObjectCode(tuple(objects), tuple(names), str(target))


def compile_kernels(
    kernels: Mapping[str, tirx.PrimFunc],
    schedule: tvm.transform.Pass | None,
    target: tvm.target.Target,
) -> dict[str, bytes]:
    """The object file of each kernel."""

    def object_code(kernel: tirx.PrimFunc) -> bytes:
        return _object_code(tvm.IRModule({str(kernel.attrs["global_symbol"]): kernel}), target)

    return generate(kernels, schedule, target, object_code)


def _object_code(mod: tvm.IRModule, target: tvm.target.Target) -> bytes:
    """The bytes of an object file."""
    return object_file(llvm_module(mod, target))


def object_file(library: tvm.runtime.Module) -> bytes:
    """The object file of an LLVM module.

    It is written to memory, because LLVM ends the process if a disk is full.
    """
    with os.fdopen(os.memfd_create("kernels.o"), "rb") as file:
        library.write_to_file(f"/proc/self/fd/{file.fileno()}", "o")
        return file.read()
