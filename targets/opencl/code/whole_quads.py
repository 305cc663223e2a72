"""Access vectors of four numbers at once, if they are aligned like such a vector.

    vload4(0, t + i)   ->   *(__global const float4*)(&t[i])

`vload4` accepts any address that is aligned for one number, so compilers that cannot prove more
read one number after the other.

Read tensors as images, whose pixels are four numbers: GPUs of phones cache these apart.

    vload4(0, t + 4 * i)   ->   read_imagef(t, t_first + i)

The image views the buffer in which the tensor lies, so nothing is copied; ``t_first`` is the
tensor's first pixel in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
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
