"""Access vectors of four numbers at once, if they are aligned like such a vector.

    vload4(0, t + i)   ->   *(__global const float4*)(&t[i])

`vload4` accepts any address that is aligned for one number, so compilers that cannot prove more
read one number after the other.

Read tensors as images, whose pixels are four numbers: GPUs of phones cache these apart.

    vload4(0, t + 4 * i)   ->   read_imagef(t, t_first + i)

The image views the buffer in which the tensor lies, so nothing is copied; ``t_first`` is the
tensor's first pixel in it.

Maxima and minima whose answer for NaN is known, in OpenCL C.

    max(0.0f, x)   ->   tvm_stretch_best_max_float(0.0f, x)

OpenCL leaves it open what `max` returns of a NaN, and `fmax` returns the other operand; comparisons
are those of IEEE 754. The functions return NaN if either operand is NaN:

    a > b || a != a ? a : b

so templates and TVM's rules, which let work-items join what they found, need no care of their own.
A compiler drops the second comparison where `a` is constant (`passes/keep_nan.py` puts constants
there). Loop nests of CPUs test new numbers themselves (`targets/kernels/nan.py`) and rely on the
second operand, which a CPU's instruction returns: `a > b ? a : b` there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from tvm_stretch.network.rewriting import rewrite

_QUAD = 4
_NAMES = {"float32": "float", "float16": "half", "int32": "int", "int16": "short"}
_NAMES |= {"int8": "char", "uint8": "uchar"}
_STORE = "tvm_stretch_store"

WHOLE_QUADS_PRELUDE = "".join(
    f"#define {_STORE}_{name}4(p, ...) *(__global {name}4*)(p) = (__VA_ARGS__)\n"
    for name in _NAMES.values()
)


def access_whole_quads(body: tirx.Stmt) -> tirx.Stmt:
    """Treat all vectors of four numbers in the device's memory as aligned."""
    return rewrite(body, (TensorLoad, _loaded), (tirx.BufferStore, _stored))


def _address(place: tvm.ir.Expr, buffer: tirx.Buffer) -> tvm.ir.Expr | None:
    is_quad = isinstance(place, tirx.Ramp) and int(place.stride) == 1 and int(place.lanes) == _QUAD
    if not is_quad or buffer.scope() != "global" or str(buffer.dtype) not in _NAMES:
        return None
    return tirx.address_of(tirx.BufferLoad(buffer, [place.base]))


def _loaded(load: TensorLoad) -> tvm.ir.Expr:
    address = _address(load.indices[-1], load.source)
    if address is None:
        return load
    pointer = f"*(__global const {_NAMES[str(load.source.dtype)]}4*)"
    return tirx.call_pure_extern(str(load.ty.dtype), pointer, address)


def _stored(store: tirx.BufferStore) -> tirx.Stmt:
    address = _address(store.indices[-1], store.buffer)
    if address is None:
        return store
    name = f"{_STORE}_{_NAMES[str(store.buffer.dtype)]}4"
    return tirx.Evaluate(tirx.call_extern("void", name, address, store.value))


_READS = {"float32": "read_imagef", "float16": "read_imageh"}
_READ = "tvm_stretch_pixel_"


def read_images(body: tirx.Stmt, images: Sequence[tirx.Var]) -> tirx.Stmt:
    """Replace all loads of the tensors at these parameters, which are whole quads."""
    analyzer, names = Analyzer(), dict[Any, str]()

    def declared(tensor: tirx.DeclBuffer) -> None:
        names.update((tensor.buffer, i.name) for i in images if i.same_as(tensor.data))

    def read(load: TensorLoad) -> tvm.ir.Expr:
        name = names.get(load.source)
        if name is None:
            return load
        place = load.indices[-1]
        assert isinstance(place, tirx.Ramp) and int(place.lanes) == _QUAD, load
        pixel = analyzer.simplify(tirx.truncdiv(place.base, tirx.const(_QUAD, place.base.ty.dtype)))
        return tirx.call_pure_extern(str(load.ty.dtype), f"{_READ}{name}", pixel)

    tvm_ffi.structural_walk(body, (tirx.DeclBuffer, declared))
    return rewrite(body, (TensorLoad, read))


def taking_image(text: str, name: str, pointer: str, dtype: str) -> str:
    """A function's text with an image and its first pixel as parameters instead of ``pointer``."""
    taken = f"__read_only image1d_buffer_t {name}, int {name}_first"
    read = f"{_READ}{name}"
    return (
        f"#define {read}(pixel) {_READS[dtype]}({name}, {name}_first + (pixel))\n"
        f"{text.replace(pointer, taken)}\n#undef {read}\n"
    )


_FLOATS = {"float32": "float", "float16": "half", "float64": "double"}
_EXTENSIONS = {"half": "cl_khr_fp16", "double": "cl_khr_fp64"}
_WIDTHS = ("2", "4", "8", "16")
_SIGNS = {"max": ">", "min": "<"}
_NAME = "tvm_stretch_best"


def _functions(scalar: str, on_cpu: bool) -> str:
    lines = []
    for name, sign in _SIGNS.items():
        for width in ("", *_WIDTHS):
            kind, wins = f"{scalar}{width}", f"a {sign} b"
            if not on_cpu:
                wins = f"({wins}) | (a != a)" if width else f"{wins} || a != a"
            best = f"select(b, a, {wins})" if width else f"{wins} ? a : b"
            body = f"({kind} a, {kind} b) {{ return {best}; }}"
            lines.append(f"static {kind} {_NAME}_{name}_{kind}{body}\n")
    return "".join(lines)


def nan_safe_prelude(text: str, *, on_cpu: bool) -> str:
    """The functions that a program calls."""
    functions = []
    for scalar in _FLOATS.values():
        if any(f"{_NAME}_{name}_{scalar}" in text for name in _SIGNS):
            if extension := _EXTENSIONS.get(scalar):
                functions.append(f"#pragma OPENCL EXTENSION {extension} : enable\n")
            functions.append(_functions(scalar, on_cpu))
    return "".join(functions)


def nan_safe(best: tirx.Max | tirx.Min) -> Expr:
    """A maximum or minimum of floats as a call of the prelude's function; others as they are."""
    dtype = str(best.ty.dtype)
    scalar, _, width = dtype.partition("x")
    if scalar not in _FLOATS or width not in ("", *_WIDTHS):
        return best
    name = "max" if isinstance(best, tirx.Max) else "min"
    return tirx.call_pure_extern(dtype, f"{_NAME}_{name}_{_FLOATS[scalar]}{width}", best.a, best.b)
