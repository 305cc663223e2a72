"""FoldBatchNorm: Before / Expected modules, and the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.relax_helpers import (
    assert_rewrites,
    assert_same_numerics,
    assert_unchanged,
    module,
    op_names,
    random_const,
)
from tvm import relax

from tvm_stretch.passes.fold_batch_norm import FoldBatchNorm, per_channel

nn = relax.op.nn


def batch_norm(x: relax.Expr, channels: int, *, training: bool = False) -> relax.Expr:
    """Inference batch normalisation along axis 1 with random statistics."""
    gamma, beta, mean = (random_const(channels, seed=s) for s in (2, 3, 4))
    var = random_const(channels, seed=5, positive=True)
    return relax.TupleGetItem(
        nn.batch_norm(x, gamma, beta, mean, var, axis=1, epsilon=1e-3, training=training), 0
    )


def scale_and_bias(channels: int) -> tuple[np.ndarray, np.ndarray]:
    """What `batch_norm` multiplies and adds per channel."""
    gamma, beta, mean = (random_const(channels, seed=s).value.numpy() for s in (2, 3, 4))
    var = random_const(channels, seed=5, positive=True).value.numpy()
    scale = gamma.astype("float64") / np.sqrt(var.astype("float64") + 1e-3)
    return scale, beta - mean * scale


def constant(value: np.ndarray) -> relax.Expr:
    """A float32 constant."""
    return relax.const(value.astype("float32"))


def test_conv_and_batch_norm_become_conv_and_bias() -> None:
    weight = random_const(6, 4, 3, 3)
    scale, bias = scale_and_bias(6)
    before = module(lambda x: batch_norm(nn.conv2d(x, weight, padding=1), 6), (2, 4, 5, 5))

    def expected(x: relax.Expr) -> relax.Expr:
        folded = constant(weight.value.numpy() * scale.reshape(-1, 1, 1, 1))
        conv = nn.conv2d(x, folded, padding=1)
        return relax.op.add(conv, constant(bias.reshape(1, -1, 1, 1)))

    after = FoldBatchNorm()(before)
    assert op_names(after) == op_names(module(expected, (2, 4, 5, 5)))
    for got, want in zip(
        _constants(after), _constants(module(expected, (2, 4, 5, 5))), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    assert_same_numerics(before, after)


def _constants(mod) -> list[np.ndarray]:
    found: list[np.ndarray] = []

    def visit(expr: relax.Expr) -> None:
        if hasattr(expr, "value") and hasattr(expr.value, "numpy"):
            found.append(expr.value.numpy())

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


LAYERS = {
    "conv1d": (lambda x: nn.conv1d(x, random_const(6, 4, 3)), (2, 4, 9)),
    "conv3d": (lambda x: nn.conv3d(x, random_const(6, 4, 2, 2, 2)), (1, 4, 4, 4, 4)),
    "grouped": (lambda x: nn.conv2d(x, random_const(6, 2, 3, 3), groups=2), (2, 4, 6, 6)),
    "depthwise": (lambda x: nn.conv2d(x, random_const(6, 1, 3, 3), groups=6), (2, 6, 6, 6)),
    "transposed": (lambda x: nn.conv2d_transpose(x, random_const(4, 6, 3, 3)), (2, 4, 5, 5)),
    "transposed grouped": (
        lambda x: nn.conv2d_transpose(x, random_const(4, 3, 3, 3), groups=2),
        (2, 4, 5, 5),
    ),
    "dense": (lambda x: relax.op.matmul(x, random_const(4, 6)), (3, 4)),
}


@pytest.mark.variants(2)
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("bias", [False, True])
def test_every_layer_takes_the_batch_norm(kind: str, bias: bool) -> None:
    layer, shape = LAYERS[kind]

    def body(x: relax.Expr) -> relax.Expr:
        y = layer(x)
        if bias:
            rank = len(shape) - 2
            y = relax.op.add(y, random_const(1, 6, *[1] * rank, seed=9))
        return batch_norm(y, 6)

    before = module(body, shape)
    after = FoldBatchNorm()(before)
    name = op_names(module(layer, shape))[0]
    assert op_names(after) == [name, "relax.add"]
    assert_same_numerics(before, after)


def test_scale_and_shift_by_channel_fold_too() -> None:
    weight, scale, shift = (
        random_const(6, 4, 1, 1),
        random_const(1, 6, 1, 1, seed=7),
        random_const(6, 1, 1, seed=8),
    )

    def body(x: relax.Expr) -> relax.Expr:
        return relax.op.add(relax.op.multiply(nn.conv2d(x, weight), scale), shift)

    def expected(x: relax.Expr) -> relax.Expr:
        product = weight.value.numpy().astype("float64") * scale.value.numpy().reshape(-1, 1, 1, 1)
        return relax.op.add(nn.conv2d(x, constant(product)), shift)

    assert_rewrites(FoldBatchNorm(), module(body, (1, 4, 3, 3)), module(expected, (1, 4, 3, 3)))


def test_two_batch_norms_in_a_row() -> None:
    weight = random_const(6, 4, 1, 1)
    before = module(lambda x: batch_norm(batch_norm(nn.conv2d(x, weight), 6), 6), (1, 4, 3, 3))
    after = FoldBatchNorm()(before)
    assert op_names(after) == ["relax.nn.conv2d", "relax.add"]
    assert_same_numerics(before, after)


def test_batch_norm_alone_becomes_multiply_and_add() -> None:
    before = module(lambda x: batch_norm(nn.relu(x), 4), (1, 4, 3, 3))
    after = FoldBatchNorm()(before)
    assert op_names(after) == ["relax.nn.relu", "relax.multiply", "relax.add"]
    assert_same_numerics(before, after)


def test_a_layer_that_others_read_keeps_its_weights() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        bb = relax.BlockBuilder.current()
        conv = bb.emit(nn.conv2d(x, random_const(4, 4, 1, 1)))
        return relax.op.add(batch_norm(conv, 4), conv)

    before = module(body, (1, 4, 3, 3))
    after = FoldBatchNorm()(before)
    assert op_names(after) == ["relax.nn.conv2d", "relax.multiply", "relax.add", "relax.add"]
    assert_same_numerics(before, after)


def test_no_op_without_scale() -> None:
    assert_unchanged(
        FoldBatchNorm(),
        module(lambda x: nn.relu(nn.conv2d(x, random_const(4, 4, 1, 1))), (1, 4, 3, 3)),
    )


def test_refuses_training_mode() -> None:
    mod = module(
        lambda x: batch_norm(nn.conv2d(x, random_const(4, 4, 1, 1)), 4, training=True), (1, 4, 3, 3)
    )
    assert "relax.nn.batch_norm" in op_names(FoldBatchNorm()(mod))


def test_refuses_a_scale_that_varies_within_a_channel() -> None:
    scale = random_const(1, 1, 3, 3, seed=7)
    mod = module(
        lambda x: relax.op.multiply(nn.conv2d(x, random_const(4, 4, 1, 1)), scale), (1, 4, 3, 3)
    )
    assert_unchanged(FoldBatchNorm(), mod)


def test_refuses_computed_weights() -> None:
    def body(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return relax.op.multiply(nn.conv2d(x, w), random_const(1, 4, 1, 1))

    assert_unchanged(FoldBatchNorm(), module(body, (1, 4, 3, 3), (4, 4, 1, 1)))


def test_per_channel() -> None:
    value = np.arange(3.0).reshape(3, 1, 1)
    assert per_channel(value, [2, 3, 4, 4], 1).tolist() == [0, 1, 2]
    assert per_channel(np.float32(5).reshape(()), [2, 3, 4, 4], 1).tolist() == [5, 5, 5]
    assert per_channel(np.ones((4,)), [2, 3, 4, 4], 1) is None
