"""Float operators of Hexagon at the ends of an integer network, and which of them are slow."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.network.expressions import shape_of
from tvm_stretch.network.operators import kind_of
from tvm_stretch.targets.kernels.float_bits import is_saturating, is_scaling

CONVERTING = frozenset(
    ("astype", "round", "clip", "add", "subtract", "multiply", "divide", "reshape", "permute_dims")
)
"""The operators of quantising and dequantising, at the ends of an integer network.

Quantising by one scale works on the bits of floats, in vectors (kernels/float_bits.py). Every
version computes other float32 operators in its general registers, one number at a time. Operators
on two tensors, as in a network of floats, are refused.
"""


def scalar_calls(
    calls: Mapping[str, relax.Call], version: str, *, has_floats: bool
) -> dict[str, str]:
    """Calls that compute one number at a time, with the reason; moves of numbers do not count."""
    if has_floats:
        return {}
    computing, vectors = CONVERTING - {"reshape", "permute_dims"}, _quantising(calls)
    reason = f"float32 one number at a time, vectors of {version} hold none; vectors of v68 do"
    return {
        name: reason
        for name, call in calls.items()
        if kind_of(call) in computing and _is_float(call) and name not in vectors
    }


def _quantising(calls: Mapping[str, relax.Call]) -> set[str]:
    """Operators that are fused into a kernel which `quantise_bits` rewrites in integers."""
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
    """The constant second operand if it is a single number, otherwise NaN."""
    other = call.args[-1]
    is_one = isinstance(other, GenericConst) and not shape_of(other)
    return float(other.value.numpy()) if is_one else math.nan


def _is_float(call: relax.Call) -> bool:
    types = (expr.ty for expr in (call, *call.args))
    return any(isinstance(ty, relax.TensorType) and str(ty.dtype) == "float32" for ty in types)
