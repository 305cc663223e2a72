"""What Hexagon computes of floats at the ends of a network of integers, and which of it is slow."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.ir.expressions import shape_of
from tvm_stretch.ir.operators import kind_of

from .kernels.float_bits import is_saturating, is_scaling

CONVERTING = frozenset(
    ("astype", "round", "clip", "add", "subtract", "multiply", "divide", "reshape", "permute_dims")
)
"""What quantising and dequantising consist of, at the ends of a network of integers.

Quantising by one scale is done with the bits of floats, in vectors (kernels/float_bits.py). Every
version computes other float32 in its general registers, one number at a time. Of two tensors, as
in a network of floats, that is refused.
"""


def scalar_calls(
    calls: Mapping[str, relax.Call], version: str, *, has_floats: bool
) -> dict[str, str]:
    """Which of its calls compute one number at a time, and why; moving numbers is no computing."""
    if has_floats:
        return {}
    computing, vectors = CONVERTING - {"reshape", "permute_dims"}, _quantising(calls)
    reason = f"float32 one number at a time, vectors of {version} hold none; those of v68 do"
    return {
        name: reason
        for name, call in calls.items()
        if kind_of(call) in computing and _is_float(call) and name not in vectors
    }


def _quantising(calls: Mapping[str, relax.Call]) -> set[str]:
    """Operators that become a kernel of which `quantise_bits` makes integers."""
    readers = Counter(
        arg.name for call in calls.values() for arg in call.args if isinstance(arg, relax.Var)
    )
    found: set[str] = set()
    for last, call in calls.items():
        names = [last]
        while len(names) < 5 and (before := getattr(call.args[0], "name", "")) in calls:
            if readers[before] != 1:
                break
            names, call = [*names, before], calls[before]
        kinds = [kind_of(calls[name]) for name in names]
        rounds = kinds.index("round") if "round" in kinds else 0
        if kinds[:rounds] not in (["astype", "clip"], ["astype", "clip", "add"]):
            continue
        zero = _number(calls[names[2]]) if rounds == 3 else 0.0
        low, high = (float(arg.value) for arg in calls[names[1]].args[1:])
        if str(calls[last].ty.dtype) == "int32" and is_saturating(zero, low, high):
            found.update(names[: rounds + 1])
            before = names[rounds + 1 :][:1]
            found.update(n for n in before if is_scaling(kinds[rounds + 1], _number(calls[n])))
    return found


def _number(call: relax.Call) -> float:
    """The one constant number behind the first operand; NaN where that is something else."""
    other = call.args[-1]
    is_one = isinstance(other, GenericConst) and not shape_of(other)
    return float(other.value.numpy()) if is_one else math.nan


def _is_float(call: relax.Call) -> bool:
    types = (expr.ty for expr in (call, *call.args))
    return any(isinstance(ty, relax.TensorType) and str(ty.dtype) == "float32" for ty in types)
