"""Store numbers of 2 to 8 bits in bytes: kernels compute in wider types only.

    y: float8_e4m3fn = R.astype(x, "float8_e4m3fn")   ->   y: uint8 = R.call_tir(encode, (x,))
    z: float32 = R.astype(y, "float32")               ->   z = R.take(the 256 numbers, y)
    w: int4 = R.astype(v: int32, "int4")              ->   w: int8 = the lowest four bits of v

Floats are stored as their bits, integers as their values. Inputs and results of a network of such
types are bytes, too. Operators that move elements stay; no other operator of them has a meaning.

A float is rounded to the nearest number, the even one of two. A number that is too large becomes
the infinity of its type, or NaN where there is none; a frontend clips values that shall saturate.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir import Expr

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.network.expressions import bindings_of, builder_with_kernels, constant, shape_of
from tvm_stretch.network.operators import kind_of

STORED = {
    **{"int2": "int8", "int4": "int8", "uint2": "uint8", "uint4": "uint8"},
    **dict.fromkeys(("float4_e2m1fn", "float8_e4m3fn", "float8_e4m3fnuz"), "uint8"),
    **dict.fromkeys(("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"), "uint8"),
}
"""The type in which a small one is stored."""

_MOVES = {
    *("broadcast_to", "concat", "dynamic_strided_slice", "expand_dims", "flatten", "flip"),
    *("gather_elements", "gather_nd", "permute_dims", "repeat", "reshape", "split"),
    *("squeeze", "strided_slice", "take", "tile"),
}


@tvm.transform.module_pass(opt_level=0, name="StoreSmallTypes")
class StoreSmallTypes:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        main = mod["main"]
        variables = [*main.params, *(binding.var for binding in bindings_of(main))]
        return _stored(mod) if any(map(_is_small, variables)) else mod


def _is_small(x: relax.Expr) -> bool:
    types = x.ty.fields if isinstance(x.ty, relax.TupleType) else [x.ty]
    return any(str(getattr(ty, "dtype", "")) in STORED for ty in types)


def _stored(mod: tvm.IRModule) -> tvm.IRModule:
    """All bindings again, in one block."""
    main, builder = mod["main"], builder_with_kernels(mod)
    stored = {param: _parameter(param) for param in main.params}

    def read(x: relax.Expr) -> relax.Expr:
        if isinstance(x, relax.Tuple):
            return relax.Tuple([*map(read, x.fields)])
        if isinstance(x, relax.TupleGetItem):
            return relax.TupleGetItem(read(x.tuple_value), x.index)
        return stored.get(x, x)

    with builder.function("main", [*stored.values()], dict(main.attrs or {})):
        with builder.dataflow():
            for binding in bindings_of(main):
                value = binding.value
                if isinstance(value, relax.Call):
                    value = _call(builder, value, [*map(read, value.args)])
                else:
                    value = read(value)
                stored[binding.var] = builder.emit(value, binding.var.name)
            result = builder.emit_output(read(main.body.body))
        builder.emit_func_output(result)
    return builder.get()


def _parameter(param: relax.Var) -> relax.Var:
    if not _is_small(param):
        return param
    kind = relax.TensorType(param.ty.shape, STORED[str(param.ty.dtype)])
    return relax.Var(param.name, kind)


def _call(builder: relax.BlockBuilder, call: relax.Call, args: list[relax.Expr]) -> relax.Expr:
    """The call on stored tensors."""
    if kind_of(call) == "astype":
        source, dtype = str(call.args[0].ty.dtype), str(call.attrs.dtype)
        wide = decoded(builder, args[0], source, dtype)
        return encoded(builder, wide, dtype) if dtype in STORED else wide
    if any(map(_is_small, (call, *call.args))) and kind_of(call) not in _MOVES:
        kinds = [str(x.ty.dtype) for x in (call, *call.args) if _is_small(x)]
        raise UnsupportedError(
            f"expected casts and moves alone for {kinds[0]}, got {kind_of(call)}; cast to a "
            "plain number type before"
        )
    return relax.Call(call.op, args, call.attrs, call.ty_args)


def decoded(builder: relax.BlockBuilder, x: relax.Expr, source: str, dtype: str) -> relax.Expr:
    """A stored tensor of ``source`` as ``dtype``, or as float32 or int32 if that is small, too."""
    if source in STORED and "float" in source:
        bits = np.arange(256, dtype="uint8") & (15 if source.startswith("float4") else 255)
        numbers = constant(bits.view(getattr(ml_dtypes, source)).astype("float32"))
        x = builder.emit(relax.op.take(numbers, builder.emit(relax.op.astype(x, "int32")), 0))
        source = "float32"
    if dtype in STORED:
        dtype = "float32" if "float" in source or "float" in dtype else "int32"
    return builder.emit(relax.op.astype(x, dtype))


def encoded(builder: relax.BlockBuilder, x: relax.Expr, dtype: str) -> relax.Expr:
    """``x``, of float32 or int32, as a small type is stored."""
    encode: Callable[[Expr], Expr] = _BITS[dtype] if "int" in dtype else _FloatBits(dtype)

    def compute(flat: te.Tensor) -> te.Tensor:
        if "int" in dtype and "float" in str(flat.dtype):
            return te.compute(flat.shape, lambda *i: encode(flat(*i).astype("int32")))
        return te.compute(flat.shape, lambda *i: encode(flat(*i)))

    flat = builder.emit(relax.op.reshape(x, shape_of(x) or [1]))  # a kernel needs an axis
    bits = builder.emit_te(compute, flat, primfunc_name_hint=f"encode_{dtype}")
    return relax.op.reshape(bits, shape_of(x))


def _signed(x: Expr, bits: int) -> Expr:
    half = 1 << bits - 1
    return (((x & (2 * half - 1)) ^ half) - half).astype("int8")


_BITS: dict[str, Callable[[Expr], Expr]] = {
    "int2": lambda x: _signed(x, 2),
    "int4": lambda x: _signed(x, 4),
    "uint2": lambda x: (x & 3).astype("uint8"),
    "uint4": lambda x: (x & 15).astype("uint8"),
}


class _FloatBits:
    """The bits of a float32 in a smaller type, of whose parts `ml_dtypes` knows the sizes."""

    def __init__(self, dtype: str) -> None:
        self.kind = np.dtype(getattr(ml_dtypes, dtype))
        info = ml_dtypes.finfo(self.kind)
        self.dropped = 23 - info.nmant  # bits of the significand
        self.least = int(np.float32(info.smallest_normal).view("int32"))
        self.scale = float(2.0 ** (info.nmant - info.minexp))  # makes integers of small numbers
        self.bias = (127 + info.minexp - 1) << info.nmant
        self.most, self.infinity, self.nan = (
            self.code(float(x)) for x in (info.max, np.inf, np.nan)
        )
        self.sign = self.code(-1) ^ self.code(1)
        self.has_minus_zero = self.code(-0.0) != 0

    def code(self, number: float) -> int:
        """The bits of one number."""
        return int(np.float32(number).astype(self.kind).view("uint8"))

    def __call__(self, x: Expr) -> Expr:
        """Unsigned, because TVM would widen signed integers to those of indices."""

        def const(number: int) -> Expr:
            return tirx.const(number, "uint32")

        bits = tirx.reinterpret("uint32", x)
        size = bits & const(0x7FFFFFFF)
        half = const((1 << self.dropped - 1) - 1)
        even = (size >> const(self.dropped)) & const(1)
        normal = ((size + half + even) >> const(self.dropped)) - const(self.bias)
        # the last bits of the sum are the number, rounded to an integer
        small = tirx.reinterpret("float32", tirx.min(size, const(self.least)))
        total = small * tirx.const(self.scale, "float32") + tirx.const(2.0**23, "float32")
        rounded = tirx.reinterpret("uint32", total) - const(int(np.float32(2**23).view("uint32")))
        code = tirx.Select(size < const(self.least), rounded, normal)
        code = tirx.Select(code > const(self.most), const(self.infinity), code)
        code = tirx.Select(size > const(0x7F800000), const(self.nan), code)
        signed = tirx.Select(bits > const(0x7FFFFFFF), code | const(self.sign), code)
        if not self.has_minus_zero:
            signed = tirx.Select(tirx.EQ(code, const(0)), code, signed)
        return signed.astype("uint8")
