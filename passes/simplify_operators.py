"""Write equal computations equally, one operator at a time.

    add(const, x)                    ->   add(x, const)
    divide(x, 4.0), subtract(x, c)   ->   multiply(x, 0.25), add(x, -c)
    clip(clip(x, 0, inf), -inf, 6)   ->   clip(x, 0, 6)
    clip(x, 0, inf), maximum(x, 0)   ->   nn.relu(x)
    multiply(x, sigmoid(x))          ->   nn.silu(x)
    power(x, 3)                      ->   multiply(multiply(x, x), x)
    expand_dims, squeeze, flatten    ->   reshape; a chain of them is one, or none
    adaptive_avg_pool2d(x, 1)        ->   mean(x, [2, 3], keepdims)
    dropout(x)[0]                    ->   x
    arange(0, 3, 1)                  ->   [0, 1, 2]
    conv2d(nn.pad(x, 1), w)          ->   conv2d(x, w, padding=1)
    add(x: (1, 8, 4, 4), b: (8, 1, 1))   ->   add(x, b: (1, 8, 1, 1))
    add(a, b), multiply(a, b), of booleans   ->   logical_or(a, b), logical_and(a, b)
    isnan(x), layer_norm(x), of bfloat16     ->   of astype(x, float32): TVM has no kernel for x

Types other than floating point are left alone where rounding or wrapping could differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.network.expressions import (
    RESHAPES,
    axes_of,
    constant,
    is_float,
    rewrite_functions,
    shape_of,
)
from tvm_stretch.network.operators import kind_of
from tvm_stretch.network.rewriting import SourceRewriter

_AVERAGE_POOLS = {f"nn.adaptive_avg_pool{rank}d" for rank in (1, 2, 3)}
_LONG = 1 << 16
"""Longer ranges stay operators, because constants would make the artifact larger."""

_FLOATS_ALONE = {"isnan", "isinf", "isfinite"}
_FLOATS_ALONE |= {f"nn.{kind}_norm" for kind in ("layer", "group", "instance", "rms")}
_CONVS = {f"nn.conv{rank}d" for rank in (1, 2, 3)}


@relax.expr_functor.mutator
class _Simplifier(SourceRewriter):
    """A rule returns None if it does not apply."""

    def rewrite(self, call: relax.Call) -> relax.Expr | None:
        """Apply the first rule that fits, and once more one that fits its result."""
        simpler = self.simplified(call)
        again = self.simplified(simpler) if isinstance(simpler, relax.Call) else None
        return simpler if again is None else again

    def visit_tuple_getitem_(self, item: relax.TupleGetItem) -> relax.Expr:
        """``dropout(x)[0] -> x``: at inference nothing is dropped."""
        item = self.visit_expr_post_order(item)
        call = self.definition(item.tuple_value)
        dropped = kind_of(call) == "nn.dropout" and item.index == 0
        return call.args[0] if dropped else item

    def simplified(self, call: relax.Call) -> relax.Expr | None:
        """What the first rule that fits makes of a call."""
        candidates = (rule(self, call) for rule in _RULES.get(kind_of(call), ()))
        simpler = next((expr for expr in candidates if expr is not None), None)
        return None if simpler is None else self.builder_.normalize(simpler)


Rule = Callable[[_Simplifier, relax.Call], relax.Expr | None]


_OF_BOOLEANS = {
    **dict.fromkeys(("add", "maximum"), relax.op.logical_or),
    **dict.fromkeys(("multiply", "minimum"), relax.op.logical_and),
}


def of_booleans(_s: _Simplifier, call: relax.Call) -> relax.Expr | None:
    """``add(a, b) -> logical_or(a, b)`` for booleans, as in NumPy; TVM does not add booleans."""
    if str(call.ty.dtype) != "bool":
        return None
    return _OF_BOOLEANS[kind_of(call)](*call.args)


def constant_right(s: _Simplifier, call: relax.Call) -> relax.Expr | None:
    """``add(const, x) -> add(x, const)``."""
    value = s.constant(call.args[0])
    if value is None or s.constant(call.args[1]) is not None:
        return None
    if kind_of(call) in ("maximum", "minimum") and value.size > 1:
        return None  # they keep a NaN of their second operand only
    return relax.Call(call.op, [call.args[1], call.args[0]], call.attrs)


def constant_rank(s: _Simplifier, call: relax.Call) -> relax.Expr | None:
    """Give constants the rank of the result, and constants of one element rank 0."""
    value, rank = s.constant(call.args[1]), len(shape_of(call))
    if (
        value is None
        or s.constant(call.args[0]) is not None
        or shape_of(call) != shape_of(call.args[0])
    ):
        return None
    wanted = () if value.size == 1 else (1,) * (rank - value.ndim) + value.shape
    if wanted == value.shape:
        return None
    return relax.Call(call.op, [call.args[0], constant(value.reshape(wanted))], call.attrs)


def divide_to_multiply(s: _Simplifier, call: relax.Call) -> relax.Expr | None:
    """``x / 4 -> x * 0.25``: only powers of two have exact reciprocals."""
    value = s.constant(call.args[1])
    if value is None or not is_float(call) or s.constant(call.args[0]) is not None:
        return None
    wide = value.astype("float64")
    with np.errstate(all="ignore"):
        inverse = (1 / wide).astype(value.dtype)
    tiny = np.finfo(value.dtype).tiny if value.dtype.kind == "f" else np.inf
    is_power = (np.abs(np.frexp(wide)[0]) == 0.5) & np.isfinite(inverse)
    if not (is_power & (np.abs(inverse) >= tiny)).all():
        return None
    return relax.op.multiply(call.args[0], constant(inverse))


def subtract_to_add(s: _Simplifier, call: relax.Call) -> relax.Expr | None:
    """``x - c -> x + (-c)``."""
    value = s.constant(call.args[1])
    if value is None or not is_float(call) or s.constant(call.args[0]) is not None:
        return None
    return relax.op.add(call.args[0], constant(-value))


def neutral(s: _Simplifier, call: relax.Call) -> relax.Expr | None:
    """``x + -0.0 -> x``, ``x * 1 -> x``; a sum of -0.0 and 0.0 is 0.0."""
    value = s.constant(call.args[1])
    if value is None or shape_of(call) != shape_of(call.args[0]):
        return None
    unit = 0 if kind_of(call) == "add" else 1
    changes_sign = unit == 0 and is_float(call) and not np.signbit(value).all()
    if changes_sign or not (value == unit).all():
        return None
    return call.args[0]


def sigmoid_product(s: _Simplifier, call: relax.Call) -> relax.Expr | None:
    """``x * sigmoid(x) -> silu(x)``; types of two bytes round the sigmoid before the product."""
    if str(call.ty.dtype) not in ("float32", "float64"):
        return None
    for x, other in (call.args, reversed(call.args)):
        gate = s.definition(other)
        if kind_of(gate) == "sigmoid" and isinstance(x, relax.Var) and gate.args[0].same_as(x):
            return relax.op.nn.silu(x)
    return None


def small_power(s: _Simplifier, call: relax.Call) -> relax.Expr | None:
    """``x ** 3 -> x * x * x``: TVM calls C's ``pow`` for each number, in 15 times as much time."""
    value = s.constant(call.args[1])
    if value is None or value.size != 1 or value.item() not in (2, 3, 4) or not is_float(call):
        return None
    if shape_of(call) != shape_of(call.args[0]):
        return None
    x = call.args[0]
    square = relax.op.multiply(x, x)
    if value.item() == 2:
        return square
    square = s.emit(square)
    return relax.op.multiply(square, x if value.item() == 3 else square)


def bounds_of(s: _Simplifier, call: Any) -> tuple[float, float] | None:
    """Lower and upper bound of a call that only clips floats, None for other calls."""
    name = kind_of(call)
    if not isinstance(call, relax.Call) or not is_float(call):
        return None
    if name == "nn.relu":
        return 0.0, np.inf
    if name == "clip":
        return float(call.args[1].value), float(call.args[2].value)
    if name in ("maximum", "minimum"):
        value = s.constant(call.args[1])
        if (
            value is None
            or value.size != 1
            or np.isnan(value).any()
            or s.constant(call.args[0]) is not None
        ):
            return None
        if shape_of(call) != shape_of(call.args[0]):
            return None
        bound = float(value.reshape(()))
        return (bound, np.inf) if name == "maximum" else (-np.inf, bound)
    return None


def merge_clips(s: _Simplifier, call: relax.Call) -> relax.Expr | None:
    """A chain of clips becomes one clip; a clip from zero to infinity becomes relu."""
    bounds = bounds_of(s, call)
    if bounds is None:
        return None
    (low, high), x = bounds, call.args[0]
    inner = bounds_of(s, s.definition(x))
    if inner is not None:
        low, high = min(max(inner[0], low), high), min(max(inner[1], low), high)
        x = s.definition(x).args[0]
    if low == 0.0 and high == np.inf:
        wanted = relax.op.nn.relu(x)
    elif low == -np.inf and high == np.inf:
        return x
    else:
        wanted = relax.op.clip(x, relax.prim_value(low), relax.prim_value(high))
    same = inner is None and kind_of(call) == kind_of(wanted)
    floats = all(isinstance(arg, tvm.tirx.FloatImm) for arg in call.args[1:])
    return None if same and floats else wanted


def reshape_chain(s: _Simplifier, call: relax.Call) -> relax.Expr | None:
    """Merge reshapes of reshapes, reshape constants, and drop reshapes to the same shape."""
    shape = shape_of(call)
    x = call.args[0]
    value = s.constant(x)
    if value is not None:
        return constant(value.reshape(shape))
    while kind_of(s.definition(x)) in RESHAPES:
        x = s.definition(x).args[0]
    if shape_of(x) == shape:
        return x
    if x.same_as(call.args[0]) and kind_of(call) == "reshape":
        return None
    return relax.op.reshape(x, relax.ShapeExpr(shape))


def transpose(s: _Simplifier, call: relax.Call) -> relax.Expr | None:
    """Merge transposes of transposes; a transpose that only moves axes of size 1 is a reshape."""
    order, x = axes_of(call), call.args[0]
    value = s.constant(x)
    if value is not None:
        return constant(value.transpose(order))
    inner = s.definition(x)
    if kind_of(inner) == "permute_dims":
        first = axes_of(inner)
        return relax.op.permute_dims(inner.args[0], [first[axis] for axis in order])
    long = [axis for axis in order if shape_of(x)[axis] != 1]
    if long == sorted(long):
        return relax.op.reshape(x, relax.ShapeExpr(shape_of(call)))
    return None


def drop_identity(_s: _Simplifier, call: relax.Call) -> relax.Expr | None:
    """Drop casts to the same type, slices of everything and padding by nothing."""
    x = call.args[0]
    same = str(call.ty.dtype) == str(x.ty.dtype) and shape_of(call) == shape_of(x)
    if not same:
        return None
    if kind_of(call) == "strided_slice":
        strides = call.args[4].fields if len(call.args) > 4 else []
        return x if all(int(stride.value) > 0 for stride in strides) else None
    if kind_of(call) == "nn.pad" and any(int(width) for width in call.attrs.pad_width):
        return None  # one side is padded by as much as the other is cut
    return x


def global_average(_s: _Simplifier, call: relax.Call) -> relax.Expr | None:
    """An average over the whole map is ``mean(x, [2, 3], keepdims=True)``."""
    shape, result = shape_of(call.args[0]), shape_of(call)
    layout = str(call.attrs.layout)
    if not layout.startswith("NC") or any(size != 1 for size in result[2:]):
        return None
    if kind_of(call).startswith("nn.avg_pool"):
        whole = [int(k) for k in call.attrs.pool_size] == shape[2:]
        if not whole or any(int(p) for p in call.attrs.padding):
            return None
    return relax.op.mean(call.args[0], list(range(2, len(shape))), keepdims=True)


def mean_axes(_s: _Simplifier, call: relax.Call) -> relax.Expr | None:
    """Axes counted from the front and in order; without keepdims a reshape follows."""
    rank = len(shape_of(call.args[0]))
    given = None if call.attrs.axis is None else [int(axis) for axis in call.attrs.axis]
    axes = list(range(rank)) if given is None else sorted(axis % rank for axis in given)
    spatial = rank >= 3 and axes == list(range(2, rank)) and not call.attrs.keepdims
    if axes == given and not spatial:
        return None
    mean = relax.op.mean(call.args[0], axes, keepdims=spatial or bool(call.attrs.keepdims))
    return relax.op.reshape(mean, relax.ShapeExpr(shape_of(call))) if spatial else mean


def padding_into_conv(s: _Simplifier, call: relax.Call) -> relax.Expr | None:
    """Zeros around the map become the convolution's own padding."""
    pad = s.definition(call.args[0])
    layout = str(call.attrs.data_layout)
    if kind_of(pad) != "nn.pad" or not layout.startswith("NC"):
        return None
    width = [int(w) for w in pad.attrs.pad_width]
    zeros = pad.attrs.pad_mode == "constant" and float(pad.attrs.pad_value) == 0
    if not zeros or any(width[:4]) or any(w < 0 for w in width):
        return None
    rank = len(layout) - 2
    own = [int(p) for p in call.attrs.padding]
    begin = [own[i] + width[4 + 2 * i] for i in range(rank)]
    end = [own[rank + i] + width[5 + 2 * i] for i in range(rank)]
    attrs = call.attrs
    function = getattr(relax.op.nn, kind_of(call).rsplit(".", 1)[1])
    return function(
        pad.args[0],
        call.args[1],
        strides=[int(v) for v in attrs.strides],
        padding=begin + end,
        dilation=[int(v) for v in attrs.dilation],
        groups=int(attrs.groups),
        data_layout=layout,
        kernel_layout=str(attrs.kernel_layout),
        out_layout=str(attrs.out_layout),
        out_dtype=attrs.out_dtype,
    )


def constant_range(_s: _Simplifier, call: relax.Call) -> relax.Expr | None:
    """``arange(0, 3, 1) -> [0, 1, 2]``, so that operators that read it can be folded."""
    are_numbers = all(isinstance(arg, tvm.tirx.IntImm | tvm.tirx.FloatImm) for arg in call.args)
    if not are_numbers or shape_of(call)[0] > _LONG:
        return None
    dtype = str(call.ty.dtype)
    start, stop, step = (arg.value for arg in call.args)
    return relax.const(np.arange(start, stop, step).astype(dtype), dtype)


def in_float32(s: _Simplifier, call: relax.Call) -> relax.Expr | None:
    """``f(x) -> f(x as float32)``, for which TVM has a kernel."""
    if str(call.args[0].ty.dtype) != "bfloat16":
        return None
    emit = s.builder_.emit
    operands = [
        emit(relax.op.astype(operand, "float32")) if is_float(operand) else operand
        for operand in call.args
    ]
    result = emit(relax.Call(call.op, operands, call.attrs))
    return relax.op.astype(result, "bfloat16") if is_float(call) else result


_RULES: dict[str, tuple[Rule, ...]] = {
    "arange": (constant_range,),
    "add": (of_booleans, constant_right, neutral, constant_rank),
    "multiply": (of_booleans, constant_right, neutral, constant_rank, sigmoid_product),
    "subtract": (subtract_to_add,),
    "divide": (divide_to_multiply,),
    "power": (small_power,),
    "maximum": (of_booleans, constant_right, merge_clips),
    "minimum": (of_booleans, constant_right, merge_clips),
    "mean": (mean_axes,),
    "permute_dims": (transpose,),
    **dict.fromkeys(("clip", "nn.relu"), (merge_clips,)),
    **dict.fromkeys(RESHAPES, (reshape_chain,)),
    **dict.fromkeys(_AVERAGE_POOLS | {f"nn.avg_pool{r}d" for r in (1, 2, 3)}, (global_average,)),
    **dict.fromkeys(_CONVS, (padding_into_conv,)),
    **dict.fromkeys(("astype", "strided_slice", "nn.pad"), (drop_identity,)),
    "broadcast_to": (drop_identity,),
    **dict.fromkeys(_FLOATS_ALONE, (in_float32,)),
}


@tvm.transform.module_pass(opt_level=0, name="SimplifyOperators")
class SimplifyOperators:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_functions(mod, lambda mod, function: _Simplifier(mod).visit_expr(function))
