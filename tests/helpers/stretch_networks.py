"""Small networks with the blocks that stretching knows, batch normalisations not folded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.passes.canonicalise import CanonicaliseTrainable

SIZE = 12


def conv(
    x: relax.Expr,
    channels: int,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
    seed: int = 0,
) -> relax.Expr:
    """Convolution and batch normalisation with statistics that are none of the defaults."""
    rng = np.random.default_rng((seed, channels, kernel))
    inside = int(x.ty.shape.values[1])
    weight = rng.standard_normal((channels, inside // groups, kernel, kernel)) * 0.3
    y = relax.op.nn.conv2d(
        x, relax.const(weight.astype("float32")), strides=stride, padding=kernel // 2, groups=groups
    )
    per_channel = [relax.const(rng.uniform(0.5, 1.5, channels).astype("float32")) for _ in range(4)]
    return relax.op.nn.batch_norm(y, *per_channel, axis=1, training=False)[0]


Block = Callable[[relax.BlockBuilder, relax.Expr, int, int, int], relax.Expr]
"""Reads the builder, a tensor, the width, the stride and a seed."""


def basic(b: relax.BlockBuilder, x: relax.Expr, width: int, stride: int, seed: int) -> relax.Expr:
    y = relax.op.nn.relu(b.emit(conv(x, width, 3, stride, seed=seed)))
    y = b.emit(conv(b.emit(y), width, 3, seed=seed + 1))
    fits = stride == 1 and int(x.ty.shape.values[1]) == width
    skip = x if fits else b.emit(conv(x, width, 1, stride, seed=seed + 2))
    return relax.op.nn.relu(b.emit(relax.op.add(y, skip)))


def bottleneck(
    b: relax.BlockBuilder, x: relax.Expr, width: int, stride: int, seed: int, groups: int = 1
) -> relax.Expr:
    inside = width if groups > 1 else width // 4
    y = b.emit(relax.op.nn.relu(b.emit(conv(x, inside, seed=seed))))
    y = b.emit(conv(y, inside, 3, stride, groups, seed=seed + 1))
    y = b.emit(conv(b.emit(relax.op.nn.relu(y)), width, seed=seed + 2))
    fits = stride == 1 and int(x.ty.shape.values[1]) == width
    skip = x if fits else b.emit(conv(x, width, 1, stride, seed=seed + 3))
    return relax.op.nn.relu(b.emit(relax.op.add(y, skip)))


def regnet(b: relax.BlockBuilder, x: relax.Expr, width: int, stride: int, seed: int) -> relax.Expr:
    return bottleneck(b, x, width, stride, seed, width // 4)


def mb_conv(
    b: relax.BlockBuilder,
    x: relax.Expr,
    width: int,
    stride: int,
    seed: int,
    squeeze: bool = False,
) -> relax.Expr:
    before = int(x.ty.shape.values[1])
    inside = 3 * before
    y = b.emit(relax.op.nn.silu(b.emit(conv(x, inside, seed=seed))))
    y = b.emit(relax.op.nn.silu(b.emit(conv(y, inside, 3, stride, inside, seed=seed + 1))))
    if squeeze:
        gate = b.emit(relax.op.mean(y, [2, 3], keepdims=True))
        gate = b.emit(relax.op.nn.relu(b.emit(conv(gate, before // 2, seed=seed + 4))))
        gate = b.emit(relax.op.sigmoid(b.emit(conv(gate, inside, seed=seed + 5))))
        y = b.emit(relax.op.multiply(y, gate))
    y = conv(y, width, seed=seed + 2)
    return relax.op.add(b.emit(y), x) if stride == 1 and before == width else y


def squeeze_mb_conv(
    b: relax.BlockBuilder, x: relax.Expr, width: int, stride: int, seed: int
) -> relax.Expr:
    return mb_conv(b, x, width, stride, seed, squeeze=True)


def separable(
    b: relax.BlockBuilder, x: relax.Expr, width: int, stride: int, seed: int
) -> relax.Expr:
    before = int(x.ty.shape.values[1])
    y = b.emit(relax.op.nn.relu(b.emit(conv(x, before, 3, stride, before, seed=seed))))
    return relax.op.nn.relu(b.emit(conv(y, width, seed=seed + 1)))


def plain(b: relax.BlockBuilder, x: relax.Expr, width: int, stride: int, seed: int) -> relax.Expr:
    return relax.op.nn.relu(b.emit(conv(x, width, 3, stride, seed=seed)))


def shuffle_unit(
    b: relax.BlockBuilder, x: relax.Expr, width: int, stride: int, seed: int
) -> relax.Expr:
    """ShuffleNetV2: half of the channels pass, or both halves are computed; then they mix."""
    half = width // 2
    if stride == 1:
        halves = b.emit(relax.op.split(x, 2, axis=1))
        left, right = b.emit(halves[0]), b.emit(halves[1])
    else:
        before = int(x.ty.shape.values[1])
        left = b.emit(conv(x, before, 3, stride, before, seed=seed + 3))
        left, right = b.emit(relax.op.nn.relu(b.emit(conv(left, half, seed=seed + 4)))), x
    y = b.emit(relax.op.nn.relu(b.emit(conv(right, half, seed=seed))))
    y = b.emit(conv(y, half, 3, stride, half, seed=seed + 1))
    y = b.emit(relax.op.nn.relu(b.emit(conv(y, half, seed=seed + 2))))
    whole = b.emit(relax.op.concat([left, y], axis=1))
    n, c, h, w = (int(dim) for dim in whole.ty.shape.values)
    groups = b.emit(relax.op.reshape(whole, (n, 2, c // 2, h, w)))
    mixed = b.emit(relax.op.permute_dims(groups, [0, 2, 1, 3, 4]))
    return relax.op.reshape(mixed, (n, c, h, w))


BLOCKS: dict[str, Block] = {
    "basic": basic,
    "bottleneck": bottleneck,
    "regnet": regnet,
    "mb_conv": mb_conv,
    "squeeze_mb_conv": squeeze_mb_conv,
    "separable": separable,
    "plain": plain,
    "shuffle_unit": shuffle_unit,
}


def network(
    block: Block,
    stages: Sequence[tuple[int, int]] = ((16, 2), (32, 3)),
    stem: int = 8,
    batch: int = 1,
) -> tvm.IRModule:
    """Stem, stages of (width, blocks), the first block of each with stride 2, mean and classes."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((batch, 3, SIZE, SIZE), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.relu(builder.emit(conv(x, stem, 3))))
            for stage, (width, count) in enumerate(stages):
                for index in range(count):
                    seed = 10 * (10 * stage + index)
                    y = builder.emit(block(builder, y, width, 1 if index else 2, seed))
            y = builder.emit(relax.op.mean(y, [2, 3]))
            rng = np.random.default_rng(1)
            weight = rng.standard_normal((stages[-1][0], 5)).astype("float32")
            result = builder.emit_output(relax.op.matmul(y, relax.const(weight)))
        builder.emit_func_output(result)
    return CanonicaliseTrainable()(builder.get())
