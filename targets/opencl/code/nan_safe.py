"""Maxima and minima whose answer for NaN is known, in OpenCL C.

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

from tvm import tirx
from tvm.ir import Expr

_NAMES = {"float32": "float", "float16": "half", "float64": "double"}
_EXTENSIONS = {"half": "cl_khr_fp16", "double": "cl_khr_fp64"}
_WIDTHS = ("2", "4", "8", "16")
_SIGNS = {"max": ">", "min": "<"}
_NAME = "tvm_stretch_best"


def _functions(scalar: str, on_cpu: bool) -> str:
    found = []
    for name, sign in _SIGNS.items():
        for width in ("", *_WIDTHS):
            kind, wins = f"{scalar}{width}", f"a {sign} b"
            if not on_cpu:
                wins = f"({wins}) | (a != a)" if width else f"{wins} || a != a"
            best = f"select(b, a, {wins})" if width else f"{wins} ? a : b"
            body = f"({kind} a, {kind} b) {{ return {best}; }}"
            found.append(f"static {kind} {_NAME}_{name}_{kind}{body}\n")
    return "".join(found)


def nan_safe_prelude(text: str, *, on_cpu: bool) -> str:
    """The functions that a program calls."""
    found = []
    for scalar in _NAMES.values():
        if any(f"{_NAME}_{name}_{scalar}" in text for name in _SIGNS):
            if extension := _EXTENSIONS.get(scalar):
                found.append(f"#pragma OPENCL EXTENSION {extension} : enable\n")
            found.append(_functions(scalar, on_cpu))
    return "".join(found)


def nan_safe(best: tirx.Max | tirx.Min) -> Expr:
    """A maximum or minimum of floats as a call of the prelude's function; others as they are."""
    dtype = str(best.ty.dtype)
    scalar, _, width = dtype.partition("x")
    if scalar not in _NAMES or width not in ("", *_WIDTHS):
        return best
    name = "max" if isinstance(best, tirx.Max) else "min"
    return tirx.call_pure_extern(dtype, f"{_NAME}_{name}_{_NAMES[scalar]}{width}", best.a, best.b)
