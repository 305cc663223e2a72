"""Turn what a quantised network computes between dequantising and quantising into integers.

    a = R.dequantize(x, 0.02, 3)
    b = R.nn.relu(R.add(R.nn.conv2d(a, R.dequantize(w, ..)), R.dequantize(b, ..)))
    y = R.quantize(b, 0.1, 0)
        ->
    y = R.call_tir(integer_conv2d, (x, w, b, factor))      # kernels/integers.py

Convolutions, dense layers, sums, products and means become integer operators; what only moves
numbers, and the maximum, is done with the integers themselves; whatever is elementwise between is
a table of 256 results.  This has to happen before constants are folded, which makes floats of
weights.  What fits none of this stays as it is; the attribute ``integers`` of ``main`` names it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm_stretch.passes.name_operators import same_source, source_of
from tvm_stretch.passes.tabulate import tabulated
from tvm_stretch.targets.kernels.integers import Integer, Rounding, integer_call, integer_of

from tvm_stretch.ir.expressions import constant, shape_of
from tvm_stretch.ir.operators import kind_of

INTEGERS = "integers"
"""Attribute of ``main``: JSON of how many integer operators there are, and what stays in float."""

_EIGHT_BITS = ("int8", "uint8")
_MOVES = ("reshape", "permute_dims", "strided_slice", "take", "nn.max_pool2d", "image.resize2d")


@dataclass(frozen=True)
class _Scale:
    """What the numbers of an integer tensor mean: ``(number - zero) * scale``."""

    scale: np.float32
    zero: int
    dtype: str

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest number of the type."""
        limits = np.iinfo(self.dtype)
        return int(limits.min), int(limits.max)


@dataclass(frozen=True)
class _Result:
    """Integers that are wanted: of which scale, and between which of them an activation cuts."""

    scale: _Scale
    low: int
    high: int

    def clipped(self, low: float, high: float) -> _Result:
        """Behind ``clip(x, low, high)`` of what the integers mean: rounding keeps the order."""
        least, most = (self.number(v) for v in (low, high))
        low_, high_ = min(max(self.low, least), self.high), max(min(self.high, most), self.low)
        return replace(self, low=low_, high=high_)

    def number(self, value: float) -> int:
        """The integer that ``value`` becomes."""
        with np.errstate(over="ignore"):
            rounded = np.rint(np.float32(value) / self.scale.scale) + self.scale.zero
        return int(np.clip(rounded, *self.scale.limits))

    def rounding(self, zero: int | None = None) -> Rounding:
        """How operators make them; by default they add the zero point."""
        zero = self.scale.zero if zero is None else zero
        return Rounding(self.scale.dtype, zero, self.low, self.high)

    @property
    def cuts(self) -> bool:
        """Whether some numbers of the type are left out."""
        return (self.low, self.high) != self.scale.limits


@dataclass(frozen=True)
class _Tensor:
    """An integer tensor and what it means."""

    value: relax.Expr
    scale: _Scale


@dataclass(frozen=True)
class _Weight:
    """Constant weights without zero point, and the scale of each output channel."""

    value: np.ndarray
    scale: np.ndarray


@tvm.transform.module_pass(opt_level=0, name="FormIntegers")
class FormIntegers:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite ``main``; a network without quantised tensors stays as it is."""
        main = mod["main"]
        if not any(kind == "quantize" for kind, _ in _calls(main)):
            return mod
        former = _Former(mod)
        former.builder_.update_func(mod.get_global_var("main"), former.visit_expr(main))
        mod = relax.transform.CanonicalizeBindings()(former.builder_.get())
        mod = relax.transform.DeadCodeElimination()(mod)
        mod["main"] = mod["main"].with_attr(INTEGERS, json.dumps(_summary(mod["main"])))
        return mod


def describe_integers(main: relax.Function) -> str:
    """How many integer operators there are and what stayed in float, for people."""
    text = (main.attrs or {}).get(INTEGERS)
    if text is None:
        return ""
    formed, floats = json.loads(str(text))
    listed = ", ".join(floats[:8]) + (f" and {len(floats) - 8} more" if len(floats) > 8 else "")
    return f"{formed} integer operators" + (f"; in float: {listed}" if floats else "")


def _summary(main: relax.Function) -> tuple[int, list[str]]:
    formed, dequantised, floats = 0, set(), []
    results = {main.body.body, *(getattr(main.body.body, "fields", ()))}
    for kind, binding in _calls(main):
        call = binding.value
        formed += integer_of(call) is not None
        if kind == "dequantize" and not isinstance(call.args[0], GenericConst):
            dequantised.add(binding.var)
        elif kind != "quantize" and binding.var not in results:
            reads = relax.analysis.free_vars(call)
            if any(var in dequantised for var in reads):
                floats.append(source_of(binding.var.name))
    return formed, list(dict.fromkeys(floats))


def _calls(function: relax.Function) -> list[tuple[str, relax.Binding]]:
    bindings = (binding for block in function.body.blocks for binding in block.bindings)
    return [(kind_of(b.value), b) for b in bindings if isinstance(b.value, relax.Call)]


@relax.expr_functor.mutator
class _Former(relax.PyExprMutator):
    """Replaces each quantising whose operand can be computed in integers."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.splits: dict[tuple[relax.Expr, relax.Expr], relax.Var] = {}
        """Splits of integers, by the split of floats and what is split instead."""

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if kind_of(call) != "quantize":
            return call
        scale = self.scale(call, str(call.ty.dtype))
        if scale is None or str(call.ty.dtype) not in _EIGHT_BITS:
            return call
        formed = self.form(call.args[0], _Result(scale, *scale.limits))
        return call if formed is None else formed

    # --- what stands in the network ---

    def definition(self, x: relax.Expr) -> Any:
        """What ``x`` is bound to."""
        return self.lookup_binding(x) if isinstance(x, relax.Var) else x

    def scale(self, call: relax.Call, dtype: str) -> _Scale | None:
        """Scale and zero point of a (de)quantising per tensor."""
        scale, zero = (self.definition(arg) for arg in call.args[1:])
        if not isinstance(scale, GenericConst) or not isinstance(zero, GenericConst):
            return None
        numbers = scale.value.numpy().reshape(-1), zero.value.numpy().reshape(-1)
        if any(n.size != 1 for n in numbers):
            return None
        return _Scale(np.float32(numbers[0][0]), int(numbers[1][0]), dtype)

    def tensor(self, x: relax.Expr) -> _Tensor | None:
        """The integers that ``x`` is dequantised from."""
        call = self.definition(x)
        kind = kind_of(call)
        if kind == "dequantize" and str(call.args[0].ty.dtype) in _EIGHT_BITS:
            scale = self.scale(call, str(call.args[0].ty.dtype))
            return None if scale is None else _Tensor(call.args[0], scale)
        if kind in _MOVES and _moves(call):
            inner = self.tensor(call.args[0])
            return inner and replace(inner, value=self.moved(x, call, inner.value))
        split = self.split(call)
        inner = None if split is None else self.tensor(split.args[0])
        return inner and replace(inner, value=self.part(x, call, split, inner.value))

    def split(self, item: Any) -> relax.Call | None:
        """The split that ``item`` is a part of."""
        if not isinstance(item, relax.TupleGetItem):
            return None
        call = self.definition(item.tuple_value)
        return call if kind_of(call) == "split" else None

    def numbers(self, x: relax.Expr) -> tuple[np.ndarray, np.ndarray] | None:
        """A constant as ``numbers * scales``; of what is not quantised the numbers are floats."""
        value = self.definition(x)
        if isinstance(value, GenericConst):
            array = value.value.numpy()
            return array.astype("float64"), np.ones_like(array, "float32")
        kind = kind_of(value)
        if kind in ("reshape", "permute_dims"):
            inner = self.numbers(value.args[0])
            if inner is None:
                return None
            if kind == "reshape":
                return inner[0].reshape(shape_of(value)), inner[1].reshape(shape_of(value))
            axes = value.attrs.axes
            order = None if axes is None else [int(axis) for axis in axes]
            return inner[0].transpose(order), inner[1].transpose(order)
        if kind != "dequantize":
            return None
        data, scale, zero = (self.definition(arg) for arg in value.args)
        if not all(isinstance(part, GenericConst) for part in (data, scale, zero)):
            return None
        array = data.value.numpy()
        full = [1] * array.ndim
        if scale.value.numpy().size > 1:
            full[int(value.attrs.axis)] = -1
        lined_up = [part.value.numpy().reshape(full) for part in (scale, zero)]
        scales = np.broadcast_to(lined_up[0].astype("float32"), array.shape)
        return array.astype("int64") - lined_up[1].astype("int64"), scales

    def weight(self, x: relax.Expr, axis: int) -> _Weight | None:
        """Weights of 8 bits without zero point, one scale for each index of ``axis``."""
        found = self.numbers(x)
        if found is None or found[0].dtype.kind == "f" or not found[0].size:
            return None
        values, scales = found
        rows = np.moveaxis(scales, axis, 0).reshape(scales.shape[axis], -1)
        limits = np.iinfo("int8")
        if (rows != rows[:, :1]).any() or values.min() < limits.min or values.max() > limits.max:
            return None
        return _Weight(values.astype("int8"), rows[:, 0].copy())

    # --- what it becomes ---

    def form(self, x: relax.Expr, result: _Result) -> relax.Expr | None:
        """The integers of ``x``; None where they cannot be computed without floats."""
        call = self.definition(x)
        kind = kind_of(call)
        if kind == "nn.relu":
            return self.form(call.args[0], result.clipped(0.0, np.inf))
        if kind == "clip":
            low, high = (float(arg.value) for arg in call.args[1:])
            return self.form(call.args[0], result.clipped(low, high))
        if kind in _MOVES and _moves(call):
            inner = self.form(call.args[0], result)
            return None if inner is None else self.moved(x, call, inner)
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
        rules: dict[str, Callable[..., relax.Expr | None]] = {
            "nn.conv2d": self.layer,
            "matmul": self.layer,
            "add": self.add,
            "multiply": self.multiply,
            "mean": self.mean,
            "nn.avg_pool2d": self.average,
        }
        formed = rules[kind](x, call, result) if kind in rules else None
        return self.table(x, result) if formed is None else formed

    def keep(self, x: relax.Expr, value: relax.Expr) -> relax.Var:
        """Bind what stands for ``x``: it gets the name of the same operator."""
        return self.builder_.emit(value, name_hint=same_source(x))

    def operator(self, x: relax.Expr, integer: Integer, *operands: relax.Expr) -> relax.Var:
        """Emit an integer operator that stands for ``x``."""
        return self.keep(x, integer_call(self.builder_, integer, *operands))

    def moved(self, x: relax.Expr, call: relax.Call, value: relax.Expr) -> relax.Var:
        """The same movement of integers."""
        return self.keep(x, relax.Call(call.op, [value, *call.args[1:]], call.attrs, call.ty_args))

    def part(
        self, x: relax.Expr, item: relax.TupleGetItem, split: relax.Call, value: relax.Expr
    ) -> relax.Var:
        """The same part of integers; what is split is split once."""
        key = (item.tuple_value, value)
        if key not in self.splits:
            self.splits[key] = self.moved(x, split, value)
        return self.keep(x, relax.TupleGetItem(self.splits[key], item.index))

    def layer(
        self, x: relax.Expr, call: relax.Call, result: _Result, bias: relax.Expr | None = None
    ) -> relax.Expr | None:
        """A convolution or dense layer with constant weights, and its bias."""
        is_conv = kind_of(call) == "nn.conv2d"
        if not (_is_nchw(call) if is_conv else _is_matrix(call)):
            return None
        data, weight = self.tensor(call.args[0]), self.weight(call.args[1], 0 if is_conv else 1)
        if data is None or weight is None:
            return None
        scale = data.scale.scale * weight.scale
        offset = self.bias(bias, call, 1, scale)
        if offset is None or _largest(weight.value, 0 if is_conv else 1, offset) >= 2**31:
            return None
        integer = Integer(kind_of(call).removeprefix("nn."), result.rounding(), (data.scale.zero,))
        if is_conv:
            attrs = call.attrs
            integer = replace(
                integer,
                strides=_ints(attrs.strides),
                padding=_ints(attrs.padding),
                dilation=_ints(attrs.dilation),
                groups=int(attrs.groups),
            )
        factor = (scale / result.scale.scale).astype("float32")
        constants = (weight.value, offset, factor)
        return self.operator(x, integer, data.value, *map(constant, constants))

    def bias(
        self, bias: relax.Expr | None, call: relax.Call, axis: int, scale: np.ndarray
    ) -> np.ndarray | None:
        """The bias in units of ``scale``, as int32; None if it is no number per channel."""
        if bias is None:
            return np.zeros(len(scale), "int32")
        found, shape = self.numbers(bias), shape_of(call)
        if found is None or found[0].ndim > len(shape):
            return None
        numbers, scales = found
        full = [1] * (len(shape) - numbers.ndim) + list(numbers.shape)
        if numbers.size not in (1, full[axis]):
            return None
        units = scales.reshape(-1).astype("float64") / scale
        units[np.abs(units - 1) < 1e-5] = 1.0  # written with fewer digits
        rounded = np.rint(numbers.reshape(-1) * units)
        if not np.abs(rounded).max(initial=0) < 2**31:
            return None  # or NaN
        return rounded.astype("int32")

    def add(self, x: relax.Expr, call: relax.Call, result: _Result) -> relax.Expr | None:
        """A bias behind a layer, or a sum of two tensors."""
        for layer, other in (call.args, reversed(call.args)):
            made = self.definition(layer)
            if kind_of(made) in ("nn.conv2d", "matmul") and shape_of(made) == shape_of(call):
                formed = self.layer(layer, made, result, other)
                if formed is not None:
                    return formed
        a, b = (self.tensor(arg) for arg in call.args)
        if a is None or b is None:
            return None
        first, second = (t.scale.scale / result.scale.scale for t in (a, b))
        # ONNX Runtime's code has one rounding where it multiplies and adds
        taken = np.float64(first) * a.scale.zero + second * np.float32(b.scale.zero)
        offset = np.float32(result.scale.zero) - np.float32(taken)
        factors = (float(first), float(second), float(offset))
        integer = Integer("add", result.rounding(zero=0), factors=factors)
        return self.operator(x, integer, a.value, b.value)

    def multiply(self, x: relax.Expr, call: relax.Call, result: _Result) -> relax.Expr | None:
        """A product of two tensors."""
        a, b = (self.tensor(arg) for arg in call.args)
        if a is None or b is None:
            return None
        factor = a.scale.scale * b.scale.scale / result.scale.scale
        zeros, factors = (a.scale.zero, b.scale.zero), (float(factor), float(result.scale.zero))
        integer = Integer("multiply", result.rounding(zero=0), zeros, factors)
        return self.operator(x, integer, a.value, b.value)

    def mean(self, x: relax.Expr, call: relax.Call, result: _Result) -> relax.Expr | None:
        """The mean of every feature map."""
        data, shape = self.tensor(call.args[0]), shape_of(call.args[0])
        axes = [] if call.attrs.axis is None else [int(axis) for axis in call.attrs.axis]
        if data is None or len(shape) != 4 or axes != [2, 3] or not call.attrs.keepdims:
            return None
        factor = data.scale.scale / (result.scale.scale * np.float32(shape[2] * shape[3]))
        zeros = (data.scale.zero,)
        integer = Integer("mean", result.rounding(), zeros, (float(factor),))
        return self.operator(x, integer, data.value)

    def average(self, x: relax.Expr, call: relax.Call, result: _Result) -> relax.Expr | None:
        """The mean of windows of one size: a depthwise convolution with weights of one."""
        data, attrs, shape = self.tensor(call.args[0]), call.attrs, shape_of(call)
        window, padding = _ints(attrs.pool_size), _ints(attrs.padding)
        if data is None or str(attrs.layout) != "NCHW" or len(shape) != 4:
            return None
        integer = Integer(
            "conv2d",
            result.rounding(),
            (data.scale.zero,),
            strides=_ints(attrs.strides),
            padding=padding,
            dilation=_ints(attrs.dilation),
            groups=shape[1],
        )
        count = np.float32(window[0] * window[1])
        factor = np.full(shape[1], data.scale.scale / (result.scale.scale * count), "float32")
        weight, bias = np.ones((shape[1], 1, *window), "int8"), np.zeros(shape[1], "int32")
        made = integer_call(
            self.builder_, integer, data.value, *map(constant, (weight, bias, factor))
        )
        same = [int(d) for d in made.ty_args[0].shape.values] == shape
        if not same or (any(padding) and not attrs.count_include_pad):
            return None  # windows at the border count fewer pixels
        return self.keep(x, made)

    def table(self, x: relax.Expr, result: _Result) -> relax.Expr | None:
        """What is elementwise from one tensor on: its result for each of the 256 numbers."""
        scale = result.scale
        found = tabulated(x, self.definition, self.tensor)
        if found is None:
            return None
        data, values = found
        if shape_of(data.value) != shape_of(x):
            return None  # a constant of more dimensions adds some
        with np.errstate(all="ignore"):
            wide = np.rint(values / scale.scale) + np.float32(scale.zero)
        table = np.clip(wide, result.low, result.high).astype(scale.dtype)
        return self.operator(x, Integer("table"), data.value, constant(table))


def _largest(weight: np.ndarray, axis: int, bias: np.ndarray) -> int:
    """What no sum of a layer exceeds; numbers without their zero point are at most 255."""
    others = tuple(i for i in range(weight.ndim) if i != axis)
    sums = np.abs(weight, dtype="int16").sum(others, dtype="int64")
    return int((255 * sums + np.abs(bias.astype("int64"))).max())


def _moves(call: relax.Call) -> bool:
    """Whether a call that may compute only chooses numbers."""
    kind = kind_of(call)
    if kind == "image.resize2d":
        return str(call.attrs.method) == "nearest_neighbor"
    if kind == "nn.max_pool2d":
        return str(call.attrs.layout) == "NCHW" and len(shape_of(call)) == 4
    return True


def _is_nchw(call: relax.Call) -> bool:
    attrs = call.attrs
    return (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) == ("NCHW", "OIHW", "NCHW")


def _is_matrix(call: relax.Call) -> bool:
    return all(len(shape_of(arg)) == 2 for arg in call.args)


def _ints(values: Any) -> Any:
    """A tuple of as many numbers."""
    return tuple(int(v) for v in values)
