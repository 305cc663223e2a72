"""ChannelsFirst: operator by operator, same results; only transposes of inputs and results stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import tvm
from helpers.relax_helpers import assert_same_numerics, module, random_const
from tvm import relax

from tvm_stretch.network.operators import kind_of
from tvm_stretch.passes.channels_first import ChannelsFirst
from tvm_stretch.passes.fold_constants import FoldConstants
from tvm_stretch.passes.simplify_operators import SimplifyOperators

nn, op = relax.op.nn, relax.op
SHAPE = (1, 6, 5, 8)


def conv(x: relax.Expr, outputs: int = 8, seed: int = 0, **options: object) -> relax.Expr:
    weight = random_const(3, 3, 8, outputs, seed=seed)
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    return nn.conv2d(x, weight, padding=1, **layouts, **options)


def depthwise(x: relax.Expr) -> relax.Expr:
    weight = random_const(3, 3, 8, 1)
    return nn.conv2d(x, weight, groups=8, data_layout="NHWC", kernel_layout="HWOI")


def row(*shape: int) -> relax.Expr:
    return random_const(*shape, seed=3)


# Operators that follow a convolution, and how many transposes remain: the input's and the result's.
AFTER: dict[str, tuple[Callable[[relax.Expr], relax.Expr], int]] = {
    "bias": (lambda y: op.add(y, row(8)), 2),
    "bias_of_rank_4": (lambda y: op.add(y, row(1, 1, 1, 8)), 2),
    "scalar": (lambda y: op.multiply(y, relax.const(0.5)), 2),
    "constant_before": (lambda y: op.subtract(row(8), y), 2),
    "map": (lambda y: op.add(y, row(1, 6, 5, 8)), 2),
    "row_of_pixels": (lambda y: op.multiply(y, row(5, 1)), 2),
    "unary": (lambda y: op.sigmoid(nn.relu(y)), 2),
    "clip": (lambda y: op.clip(y, 0.0, 6.0), 2),
    "residual": (lambda y: op.add(conv(y, seed=1), y), 2),
    "select": (lambda y: op.where(op.greater(y, relax.const(0.0)), y, row(1, 6, 5, 8)), 2),
    "prelu": (lambda y: nn.prelu(y, row(8), axis=3), 2),
    "pad": (lambda y: nn.pad(y, [0, 0, 0, 1, 2, 0, 0, 3], "constant", 0.5), 2),
    "max_pool": (lambda y: nn.max_pool2d(y, (2, 2), (2, 2), layout="NHWC"), 2),
    "avg_pool": (lambda y: nn.avg_pool2d(y, (3, 2), padding=(1, 0, 1, 1), layout="NHWC"), 2),
    "resize": (lambda y: op.image.resize2d(y, (9, 11), layout="NHWC"), 2),
    "concat_channels": (lambda y: op.concat([y, conv(y, 4, 1)], axis=3), 2),
    "concat_rows": (lambda y: op.concat([y, row(1, 2, 5, 8), y], axis=1), 2),
    "slice": (lambda y: op.strided_slice(y, [3, 1], [2, 0], [7, 6], [2, 3]), 2),
    "softmax": (lambda y: nn.softmax(y, axis=-1), 2),
    "softmax_of_rows": (lambda y: nn.softmax(y, axis=1), 2),
    "mean": (lambda y: op.mean(y, [1, 2]), 1),
    "mean_keepdims": (lambda y: op.mean(y, [2, 1], keepdims=True), 1),
    "sum_of_channels": (lambda y: op.sum(y, [-1]), 1),
    "largest_of_columns": (lambda y: op.max(y, [2]), 2),
    "argmax": (lambda y: op.argmax(y, axis=3), 1),
    "classes": (lambda y: op.reshape(op.mean(y, [1, 2], keepdims=True), [1, 8]), 1),
    "flatten": (lambda y: op.reshape(y, [1, 240]), 2),
    "depthwise": (depthwise, 2),
    "strided": (lambda y: conv(y, 4, 1, strides=2), 2),
    "read_twice": (lambda y: op.add(op.reshape(op.reshape(y, [30, 8]), [1, 6, 5, 8]), y), 2),
}


def simplified(mod: tvm.IRModule) -> tvm.IRModule:
    for step in (SimplifyOperators(), ChannelsFirst(), FoldConstants(), SimplifyOperators()):
        mod = step(mod)
    return mod


def kinds(mod: tvm.IRModule) -> Counter[str]:
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    return Counter(kind_of(binding.value) for binding in bindings)


@pytest.mark.variants(2)
@pytest.mark.parametrize("name", AFTER)
def test_operators_after_a_convolution(name: str) -> None:
    after, transposes = AFTER[name]
    mod = simplified(module(lambda x: after(conv(x)), SHAPE))
    assert "NHWC" not in mod.script()
    assert kinds(mod)["permute_dims"] == transposes, mod.script()


def test_results_of_all_of_them() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        y = relax.BlockBuilder.current().emit(conv(x))  # one convolution, which all of them read
        return relax.Tuple([after(y) for after, _ in AFTER.values()])

    before = module(body, SHAPE)
    assert_same_numerics(before, simplified(before))


def test_transposed_convolution() -> None:
    weight = random_const(8, 4, 3, 3)

    def body(x: relax.Expr) -> relax.Expr:
        layouts = {"data_layout": "NHWC", "kernel_layout": "IOHW"}
        return nn.relu(nn.conv2d_transpose(x, weight, strides=(2, 2), **layouts))

    mod = simplified(module(body, SHAPE))
    main = mod["main"]
    (call,) = [
        binding.value
        for block in main.body.blocks
        for binding in block.bindings
        if kind_of(binding.value) == "nn.conv2d_transpose"
    ]
    assert str(call.attrs.data_layout) == "NCHW"
    assert kinds(mod)["permute_dims"] == 2
    # TVM has no channels-last kernel to compare with: transposes around one with channels first

    def first(x: relax.Expr) -> relax.Expr:
        y = nn.conv2d_transpose(op.permute_dims(x, [0, 3, 1, 2]), weight, strides=(2, 2))
        return op.permute_dims(nn.relu(y), [0, 2, 3, 1])

    assert_same_numerics(module(first, SHAPE), mod)


def test_signals_of_one_dimension() -> None:
    weight = random_const(3, 8, 4)

    def body(x: relax.Expr) -> relax.Expr:
        return nn.relu(nn.conv1d(x, weight, data_layout="NWC", kernel_layout="WIO"))

    before = module(body, (1, 9, 8))
    mod = simplified(before)
    assert "NWC" not in mod.script()
    assert_same_numerics(before, mod)


def test_input_added_to_a_feature_map() -> None:
    before = module(lambda x, y: op.add(conv(x), y), SHAPE, SHAPE)
    mod = simplified(before)
    assert kinds(mod)["permute_dims"] == 3
    assert_same_numerics(before, mod)


def test_weights_in_integers_stay_in_integers() -> None:
    numbers = np.arange(-128, 128, dtype="int8")[:72].reshape(1, 3, 3, 8)
    scale, zero = relax.const(np.linspace(0.1, 0.8, 8, dtype="float32")), relax.const(0, "int8")

    def body(x: relax.Expr) -> relax.Expr:
        weight = op.dequantize(relax.const(numbers), scale, zero, axis=3)
        weight = op.reshape(weight, [3, 3, 8, 1])
        return nn.conv2d(x, weight, groups=8, data_layout="NHWC", kernel_layout="HWOI")

    before = module(body, SHAPE)
    mod = ChannelsFirst()(before)
    (dequantised,) = [
        binding.value
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if kind_of(binding.value) == "dequantize"
    ]
    expected = numbers.reshape(3, 3, 8, 1).transpose(2, 3, 0, 1)
    np.testing.assert_array_equal(dequantised.args[0].value.numpy(), expected)
    assert int(dequantised.attrs.axis) == 0
    assert_same_numerics(before, simplified(before))


def test_networks_with_channels_first_are_not_touched() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        y = op.permute_dims(nn.relu(x), [0, 2, 3, 1])
        return op.permute_dims(nn.softmax(y, axis=-1), [0, 3, 1, 2])

    mod = module(body, (1, 4, 5, 6))
    assert ChannelsFirst()(mod).same_as(mod)
