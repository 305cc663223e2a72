"""Maxima and minima that return NaN as a CPU's instruction does, in OpenCL C.

    max(0.0f, x)   ->   tvm_stretch_best_max_float(0.0f, x)      # 0.0f > x ? 0.0f : x

OpenCL leaves it open what `max` returns of a NaN, and NVIDIA's compiler returns the other operand.
Kernels rely on getting the second one (`passes/keep_nan.py`).
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr

_NAMES = {"float32": "float", "float16": "half"}
_WIDTHS = ("2", "4", "8", "16")
_SIGNS = {"max": ">", "min": "<"}
_NAME = "tvm_stretch_best"


def _functions(scalar: str) -> str:
    found = []
    for name, sign in _SIGNS.items():
        body = f"{scalar} a, {scalar} b) {{ return a {sign} b ? a : b; }}"
        found.append(f"static {scalar} {_NAME}_{name}_{scalar}({body}\n")
        for kind in (f"{scalar}{width}" for width in _WIDTHS):
            body = f"{kind} a, {kind} b) {{ return select(b, a, a {sign} b); }}"
            found.append(f"static {kind} {_NAME}_{name}_{kind}({body}\n")
    return "".join(found)


_HALVES = "#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n"


def nan_safe_prelude(text: str) -> str:
    """The functions that a program calls."""
    halves = _HALVES + _functions("half") if "_half" in text else ""
    return (_functions("float") + halves) if _NAME in text else ""


def nan_safe(best: tirx.Max | tirx.Min) -> Expr:
    """A maximum or minimum of floats as a call of the prelude's function; others as they are."""
    dtype = str(best.ty.dtype)
    scalar, _, width = dtype.partition("x")
    if scalar not in _NAMES or width not in ("", *_WIDTHS):
        return best
    name = "max" if isinstance(best, tirx.Max) else "min"
    return tirx.call_pure_extern(dtype, f"{_NAME}_{name}_{_NAMES[scalar]}{width}", best.a, best.b)
