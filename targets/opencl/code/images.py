"""Read tensors as images, whose pixels are four numbers: GPUs of phones cache these apart.

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
