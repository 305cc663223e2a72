"""Compute the integer operators of some regions in float16, for GPUs that have no fast integers.

    y = R.call_tir(integer_conv2d, (x, w, b, f))    # uint8, zero points 3 and 7
        ->
    h = R.astype(x, "float16") - 3                  # once, where integers enter the region
    g = R.clip(R.nn.conv2d(h, w * f) + b * f, 0 - 7, 255 - 7)
    y = R.astype(R.clip(R.round(g) + 7, 0, 255), "uint8")     # once, where they leave it

Between two operators a value is an integer minus its zero point that nobody rounded, so answers
differ from those of integer arithmetic by the roundings that are left out. The scales are those of
the integer operators; weights take their factors with them. An operator without a form in floats
reads integers, and is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.network.expressions import (
    builder_with_kernels,
    constant,
    shape_of,
    with_variables,
    written_again,
)
from tvm_stretch.network.integers import Integer, integer_of, operands_of, rounding_of
from tvm_stretch.network.operators import PROCESSOR, kind_of
from tvm_stretch.passes.name_operators import Renamer

HALF, WIDE = "float16", "float32"
_MOVES = {"concat", "reshape", "permute_dims", "strided_slice", "nn.max_pool2d"}
"""Operators that give an integer the value that they give it as a float."""

_LEAST, _LARGEST = float(np.finfo(HALF).tiny), float(np.finfo(HALF).max) / 256
"""Factors of integers of 8 bits whose products float16 has."""


@tvm.transform.module_pass(opt_level=0, name="IntegersInHalf")
class IntegersInHalf:
    """See the module docstring.

    Args:
        processors: by name, whether their sums are float32; others keep their integers.
    """

    def __init__(self, processors: Mapping[str, bool]) -> None:
        self.processors = dict(processors)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        regions = {
            var: function
            for var, function in mod.functions.items()
            if isinstance(function, relax.Function)
            and str((function.attrs or {}).get(PROCESSOR)) in self.processors
        }
        if not regions:
            return mod
        bb = builder_with_kernels(mod)
        names: dict[relax.Var, str] = {}
        for var, function in regions.items():
            wide = self.processors[str(function.attrs[PROCESSOR])]
            region = _Region(bb, wide)
            region.write(var.name_hint, function)
            names.update(region.names)
        functions = {var.name_hint: function for var, function in bb.get().functions.items()}
        updated = tvm.IRModule(dict(mod.functions), attrs=mod.attrs)
        for var in regions:
            updated.update_func(var, Renamer(mod, names).visit_expr(functions[var.name_hint]))
        return updated


class _Region:
    """Re-emits the bindings of one region; a value may exist in several forms.

    Attributes:
        integers: values as in the region that is read.
        halves: values of integers minus a zero point, by zero point.
        sums: float32 values of sums of products.
        names: variables that are to be called like the operators that they compute; the others
            help the next one.
    """

    def __init__(self, bb: relax.BlockBuilder, wide: bool) -> None:
        self.bb, self.wide = bb, wide
        self.integers: dict[relax.Var, relax.Expr] = {}
        self.halves: dict[relax.Var, dict[int, relax.Expr]] = {}
        self.sums: dict[relax.Var, relax.Expr] = {}
        self.names: dict[relax.Var, str] = {}

    def write(self, name: str, region: relax.Function) -> None:
        """Add the region to the builder."""
        self.integers = {param: param for param in region.params}
        with written_again(self.bb, name, region, self.integer) as bindings:
            for binding in bindings:
                self.bind(binding.var, binding.value)

    def bind(self, var: relax.Var, value: relax.Expr) -> None:
        """Emit a binding in its best form."""
        integer = integer_of(value)
        rule = None if integer is None else _RULES.get(integer.kind)
        if integer is not None and rule is not None and rule(self, var, value, integer):
            return
        if isinstance(value, relax.Call) and kind_of(value) in _MOVES and self.move(var, value):
            return
        self.integers[var] = self.emit(with_variables(value, self.integer), var)

    def move(self, var: relax.Var, call: relax.Call) -> bool:
        """Emit a move of values that are in float16; False if they are not."""
        first, *others = call.args
        is_concat = isinstance(first, relax.Tuple)
        sources = [*first.fields] if is_concat else [first]
        in_half = [source for source in sources if source in self.halves]
        if not in_half:
            return False
        zero, _ = self.any_half(in_half[0])
        halves = [self.half(source, zero) for source in sources]
        moved = relax.Tuple(halves) if is_concat else halves[0]
        call = relax.Call(call.op, [moved, *others], call.attrs, call.ty_args)
        self.halves[var] = {zero: self.emit(call, var)}
        return True

    def emit(self, value: relax.Expr, operator: relax.Var | None = None) -> relax.Expr:
        """Bind a value to a variable, which is the result of an operator or helps the next one."""
        bound = self.bb.emit(value)
        if operator is not None:
            self.names[bound] = operator.name
        return bound

    # --- forms of a value -------------------------------------------------------------------------

    def integer(self, var: relax.Expr) -> relax.Expr:
        """The value as the region had it, rounded if it was not."""
        if var in self.integers or not isinstance(var, relax.Var):
            return self.integers.get(var, var)
        dtype, shift = str(var.ty.dtype), 0
        if var in self.sums:
            value = self.sums[var]
        else:
            shift, half = self.any_half(var)
            value = self.emit(relax.op.astype(half, WIDE))
        value = self.emit(relax.op.round(value))
        if dtype != "int32":
            limits = np.iinfo(dtype)
            value = self.emit(relax.op.add(value, relax.const(float(shift), WIDE)))
            value = self.emit(relax.op.clip(value, float(limits.min), float(limits.max)))
        self.integers[var] = self.emit(relax.op.astype(value, dtype))
        return self.integers[var]

    def half(self, var: relax.Var, zero: int) -> relax.Expr:
        """The value minus a zero point in float16."""
        forms = self.halves.setdefault(var, {})
        if zero not in forms:
            form = next(iter(forms), 0)
            value = forms.get(form)
            if value is None:
                value = self.emit(relax.op.astype(self.integer(var), HALF))
            shifted = relax.op.subtract(value, relax.const(float(zero - form), HALF))
            forms[zero] = value if zero == form else self.emit(shifted)
        return forms[zero]

    def any_half(self, var: relax.Var) -> tuple[int, relax.Expr]:
        """The value in float16, and the zero point that was taken from it."""
        zero = next(iter(self.halves.get(var, {})), 0)
        return zero, self.half(var, zero)

    def store(self, var: relax.Var, value: relax.Expr, integer: Integer, zero: int) -> None:
        """Limit a float value without its zero point, and keep it in float16."""
        rounding = rounding_of(integer)
        # `Rounding.zero` may be 0 where the zero point is in an operator's addend
        low, high = (float(limit - zero) for limit in (rounding.low, rounding.high))
        is_half = str(value.ty.dtype) == HALF
        value = self.emit(relax.op.clip(value, low, high), var if is_half else None)
        value = value if is_half else self.emit(relax.op.astype(value, HALF), var)
        self.halves[var] = {zero: value}


_Rule = Callable[[_Region, relax.Var, relax.Call, Integer], bool]
"""Emits an integer operator in floats; False if that is impossible."""


def _layer(region: _Region, var: relax.Var, call: relax.Call, integer: Integer) -> bool:
    """A convolution or product with constant weights: its rounded result, or its sums."""
    data, *constants = operands_of(call)
    if not isinstance(data, relax.Var) or not all(isinstance(c, GenericConst) for c in constants):
        return False
    weight, bias, *factor = (c.value.numpy() for c in constants)
    is_conv = integer.kind == "conv2d"
    by_output, beside = ((-1, 1, 1, 1), (1, -1, 1, 1)) if is_conv else ((1, -1), (1, -1))
    wide = region.wide or not factor
    if factor:
        if factor[0].min() < _LEAST:  # float16 has no such weights
            return False
        weight, bias = weight * factor[0].reshape(by_output), bias * factor[0]
    if abs(weight).max(initial=0) > np.finfo(HALF).max:
        return False
    sums = _product(region, data, integer, weight.astype(HALF), WIDE if wide else HALF)
    offset = bias.astype(WIDE if wide else HALF).reshape(beside)
    sums = region.emit(relax.op.add(sums, constant(offset)), None if factor else var)
    if factor:
        region.store(var, sums, integer, rounding_of(integer).zero)
    else:
        region.sums[var] = sums
    return True


def _product(
    region: _Region, data: relax.Var, integer: Integer, weight: np.ndarray, dtype: str
) -> relax.Expr:
    value = region.half(data, integer.zeros[0])
    if integer.kind == "matmul":
        return region.emit(relax.op.matmul(value, constant(weight), out_dtype=dtype))
    # few products: the template for depthwise layers has no wider sums
    is_depthwise = integer.groups == weight.shape[0] > 1
    conv = relax.op.nn.conv2d(
        value,
        constant(weight),
        strides=list(integer.strides),
        padding=list(integer.padding),
        dilation=list(integer.dilation),
        groups=integer.groups,
        out_dtype=HALF if is_depthwise else dtype,
    )
    made = region.emit(conv)
    return made if not is_depthwise or dtype == HALF else region.emit(relax.op.astype(made, dtype))


def _add(region: _Region, var: relax.Var, call: relax.Call, integer: Integer) -> bool:
    """A sum of two scaled tensors."""
    operands = operands_of(call)
    if not all(isinstance(operand, relax.Var) for operand in operands):
        return False
    *scales, offset = integer.factors
    if max(scales) > _LARGEST:
        return False
    value = None
    for operand, scale in zip(operands, scales, strict=True):
        zero, half = region.any_half(operand)
        offset += zero * scale
        scaled = region.emit(relax.op.multiply(half, relax.const(scale, HALF)))
        value = scaled if value is None else region.emit(relax.op.add(value, scaled))
    _store_beside(region, var, value, integer, offset)
    return True


def _multiply(region: _Region, var: relax.Var, call: relax.Call, integer: Integer) -> bool:
    """A product of two tensors; one takes the factor first, so the product stays in range."""
    first, second = operands_of(call)
    if not (isinstance(first, relax.Var) and isinstance(second, relax.Var)):
        return False
    factor, offset = integer.factors
    if not _LEAST <= factor <= _LARGEST:
        return False
    scaled = relax.op.multiply(region.half(first, integer.zeros[0]), relax.const(factor, HALF))
    other = region.half(second, integer.zeros[1])
    value = region.emit(relax.op.multiply(region.emit(scaled), other))
    _store_beside(region, var, value, integer, offset)
    return True


def _mean(region: _Region, var: relax.Var, call: relax.Call, integer: Integer) -> bool:
    """The mean of every feature map, in float32."""
    (data,) = operands_of(call)
    if not isinstance(data, relax.Var) or len(shape_of(data)) != 4:
        return False
    pixels = shape_of(data)[2] * shape_of(data)[3]
    wide = region.emit(relax.op.astype(region.half(data, integer.zeros[0]), WIDE))
    mean = region.emit(relax.op.mean(wide, [2, 3], keepdims=True))
    scale = relax.const(integer.factors[0] * pixels, WIDE)
    value = region.emit(relax.op.multiply(mean, scale))
    region.store(var, value, integer, rounding_of(integer).zero)
    return True


def _round(region: _Region, var: relax.Var, call: relax.Call, integer: Integer) -> bool:
    """Sums of products, times their factors, and perhaps a scaled tensor."""
    *summands, factor = operands_of(call)
    beside = summands.pop() if integer.factors else None
    if not isinstance(factor, GenericConst) or not all(s in region.sums for s in summands):
        return False
    total = region.sums[summands[0]]
    for summand in summands[1:]:
        total = region.emit(relax.op.add(total, region.sums[summand]))
    scale = factor.value.numpy()
    scale = scale.reshape(1, -1, 1, 1) if scale.ndim == 1 else scale
    value = region.emit(relax.op.multiply(total, constant(scale)))
    offset = float(rounding_of(integer).zero)
    if beside is not None:
        if not isinstance(beside, relax.Var):
            return False
        of_beside, addend = integer.factors
        zero, half = region.any_half(beside)
        offset += zero * of_beside + addend
        wide = region.emit(relax.op.astype(half, WIDE))
        scaled = region.emit(relax.op.multiply(wide, relax.const(of_beside, WIDE)))
        value = region.emit(relax.op.add(value, scaled))
    _store_beside(region, var, value, integer, offset)
    return True


def _store_beside(
    region: _Region, var: relax.Var, value: relax.Expr, integer: Integer, offset: float
) -> None:
    """Keep ``value + offset``, of which the whole part becomes the zero point."""
    zero = round(offset)
    rest = relax.const(offset - zero, str(value.ty.dtype))
    region.store(var, region.emit(relax.op.add(value, rest)), integer, zero)


_RULES: Mapping[str, _Rule] = {
    "conv2d": _layer,
    "matmul": _layer,
    "add": _add,
    "multiply": _multiply,
    "mean": _mean,
    "round": _round,
}
