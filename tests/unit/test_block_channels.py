"""BlockChannels: structure, a refused case, a no-op, and the same numbers on the stock VM."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from helpers.relax_helpers import (
    Body,
    assert_same_numerics,
    assert_unchanged,
    module,
    op_names,
    random_const,
)
from tvm import relax

from tvm_stretch.passes.block_channels import BlockChannels
from tvm_stretch.passes.canonicalise import Canonicalise
from tvm_stretch.targets.kernels.machine import VectorMachine

nn, op = relax.op.nn, relax.op
BLOCK = BlockChannels({"cpu": VectorMachine(8, 16, False, 512 * 1024, 1)})


def conv(x: relax.Expr, channels: int, outputs: int, **attrs: object) -> relax.Expr:
    """A 3x3 convolution with random weights."""
    groups = attrs.get("groups", 1)
    return nn.conv2d(x, random_const(outputs, channels // groups, 3, 3), padding=1, **attrs)


def kernels(mod: object) -> list[str]:
    """Names of the kernels that ``main`` calls, in order, without numbers."""
    return [
        binding.value.args[0].name_hint.rstrip("0123456789")
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call) and binding.value.op.name == "relax.call_tir"
    ]


def residual_block(x: relax.Expr) -> relax.Expr:
    """conv, bias, relu, conv, residual, relu."""
    y = nn.relu(op.add(conv(x, 16, 16), random_const(1, 16, 1, 1)))
    return nn.relu(op.add(op.add(conv(y, 16, 16), random_const(1, 16, 1, 1)), x))


def test_a_residual_block_is_converted_once_at_each_end() -> None:
    before = module(residual_block, (1, 16, 9, 9))
    after = BLOCK(before)
    names = kernels(after)
    assert names.count("block_channels") == 1
    assert names.count("unblock_channels") == 1
    assert len([n for n in names if "conv2d" in n]) == 2
    assert "relax.nn.conv2d" not in op_names(after)
    assert_same_numerics(before, after, rtol=5e-3)


def test_weights_are_packed_from_constants() -> None:
    after = BLOCK(module(residual_block, (1, 16, 9, 9)))
    for block in after["main"].body.blocks:
        for binding in block.bindings:
            call = binding.value
            if isinstance(call, relax.Call) and "weight" in str(call.args[0]):
                assert not isinstance(call.args[1].fields[0], relax.Var)


@pytest.mark.parametrize(("channels", "groups"), [(16, 1), (12, 1), (16, 2)])
def test_pixels_of_a_transposed_convolution_move_once(channels: int, groups: int) -> None:
    """Into blocks, where the channels of an image fill them."""

    def body(x: relax.Expr) -> relax.Expr:
        y = conv(x, 16, 16)
        weight = random_const(16, channels // groups, 2, 3, seed=3)
        up = nn.conv2d_transpose(y, weight, strides=(2, 3), groups=groups)
        return conv(nn.relu(op.add(up, random_const(1, channels, 1, 1))), channels, 16)

    before = Canonicalise()(module(body, (2, 16, 5, 4)))
    after = BLOCK(before)
    moves = [name for name in kernels(after) if name.endswith(("_channels", "interleave"))]
    within = ["interleave"] if channels == 16 else ["interleave", "block_channels"]
    if groups == 1:
        assert moves == ["block_channels", *within, "unblock_channels"]
        assert "relax.permute_dims" not in op_names(after)
    assert_same_numerics(before, after, rtol=5e-3)


def test_a_network_without_convolutions_is_left_alone() -> None:
    assert_unchanged(BLOCK, module(lambda x: nn.relu(op.add(x, x)), (1, 16, 9, 9)))


def test_a_convolution_whose_weights_are_computed_stays_plain() -> None:
    before = module(lambda x, w: nn.conv2d(x, w), (1, 8, 6, 6), (8, 8, 3, 3))
    assert_unchanged(BLOCK, before)


@pytest.mark.parametrize(("channels", "groups"), [(1, 1), (6, 2), (16, 1), (48, 3)])
def test_an_image_is_padded_before_a_kernel_of_many_taps(channels: int, groups: int) -> None:
    def body(x: relax.Expr) -> relax.Expr:
        weight = random_const(24, channels // groups, 1, 45)
        return nn.conv2d(x, weight, strides=[1, 4], padding=(0, 22, 0, 21), groups=groups)

    before = module(body, (1, channels, 1, 67))
    after = BLOCK(before)
    assert "relax.nn.conv2d" not in op_names(after) and "relax.nn.pad" in op_names(after)
    assert_same_numerics(before, after)


def test_windows_of_many_taps_stay_plain() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return nn.conv2d(x, random_const(16, 1, 33, 1), groups=16)

    assert_unchanged(BLOCK, module(body, (1, 16, 40, 1)))


def test_the_first_layer_reads_the_plain_image() -> None:
    after = BLOCK(module(lambda x: conv(x, 3, 16, strides=(2, 2)), (1, 3, 12, 12)))
    assert "block_channels" not in kernels(after)


NETWORKS = {
    "odd channels": lambda x: nn.relu(op.add(conv(x, 12, 20), random_const(1, 20, 1, 1))),
    "depthwise": lambda x: conv(x, 12, 12, groups=12),
    "grouped": lambda x: conv(x, 12, 24, groups=3),
    "strided pointwise": lambda x: nn.conv2d(x, random_const(9, 12, 1, 1), strides=2),
    "depthwise strided pointwise": lambda x: nn.conv2d(
        x, random_const(12, 1, 1, 1), strides=2, groups=12
    ),
    "max pool": lambda x: nn.max_pool2d(conv(x, 12, 16), (3, 3), strides=(2, 2), padding=(1, 1)),
    "average pool": lambda x: nn.avg_pool2d(
        conv(x, 12, 16), (3, 3), strides=(1, 1), padding=(1, 1), count_include_pad=False
    ),
    "squeeze and excite": lambda x: (
        lambda y: op.multiply(y, op.sigmoid(op.mean(y, [2, 3], keepdims=True)))
    )(conv(x, 12, 16)),
    "global mean without kept dims": lambda x: op.mean(conv(x, 12, 16), [2, 3]),
    "concat of full blocks": lambda x: op.concat([conv(x, 12, 8), conv(x, 12, 5)], axis=1),
    "concat of odd blocks": lambda x: op.concat(
        [conv(x, 12, 5), conv(x, 12, 11), conv(x, 12, 3)], axis=1
    ),
    "concat along height": lambda x: op.concat([conv(x, 12, 8), conv(x, 12, 8)], axis=2),
    "scalar and per-pixel constants": lambda x: op.add(
        op.multiply(conv(x, 12, 12), relax.const(2.0)), random_const(1, 1, 7, 7)
    ),
    "broadcast over height": lambda x: op.add(conv(x, 12, 12), random_const(12, 1, 7)),
    "both used": lambda x: op.add(conv(x, 12, 12), op.permute_dims(conv(x, 12, 12), [0, 1, 3, 2])),
    "divide": lambda x: op.divide(conv(x, 12, 12), op.add(op.abs(x), relax.const(1.0))),
    "head": lambda x: op.add(
        op.matmul(op.reshape(op.mean(conv(x, 12, 16), [2, 3], keepdims=True), (1, 16)),
                  random_const(16, 10)),
        random_const(10),
    ),
}  # fmt: skip


@pytest.mark.variants(2)
@pytest.mark.parametrize("name", NETWORKS)
def test_same_numbers(name: str) -> None:
    before = module(NETWORKS[name], (1, 12, 7, 7))
    assert_same_numerics(before, BLOCK(before))


@pytest.mark.parametrize("rows", [1, 5])
def test_matrices_are_images_of_pixels(rows: int) -> None:
    def perceptron(x: relax.Expr) -> relax.Expr:
        y = op.tanh(op.add(op.matmul(x, random_const(13, 24)), random_const(24)))
        return op.add(op.matmul(y, random_const(24, 6)), random_const(rows, 6))

    before = module(perceptron, (rows, 13))
    after = BLOCK(before)
    assert kernels(after).count("dense") == 2
    assert_same_numerics(before, after)


def test_output_names_survive() -> None:
    mod = module(residual_block, (1, 16, 9, 9))
    mod.update_func(mod.get_global_var("main"), mod["main"].with_attr("output_names", ["y"]))
    assert list(BLOCK(mod)["main"].attrs["output_names"]) == ["y"]


def test_padding_lanes_meet_no_infinity() -> None:
    """Exp makes 1 of an empty lane; zero weights meet it in the next convolution."""
    before = module(lambda x: conv(op.exp(conv(x, 12, 5)), 5, 3), (1, 12, 6, 6))
    after = BLOCK(before)
    assert_same_numerics(before, after, rtol=1e-3)


def two_regions(second_returns_input: bool = False) -> tvm.IRModule:
    """``main`` that calls a region of two convolutions and one that reads both results."""
    bb = relax.BlockBuilder()
    shape = relax.TensorType((1, 16, 9, 9), "float32")
    x = relax.Var("x", shape)
    with bb.function("first", [x], attrs={"processor": "cpu"}):
        with bb.dataflow():
            y = bb.emit(nn.relu(conv(x, 16, 16)))
            z = bb.emit(conv(y, 16, 12))
            result = [bb.emit_output(y), bb.emit_output(z)]
        first = bb.emit_func_output(relax.Tuple(result))
    a, b = relax.Var("a", shape), relax.Var("b", relax.TensorType((1, 12, 9, 9), "float32"))
    with bb.function("second", [a, b], attrs={"processor": "opencl"}):
        with bb.dataflow():
            w = bb.emit(nn.relu(conv(b, 12, 16)))
            v = bb.emit_output(bb.emit(op.add(a, w)))
        second = bb.emit_func_output(v)
    inp = relax.Var("inp", shape)
    with bb.function("main", [inp]):
        with bb.dataflow():
            pair = bb.emit(relax.Call(first, [inp]))
            y, z = bb.emit(relax.TupleGetItem(pair, 0)), bb.emit(relax.TupleGetItem(pair, 1))
            out = bb.emit_output(bb.emit(relax.Call(second, [y, z])))
            outputs = [out, bb.emit_output(y)] if second_returns_input else [out]
        bb.emit_func_output(relax.Tuple(outputs))
    return bb.get()


REGIONS = BlockChannels({name: VectorMachine(8, 16, False, 2**19, 1) for name in ("cpu", "opencl")})


def types(function: relax.Function) -> list[int]:
    """Number of dimensions of each parameter."""
    return [len(param.ty.shape.values) for param in function.params]


def test_regions_hand_over_blocked_values() -> None:
    before = two_regions()
    after = REGIONS(before)
    assert types(after["first"]) == [4]
    assert types(after["second"]) == [5, 5]
    assert after["second"].attrs["processor"] == "opencl"
    assert types(after["main"]) == [4]
    assert_same_numerics(before, after, rtol=5e-3)


def test_what_the_network_returns_stays_plain() -> None:
    before = two_regions(second_returns_input=True)
    after = REGIONS(before)
    assert types(after["second"]) == [4, 5]
    assert_same_numerics(before, after, rtol=5e-3)


def test_bands_of_rows_stay_blocked() -> None:
    """What BranchSegments makes is cut and put together in the blocked layout."""

    def bands(x: relax.Expr) -> relax.Expr:
        y = conv(x, 12, 12)
        top = conv(op.strided_slice(y, [2], [0], [6]), 12, 12)
        bottom = conv(op.strided_slice(y, [2], [4], [9]), 12, 12)
        return op.concat([top, bottom], axis=2)

    before = module(bands, (1, 12, 9, 9))
    after = BLOCK(before)
    names = kernels(after)
    assert (names.count("block_channels"), names.count("unblock_channels")) == (1, 1)
    assert_same_numerics(before, after, rtol=5e-3)


def shift(x: relax.Expr) -> relax.Expr:
    """The image without its first row and column: zeros take their places at the end."""
    return op.strided_slice(nn.pad(x, [0, 0, 0, 0, 0, 1, 0, 1]), [2, 3], [1, 1], [9, 8])


MOVES = {
    "shift": shift,
    "every other pixel of what was shifted": lambda x: nn.avg_pool2d(shift(x), (1, 1), (2, 2)),
    "pixels of a maximum": lambda x: nn.max_pool2d(x, (1, 1), (3, 2)),
    "pixels, rounded up": lambda x: nn.max_pool2d(x, (1, 1), (3, 4), ceil_mode=True),
    "rows and columns, some backwards": lambda x: op.strided_slice(
        x, [3, -2], [-2, 1], [0, 8], [-2, 3]
    ),
    "blocks of channels and rows": lambda x: op.strided_slice(x, [2, 1], [1, -12], [8, 20]),
    "last channels": lambda x: op.strided_slice(x, [1], [8], [99]),
    "reflected border": lambda x: nn.pad(x, [0, 0, 0, 0, 1, 2, 2, 1], "reflect"),
    "resized and reflected": lambda x: op.multiply(
        op.take(
            op.take(x, relax.const([3, 3, 0, 7], "int32"), 2), relax.const([2, 1, 0], "int32"), 3
        ),
        relax.const(np.float32([0.5, 1, 2, 3]).reshape(4, 1)),
    ),
    "another image": lambda x: nn.pad(x, [0, 1, 0, 0, 0, 0, 0, 0], pad_value=2.0),
}


@pytest.mark.parametrize("name", MOVES)
def test_pixels_are_cut_and_padded_in_blocks(name: str) -> None:
    before = module(lambda x: nn.relu(MOVES[name](conv(x, 8, 20))), (1, 8, 8, 7))
    after = BLOCK(before)
    moves = [kernel for kernel in kernels(after) if kernel.endswith("block_channels")]
    assert moves == ["block_channels", "unblock_channels"]
    assert_same_numerics(before, after, rtol=5e-3)


@pytest.mark.parametrize(
    "move",
    [
        lambda x: op.strided_slice(x, [1], [4], [16]),
        lambda x: op.strided_slice(x, [1], [0], [20], [2]),
        lambda x: nn.pad(x, [0, 0, 0, 4, 0, 0, 0, 0]),
        lambda x: nn.max_pool2d(nn.pad(x, [0, 0, 0, 0, 1, 1, 1, 1], pad_value=-np.inf), (3, 3)),
    ],
)
def test_what_parts_blocks_or_fills_lanes_with_infinity_is_plain(move: Body) -> None:
    before = module(lambda x: move(conv(x, 8, 20)), (1, 8, 8, 7))
    after = BLOCK(before)
    assert kernels(after)[-1] == "unblock_channels"
    assert_same_numerics(before, after, rtol=5e-3)


def tokens(x: relax.Expr) -> relax.Expr:
    """A dense layer, its rows as an image, a convolution, gelu of its pixels, a dense layer."""
    y = op.reshape(op.matmul(x, random_const(9, 12)), (1, 20, 12))
    image = op.reshape(op.permute_dims(y, [0, 2, 1]), (1, 12, 4, 5))
    pixels = nn.gelu(op.permute_dims(conv(image, 12, 12), [0, 2, 3, 1]))
    return op.matmul(op.reshape(pixels, (20, 12)), random_const(12, 7))


def test_rows_of_a_matrix_and_pixels_of_an_image_are_the_same_bytes() -> None:
    before = module(tokens, (20, 9))
    after = BLOCK(before)
    assert "relax.permute_dims" not in op_names(after)
    assert op_names(after).count("relax.nn.gelu") == 1
    names = kernels(after)
    assert [n for n in names if "block" in n] == ["block_channels", "unblock_channels"]
    assert_same_numerics(before, after, rtol=5e-3)


@pytest.mark.parametrize("axes", [[0, 3, 2, 1], [0, 1, 3, 2]])
def test_other_orders_are_moved(axes: list[int]) -> None:
    def body(x: relax.Expr) -> relax.Expr:
        pixels = op.permute_dims(conv(x, 8, 8), axes)
        return op.matmul(op.reshape(pixels, (25, 8)), random_const(8, 7))

    before = module(body, (1, 8, 5, 5))
    after = BLOCK(before)
    assert "relax.permute_dims" in op_names(after)
    assert_same_numerics(before, after, rtol=5e-3)


@pytest.mark.parametrize(
    ("how", "channels"),
    [("sqrt", 12), ("exp", 12), ("softplus", 12), ("sqrt", 16), ("divide", 12), ("divide", 16)],
)
def test_what_pads_channels_stays_finite(how: str, channels: int) -> None:
    """12 channels leave lanes of a vector of 8, which no bias reaches."""

    def network(x: relax.Expr) -> relax.Expr:
        far = relax.const(np.full((1, channels, 1, 1), 100, "float32"))
        y = op.add(nn.relu(conv(x, 8, channels)), far)
        if how == "sqrt":
            y = op.sqrt(op.subtract(y, relax.const(5.0)))
        elif how == "divide":
            y = op.divide(y, relax.const(np.full((1, channels, 1, 1), 3, "float32")))
        else:
            y = op.subtract(relax.const(95.0), y)
            y = op.exp(y) if how == "exp" else nn.softplus(y)
        return conv(y, channels, 8)

    mod = module(network, (1, 8, 6, 6))
    blocked = BLOCK(mod)
    assert_same_numerics(mod, blocked)
    converted = [name for name in kernels(blocked) if name.startswith("unblock")]
    assert len(converted) == (2 if channels == 12 else 1)
