"""The tests' own interpreter of Relax computes what TVM's virtual machine computes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from helpers.relax_helpers import answers, module, random_const, random_inputs, run
from helpers.relax_numpy import evaluate, knows
from tvm import relax

nn, op = relax.op.nn, relax.op


def everything(x: relax.Expr) -> relax.Expr:
    """Each operator that it knows, with uncommon attributes."""
    y = nn.conv2d(x, random_const(8, 6, 3, 2), (2, 1), (1, 0, 2, 1), (1, 2))
    y = nn.conv2d(y, random_const(12, 2, 3, 3), padding=1, groups=4)
    y = nn.silu(nn.max_pool2d(y, (3, 2), (2, 1), (0, 1, 1, 0), (1, 2), ceil_mode=True))
    y = nn.avg_pool2d(y, (2, 3), (2, 2), (1, 1, 0, 1), ceil_mode=True)
    y = op.concat([y, nn.avg_pool2d(y, (3, 3), padding=1, count_include_pad=True)], axis=1)
    halves = op.split(op.clip(y, -1.0, 2.0), [5, 11], axis=1)
    y = op.add(
        op.exp(op.strided_slice(halves[2], [1, 3], [1, 0], [12, 5], [2, 2])),
        random_const(1, 6, 1, 1),
    )
    y = op.divide(
        op.subtract(op.tanh(y), op.sigmoid(op.negative(y))),
        op.sqrt(op.maximum(y, random_const(1, positive=True))),
    )
    y = op.permute_dims(op.minimum(y, op.multiply(y, y)), [0, 2, 3, 1])
    y = op.mean(nn.relu(y), [1, 2])
    return op.matmul(op.reshape(op.flatten(y), (2, 3)), random_const(3, 4))


def attention(x: relax.Expr) -> relax.Expr:
    """What transformers hold, of a batch of rows."""
    y = nn.layer_norm(x, random_const(8), random_const(8, seed=1), [-1])
    scores = op.matmul(y, op.permute_dims(y, [0, 2, 1]))
    y = op.matmul(nn.softmax(scores, -1), nn.gelu(y))
    y = op.power(nn.rms_norm(y, random_const(8), [-1]), relax.const(2.0))
    y = op.take(nn.pad(y, [0, 0, 1, 2, 0, 0], pad_value=0.5), relax.const([5, 0, 2]), 1)
    y = op.add(op.sum(y, [1], keepdims=True), op.expand_dims(op.max(y, [1]), 1))
    return op.squeeze(op.subtract(y, op.astype(op.astype(op.min(y), "int32"), "float32")), [1])


@pytest.mark.parametrize(("body", "shape"), [(everything, (1, 6, 13, 11)), (attention, (2, 5, 8))])
def test_same_as_the_virtual_machine(
    body: Callable[[relax.Expr], relax.Expr], shape: tuple[int, ...]
) -> None:
    mod = module(body, shape)
    (x,) = random_inputs(mod)
    assert knows(mod)
    (want,), got = run(mod, x), evaluate(mod, x)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_shape_that_is_not_true_is_found() -> None:
    mod = module(lambda x: nn.relu(x), (1, 4))
    with pytest.raises(AssertionError):
        evaluate(mod, np.zeros((1, 5), "float32"))


def test_what_it_does_not_know_is_compiled() -> None:
    mod = module(lambda x: op.sin(x), (2, 3))
    (x,) = random_inputs(mod)
    assert not knows(mod)
    np.testing.assert_allclose(answers(mod, x)[0], np.sin(x), rtol=1e-5)
