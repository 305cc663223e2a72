"""Compute in float16 inside a network: half the bytes, twice the lanes.

    y = R.nn.relu(R.nn.conv2d(x, w))     y = R.nn.relu(R.nn.conv2d(astype(x, float16), w16))
    z = R.nn.softmax(y)              ->  z = R.nn.softmax(astype(y, float32))
    return z                             return z

Layers, pools and simple elementwise operators become float16. Operators for which float16 has too
few digits or too small a range (means over images, exponentials, squares, constants beyond 65504 or
near 0, ..) stay float32 between two conversions, which fuse into neighbouring kernels. Operators
that only move numbers keep the type of their operands. Inputs, outputs, and all types other than
float32 stay.

With ``wide_sums`` the sums of layers are float32 and are rounded once. The attribute ``halves`` of
``main`` counts the operators in float16 and names the others.
"""

from __future__ import annotations

from math import prod

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst

from tvm_stretch.network.codec import from_text, to_text
from tvm_stretch.network.expressions import builder_with_kernels, with_variables, written_again
from tvm_stretch.network.operators import BINARY, kind_of
from tvm_stretch.network.provenance import source_of
from tvm_stretch.passes.name_operators import NameOperators, keep_names

HALVES = "halves"
"""Attribute of ``main``: text of the number of operators in float16, and the names of the
others."""

WIDE, HALF = "float32", "float16"
_LARGEST, _LEAST = float(np.finfo(HALF).max), float(np.finfo(HALF).tiny)
_LAYERS = ("nn.conv2d", "matmul")
_SIMPLE = {"nn.relu", "nn.leakyrelu", "clip", "abs", "negative", "nn.max_pool2d"}
_SIMPLE |= BINARY - {"divide", "power"}
_MOVES = {"reshape", "permute_dims", "concat", "split", "strided_slice", "nn.pad"}
_MOST_SUMMANDS = 16
"""Most summands of an average in float16; more would lose digits."""


@tvm.transform.module_pass(opt_level=0, name="UseHalf")
class UseHalf:
    """See the module docstring."""

    def __init__(self, wide_sums: bool = False) -> None:
        self.wide_sums = wide_sums

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        mod = keep_names(mod)
        mod = _Writer(mod, self.wide_sums).write(mod["main"])
        return tvm.transform.Sequential(
            [
                relax.transform.CanonicalizeBindings(),
                relax.transform.DeadCodeElimination(),
                NameOperators(),
            ]
        )(mod)


def describe_halves(main: relax.Function) -> str:
    """How many operators compute in float16, and which stayed in float32, as text for people."""
    text = (main.attrs or {}).get(HALVES)
    if text is None:
        return ""
    formed, wide = from_text(tuple[int, tuple[str, ...]], str(text))
    listed = ", ".join(wide[:8]) + (f" and {len(wide) - 8} more" if len(wide) > 8 else "")
    return f"{formed} operators in float16" + (f"; in float32: {listed}" if wide else "")


class _Writer:
    """Re-emits the bindings of one function, each value in the types that its readers need."""

    def __init__(self, mod: tvm.IRModule, wide_sums: bool) -> None:
        self.bb = builder_with_kernels(mod)
        self.wide_sums = wide_sums
        self.values: dict[relax.Var, relax.Expr] = {}
        self.converted: dict[tuple[relax.Expr, str], relax.Expr] = {}
        self.source = ""
        self.halves = 0
        self.wide: list[str] = []

    def write(self, main: relax.Function) -> tvm.IRModule:
        """The module with the new ``main``."""
        self.values = {param: param for param in main.params}
        with written_again(self.bb, "main", main, self.result) as bindings:
            for binding in bindings:
                self.source = binding.var.name
                self.values[binding.var] = self.emit(self.rewritten(binding.value))
        mod = self.bb.get()
        described = to_text((self.halves, list(dict.fromkeys(self.wide))))
        mod["main"] = mod["main"].with_attr(HALVES, described)
        return mod

    def emit(self, value: relax.Expr) -> relax.Expr:
        """Bind a value to a variable named after the operator that is being rewritten."""
        return self.bb.emit(value, name_hint=self.source)

    def result(self, field: relax.Expr) -> relax.Expr:
        """A result of the network in its original type."""
        self.source = getattr(field, "name", "")
        return self.emit(self.typed(field, str(field.ty.dtype)))

    def rewritten(self, value: relax.Expr) -> relax.Expr:
        """The same expression with operands in suitable types."""
        if not isinstance(value, relax.Call):
            return with_variables(value, lambda var: self.values[var])
        kind = kind_of(value)
        if kind in _MOVES:
            return self.moved(value)
        if not _is(value, WIDE):
            return self.call(value, WIDE)
        if not self.fits(value, kind):
            self.wide.append(source_of(self.source))
            return self.call(value, WIDE)
        self.halves += 1
        if kind in _LAYERS and self.wide_sums:
            return relax.op.astype(self.emit(_with_wide_sums(self.call(value, HALF), kind)), HALF)
        return self.call(value, HALF)

    def fits(self, call: relax.Call, kind: str) -> bool:
        """Whether float16 has the digits and the range for an operator."""
        if kind == "nn.avg_pool2d":
            return prod(map(int, call.attrs.pool_size)) <= _MOST_SUMMANDS
        if kind in _LAYERS and not isinstance(call.args[1], GenericConst):
            return False  # attention: its sums, and the softmax after them, need float32
        if kind == "multiply" and call.args[0].same_as(call.args[1]):
            return False  # a variance: 256^2 would be infinite
        constants = [arg for arg in call.args if isinstance(arg, GenericConst)]
        fitting = _numbers_fit(call, kind) and all(map(_in_range, constants))
        return kind in (*_LAYERS, *_SIMPLE) and fitting

    def moved(self, call: relax.Call) -> relax.Expr:
        """In float16 if all computed operands are: a float32 operand may be too large for it."""
        read = [self.values[var] for var in relax.analysis.free_vars(call)]
        is_half = any(_is(value, HALF) for value in read)
        is_half = is_half and not any(_is(value, WIDE) for value in read)
        return self.call(call, HALF if is_half and _numbers_fit(call, kind_of(call)) else WIDE)

    def call(self, call: relax.Call, dtype: str) -> relax.Call:
        """The call with all float operands in one type."""

        def operand(arg: relax.Expr) -> relax.Expr:
            if isinstance(arg, relax.Tuple):
                return relax.Tuple([operand(field) for field in arg.fields])
            return self.typed(arg, dtype) if _is(arg, WIDE) else self.kept(arg)

        return relax.Call(call.op, [*map(operand, call.args)], call.attrs, call.ty_args)

    def kept(self, arg: relax.Expr) -> relax.Expr:
        """An operand that is not float32."""
        return with_variables(arg, lambda var: self.values[var])

    def typed(self, arg: relax.Expr, dtype: str) -> relax.Expr:
        """A float value or constant, converted to ``dtype``."""
        if isinstance(arg, GenericConst):
            return relax.const(arg.value.numpy().astype(dtype)) if dtype == HALF else arg
        value = self.values[arg]
        if str(value.ty.dtype) == dtype:
            return value
        if (value, dtype) not in self.converted:
            self.converted[value, dtype] = self.emit(relax.op.astype(value, dtype))
        return self.converted[value, dtype]


def _is(expr: relax.Expr, dtype: str) -> bool:
    """Whether an expression is a tensor of this type."""
    return isinstance(expr.ty, relax.TensorType) and str(expr.ty.dtype) == dtype


def _numbers_fit(call: relax.Call, kind: str) -> bool:
    """Whether the bounds of a clip, or the value of a pad, are in the range of float16."""
    numbers = [float(arg.value) for arg in call.args if isinstance(arg, tirx.FloatImm)]
    numbers += [float(call.attrs.pad_value)] if kind == "nn.pad" else []
    return all(abs(number) <= _LARGEST or not np.isfinite(number) for number in numbers)


def _in_range(constant: GenericConst) -> bool:
    """Whether float16 has the numbers; a few near 0 do no harm, but an epsilon would vanish."""
    array = constant.value.numpy()
    if array.dtype.kind != "f":
        return True
    finite = abs(array[np.isfinite(array)])
    most = finite.max(initial=0.0)
    return bool(most == 0 or _LEAST <= most <= _LARGEST)


def _with_wide_sums(call: relax.Call, kind: str) -> relax.Call:
    """The same layer, returning its float32 sums."""
    data, weight = call.args
    attrs = call.attrs
    if kind == "matmul":
        return relax.op.matmul(data, weight, out_dtype=WIDE)
    return relax.op.nn.conv2d(
        data,
        weight,
        strides=attrs.strides,
        padding=attrs.padding,
        dilation=attrs.dilation,
        groups=attrs.groups,
        data_layout=attrs.data_layout,
        kernel_layout=attrs.kernel_layout,
        out_layout=attrs.out_layout,
        out_dtype=WIDE,
    )
