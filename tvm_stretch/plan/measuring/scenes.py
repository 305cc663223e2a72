"""Small random networks of the operators that samples lack, in their usual context.

    conv -> squeeze-and-excitation -> concat of three convolutions -> attention -> mean -> dense

Layout changes, reductions, concatenations, attention and gathers are kernels as well, and their
cost depends on the kernels before them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.network.expressions import network_of

_SIDES = (5, 7, 8, 10, 13, 14, 16, 20, 28, 35, 40, 56)
_PARTS = 5
_MOST_TOKENS = 800
"""Pixels that attention compares with each other."""


def scene(seed: int) -> tvm.IRModule:
    """The network of a seed."""
    return _Scene(seed).build()


class _Scene:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.weights = np.random.default_rng(seed)
        self.bb = relax.BlockBuilder()
        self.side = self.dice.choice(_SIDES)

    def build(self) -> tvm.IRModule:
        """Five random parts between an input and a classifier."""
        usual = (self.excite, self.concat, self.add, self.pool, self.stride, self.swish)
        parts = (*usual, self.excite, self.rows, self.block, self.attention)
        shape = (1, self.dice.choice((3, 16, 24)), self.side, self.side)
        x = relax.Var("x", relax.TensorType(shape, "float32"))

        def body(_: relax.BlockBuilder) -> relax.Expr:
            value = self.conv(x, self.width())
            for _ in range(_PARTS):
                part: Callable[[Any], Any] = self.dice.choice(parts)
                value = part(value)
            return self.classify(value)

        return network_of([x], body, self.bb)

    def width(self) -> int:
        """A number of channels; not always whole vectors."""
        vectors = self.dice.randint(2, 8 if self.side > 20 else 48)
        return self.dice.choice((8 * vectors,) * 4 + (4 * vectors, 8 * vectors + 3))

    def constant(self, *shape: int) -> relax.Expr:
        """Random numbers."""
        return relax.const(0.05 * self.weights.standard_normal(shape, dtype=np.float32))

    def conv(self, x: Any, outputs: int, stride: int = 1, act: bool = True, kernel: int = 1) -> Any:
        """A convolution with bias."""
        emit, weight = self.bb.emit, self.constant(outputs, _channels(x), kernel, kernel)
        y = emit(relax.op.nn.conv2d(x, weight, strides=stride, padding=kernel // 2))
        y = emit(relax.op.add(y, self.constant(1, outputs, 1, 1)))
        return emit(relax.op.nn.relu(y)) if act else y

    def block(self, x: Any) -> Any:
        """Two 3x3 convolutions beside a shortcut."""
        channels = min(_channels(x), 96)
        y = self.conv(x, channels)
        z = self.conv(self.conv(y, channels, kernel=3), channels, act=False, kernel=3)
        return self.bb.emit(relax.op.nn.relu(self.bb.emit(relax.op.add(y, z))))

    def excite(self, x: Any) -> Any:
        """Squeeze-and-excitation."""
        channels = _channels(x)
        y = self.bb.emit(relax.op.mean(x, [2, 3], keepdims=True))
        y = self.conv(self.conv(y, max(8, channels // 4)), channels, act=False)
        return self.bb.emit(relax.op.multiply(x, self.bb.emit(relax.op.sigmoid(y))))

    def concat(self, x: Any) -> Any:
        """Branches side by side."""
        branches = [self.conv(x, max(8, self.width() // 2)) for _ in range(self.dice.randint(2, 4))]
        return self.conv(self.bb.emit(relax.op.concat(branches, 1)), _channels(x))

    def add(self, x: Any) -> Any:
        """A sum that two operators read."""
        channels, emit = _channels(x), self.bb.emit
        both = emit(relax.op.add(self.conv(x, channels), self.conv(x, channels)))
        y = emit(relax.op.add(self.conv(both, channels, act=False), both))
        return emit(relax.op.nn.relu(y))

    def pool(self, x: Any) -> Any:
        """A pooling, and an elementwise operator that has no convolution to join."""
        size = self.dice.choice((1, 3))
        op = self.dice.choice((relax.op.nn.max_pool2d, relax.op.nn.avg_pool2d))
        y = self.bb.emit(op(x, (size, size), padding=(size // 2,) * 4))
        again = self.conv(self.bb.emit(relax.op.nn.relu(y)), _channels(x))
        return self.bb.emit(relax.op.add(again, y))

    def stride(self, x: Any) -> Any:
        """A strided 1x1 convolution, which gathers its pixels first."""
        if int(x.ty.shape.values[2]) < 5:
            return x
        return self.conv(x, min(2 * _channels(x), 384), stride=2)

    def swish(self, x: Any) -> Any:
        """X * sigmoid(x)."""
        y = self.conv(x, _channels(x), act=False)
        return self.bb.emit(relax.op.multiply(y, self.bb.emit(relax.op.sigmoid(y))))

    def rows(self, x: Any) -> Any:
        """Channels last and back."""
        y = self.bb.emit(relax.op.permute_dims(x, [0, 2, 3, 1]))
        y = self.bb.emit(relax.op.nn.relu(y))
        return self.conv(self.bb.emit(relax.op.permute_dims(y, [0, 3, 1, 2])), _channels(x))

    def attention(self, x: Any) -> Any:
        """Attention of pixels in heads, beside a shortcut.

        It is one kernel, or, where softmax is taken of queries and keys alone, products of
        matrices and softmaxes.
        """
        emit, (height, width) = self.bb.emit, (int(d) for d in x.ty.shape.values[2:])
        if height * width > _MOST_TOKENS:
            return self.attention(self.stride(x))
        channels, pixels = _channels(x), height * width
        heads, depth = self.dice.choice((1, 2, 4)), self.dice.choice((16, 32, 64))
        parts = [self.conv(x, heads * depth, act=False) for _ in range(3)]
        split = [emit(relax.op.reshape(p, (1, heads, depth, pixels))) for p in parts]
        queries, keys, values = (emit(relax.op.permute_dims(p, [0, 1, 3, 2])) for p in split)
        keys = emit(relax.op.permute_dims(keys, [0, 1, 3, 2]))
        if self.dice.choice((True, False)):
            keys, queries = (emit(relax.op.nn.softmax(x, -1)) for x in (keys, queries))
            y = emit(relax.op.matmul(queries, emit(relax.op.matmul(keys, values))))
        else:
            shares = emit(relax.op.nn.softmax(emit(relax.op.matmul(queries, keys)), -1))
            y = emit(relax.op.matmul(shares, values))
        y = emit(relax.op.permute_dims(y, [0, 1, 3, 2]))
        size = (1, heads * depth, height, width)
        return emit(relax.op.add(self.conv(emit(relax.op.reshape(y, size)), channels), x))

    def classify(self, x: Any) -> Any:
        """Mean, matrix product, sometimes softmax."""
        channels, outputs = _channels(x), self.dice.choice((10, 100, 1000))
        y = self.bb.emit(relax.op.mean(x, [2, 3]))
        y = self.bb.emit(relax.op.matmul(y, self.constant(channels, outputs)))
        y = self.bb.emit(relax.op.add(y, self.constant(outputs)))
        return self.bb.emit(relax.op.nn.softmax(y)) if self.dice.random() < 0.5 else y


def _channels(x: Any) -> int:
    return int(x.ty.shape.values[1])
