"""OpenCL C of the kernels, with what is needed to launch them.

    @T.prim_func                                {"sources": ["__kernel … scale_kernel …"],
    def scale(A, B):                             "kernels": {"scale": [{
        for i in T.thread_binding(16):     ->     "entry": "scale_kernel", "source": 0,
            B[i] = A[i] * 2                       "groups": [16, 1, 1], "group_size": [1, 1, 1],
                                                  "args": [["buffer", 0], ["offset", 0], …]}]}}

All kernels of a network are one program: drivers load that several times faster than many.

Every buffer arrives as memory and a first element, so that a tensor may start anywhere in the
executor's arena: devices only let buffers themselves start at multiples of up to 512 bytes.

Kernels for the host's own CPU have bells (``bells.py``): a first argument more.

TVM's own pipeline is not used: it narrows indices to 32 bits, with which a CPU's compiler keeps
one pointer for each element of a tile, and spills them (measured 0.6x).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call, IRModule
from tvm.ir.expr import TensorLoad
from tvm.target import Target

from tvm_stretch.errors import UnsupportedError

from .bells import BELL_ARGUMENT, BELL_PRELUDE, DOORBELL, doorbell_launch, with_bell
from .generate import generate

_STACK_BYTES = 2**16
"""What a kernel may keep in private memory; drivers for CPUs run it on an ordinary stack."""

_VECTOR_LANES = (16, 8, 4, 2)

_C_FUNCTIONS = (
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "erf", "exp10"),
    *("expm1", "fmod", "hypot", "log10", "log1p", "nextafter", "pow", "rint", "round", "sin"),
    *("sinh", "tan", "tanh", "trunc"),
)
"""TVM calls some of them by their names in C, for float32: ``acoshf``."""

_PREFETCH = "tvm_stretch_prefetch"
_PRELUDE = f"""\
#if defined(__clang__) && (defined(__x86_64__) || defined(__aarch64__))
#define {_PREFETCH}(p) __builtin_prefetch((const void*)(size_t)(p), 0, 2)
#else
#define {_PREFETCH}(p)
#endif
{"".join(f"#define {name}f {name}" + chr(10) for name in _C_FUNCTIONS)}#define nearbyintf rint
"""


@dataclass(frozen=True)
class Launch:
    """One kernel in the driver's queue; see native/opencl for the kinds of arguments."""

    entry: str
    text: str
    groups: tuple[int, int, int]
    group_size: tuple[int, int, int]
    args: tuple[tuple[str, int], ...]

    def to_data(self) -> dict[str, Any]:
        """What stands in the JSON, with the text as the first source."""
        data = asdict(self)
        del data["text"]
        return {**data, "source": 0}


def compile_opencl(
    kernels: Mapping[str, tirx.PrimFunc],
    target: Target,
    *,
    on_cpu: bool,
    schedule: tvm.transform.Pass | None = None,
) -> str:
    """Generate the JSON of the module docstring for every function of ``kernels``.

    Args:
        kernels: PrimFuncs by name; what is not bound to work-items runs in one.
        target: an OpenCL target.
        schedule: gives the kernels their loop nests; None where they have them.
        on_cpu: the device is a host's CPU. Its kernels have bells, and 64-bit arithmetic for
            indices, which is slow on GPUs.
    """

    def code_of(function: tirx.PrimFunc) -> bytes:
        name = str(function.attrs["global_symbol"])
        found = _launches(name, function, target, on_cpu)
        return json.dumps([asdict(launch) for launch in found]).encode()

    codes = generate(kernels, schedule, target, code_of, options=f"on_cpu={on_cpu}")
    launches = {name: [Launch(**data) for data in json.loads(code)] for name, code in codes.items()}
    data = {name: [entry.to_data() for entry in found] for name, found in launches.items()}
    texts = [launch.text for listed in launches.values() for launch in listed]
    if on_cpu:
        data[DOORBELL] = [doorbell_launch()]
        texts = [BELL_PRELUDE, *texts]
    code = {"sources": [_PRELUDE + "".join(texts)], "kernels": data, "options": ""}
    return json.dumps(code, separators=(",", ":"))


def _launches(name: str, function: tirx.PrimFunc, target: Target, on_cpu: bool) -> list[Launch]:
    function = _bind_everything(function).with_attr("global_symbol", name)
    bound = tirx.transform.BindTarget(Target(target, host="llvm"))(IRModule({name: function}))
    split = tvm.transform.Sequential(_pipeline(on_cpu))(bound)
    host = split[name]
    devices = {v: f for v, f in split.functions.items() if v.name_hint != name}
    sources = {v.name_hint: _source(IRModule({v: f}), target) for v, f in devices.items()}
    tensors = _Tensors(host)
    found: list[Launch] = []

    def visit(call: Call) -> None:
        if getattr(call.op, "name", "") != "tirx.call_ffi_kernel":
            return
        entry, tags = call.args[0].value, [str(tag) for tag in call.attrs.launch_params]
        memory = call.args[1 : len(call.args) - len(tags)]
        extents = dict(zip(tags, call.args[len(call.args) - len(tags) :], strict=True))
        found.append(_launch(entry, sources[entry], tensors.find(memory), extents))

    tvm_ffi.structural_walk(host.body, (Call, visit), order="post")
    if not found:
        raise UnsupportedError(f"expected work for kernel {name}, got none; remove the operator")
    if not on_cpu:
        return found
    return [
        replace(launch, text=with_bell(launch.text), args=(BELL_ARGUMENT, *launch.args))
        for launch in found
    ]


# --- TIR: everything inside work-items, then one function per launch ------------------------------


def _bind_everything(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Parallel loops become work-groups; a statement outside them becomes one work-item."""
    body = tvm_ffi.structural_map(function.body, (Call, _portable_prefetch))
    body = tvm_ffi.structural_map(body, (tirx.For, _portable_vector))
    return function.with_body(_bind(body))


def _bind(body: tirx.Stmt) -> tirx.Stmt:
    if _mentions_threads(body) or isinstance(body, tirx.AllocBuffer):
        return body
    body = _spread_images(body)
    if isinstance(body, s_tir.SBlockRealize) and body.block.name_hint == "root":
        return s_tir.SBlockRealize(
            body.iter_values, body.predicate, _with_body(body.block, _bind(body.block.body))
        )
    if isinstance(body, tirx.SeqStmt) and any(_is_parallel(part) for part in body.seq):
        return tirx.SeqStmt([_bind(part) for part in body.seq])
    if _is_parallel(body):
        return _work_groups(body.loop_var, body.min, body.extent, body.body)
    var = tirx.Var("group", "int64")
    return _work_groups(var, tirx.const(0, "int64"), tirx.const(1, "int64"), body)


def _spread_images(body: tirx.Stmt) -> tirx.Stmt:
    """A loop over images becomes parallel, and one with the parallel loops inside it.

    for n in range(3):                        for w in parallel(3 * 8):
        for t in parallel(8):                     work(w // 8, w % 8)
            work(n, t)                   ->   for w in parallel(3):
        rest(n)                                   rest(w)
    """
    if not isinstance(body, tirx.For) or body.kind != tirx.ForKind.SERIAL:
        return body
    parts = list(body.body.seq) if isinstance(body.body, tirx.SeqStmt) else [body.body]
    if any(isinstance(part, tirx.AllocBuffer) for part in parts):
        return body  # the memory is for all that follows it
    if not any(map(_is_parallel, parts)) or not _is_independent(body):
        return body
    spread = [_spread_part(body, part) for part in parts]
    return spread[0] if len(spread) == 1 else tirx.SeqStmt(spread)


def _spread_part(outer: tirx.For, part: tirx.Stmt) -> tirx.For:
    """``part`` for every pass of ``outer``, in parallel."""
    var = tirx.Var("task", "int64")
    extent, values = outer.extent, {outer.loop_var: var + outer.min}
    if _is_parallel(part):
        extent = outer.extent * part.extent
        values = {
            outer.loop_var: var // part.extent + outer.min,
            part.loop_var: var % part.extent + part.min,
        }
        part = part.body
    work = tvm_ffi.structural_map(part, (tirx.Var, lambda old: values.get(old, old)))
    return tirx.For(var, tirx.const(0, "int64"), extent, tirx.ForKind.PARALLEL, work)


def _is_independent(loop: tirx.For) -> bool:
    """Whether each pass has its own slice of every tensor that the loop writes."""
    own: list[tirx.Buffer] = []
    stores: list[tirx.BufferStore] = []
    loads: list[TensorLoad] = []
    tvm_ffi.structural_walk(loop.body, (tirx.AllocBuffer, lambda s: own.append(s.buffer)))
    tvm_ffi.structural_walk(loop.body, (tirx.BufferStore, stores.append))
    tvm_ffi.structural_walk(loop.body, (TensorLoad, loads.append))

    def is_sliced(indices: Sequence[Any]) -> bool:
        return any(index.same_as(loop.loop_var) for index in indices)

    def is_in(buffer: tirx.Buffer, others: Sequence[tirx.Buffer]) -> bool:
        return any(buffer.same_as(other) for other in others)

    shared = [store for store in stores if not is_in(store.buffer, own)]
    written = [store.buffer for store in shared]
    again = [load for load in loads if is_in(load.source, written)]
    return all(is_sliced(access.indices) for access in (*shared, *again))


def _with_body(block: s_tir.SBlock, body: tirx.Stmt) -> s_tir.SBlock:
    return s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        body,
        block.init,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )


def _is_parallel(body: tirx.Stmt) -> bool:
    return isinstance(body, tirx.For) and body.kind == tirx.ForKind.PARALLEL


def _work_groups(
    var: tirx.Var, start: tvm.ir.Expr, extent: tvm.ir.Expr, body: tirx.Stmt
) -> tirx.Stmt:
    domain = tvm.ir.Range(start, start + extent)
    axis = tirx.IterVar(domain, tirx.Var("work_group", "int64"), 1, "blockIdx.x")
    return tirx.For(var, start, extent, tirx.ForKind.THREAD_BINDING, body, axis)


def _mentions_threads(body: tirx.Stmt) -> bool:
    found: list[tirx.For] = []

    def visit(loop: tirx.For) -> None:
        if loop.kind == tirx.ForKind.THREAD_BINDING:
            found.append(loop)

    tvm_ffi.structural_walk(body, (tirx.For, visit), order="post")
    return bool(found)


def _portable_prefetch(call: Call) -> tvm.ir.Expr:
    """LLVM's intrinsic as a macro of the prelude."""
    if getattr(call.op, "name", "") != "tirx.call_llvm_intrin":
        return call
    return tirx.call_extern("void", _PREFETCH, call.args[1])


def _portable_vector(loop: tirx.For) -> tirx.Stmt:
    """A vectorized loop in steps that OpenCL has a type for: 6 elements are 3 times 2."""
    if loop.kind != tirx.ForKind.VECTORIZED or int(loop.extent) in _VECTOR_LANES:
        return loop
    extent = int(loop.extent)
    width = next((lanes for lanes in _VECTOR_LANES if extent % lanes == 0), 1)
    step, lane = tirx.Var("step", loop.loop_var.ty), tirx.Var("lane", loop.loop_var.ty)
    place = step * width + lane if width > 1 else step
    body = tvm_ffi.structural_map(
        loop.body, (tirx.Var, lambda var: place if var.same_as(loop.loop_var) else var)
    )
    zero = tirx.const(0, str(loop.loop_var.ty.dtype))
    if width > 1:
        body = tirx.For(lane, zero, zero + width, tirx.ForKind.VECTORIZED, body)
    return tirx.For(step, zero, zero + extent // width, tirx.ForKind.SERIAL, body)


def _pipeline(wide_indices: bool) -> Sequence[tvm.transform.Pass]:
    t, s = tirx.transform, s_tir.transform
    narrow = [] if wide_indices else [t.NarrowDataType(32)]
    return [
        s.CanonicalizeLoop(),
        s.LowerCrossThreadReduction(),
        s.LowerInitBlock(),
        s.PlanAndUpdateBufferAllocationLocation(),
        s.ConvertBlocksToOpaque(),
        s.LiftThreadBinding(),
        s.CompactBufferAllocation(),
        s.LowerAutoCopy(),
        s.UnifyThreadBinding(),
        s.LowerMatchBuffer(),
        t.StmtSimplify(),
        s.LowerOpaqueBlock(),
        t.FlattenBuffer(),
        *narrow,
        s.LoopPartition(),
        t.VectorizeLoop(True),
        t.StorageRewrite(),
        t.UnrollLoop(),
        t.StmtSimplify(),
        t.RemoveNoOp(),
        s.RewriteUnsafeSelect(),
        t.AnnotateEntryFunc(),
        s.ThreadSync("shared"),
        s.LowerThreadAllreduce(),
        t.SplitHostDevice(),
    ]


class _Tensors:
    """Which tensor of the kernel, or which scratch memory, a pointer in the host's part is."""

    def __init__(self, host: tirx.PrimFunc) -> None:
        self.numbers: dict[Any, tuple[str, int]] = {
            param: ("buffer", index) for index, param in enumerate(host.params)
        }
        tvm_ffi.structural_walk(host.body, (tirx.AllocBuffer, self._allocate))
        tvm_ffi.structural_walk(host.body, (tirx.DeclBuffer, self._declare))

    def _allocate(self, statement: tirx.AllocBuffer) -> None:
        buffer = statement.buffer
        bytes_each = tvm.DataType(str(buffer.dtype)).bits // 8
        size = math.prod(int(extent) for extent in buffer.shape) * bytes_each
        self.numbers[buffer] = ("scratch", size)

    def _declare(self, statement: tirx.DeclBuffer) -> None:
        self.numbers[statement.buffer] = self.numbers[statement.data.args[0]]

    def find(self, pointers: Sequence[Call]) -> list[tuple[str, int]]:
        """The tensor behind each ``buffer.data``."""
        return [self.numbers[pointer.args[0]] for pointer in pointers]


# --- OpenCL C -------------------------------------------------------------------------------------


def _source(device: IRModule, target: Target) -> str:
    t = tirx.transform
    lowered = tvm.transform.Sequential([t.LowerWarpMemory(), t.StmtSimplify(), t.LowerIntrin()])
    build = tvm.get_global_func("target.build.opencl")
    return str(build(lowered(device), target).inspect_source())


_SIGNATURE = re.compile(r"__kernel void (?P<entry>\w+)\((?P<params>[^)]*)\) \{\n")
_PARAM = re.compile(r"(?P<type>.*\*)\s*restrict (?P<name>\w+)$")
_PRIVATE = re.compile(r"^(?P<indent>\s*)__global (?P<type>\w+) (?P<name>\w+)\[(?P<count>\d+)\];$")


def _launch(
    entry: str,
    source: str,
    tensors: Sequence[tuple[str, int]],
    extents: dict[str, Any],
) -> Launch:
    """The source with offsets for its parameters, and how to call it."""
    signature = list(_SIGNATURE.finditer(source))[-1]
    params: list[str] = []
    starts: list[str] = []
    args: list[tuple[str, int]] = []
    for text, (kind, number) in zip(signature["params"].split(", "), tensors, strict=True):
        match = _PARAM.match(text)
        if match is None:
            raise UnsupportedError(
                f"expected pointers as parameters of {entry}, got {text!r}; report this kernel"
            )
        name, pointer = match["name"], match["type"]
        args.append((kind, number))
        if kind == "scratch":
            params.append(f"{pointer} restrict {name}")
            continue
        args.append(("offset", number))
        params += [f"{pointer} restrict {name}_base", f"int {name}_first"]
        starts.append(f"  {pointer} restrict {name} = {name}_base + {name}_first;\n")
    body, scratch = _local_arrays(splat(source[signature.end() :]))
    for declaration, size in scratch:
        params.append(f"__global {declaration}")
        args.append(("scratch", size))
    group_size = _three(extents, "threadIdx.")
    attribute = f"__attribute__((reqd_work_group_size{group_size}))"
    head = f"__kernel {attribute} void {entry}({', '.join(params)}) {{\n{''.join(starts)}"
    before = source[: signature.start()].split(f"__kernel void {entry}(")[0]
    return Launch(
        entry=entry,
        text=before + head + body,
        groups=_three(extents, "blockIdx."),
        group_size=group_size,
        args=tuple(args),
    )


def _three(extents: dict[str, Any], prefix: str) -> tuple[int, int, int]:
    x, y, z = (int(extents.get(prefix + axis, 1)) for axis in "xyz")
    return x, y, z


def _local_arrays(body: str) -> tuple[str, list[tuple[str, int]]]:
    """Temporary arrays go to private memory or, if they are large, become scratch arguments."""
    lines, scratch, on_stack = [], [], 0
    for line in body.split("\n"):
        match = _PRIVATE.match(line)
        if match is None:
            lines.append(line)
            continue
        size = _type_bytes(match["type"]) * int(match["count"])
        if on_stack + size > _STACK_BYTES:
            scratch.append((f"{match['type']}* restrict {match['name']}", size))
            continue
        on_stack += size
        lines.append(f"{match['indent']}{match['type']} {match['name']}[{match['count']}];")
    return "\n".join(lines), scratch


_SCALAR_BYTES = {"char": 1, "uchar": 1, "short": 2, "ushort": 2, "half": 2, "int": 4, "uint": 4}
_SCALAR_BYTES |= {"float": 4, "long": 8, "ulong": 8, "double": 8}


def _type_bytes(name: str) -> int:
    scalar = name.rstrip("0123456789")
    lanes = int(name[len(scalar) :] or 1)
    return _SCALAR_BYTES[scalar] * (4 if lanes == 3 else lanes)


_VECTOR = re.compile(r"\((?P<type>[a-z]+)(?P<lanes>\d+)\)\(")


def splat(source: str) -> str:
    """Write vectors of one value as such.

    >>> splat("a = ((float4)(x[i], x[i], x[i], x[i]));")
    'a = ((float4)(x[i]));'
    """
    parts, start = [], 0
    while (match := _VECTOR.search(source, start)) is not None:
        fields, end = _split_arguments(source, match.end())
        fields = [splat(field) for field in fields]
        same = len(fields) == int(match["lanes"]) and len(set(fields)) == 1
        parts += [source[start : match.end()], fields[0] if same else ", ".join(fields), ")"]
        start = end
    return "".join([*parts, source[start:]])


def _split_arguments(source: str, start: int) -> tuple[list[str], int]:
    """The arguments of a call whose parenthesis opened before ``start``; where it ends."""
    fields, depth, begin = [], 0, start
    for at in range(start, len(source)):
        letter = source[at]
        if letter == "(":
            depth += 1
        elif letter == ")" and depth:
            depth -= 1
        elif letter in ",)" and not depth:
            fields.append(source[begin:at].strip())
            begin = at + 1
            if letter == ")":
                return fields, at + 1
    raise ValueError("a parenthesis is not closed")
