"""Random small networks for the branching passes: a list of layers, built into a module."""

from __future__ import annotations

from typing import Any

import tvm
from helpers.relax_helpers import random_const
from hypothesis import strategies as st
from tvm import relax

from tvm_stretch.passes.name_operators import NameOperators

Layer = tuple[Any, ...]


def convs(groups: tuple[int, ...] = (1, 2, 0)) -> st.SearchStrategy[Layer]:
    """Convolutions: kernel, stride, padding (top, left, bottom, right), dilation, groups.

    Groups of 0 stand for depthwise.
    """
    return st.tuples(
        st.just("conv"),
        st.tuples(st.integers(1, 4), st.integers(1, 3)),
        st.integers(1, 3),
        st.tuples(*[st.integers(0, 2)] * 4),
        st.integers(1, 2),
        st.sampled_from(groups),
        st.sampled_from([4, 8]),
    )


def pools() -> st.SearchStrategy[Layer]:
    """Pools: operator, kernel, stride, padding, rounding up, padding counted."""
    return st.tuples(
        st.sampled_from(["max_pool2d", "avg_pool2d"]),
        st.integers(2, 3),
        st.integers(1, 2),
        st.tuples(*[st.integers(0, 1)] * 4),
        st.booleans(),
        st.booleans(),
    )


POINTWISE = st.sampled_from([("relu",), ("bias",), ("scale",), ("rows",), ("swish",)])
RESIDUALS = st.tuples(st.just("residual"), st.sampled_from([1, 3]), st.booleans())
FORKS = st.just(("fork",))
ROW_LAYERS = st.lists(
    st.one_of(convs(), pools(), POINTWISE, RESIDUALS, FORKS), min_size=1, max_size=6
)


def build(layers: list[Layer], shape: tuple[int, ...]) -> tvm.IRModule | None:
    """``main(x0)``: the layers one after the other; None if a layer does not fit the size."""
    builder = relax.BlockBuilder()
    x = relax.Var("x0", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for seed, layer in enumerate(layers):
                size = [int(dim) for dim in value.ty.shape.values]
                fitting = fits(layer, size)
                if not fitting:
                    break  # an unfinished function would leave the builder with a warning
                value = builder.emit(_LAYERS[layer[0]](value, size, layer, seed))
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    if not fitting:
        return None
    return NameOperators()(relax.transform.CanonicalizeBindings()(builder.get()))


def fits(layer: Layer, size: list[int]) -> bool:
    """Whether a layer leaves something of a tensor of this size."""
    if layer[0] == "conv":
        _, kernel, _, (top, left, bottom, right), dilation, _, _ = layer
        rows, columns = ((k - 1) * dilation + 1 for k in kernel)
        return size[2] + top + bottom >= rows and size[3] + left + right >= columns
    if layer[0].endswith("pool2d"):
        _, kernel, _, padding, _, _ = layer
        return min(size[2:]) >= kernel and max(padding) < kernel
    return True


def _conv(x: relax.Expr, size: list[int], layer: Layer, seed: int) -> relax.Expr:
    _, kernel, stride, padding, dilation, groups, filters = layer
    if groups == 0:
        groups, filters = size[1], size[1]
    weight = random_const(filters, size[1] // groups, *kernel, seed=seed)
    return relax.op.nn.conv2d(
        x, weight, strides=[stride, 1], padding=list(padding), dilation=dilation, groups=groups
    )


def _pool(x: relax.Expr, size: list[int], layer: Layer, seed: int) -> relax.Expr:
    kind, kernel, stride, padding, ceil_mode, count_include_pad = layer
    return getattr(relax.op.nn, kind)(
        x, [kernel, kernel], [stride, stride], list(padding), (1, 1), ceil_mode, count_include_pad
    )


def _residual(x: relax.Expr, size: list[int], layer: Layer, seed: int) -> relax.Expr:
    _, kernel, projected = layer
    weight = random_const(size[1], size[1], kernel, kernel, seed=seed)
    y = relax.op.nn.conv2d(x, weight, padding=kernel // 2)
    other = random_const(size[1], size[1], 1, 1, seed=seed + 100)
    shortcut = relax.op.nn.conv2d(x, other) if projected else x
    return relax.op.nn.relu(relax.op.add(y, shortcut))


def _fork(x: relax.Expr, size: list[int], layer: Layer, seed: int) -> relax.Expr:
    small = relax.op.nn.conv2d(x, random_const(4, size[1], 1, 1, seed=seed))
    large = relax.op.nn.conv2d(x, random_const(4, size[1], 3, 3, seed=seed + 100), padding=1)
    return relax.op.concat([small, large], axis=1)


def _swish(x: relax.Expr, size: list[int], layer: Layer, seed: int) -> relax.Expr:
    return relax.op.multiply(x, relax.op.sigmoid(x))


_LAYERS = {
    "conv": _conv,
    "max_pool2d": _pool,
    "avg_pool2d": _pool,
    "residual": _residual,
    "fork": _fork,
    "swish": _swish,
    "relu": lambda x, size, layer, seed: relax.op.nn.relu(x),
    "bias": lambda x, size, layer, seed: relax.op.add(x, random_const(1, size[1], 1, 1, seed=seed)),
    "scale": lambda x, size, layer, seed: relax.op.multiply(
        x, random_const(size[1], 1, 1, seed=seed)
    ),
    "rows": lambda x, size, layer, seed: relax.op.add(x, random_const(1, 1, size[2], 1, seed=seed)),
}
