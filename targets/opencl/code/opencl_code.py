"""OpenCL C of the kernels, with the data that launches need.

    @T.prim_func                                {"sources": ["__kernel … scale_kernel …"],
    def scale(A, B):                             "kernels": {"scale": [{
        for i in T.thread_binding(16):     ->     "entry": "scale_kernel", "source": 0,
            B[i] = A[i] * 2                       "groups": [16, 1, 1], "group_size": [1, 1, 1],
                                                  "args": [["buffer", 0], ["offset", 0], …]}]}}

``work_groups.py`` turns a kernel's loop nest into launches; this file writes their text.

All kernels of a network are one program, which drivers load several times faster than many
programs.

Every buffer is passed as memory and an index of its first element, so that a tensor may start
anywhere in the executor's arena: devices only let buffers start at multiples of up to 512 bytes.
Therefore TVM's code becomes a function that the kernel calls:

    static void scale_kernel_work(__global float* restrict A, __global float* restrict B) { … }
    __kernel void scale_kernel(__global char* memory0, int first0, …) {
      scale_kernel_work((__global void*)(memory0 + (size_t)first0 * 4), …);
    }

Kernels for the host's own CPU have a bell as an additional first argument.

Kernels that synchronise with other processors without the driver, on the host's own CPU.

    __kernel void scale(__global float* a) {      __kernel void scale(volatile __global int* bell,
      scale_work(a);                                                  __global float* a) {
    }                                      ->       if (!tvm_stretch_begin(bell)) return;
                                                    scale_work(a);
                                                    tvm_stretch_end(bell);
                                                  }

So the kernels of a region can be enqueued before the regions that it waits for are complete: its
first kernel waits until the executor rings the region's bell, and all kernels return at once if the
run has failed. Each work-item increments a counter when it is done, which the executor reads
instead of sleeping until the driver reports. Waking a thread takes tens of microseconds in either
direction, a bell a fraction of one. See opencl/native/task.h for the other side.

The work is a separate function because its pointers are ``restrict``: nothing else may write what
it reads while it runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.ir import Call, IRModule
from tvm.ir.expr import TensorLoad
from tvm.target import Target

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.make.code.float_arithmetic import (
    opencl_product,
    product_prelude,
    simplify_integers,
)
from tvm_stretch.make.code.generate import generate
from tvm_stretch.network.attributes import IMAGES, WHOLE_QUADS
from tvm_stretch.network.codec import from_text, to_text
from tvm_stretch.network.rewriting import rewrite
from tvm_stretch.targets.opencl.code import folded_addresses

from .areas import TAKE_PRELUDE
from .intrinsics import (
    WHOLE_QUADS_PRELUDE,
    access_whole_quads,
    nan_safe,
    nan_safe_prelude,
    read_images,
    taking_image,
)
from .private_memory import whole_lines
from .work_groups import PREFETCH, DeviceCall, device_calls

DOORBELL = "tvm_stretch.doorbell"
"""Name of a launch that only waits and counts, for regions that begin or end with a copy."""

BELL_ARGUMENT = ("bell", 0)
"""First argument of every kernel with a bell, as in the JSON of ``opencl_code``."""

BELL_PRELUDE = """\
#if defined(__clang__) && defined(__x86_64__)
#define TVM_STRETCH_PAUSE __builtin_ia32_pause()
#elif defined(__clang__) && defined(__aarch64__)
#define TVM_STRETCH_PAUSE __asm__ volatile("yield")
#else
#define TVM_STRETCH_PAUSE
#endif
static int tvm_stretch_begin(volatile __global int* bell) {
  while (*bell == 0) TVM_STRETCH_PAUSE;
  return atomic_add(bell, 0) == 1;
}
static void tvm_stretch_end(volatile __global int* bell) {
  mem_fence(CLK_GLOBAL_MEM_FENCE);
  atomic_inc(bell + 16);
}
__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void tvm_stretch_doorbell(volatile __global int* bell) {
  if (tvm_stretch_begin(bell)) tvm_stretch_end(bell);
}
"""


def kernel_text(
    entry: str,
    params: Sequence[str],
    work: str,
    group_size: tuple[int, int, int] = (1, 1, 1),
    *,
    bells: bool,
) -> str:
    """The kernel that does ``work``, with a bell as its first argument if ``bells``."""
    lines = [work]
    if bells:
        params = ["volatile __global int* bell", *params]
        lines = ["if (!tvm_stretch_begin(bell)) return;", work, "tvm_stretch_end(bell);"]
    body = "".join(f"  {line}\n" for line in lines)
    attribute = f"__attribute__((reqd_work_group_size{group_size}))"
    return f"__kernel {attribute} void {entry}({', '.join(params)}) {{\n{body}}}\n"


def doorbell_launch() -> dict[str, object]:
    """The launch of the prelude's kernel."""
    return {
        "entry": "tvm_stretch_doorbell",
        "source": 0,
        "groups": [1, 1, 1],
        "group_size": [1, 1, 1],
        "args": [list(BELL_ARGUMENT)],
    }


_C_FUNCTIONS = (
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "erf", "exp10"),
    *("expm1", "fmod", "hypot", "log10", "log1p", "nextafter", "pow", "rint", "round", "sin"),
    *("sinh", "tan", "tanh", "trunc"),
)
"""Functions that TVM may call by their C names for float32, such as ``acoshf``."""

_WORK_ITEM = "tvm_stretch_work_item()"

_PRELUDE = f"""\
static size_t {_WORK_ITEM} {{
  size_t row = get_global_id(2) * get_global_size(1) + get_global_id(1);
  return row * get_global_size(0) + get_global_id(0);
}}
#if defined(__clang__) && (defined(__x86_64__) || defined(__aarch64__))
#define {PREFETCH}(p, near) __builtin_prefetch((const void*)(size_t)(p), 0, near)
#else
#define {PREFETCH}(p, near)
#endif
{"".join(f"#define {name}f {name}" + chr(10) for name in _C_FUNCTIONS)}#define nearbyintf rint
{WHOLE_QUADS_PRELUDE}"""


@dataclass(frozen=True)
class Launch:
    """One kernel in the driver's queue; see native/opencl for the kinds of arguments."""

    entry: str
    text: str
    groups: tuple[int, int, int]
    group_size: tuple[int, int, int]
    args: tuple[tuple[str, int], ...]

    def to_data(self) -> dict[str, Any]:
        """The launch in JSON, with its text as the first source."""
        data = asdict(self)
        del data["text"]
        return {**data, "source": 0}


def compile_opencl(
    # PrimFuncs by name; code that is not bound to work-items runs in one work-item
    kernels: Mapping[str, tirx.PrimFunc],
    target: Target,  # an OpenCL target
    *,
    # the device is a host's CPU. Its kernels have bells, and indices of 64 bits, whose arithmetic
    # is slow on GPUs.
    on_cpu: bool,
    # gives the kernels their loop nests; None if they have them
    schedule: tvm.transform.Pass | None = None,
) -> str:
    """Generate the JSON of the module docstring for every function of ``kernels``."""

    def code_of(function: tirx.PrimFunc) -> bytes:
        name = str(function.attrs["global_symbol"])
        calls = _launches(name, function, target, on_cpu)
        return to_text(list(calls)).encode()

    codes = generate(kernels, schedule, target, code_of, options=f"on_cpu={on_cpu}")
    launches = {name: from_text(tuple[Launch, ...], code) for name, code in codes.items()}
    data = {name: [entry.to_data() for entry in entries] for name, entries in launches.items()}
    texts = [launch.text for listed in launches.values() for launch in listed]
    if on_cpu:
        data[DOORBELL] = [doorbell_launch()]
        texts = [folded_addresses.PRELUDE, BELL_PRELUDE, TAKE_PRELUDE, *texts]
    written = "".join(texts)
    preludes = [nan_safe_prelude(written, on_cpu=on_cpu), product_prelude(written)]
    code = {"sources": [_PRELUDE + "".join(preludes) + written], "kernels": data, "options": ""}
    return json.dumps(code, separators=(",", ":"))


def _launches(name: str, function: tirx.PrimFunc, target: Target, on_cpu: bool) -> list[Launch]:
    calls = device_calls(name, function, target, on_cpu=on_cpu)
    attrs = function.attrs or {}
    images = frozenset(map(int, attrs.get(IMAGES, ())))
    if not calls:
        raise UnsupportedError(f"expected work for kernel {name}, got none; remove the operator")
    return [_launch(call, target, on_cpu, WHOLE_QUADS in attrs, images) for call in calls]


def _launch(
    call: DeviceCall, target: Target, bells: bool, whole: bool, images: Collection[int]
) -> Launch:
    """A function as TVM writes it, and a kernel that calls it with the starts of its tensors."""
    entry, work = call.entry, f"{call.entry}_work"
    params: list[str] = []
    pointers: list[str] = []
    shared: list[str] = []
    args: list[tuple[str, int]] = [BELL_ARGUMENT] if bells else []
    scratch = call.scratch
    items = math.prod(call.extents.values())
    text = _source(call, target, bells, whole, images).replace(
        f"__kernel void {entry}(", f"static void {work}("
    )
    for place, (param, (kind, number)) in enumerate(
        zip(call.function.params, call.memory, strict=True)
    ):
        name = f"memory{place}"
        if kind == "buffer" and number in images:
            pointer = f"__global {_type_name(param)}* restrict {param.name}"
            dtype = str(param.ty.element_type.dtype)
            text = taking_image(text, param.name, pointer, dtype)
            params += [f"__read_only image1d_buffer_t {name}", f"int first{place}"]
            args += [("image", number), ("offset", number)]
            pointers.append(f"{name}, first{place} / 4")
            continue
        if kind == "shared":
            # TVM declares all pointers global and `restrict`. Were these `restrict`, LLVM could
            # move loads of values that other work-items store to before the barrier.
            pointer = f"{_type_name(param)}* restrict {param.name}"
            text = text.replace(
                f"__global {pointer}", f"__local {pointer}".replace(" restrict", "")
            )
            shared.append(f"__local float4 {name}[{-(-number // 16)}];")
            pointers.append(f"(__local void*){name}")
            continue
        if kind == "buffer":
            params += [f"__global char* {name}", f"int first{place}"]
            args += [(kind, number), ("offset", number)]
            name += f" + (size_t)first{place} * {_item_bytes(param)}"
        elif kind == "own":
            name = f"scratch + {scratch} + {_WORK_ITEM} * {number}"
            scratch += whole_lines(number * items)
        else:
            name = f"scratch + {number}"
        pointers.append(f"(__global void*)({name})")
    if scratch > 0:
        params.append("__global char* scratch")
        args.append(("scratch", scratch))
    group_size = _three(call.extents, "threadIdx.")
    called = " ".join([*shared, f"{work}({', '.join(pointers)});"])
    return Launch(
        entry=entry,
        text=text + kernel_text(entry, params, called, group_size, bells=bells),
        groups=_three(call.extents, "blockIdx."),
        group_size=group_size,
        args=tuple(args),
    )


def _item_bytes(pointer: tvm.ir.Var) -> int:
    return tvm.DataType(str(pointer.ty.element_type.dtype)).itemsize


def _type_name(pointer: tvm.ir.Var) -> str:
    scalar, _, lanes = str(pointer.ty.element_type.dtype).partition("x")
    return _TYPE_NAMES.get(scalar, scalar) + lanes


def _three(extents: Mapping[str, int], prefix: str) -> tuple[int, int, int]:
    x, y, z = (extents.get(prefix + axis, 1) for axis in "xyz")
    return x, y, z


def _source(
    call: DeviceCall, target: Target, on_cpu: bool, whole: bool, images: Collection[int]
) -> str:
    t = tirx.transform
    lower = tvm.transform.Sequential(
        [
            t.LowerWarpMemory(),
            t.BF16StorageLegalize(),
            simplify_integers(t.StmtSimplify()),
            t.LowerIntrin(),
        ]
    )
    lowered = lower(IRModule({call.entry: call.function}))[call.entry]
    body = rewrite(
        lowered.body,
        (tirx.FloatImm, _exact),
        (tirx.Broadcast, _splat),
        (tirx.Shuffle, _vector_of_lanes),
        (TensorLoad, _gathered),
        (Call, _of_opencl),
    )
    tensors = list(zip(lowered.params, call.memory, strict=True))
    seen = [param for param, (kind, number) in tensors if kind == "buffer" and number in images]
    body = read_images(body, seen) if seen else body
    body = access_whole_quads(body) if whole else body
    if on_cpu:
        pointers = [param for param, (kind, _) in tensors if kind == "buffer"]
        body = folded_addresses.fold_addresses(body, pointers)
    body = rewrite(body, ((tirx.Max, tirx.Min), nan_safe))
    build = tvm.get_global_func("target.build.opencl")
    return str(build(IRModule({call.entry: lowered.with_body(body)}), target).inspect_source())


_TYPE_NAMES = {"float32": "float", "float16": "half", "float64": "double", "int32": "int"}
_TYPE_NAMES |= {"int64": "long", "int16": "short", "int8": "char"}
_TYPE_NAMES |= {f"u{name}": f"u{text}" for name, text in _TYPE_NAMES.items() if "int" in name}


def _exact(number: tirx.FloatImm) -> tvm.ir.Expr:
    """The bits of a number if TVM's seven digits do not represent it exactly."""
    value = np.float32(number.value)
    if str(number.ty.dtype) != "float32" or not np.isfinite(value):
        return number
    if np.float32(f"{value:.6e}") == value:
        return number
    bits = tirx.const(int(value.view("int32")), "int32")
    return tirx.call_pure_extern("float32", "as_float", bits)


def _of_opencl(call: Call) -> tvm.ir.Expr:
    """``as_uint(x)`` for bits, where TVM takes the address of ``x``, which may have none."""
    if getattr(call.op, "name", "") != "tirx.reinterpret":
        return opencl_product(call)
    scalar, _, lanes = str(call.ty.dtype).partition("x")
    return tirx.call_pure_extern(call.ty, f"as_{_TYPE_NAMES[scalar]}{lanes}", *call.args)


def _vector_of_lanes(shuffle: tirx.Shuffle) -> tvm.ir.Expr:
    """``(float4)((v).s3, ..)``; TVM writes ``float4((v).s3, ..)``, which is not OpenCL C."""
    scalar, _, lanes = str(shuffle.ty.dtype).partition("x")
    widths = {str(vector.ty.dtype).partition("x")[2] for vector in shuffle.vectors}
    if not lanes or len(widths) != 1 or scalar not in _TYPE_NAMES:
        return shuffle
    [width] = map(int, widths)
    places = [divmod(int(index), width) for index in shuffle.indices]
    picked = [tirx.Shuffle([shuffle.vectors[vector]], [lane]) for vector, lane in places]
    return tirx.call_pure_extern(str(shuffle.ty.dtype), f"({_TYPE_NAMES[scalar]}{lanes})", *picked)


def _gathered(load: TensorLoad) -> tvm.ir.Expr:
    """``(uchar16)(t[(i).s0], ..)``; TVM writes bytes that are not contiguous as one number."""
    dtype = str(load.ty.dtype)
    scalar, _, lanes = dtype.partition("x")
    last = load.indices[-1]
    beside = isinstance(last, tirx.Ramp) and int(last.stride) == 1
    if scalar not in ("int8", "uint8") or beside or not str(last.ty.dtype).endswith(f"x{lanes}"):
        return load
    places = tirx.Var("places", str(last.ty.dtype))
    picked = [
        tirx.BufferLoad(load.source, [*load.indices[:-1], tirx.Shuffle([places], [lane])])
        for lane in range(int(lanes))
    ]
    vector = tirx.call_pure_extern(dtype, f"({_TYPE_NAMES[scalar]}{lanes})", *picked)
    return tirx.Let(places, last, vector)


def _splat(vector: tirx.Broadcast) -> tvm.ir.Expr:
    """``(float8)(x)``; TVM would write ``x`` eight times."""
    dtype = str(vector.ty.dtype)
    scalar, _, lanes = dtype.partition("x")
    if scalar not in _TYPE_NAMES:
        return vector
    return tirx.call_pure_extern(dtype, f"({_TYPE_NAMES[scalar]}{lanes})", vector.value)
