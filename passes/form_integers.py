"""Replace the computation between dequantising and quantising by integer operators.

    a = R.dequantize(x, 0.02, 3)
    b = R.nn.relu(R.add(R.nn.conv2d(a, R.dequantize(w, ..)), R.dequantize(b, ..)))
    y = R.quantize(b, 0.1, 0)
        ->
    y = R.call_tir(integer_conv2d, (x, w, b, factor))      # network/integer_kernels.py

Convolutions, dense layers, sums, products, means and softmax become integer operators. Operators
that only move numbers, and the maximum, work on the integers themselves; an elementwise chain
becomes a table of 256 results. This has to happen before constants are folded, which turns weights
into floats. Sums of a layer that no quantising follows are converted to floats. Everything
else stays as it is; the attribute ``integers`` of ``main`` names these operators.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.network.expressions import constant, shape_of
from tvm_stretch.network.integer_kernels import integer_call, softmax_powers
from tvm_stretch.network.integers import Integer
from tvm_stretch.network.operators import INTEGER, kind_of
from tvm_stretch.network.properties.integer_summary import calls_of, with_integers
from tvm_stretch.network.properties.quantised_layers import (
    LAYERS,
    Layer,
    ints,
    read_layer,
    windows_of,
)
from tvm_stretch.network.properties.quantised_values import (
    EIGHT_BITS,
    Result,
    Scale,
    Tensor,
    scale_of,
    tabulated,
)
from tvm_stretch.network.provenance import same_source
from tvm_stretch.network.rewriting import CallRewriter

_MOVES = (
    *("reshape", "permute_dims", "broadcast_to", "strided_slice", "take"),
    *("max", "nn.max_pool2d", "image.resize2d", "nn.pad"),
)


@tvm.transform.module_pass(opt_level=0, name="FormIntegers")
class FormIntegers:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        main = mod["main"]
        if not any(kind == "quantize" for kind, _ in calls_of(main)):
            return mod
        for leftovers in (False, True):
            formed = _Former(mod, leftovers=leftovers).rewritten(mod)
            mod = relax.transform.CanonicalizeBindings()(formed)
            mod = relax.transform.DeadCodeElimination()(mod)
        return with_integers(mod)


@relax.expr_functor.mutator
class _Former(CallRewriter):
    """Replaces each quantising whose operand can be computed in integers.

    With ``leftovers`` it replaces the layers that are left: no quantising follows them, so their
    sums are converted to floats.
    """

    def __init__(self, mod: tvm.IRModule, *, leftovers: bool) -> None:
        super().__init__(mod)
        self.leftovers = leftovers
        self.splits: dict[tuple[relax.Expr, relax.Expr], relax.Var] = {}
        """Splits of integers, by the split of floats that they replace and their operand."""

    def rewrite(self, call: relax.Call) -> relax.Expr | None:
        if self.leftovers:
            return self.in_float(call)
        if kind_of(call) != "quantize":
            return None
        scale = self.scale(call, str(call.ty.dtype))
        if scale is None or str(call.ty.dtype) not in EIGHT_BITS:
            return None
        return self.form(call.args[0], Result(scale, *scale.limits))

    # --- reading the network ---

    def scale(self, call: relax.Call, dtype: str) -> Scale | None:
        """Scale and zero point of a (de)quantising with one scale for the tensor."""
        return scale_of(call, dtype, self.definition)

    def tensor(self, x: relax.Expr) -> Tensor | None:
        """The integers that ``x`` is dequantised from."""
        call = self.definition(x)
        kind = kind_of(call)
        if kind == "dequantize" and str(call.args[0].ty.dtype) in EIGHT_BITS:
            scale = self.scale(call, str(call.args[0].ty.dtype))
            return None if scale is None else Tensor(call.args[0], scale)
        if kind in _MOVES and _moves(call):
            inner = self.tensor(call.args[0])
            if inner is None:
                return None
            result = Result(inner.scale, *inner.scale.limits)
            if kind == "nn.pad" and not result.holds(float(call.attrs.pad_value)):
                return None
            return replace(inner, value=self.moved(x, call, inner.value, result))
        split = self.split(call)
        inner = None if split is None else self.tensor(split.args[0])
        return inner and replace(inner, value=self.part(x, call, split, inner.value))

    def split(self, item: Any) -> relax.Call | None:
        """The split of which ``item`` is a result."""
        if not isinstance(item, relax.TupleGetItem):
            return None
        call = self.definition(item.tuple_value)
        return call if kind_of(call) == "split" else None

    # --- emitting integers ---

    def form(self, x: relax.Expr, result: Result) -> relax.Expr | None:
        """The integers of ``x``; None if they cannot be computed without floats."""
        call = self.definition(x)
        kind = kind_of(call)
        if kind == "nn.relu":
            return self.form(call.args[0], result.clipped(0.0, np.inf))
        if kind == "clip":
            low, high = (float(arg.value) for arg in call.args[1:])
            return self.form(call.args[0], result.clipped(low, high))
        if kind in _MOVES and _moves(call):
            inner = self.form(call.args[0], result)
            return None if inner is None else self.moved(x, call, inner, result)
        split = self.split(call)
        if split is not None:
            inner = self.form(split.args[0], result)
            return None if inner is None else self.part(x, call, split, inner)
        if kind == "concat" and isinstance(call.args[0], relax.Tuple):
            parts = [self.form(part, result) for part in call.args[0].fields]
            if any(part is None for part in parts):
                return None
            return self.keep(x, relax.op.concat(parts, call.attrs.axis))
        same = self.tensor(x)
        if same is not None and same.scale == result.scale and not result.cuts:
            return same.value
        formed = INTEGER[kind](self, x, call, result) if kind in INTEGER else None
        return self.table(x, result) if formed is None else formed

    def keep(self, x: relax.Expr, value: relax.Expr) -> relax.Var:
        """Bind the replacement of ``x``, under the name of the same operator."""
        return self.builder_.emit(value, name_hint=same_source(x))

    def operator(self, x: relax.Expr, integer: Integer, *operands: relax.Expr) -> relax.Var:
        """Emit an integer operator that replaces ``x``."""
        return self.keep(x, integer_call(self.builder_, integer, *operands))

    def moved(
        self, x: relax.Expr, call: relax.Call, value: relax.Expr, result: Result
    ) -> relax.Var:
        """The same movement of integers, whose scale and limits are those of ``result``."""
        if kind_of(call) == "nn.pad":
            widths, mode = [int(w) for w in call.attrs.pad_width], str(call.attrs.pad_mode)
            number = min(max(result.number(float(call.attrs.pad_value)), result.low), result.high)
            return self.keep(x, relax.op.nn.pad(value, widths, mode, float(number)))
        return self.same(x, call, value)

    def same(self, x: relax.Expr, call: relax.Call, value: relax.Expr) -> relax.Var:
        """The same operator on integers."""
        others = call.args[1:]
        if kind_of(call) == "take" and isinstance(others[0], GenericConst):
            places = others[0].value.numpy()
            if np.abs(places).max(initial=0) < 2**31:
                others = [constant(places.astype("int32"))]  # DSPs have no indices of 64 bits
        return self.keep(x, relax.Call(call.op, [value, *others], call.attrs, call.ty_args))

    def part(
        self, x: relax.Expr, item: relax.TupleGetItem, split: relax.Call, value: relax.Expr
    ) -> relax.Var:
        """The same result of a split of integers; each split is emitted once."""
        key = (item.tuple_value, value)
        if key not in self.splits:
            self.splits[key] = self.same(x, split, value)
        return self.keep(x, relax.TupleGetItem(self.splits[key], item.index))

    def sums(self, x: relax.Expr, layer: Layer, *factor: np.ndarray) -> relax.Var:
        """The operator of a layer that computes ``x``; of a product, on all rows as one matrix."""
        data, shape = layer.data.value, shape_of(x)
        constants = map(constant, (layer.weight, layer.offset, *factor))
        if layer.integer.kind != "matmul" or len(shape) == 2:
            return self.operator(x, layer.integer, data, *constants)
        rows = [int(np.prod(shape[:-1])), shape_of(data)[-1]]
        matrix = self.keep(x, relax.op.reshape(data, relax.ShapeExpr(rows)))
        product = self.operator(x, layer.integer, matrix, *constants)
        return self.keep(x, relax.op.reshape(product, relax.ShapeExpr(shape)))

    def read(self, x: relax.Expr) -> Layer | None:
        """The layer that computes ``x``, with the bias that is added to it."""
        call = self.definition(x)
        if kind_of(call) in LAYERS:
            return read_layer(call, None, self.tensor, self.definition)
        for before, bias in (call.args, reversed(call.args)) if kind_of(call) == "add" else ():
            definition = self.definition(before)
            if kind_of(definition) in LAYERS and shape_of(definition) == shape_of(call):
                layer = read_layer(definition, bias, self.tensor, self.definition)
                if layer is not None:
                    return layer
        return None

    def in_float(self, call: relax.Call) -> relax.Expr | None:
        """A layer in integers whose result is float; None for other calls."""
        layer = self.read(call) if kind_of(call) in LAYERS else None
        if layer is None or layer.images is not None:
            return None
        sums = self.keep(call, relax.op.astype(self.sums(call, layer), "float32"))
        after = 0 if layer.integer.kind == "matmul" else len(shape_of(call)) - 2
        return relax.op.multiply(sums, constant(layer.unit.reshape(-1, *[1] * after)))

    def table(self, x: relax.Expr, result: Result) -> relax.Expr | None:
        """An elementwise chain from one tensor, as a table of its results for the 256 numbers."""
        scale = result.scale
        tabulation = tabulated(x, self.definition, self.tensor)
        if tabulation is None:
            return None
        data, values = tabulation
        if shape_of(data.value) != shape_of(x):
            return None  # a constant of higher rank has broadcast it
        with np.errstate(all="ignore"):
            wide = np.rint(values / scale.scale) + np.float32(scale.zero)
        wide[np.isnan(wide)] = result.low  # as ONNX Runtime does
        table = np.clip(wide, result.low, result.high).astype(scale.dtype)
        zeros = data.scale.zero, scale.zero
        integer = Integer("table", None, zeros, (float(data.scale.scale), float(scale.scale)))
        return self.operator(x, integer, data.value, constant(table))


@INTEGER(*LAYERS)
def _layer(f: _Former, x: relax.Expr, _call: relax.Call, result: Result) -> relax.Expr | None:
    """A convolution or dense layer with constant weights, and a bias if one follows."""
    layer = f.read(x)
    if layer is None:
        return None
    factor = (layer.unit / result.scale.scale).astype("float32")
    integer = replace(layer.integer, rounding=result.rounding())
    images = layer.images
    if images is None:
        return f.sums(x, replace(layer, integer=integer), factor)
    values = []
    per_channel = [images.per_channel(numbers) for numbers in (layer.offset, factor)]
    for image in images.weights:
        conv = replace(integer, padding=images.padding(image), groups=images.groups)
        operands = map(constant, (np.ascontiguousarray(image), *per_channel))
        values.append(f.operator(x, conv, layer.data.value, *operands))
    return f.keep(x, images.back(*values))


def _residual(f: _Former, x: relax.Expr, call: relax.Call, result: Result) -> relax.Expr | None:
    """A convolution plus a tensor: they are added before the only rounding."""
    for before, other in (call.args, reversed(call.args)):
        layer, beside = f.read(before), f.tensor(other)
        if layer is None or beside is None or layer.integer.kind != "conv2d" or layer.images:
            continue
        if shape_of(beside.value) != shape_of(call):
            continue
        constants = map(constant, (layer.weight, layer.offset))
        sums = f.operator(before, layer.integer, layer.data.value, *constants)
        factor = constant((layer.unit / result.scale.scale).astype("float32"))
        scale = beside.scale.scale / result.scale.scale
        offset = np.float32(result.scale.zero) - scale * np.float32(beside.scale.zero)
        integer = Integer("round", result.rounding(zero=0), factors=(float(scale), float(offset)))
        return f.operator(x, integer, sums, beside.value, factor)
    return None


@INTEGER("add")
def _add(f: _Former, x: relax.Expr, call: relax.Call, result: Result) -> relax.Expr | None:
    """A layer with its bias, or a sum of two tensors."""
    formed = _layer(f, x, call, result)
    if formed is not None:
        return formed
    a, b = (f.tensor(arg) for arg in call.args)
    if a is None or b is None:
        return _residual(f, x, call, result)
    first, second = (t.scale.scale / result.scale.scale for t in (a, b))
    # ONNX Runtime's compiled code multiplies and adds with one rounding (a fused multiply-add)
    taken = np.float64(first) * a.scale.zero + second * np.float32(b.scale.zero)
    offset = np.float32(result.scale.zero) - np.float32(taken)
    factors = (float(first), float(second), float(offset))
    integer = Integer("add", result.rounding(zero=0), factors=factors)
    return f.operator(x, integer, a.value, b.value)


@INTEGER("multiply")
def _multiply(f: _Former, x: relax.Expr, call: relax.Call, result: Result) -> relax.Expr | None:
    """A product of two tensors."""
    a, b = (f.tensor(arg) for arg in call.args)
    if a is None or b is None:
        return None
    factor = a.scale.scale * b.scale.scale / result.scale.scale
    zeros, factors = (a.scale.zero, b.scale.zero), (float(factor), float(result.scale.zero))
    integer = Integer("multiply", result.rounding(zero=0), zeros, factors)
    return f.operator(x, integer, a.value, b.value)


@INTEGER("mean")
def _mean(f: _Former, x: relax.Expr, call: relax.Call, result: Result) -> relax.Expr | None:
    """The mean of every feature map."""
    data, shape = f.tensor(call.args[0]), shape_of(call.args[0])
    axes = [] if call.attrs.axis is None else [int(axis) for axis in call.attrs.axis]
    if (
        data is None
        or len(shape) != 4
        or sorted(a % 4 for a in axes) != [2, 3]
        or not call.attrs.keepdims
    ):
        return None
    factor = data.scale.scale / (result.scale.scale * np.float32(shape[2] * shape[3]))
    zeros = (data.scale.zero,)
    integer = Integer("mean", result.rounding(), zeros, (float(factor),))
    return f.operator(x, integer, data.value)


@INTEGER("nn.avg_pool2d")
def _average(f: _Former, x: relax.Expr, call: relax.Call, result: Result) -> relax.Expr | None:
    data, attrs, shape = f.tensor(call.args[0]), call.attrs, shape_of(call)
    if data is None or str(attrs.layout) != "NCHW" or len(shape) != 4 or 0 in shape:
        return None
    windows = windows_of(call)
    if windows is None:
        return None
    integer = Integer(
        "average",
        result.rounding(),
        (data.scale.zero,),
        (float(data.scale.scale), float(result.scale.scale)),
        strides=ints(attrs.strides),
        padding=windows.padding,
        dilation=ints(attrs.dilation),
        kernel=ints(attrs.pool_size),
    )
    return f.operator(x, integer, data.value, constant(windows.counts))


@INTEGER("nn.softmax")
def _softmax(f: _Former, x: relax.Expr, call: relax.Call, result: Result) -> relax.Expr | None:
    """Exponentials, from a table, divided by their sum along one axis."""
    data, shape = f.tensor(call.args[0]), shape_of(call)
    if data is None or len(shape) < 2 or 0 in shape:
        return None
    last, axis = len(shape) - 1, int(call.attrs.axis) % len(shape)
    order = [last if i == axis else axis if i == last else i for i in range(len(shape))]
    value = data.value
    if axis != last:
        value = f.keep(x, relax.op.permute_dims(value, order))
    powers = constant(softmax_powers(data.scale.scale, shape[axis]))
    # as ONNX Runtime does, which multiplies by a whole number instead of dividing by the scale
    factor = np.floor(np.float32(1) / result.scale.scale)
    integer = Integer("softmax", result.rounding(), factors=(float(factor),))
    shares = f.operator(x, integer, value, powers)
    return shares if axis == last else f.keep(x, relax.op.permute_dims(shares, order))


def _moves(call: relax.Call) -> bool:
    """Whether a call of a kind in `_MOVES` only selects numbers and computes none."""
    kind = kind_of(call)
    if kind == "image.resize2d":
        return str(call.attrs.method) == "nearest_neighbor"
    if kind == "nn.pad":
        return bool(np.isfinite(float(call.attrs.pad_value)))
    if kind == "nn.max_pool2d":
        return str(call.attrs.layout) == "NCHW" and len(shape_of(call)) == 4
    return True
