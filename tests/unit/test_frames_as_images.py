"""FramesAsImages: each operator gives the same; only transposes of inputs and results stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import tvm
from helpers.onnx_models import Net, assert_same, random_inputs, run_onnxruntime
from helpers.relax_helpers import assert_same_numerics, assert_unchanged, module, random_const
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.network.operators import kind_of
from tvm_stretch.passes.fold_constants import FoldConstants
from tvm_stretch.passes.frames_as_images import FramesAsImages
from tvm_stretch.passes.simplify_operators import SimplifyOperators

nn, op = relax.op.nn, relax.op
FRAMES = 5


def conv(x: relax.Expr, seed: int = 0, **options: object) -> relax.Expr:
    return nn.conv3d(x, random_const(8, 8, 3, 3, 3, seed=seed), padding=1, **options)


def depthwise(x: relax.Expr) -> relax.Expr:
    return nn.conv3d(x, random_const(8, 1, 3, 3, 3), padding=1, groups=8)


def row(*shape: int) -> relax.Expr:
    return random_const(*shape, seed=3)


# Operators that follow a convolution, and how many transposes remain: the input's and the result's.
AFTER: dict[str, tuple[Callable[[relax.Expr], relax.Expr], int]] = {
    "bias": (lambda y: op.add(y, row(1, 8, 1, 1, 1)), 2),
    "bias_of_rank_4": (lambda y: op.multiply(y, row(8, 1, 1, 1)), 2),
    "scalar": (lambda y: op.multiply(relax.const(0.5), y), 2),
    "every_element": (lambda y: op.add(y, row(*map(int, y.ty.shape))), 2),
    "unary": (lambda y: op.sigmoid(nn.relu(y)), 2),
    "clip": (lambda y: op.clip(y, 0.0, 6.0), 2),
    "residual": (lambda y: op.add(conv(y, seed=1), y), 2),
    "strides": (lambda y: conv(y, 1, strides=[2, 1, 2]), 2),
    "dilation": (lambda y: conv(y, 1, dilation=[1, 2, 1]), 2),
    "dilated_frames": (lambda y: nn.conv3d(y, row(4, 8, 3, 1, 1), dilation=[2, 1, 1]), 2),
    "groups": (lambda y: nn.conv3d(y, row(6, 4, 3, 2, 1), groups=2), 2),
    "depthwise": (depthwise, 2),
    "frame_by_frame": (lambda y: nn.conv3d(y, row(4, 8, 1, 3, 3), padding=[0, 1, 1]), 2),
    "pixel_by_pixel": (lambda y: nn.conv3d(y, row(4, 8, 3, 1, 1), padding=[2, 0, 0]), 2),
    "uneven_padding": (lambda y: nn.conv3d(y, row(4, 8, 3, 3, 3), padding=[0, 1, 2, 2, 0, 1]), 2),
    "max_pool": (lambda y: nn.max_pool3d(y, [3, 2, 2], [2, 2, 2], padding=[1, 0, 0]), 2),
    "max_pool_of_more": (lambda y: nn.max_pool3d(y, [2, 3, 2], [2, 2, 2], ceil_mode=True), 2),
    "avg_pool": (lambda y: nn.avg_pool3d(y, [2, 3, 2], [2, 2, 1]), 2),
    "avg_pool_with_padding": (
        lambda y: nn.avg_pool3d(y, 3, [2, 2, 2], padding=1, count_include_pad=True),
        2,
    ),
    "avg_pool_of_what_is_there": (
        lambda y: nn.avg_pool3d(y, 3, padding=1, count_include_pad=False),
        2,
    ),
    "concat": (lambda y: op.concat([y, conv(y, 1)], axis=1), 2),
    "concat_rows": (lambda y: op.concat([y, row(*map(int, y.ty.shape))], axis=-2), 2),
    "mean": (lambda y: op.mean(y, [2, 3, 4]), 1),
    "mean_keepdims": (lambda y: op.mean(y, [4, 3, 2], keepdims=True), 1),
    "mean_of_frames": (lambda y: op.mean(y, [3, 4]), 2),
    "read_twice": (lambda y: op.add(op.reshape(op.reshape(y, [-1]), y.ty.shape), y), 4),
}


def simplified(mod: tvm.IRModule) -> tvm.IRModule:
    for step in (FoldConstants(), FramesAsImages(), FoldConstants(), SimplifyOperators()):
        mod = step(mod)
    return relax.transform.DeadCodeElimination()(mod)


def kinds(mod: tvm.IRModule) -> Counter[str]:
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    return Counter(kind_of(binding.value) for binding in bindings)


def read_by(bodies: list[Callable[[relax.Expr], relax.Expr]], batch: int) -> tvm.IRModule:
    """A network with one convolution, which all of them read."""

    def body(x: relax.Expr) -> relax.Expr:
        y = relax.BlockBuilder.current().emit(conv(x))
        return relax.Tuple([after(y) for after in bodies])

    return module(body, (batch, 8, FRAMES, 6, 7))


@pytest.mark.variants(2)
@pytest.mark.parametrize("name", AFTER)
def test_operators_after_a_convolution(name: str) -> None:
    after, transposes = AFTER[name]
    found = kinds(simplified(read_by([after], batch=2)))
    assert "nn.conv3d" not in found
    assert ("nn.max_pool3d" in found, "nn.avg_pool3d" in found) == (
        False,
        name == "avg_pool_of_what_is_there",
    )
    assert found["permute_dims"] <= transposes, found


@pytest.mark.full
@pytest.mark.parametrize("batch", [1, 2])
def test_results_of_all_of_them(batch: int) -> None:
    before = read_by([after for after, _ in AFTER.values()], batch)
    assert_same_numerics(before, simplified(before))


def test_weights_that_are_inputs() -> None:
    mod = module(lambda x, w: nn.conv3d(x, w), (1, 4, 4, 5, 5), (2, 4, 3, 3, 3))
    assert_unchanged(FramesAsImages(), mod)


@pytest.mark.parametrize("batch", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_network_of_videos(batch: int) -> None:
    net = Net()
    x = net.input("video", (batch, 3, 4, 18, 17))
    x = net.op("Relu", net.conv(x, 16, (3, 5, 5), strides=[1, 2, 2], pads=[1, 2, 2] * 2))
    y = net.op("Relu", net.batch_norm(net.conv(x, 16, (3, 3, 3), pads=[1] * 6)))
    x = net.op("Relu", net.op("Add", net.conv(y, 16, (3, 1, 1), pads=[1, 0, 0] * 2), x))
    x = net.op("MaxPool", x, kernel_shape=[2, 3, 3], strides=[2, 2, 2], pads=[0, 1, 1] * 2)
    y = net.relu6(net.conv(x, 16, (3, 3, 3), groups=16, pads=[1] * 6))
    gate = net.op("Sigmoid", net.conv(net.op("GlobalAveragePool", y), 16, (1, 1, 1)))
    flat = net.op("Flatten", net.op("GlobalAveragePool", net.op("Mul", y, gate)))
    network = net.model(net.op("Gemm", flat, net.weight((16, 10), 1 / 4), net.weight((10,))))
    inputs = random_inputs(network)
    model = ts.compile(network, "llvm", cpu_threads=1)
    assert "conv3d" not in model.profile().table()
    assert_same(run_onnxruntime(network, inputs), [model(**inputs)])


TRANSPOSED = {  # weights, strides, padding, frames that output_padding adds
    "a_tap_for_each_frame": ((8, 6, 2, 2, 2), 2, 0, 0),
    "phases_of_other_lengths": ((8, 6, 3, 3, 3), 2, 1, 1),
    "phases_of_two_taps": ((8, 6, 4, 4, 4), 2, 1, 0),
    "one_frame_after_the_other": ((8, 6, 3, 3, 3), 1, 0, 0),
    "much_padding": ((8, 6, 7, 3, 3), (3, 2, 2), (4, 0, 1, 5, 1, 0), 0),
}


@pytest.mark.variants(2)
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed(name: str, batch: int) -> None:
    shape, strides, padding, more = TRANSPOSED[name]
    mod = module(
        lambda x: nn.conv3d_transpose(
            x, random_const(*shape), strides=strides, padding=padding, output_padding=more
        ),
        (batch, 8, 3, 4, 5),
    )
    after = simplified(mod)
    assert_same_numerics(mod, after)
    assert "nn.conv3d_transpose" not in kinds(after)


def test_transposed_frames_without_a_tap_stay() -> None:
    weight = random_const(4, 2, 2, 3, 3)
    mod = module(lambda x: nn.conv3d_transpose(x, weight, strides=[3, 2, 2]), (1, 4, 3, 4, 5))
    assert_unchanged(FramesAsImages(), mod)
