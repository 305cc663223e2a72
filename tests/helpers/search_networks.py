"""Random networks for the search: stems, dense blocks, joins and forks, in any order.

A layer usually goes on from the last tensor, sometimes from any earlier one, so that tensors have
several readers and ways may never meet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import tvm
from hypothesis import strategies as st
from tvm import relax

from tvm_stretch.read import load_network

_SHUFFLED = [0, 2, 1, 3, 4]


class _Builder:
    """Emits layers on tensors (1, channels, height, width)."""

    def __init__(self, draw: st.DrawFn, builder: relax.BlockBuilder, x: relax.Expr) -> None:
        self.draw = draw
        self.emit = builder.emit
        self.tensors = [x]
        self.seed = 0

    def layer(self, kinds: Sequence[str]) -> None:
        """One more layer, on the last tensor or on another one."""
        recent = self.draw(st.sampled_from([True, True, True, False]))
        x = self.tensors[-1] if recent else self.any()
        self.tensors.append(LAYERS[self.draw(st.sampled_from(kinds))](self, x))

    def any(self, shape: tuple[int, ...] | None = None) -> relax.Expr:
        """Any tensor; or one of these rows, columns and, if they are given, channels."""
        fitting = [t for t in self.tensors if shape is None or _shape(t)[-len(shape) :] == shape]
        return self.draw(st.sampled_from(fitting))

    def weight(self, *shape: int, summands: int = 1) -> relax.Expr:
        """A constant that leaves values about as large as they are."""
        self.seed += 1
        value = np.random.default_rng(self.seed).standard_normal(shape)
        return relax.const((value / np.sqrt(summands)).astype("float32"))

    def conv(
        self, x: relax.Expr, out: int = 0, kernel: int = 3, stride: int = 1, groups: int = 1
    ) -> relax.Expr:
        channels = _shape(x)[1]
        shape = (channels // groups, kernel, kernel)
        weight = self.weight(out or channels, *shape, summands=math.prod(shape))
        return self.emit(
            relax.op.nn.conv2d(x, weight, strides=stride, padding=kernel // 2, groups=groups)
        )

    def affine(self, x: relax.Expr) -> relax.Expr:
        """As batch normalisation leaves it."""
        scale, bias = (self.weight(1, _shape(x)[1], 1, 1) for _ in range(2))
        return self.emit(relax.op.add(self.emit(relax.op.multiply(x, scale)), bias))

    def relu(self, x: relax.Expr) -> relax.Expr:
        return self.emit(relax.op.nn.relu(x))

    def concat(self, *parts: relax.Expr) -> relax.Expr:
        return self.emit(relax.op.concat(list(parts), axis=1))


def _shape(expr: relax.Expr) -> tuple[int, ...]:
    return tuple(int(dim) for dim in expr.ty.shape.values)


def _convolution(b: _Builder, x: relax.Expr) -> relax.Expr:
    out, kernel, stride = (b.draw(st.sampled_from(c)) for c in ([8, 12, 32], [1, 3], [1, 1, 2]))
    y = b.conv(x, out, kernel, stride)
    return b.relu(y) if b.draw(st.booleans()) else y


def _grouped(b: _Builder, x: relax.Expr) -> relax.Expr:
    channels = _shape(x)[1]
    groups = b.draw(st.sampled_from([g for g in (2, 4, channels) if channels % g == 0]))
    return b.relu(b.conv(x, kernel=3, stride=b.draw(st.sampled_from([1, 2])), groups=groups))


def _stem(b: _Builder, x: relax.Expr) -> relax.Expr:
    return b.relu(b.affine(b.conv(x, 16, 3, 2)))


def _dense(b: _Builder, x: relax.Expr) -> relax.Expr:
    y = b.conv(b.relu(b.affine(x)), 16, 1)
    return b.concat(x, b.conv(b.relu(b.affine(y)), 8, 3))


def _residual(b: _Builder, x: relax.Expr) -> relax.Expr:
    y = b.conv(b.relu(b.conv(x)))
    shortcut = b.conv(x, kernel=1) if b.draw(st.booleans()) else x
    return b.relu(b.emit(relax.op.add(y, shortcut)))


def _fork(b: _Builder, x: relax.Expr) -> relax.Expr:
    ways = [b.conv(x, 8, 1), b.relu(b.conv(b.conv(x, 8, 1), 8)), x]
    chosen = ways[: b.draw(st.integers(2, 3))]
    return b.concat(*b.draw(st.permutations(chosen)))


def _join(b: _Builder, x: relax.Expr) -> relax.Expr:
    """With an earlier tensor: added, or put beside it."""
    if b.draw(st.booleans()):
        return b.emit(relax.op.add(x, b.any(_shape(x))))
    return b.concat(x, b.any(_shape(x)[2:]))


def _pool(b: _Builder, x: relax.Expr) -> relax.Expr:
    stride = b.draw(st.sampled_from([1, 2]))
    if b.draw(st.booleans()):
        return b.emit(relax.op.nn.max_pool2d(x, [3, 3], [stride, stride], [1, 1, 1, 1]))
    size = min(2, *_shape(x)[2:])
    return b.emit(relax.op.nn.avg_pool2d(x, [size, size], [stride, stride]))


def _gate(b: _Builder, x: relax.Expr) -> relax.Expr:
    """Squeeze and excite."""
    mean = b.emit(relax.op.mean(x, [2, 3], keepdims=True))
    gate = b.emit(relax.op.sigmoid(b.conv(b.relu(b.conv(mean, 8, 1)), _shape(x)[1], 1)))
    return b.emit(relax.op.multiply(x, gate))


def _shuffle(b: _Builder, x: relax.Expr) -> relax.Expr:
    shape = _shape(x)
    grouped = b.emit(relax.op.reshape(x, (1, 2, shape[1] // 2, *shape[2:])))
    return b.emit(relax.op.reshape(b.emit(relax.op.permute_dims(grouped, _SHUFFLED)), shape))


def _halves(b: _Builder, x: relax.Expr) -> relax.Expr:
    """Half of the channels goes through a layer, the other one beside it."""
    parts = b.emit(relax.op.split(x, 2, axis=1))
    one, other = (b.emit(relax.TupleGetItem(parts, i)) for i in range(2))
    return b.concat(one, b.relu(b.conv(other)))


LAYERS: dict[str, Callable[[_Builder, relax.Expr], relax.Expr]] = {
    "affine": _Builder.affine,
    "convolution": _convolution,
    "dense": _dense,
    "fork": _fork,
    "gate": _gate,
    "grouped": _grouped,
    "halves": _halves,
    "join": _join,
    "pool": _pool,
    "relu": _Builder.relu,
    "residual": _residual,
    "shuffle": _shuffle,
    "stem": _stem,
}


@st.composite
def searched_networks(draw: st.DrawFn, kinds: Sequence[str], most: int) -> tvm.IRModule:
    """A canonical network of up to so many layers; it may have two outputs."""
    builder = relax.BlockBuilder()
    size = draw(st.sampled_from([(16, 16), (28, 12), (9, 13)]))
    x = relax.Var("x", relax.TensorType((1, draw(st.sampled_from([4, 8, 16])), *size), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            layers = _Builder(draw, builder, x)
            for _ in range(draw(st.integers(1, most))):
                layers.layer(kinds)
            results = [layers.tensors[-1]]
            if draw(st.integers(0, 5)) == 0:
                results.append(layers.any())
            out = [builder.emit_output(r) for r in results if r is not x] or [x]
        builder.emit_func_output(out[0] if len(out) == 1 else relax.Tuple(out))
    return load_network(builder.get())
