"""Random small networks of integer operators: the layers of `branch_networks.py`, quantised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import tvm
from helpers.branch_networks import Layer, fits
from tvm import relax

from tvm_stretch.network.integer_kernels import integer_call
from tvm_stretch.network.integers import Integer, Rounding
from tvm_stretch.network.properties.quantised_layers import ints, windows_of
from tvm_stretch.passes.name_operators import NameOperators

UNSIGNED = Rounding("uint8", 7, 0, 255)
TABLE = Integer("table", None, (0, 0), (1.0, 1.0))
"""A table of any results, as in these networks no engine asks for its function."""


class IntegerNetwork:
    """Emits integer operators with random weights."""

    def __init__(self, seed: int) -> None:
        self.builder = relax.BlockBuilder()
        self.rng = np.random.default_rng(seed)

    def main(self, layers: Sequence[Layer], shape: tuple[int, ...]) -> tvm.IRModule | None:
        """``main(x0)``: the layers one after the other; None if one does not fit the size."""
        builder, x = self.builder, relax.Var("x0", relax.TensorType(shape, "uint8"))
        with builder.function("main", [x]):
            with builder.dataflow():
                value, fitting = x, True
                for layer in layers:
                    fitting = fitting and fits(layer, [int(d) for d in value.ty.shape.values])
                    value = self._layer(layer, value) if fitting else value
                result = builder.emit_output(value)
            builder.emit_func_output(result)
        if not fitting:
            return None
        return NameOperators()(relax.transform.CanonicalizeBindings()(builder.get()))

    def emit(self, integer: Integer, *operands: relax.Expr) -> relax.Var:
        """One operator."""
        return self.builder.emit(integer_call(self.builder, integer, *operands))

    def numbers(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        """Any of the type."""
        limits = np.iinfo(dtype)
        return self.rng.integers(limits.min, limits.max + 1, shape).astype(dtype)

    def conv(
        self, x: relax.Var, filters: int, kernel: Sequence[int], **options: object
    ) -> relax.Var:
        """A convolution whose results fill the range of their type."""
        integer = Integer("conv2d", UNSIGNED, (int(self.rng.integers(0, 9)),))
        integer = replace(integer, **options)
        channels = int(x.ty.shape.values[1])
        weight = self.numbers((filters, channels // integer.groups, *kernel), "int8")
        bias = self.rng.integers(-20000, 20000, filters).astype("int32")
        spread = 60 / (75 * 128 * np.sqrt(np.prod(weight.shape[1:])))
        factor = (self.rng.uniform(0.5, 1.5, filters) * spread).astype("float32")
        return self.emit(integer, x, *map(relax.const, (weight, bias, factor)))

    def _layer(self, layer: Layer, x: relax.Var) -> relax.Var:
        kind = layer[0]
        channels, height = (int(d) for d in x.ty.shape.values[1:3])
        if kind == "conv":
            return self._any_conv(x, channels, layer)
        if kind.endswith("pool2d"):
            return self._pool(layer, x)
        if kind == "residual":
            y = self.conv(x, channels, (3, 3), padding=(1, 1, 1, 1))
            return self._add(y, self.conv(x, channels, (1, 1)) if layer[2] else x)
        if kind == "fork":
            ways = [self.conv(x, 4, (1, 1)), self.conv(x, 4, (3, 3), padding=(1, 1, 1, 1))]
            return self.builder.emit(relax.op.concat(ways, axis=1))
        if kind == "swish":  # and squeeze-and-excite
            mean = self.emit(Integer("mean", UNSIGNED, (3,), (0.01,)), x)
            gate = self._table(self.conv(mean, channels, (1, 1)))
            return self.emit(Integer("multiply", UNSIGNED, (7, 2), (0.01, 5.0)), x, gate)
        if kind == "relu":
            return self._table(x)
        shape = (1, 1, height, 1) if kind == "rows" else (1, channels, 1, 1)
        return self._add(x, relax.const(self.numbers(shape, "uint8")))

    def _pool(self, layer: Layer, x: relax.Var) -> relax.Var:
        kind, size, stride, padding, ceil_mode, include = layer
        options = {"strides": stride, "padding": list(padding), "ceil_mode": ceil_mode}
        if "max" in kind:
            return self.builder.emit(relax.op.nn.max_pool2d(x, size, **options))
        floats = relax.Var("floats", relax.TensorType(x.ty.shape, "float32"))
        pool = relax.op.nn.avg_pool2d(floats, size, count_include_pad=include, **options)
        call = self.builder.normalize(pool)
        windows = windows_of(call)
        assert windows is not None
        integer = Integer(
            "average",
            UNSIGNED,
            (int(self.rng.integers(0, 9)),),
            (0.0213, 0.0213),
            strides=ints(call.attrs.strides),
            padding=windows.padding,
            kernel=ints(call.attrs.pool_size),
        )
        return self.emit(integer, x, relax.const(windows.counts))

    def _any_conv(self, x: relax.Var, channels: int, layer: Layer) -> relax.Var:
        _, kernel, stride, padding, dilation, groups, filters = layer
        if groups == 0:
            groups, filters = channels, channels
        return self.conv(
            x,
            filters,
            kernel,
            strides=(stride, 1),
            padding=padding,
            dilation=(dilation, dilation),
            groups=groups,
        )

    def _add(self, a: relax.Expr, b: relax.Expr) -> relax.Var:
        integer = Integer("add", replace(UNSIGNED, zero=0), factors=(0.6, 0.5, -10.25))
        return self.emit(integer, a, b)

    def _table(self, x: relax.Var) -> relax.Var:
        return self.emit(TABLE, x, relax.const(self.numbers((256,), "uint8")))


def read_otherwise() -> tvm.IRModule:
    """Tensors that are read with other zero points and scales than they were written with.

    ``x`` and ``both`` are added to themselves with two factors, and ``both`` has parts of two zero
    points.
    """
    made, plain = IntegerNetwork(0), Rounding("uint8", 0, 0, 255)
    x = relax.Var("x", relax.TensorType((1, 4, 5, 5), "uint8"))
    with made.builder.function("main", [x]):
        with made.builder.dataflow():
            one = made.emit(Integer("add", plain, (), (0.5, 0.25, 12.0)), x, x)
            two = made.emit(Integer("multiply", plain, (7, 200), (0.01, 50.0)), one, x)
            both = made.builder.emit(relax.op.concat([one, two], axis=1))
            three = made.emit(Integer("add", plain, (), (0.3, 0.6, 5.0)), both, both)
            rows = made.builder.emit(relax.op.strided_slice(three, [2], [1], [4]))
            result = made.builder.emit_output(rows)
        made.builder.emit_func_output(result)
    return NameOperators()(relax.transform.CanonicalizeBindings()(made.builder.get()))
