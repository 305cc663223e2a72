"""FormIntegers: which operators become integers, and the same numbers as ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from helpers.quantised_models import Quantised, integers, optimised, qdq, qdq_conv, qlinear
from helpers.relax_helpers import module, run
from tvm import relax
from tvm.ir import assert_structural_equal

import tvm_stretch as ts
from tvm_stretch.network.expressions import shape_of
from tvm_stretch.network.integer_kernels import integer_call
from tvm_stretch.network.integers import Integer, Rounding, integer_of, operands_of
from tvm_stretch.network.operators import kind_of
from tvm_stretch.network.properties.integer_summary import describe_integers
from tvm_stretch.passes.decompose_quantisation import DecomposeQuantisation
from tvm_stretch.passes.form_integers import FormIntegers
from tvm_stretch.read import load_network

WEIGHT = integers(8, 4, 3, 3, dtype="int8", seed=2)
SCALES = np.linspace(0.001, 0.002, 8, dtype="float32")
BIAS = np.arange(8, dtype="int32")


def dequantise(
    x: relax.Expr, scale: Any, zero: int = 0, axis: int = 0, dtype: str = "uint8"
) -> relax.Expr:
    scales = np.asarray(scale, "float32")
    zeros = np.full(scales.shape, zero, dtype)
    return relax.op.dequantize(x, relax.const(scales), relax.const(zeros), axis)


def quantise(x: relax.Expr, scale: float, zero: int, dtype: str = "uint8") -> relax.Expr:
    zeros = relax.const(np.array(zero, dtype))
    return relax.op.quantize(x, relax.const(np.float32(scale)), zeros, 0, dtype)


def layer(x: relax.Expr) -> relax.Expr:
    """A convolution of dequantised operands and its bias."""
    weight = dequantise(relax.const(WEIGHT), SCALES, dtype="int8")
    bias = dequantise(relax.const(BIAS), np.float32(0.02) * SCALES, dtype="int32")
    conv = relax.op.nn.conv2d(dequantise(x, 0.02, 3), weight, padding=1, groups=1)
    return relax.op.add(conv, relax.op.reshape(bias, (1, 8, 1, 1)))


def formed(before: tvm.IRModule) -> tvm.IRModule:
    return FormIntegers()(relax.transform.CanonicalizeBindings()(before))


def kinds(mod: tvm.IRModule) -> list[str]:
    return [kind_of(b.value) for block in mod["main"].body.blocks for b in block.bindings]


def test_layer_bias_and_activation_are_one_operator() -> None:
    before = module(
        lambda x: quantise(relax.op.nn.relu(layer(x)), 0.1, 5), (1, 4, 6, 6), dtype="uint8"
    )
    bb = relax.BlockBuilder()
    x = relax.Var("x0", relax.TensorType((1, 4, 6, 6), "uint8"))
    integer = Integer("conv2d", Rounding("uint8", 5, 5, 255), (3,), padding=(1, 1, 1, 1))
    factor = np.float32(0.02) * SCALES / np.float32(0.1)
    with bb.function("main", [x]):
        with bb.dataflow():
            constants = [relax.const(value) for value in (WEIGHT, BIAS, factor)]
            result = bb.emit_output(integer_call(bb, integer, x, *constants))
        bb.emit_func_output(result)
    after = formed(before)
    assert describe_integers(after["main"]) == "1 integer operators"
    after["main"] = after["main"].without_attr("integers")
    assert_structural_equal(after, bb.get(), map_free_vars=True)
    call = after["main"].body.blocks[0].bindings[0].value
    assert integer_of(call) == integer
    assert len(operands_of(call)) == 4


def test_network_without_quantising_stays() -> None:
    before = module(lambda x: relax.op.nn.relu(x), (1, 4))
    assert FormIntegers()(before).same_as(before)


def test_what_is_not_known_stays_in_float_and_is_named() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        sums = relax.op.cumsum(dequantise(x, 0.02, 3), 1)
        return quantise(relax.op.nn.relu(quantise_twice(sums)), 0.1, 0)

    def quantise_twice(x: relax.Expr) -> relax.Expr:
        return dequantise(quantise(x, 1 / 256, 0), 1 / 256)

    after = formed(module(body, (4, 16), dtype="uint8"))
    assert kinds(after) == ["dequantize", "cumsum", "quantize", "integer.table"]
    assert describe_integers(after["main"]).startswith("1 integer operators; in float: ")
    decomposed = DecomposeQuantisation()(after)
    assert not {"quantize", "dequantize"} & set(kinds(decomposed))
    bindings = decomposed["main"].body.blocks[0].bindings
    casts = [b.value for b in bindings if kind_of(b.value) == "astype"]
    # floats outside of 8 bits, which `ts.tune.probe` gives such a cast, machines take otherwise
    to_bytes = [str(c.args[0].ty.dtype) for c in casts if str(c.ty.dtype) == "uint8"]
    assert to_bytes == ["int32"]


def dense(x: relax.Expr, bias: np.ndarray, rows: int = 8) -> relax.Expr:
    """A dense layer of one output and what is added."""
    weight = dequantise(relax.const(np.full((rows, 1), 127, "int8")), 0.01, dtype="int8")
    product = relax.op.matmul(dequantise(x, 0.02, 3), weight)
    return quantise(relax.op.add(product, relax.const(bias.astype("float32"))), 0.1, 0)


FLOATS: dict[str, tuple[Callable[[relax.Expr], relax.Expr], tuple[int, ...], list[int]]] = {
    "sum wider than the layer": (lambda x: dense(x, np.ones(5)), (2, 8), [2, 5]),
    "bias that is no number": (lambda x: dense(x, np.array([np.nan])), (2, 8), [2, 1]),
    "sums beyond int32": (lambda x: dense(x, np.ones(1), 70_000), (2, 70_000), [2, 1]),
    "constant of more dimensions": (
        lambda x: quantise(
            relax.op.multiply(
                dequantise(x, 0.02, 3), relax.const(np.full((1, 1, 1), 0.5, "float32"))
            ),
            0.1,
            0,
        ),
        (2, 8),
        [1, 2, 8],
    ),
}


@pytest.mark.parametrize("name", FLOATS)
def test_what_integers_would_get_wrong_stays_in_float(name: str) -> None:
    body, shape, expected = FLOATS[name]
    after = formed(module(body, shape, dtype="uint8"))
    assert kinds(after)[-1] == "quantize"
    assert shape_of(after["main"].body.body) == expected


def test_scale_for_each_channel_of_activations_stays_in_float() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return quantise(relax.op.nn.relu(dequantise(x, [0.1, 0.2, 0.3, 0.4], axis=1)), 0.1, 0)

    after = formed(module(body, (1, 4, 2, 2), dtype="uint8"))
    assert kinds(after) == ["dequantize", "nn.relu", "quantize"]
    assert not {"quantize", "dequantize"} & set(kinds(DecomposeQuantisation()(after)))


def test_moves_are_done_with_integers() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        moved = relax.op.permute_dims(dequantise(x, 0.1, 3), [0, 2, 3, 1])
        pooled = relax.op.reshape(moved, (1, 144))
        return quantise(pooled, 0.1, 3)

    after = formed(module(body, (1, 4, 6, 6), dtype="uint8"))
    assert kinds(after) == ["permute_dims", "reshape"]


def test_split_is_a_split_of_integers() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        parts = relax.op.split(dequantise(x, 0.1, 3), 2, axis=1)
        swapped = relax.op.concat([relax.TupleGetItem(parts, 1), relax.TupleGetItem(parts, 0)], 1)
        return quantise(swapped, 0.1, 3)

    after = formed(module(body, (1, 4, 6, 6), dtype="uint8"))
    assert kinds(after) == ["split", "TupleGetItem", "TupleGetItem", "concat"]


A = Quantised(integers(1, 16, 6, 7), 0.0213, 3)
A_AGAIN = Quantised(np.zeros(0, "uint8"), A.scale, A.zero)
OF_ZERO = Quantised(A.array, A.scale, 0)
B = Quantised(integers(1, 16, 6, 7, seed=1), 0.0337, 100)
Y = Quantised(np.zeros(0, "uint8"), 0.04, 77)
SIGNED = Quantised(integers(1, 16, 6, 7, dtype="int8"), 0.02, -3)
SIGNED_Y = Quantised(np.zeros(0, "int8"), 0.04, -20)
POOL = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
MATRIX = Quantised(integers(2, 40), 0.02, 9)
DENSE = Quantised(integers(40, 12, dtype="int8", seed=3), 0.004, 0)
ROWS = Quantised(integers(12, 40, dtype="int8", seed=3), SCALES.repeat(2)[:12], 0)
LARGER = {
    "mode": "nearest",
    "nearest_mode": "floor",
    "coordinate_transformation_mode": "asymmetric",
}
TWICE = [np.zeros(0, "float32"), np.array([1, 1, 2, 2], "float32")]

LIKELY = Quantised(np.zeros(0, "uint8"), 1 / 256, 0)
SIGNED_LIKELY = Quantised(np.zeros(0, "int8"), 0.003, -128)


def transposed(channels: int, kernel: int, groups: int = 1, **attributes: Any) -> onnx.ModelProto:
    """Of `A`; scales are powers of two, so that ONNX Runtime's floats are exact too."""
    weight = integers(16, channels // groups, kernel, kernel, dtype="int8", seed=1, limit=127)
    scales = [np.float32(2.0**-7), np.float32(2.0**-13)]
    bias = np.arange(channels, dtype="int32") * 1000
    constants = [Quantised(weight, scales[0], 0), Quantised(bias, scales[1], 0)]
    x, y = Quantised(A.array, 2.0**-6, 3), Quantised(np.zeros(0, "uint8"), 0.5, 120)
    return qdq(
        "ConvTranspose",
        [x],
        y,
        constants=constants,
        group=groups,
        kernel_shape=[kernel, kernel],
        **attributes,
    )


AROUND = np.array([0, 0, 1, 2, 0, 0, 0, 1])
FOUR = [*["integer.conv2d"] * 4, "concat", "permute_dims", "strided_slice"]
OPERATORS: dict[str, tuple[onnx.ModelProto, list[str]]] = {
    "add": (qdq("Add", [A, B], Y), ["integer.add"]),
    "add, relu": (qdq("Add", [A, B], Y, then="Relu"), ["integer.add"]),
    "multiply": (qdq("Mul", [A, B], Y), ["integer.multiply"]),
    "signed": (qdq("Add", [SIGNED, SIGNED], SIGNED_Y), ["integer.add"]),
    "mean": (qdq("GlobalAveragePool", [A], Quantised(Y.array, 0.01, 20)), ["integer.mean"]),
    "maximum": (qdq("MaxPool", [A], Quantised(Y.array, 0.0213, 3), **POOL), ["nn.max_pool2d"]),
    "average": (
        qdq("AveragePool", [A], Quantised(Y.array, 0.0131, 20), kernel_shape=[2, 3]),
        ["integer.average"],
    ),
    "average, padded": (
        qdq("AveragePool", [A], Quantised(Y.array, 0.0131, 20), count_include_pad=1, **POOL),
        ["integer.average"],
    ),
    "average, padding left out": (
        qdq("AveragePool", [A], Quantised(Y.array, 0.0131, 20), **POOL),
        ["integer.average"],
    ),
    # a quarter of these means are halves
    "average, halves": (
        qdq("AveragePool", [A], A_AGAIN, kernel_shape=[2, 2]),
        ["integer.average"],
    ),
    "average, halves, from zero": (
        qdq("AveragePool", [OF_ZERO], Quantised(OF_ZERO.array, 0.0426, 0), kernel_shape=[2, 2]),
        ["integer.average"],
    ),
    "average, last window beyond": (
        qdq(
            "AveragePool",
            [A],
            Quantised(Y.array, 0.0131, 20),
            kernel_shape=[3, 3],
            strides=[2, 3],
            ceil_mode=1,
        ),
        ["integer.average"],
    ),
    "sigmoid": (qdq("Sigmoid", [SIGNED], SIGNED_Y), ["integer.table"]),
    "swish": (qdq("HardSwish", [A], Y), ["integer.table"]),
    "tanh": (qdq("Tanh", [A], Y), ["integer.table"]),
    "gelu": (qdq("Gelu", [A], Y, opset=20), ["integer.table"]),
    "softplus": (qdq("Softplus", [A], Y), ["integer.table"]),
    "root, of negative numbers too": (qdq("Sqrt", [A], Y), ["integer.table"]),
    "power": (qdq("Pow", [A], Y, constants=[np.float32([3])]), ["integer.table"]),
    "floor": (qdq("Floor", [A], Y), ["integer.table"]),
    "expand": (
        qdq("Expand", [A], A_AGAIN, constants=[np.array([3, *A.array.shape])]),
        ["broadcast_to"],
    ),
    "gather": (qdq("Gather", [A], A_AGAIN, constants=[np.array([1, -1])], axis=1), ["take"]),
    "softmax": (qdq("Softmax", [A], LIKELY, axis=-1), ["integer.softmax"]),
    "softmax, signed": (
        qdq("Softmax", [SIGNED], SIGNED_LIKELY, axis=1),
        ["permute_dims", "integer.softmax", "permute_dims"],
    ),
    "transposed": (
        transposed(6, 4, strides=[2, 2]),
        ["integer.conv2d", "permute_dims"],
    ),
    "transposed, taps of their own": (
        transposed(6, 3, strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1]),
        FOUR,
    ),
    "transposed, output padded alone": (
        transposed(6, 3, strides=[2, 2], output_padding=[1, 1]),
        FOUR[:-1],
    ),
    "transposed, dilated": (transposed(4, 3, strides=[2, 2], dilations=[2, 2]), FOUR),
    "transposed, groups": (
        transposed(8, 1, 4, strides=[2, 2]),
        ["integer.conv2d", "permute_dims", "strided_slice"],
    ),
    "leaky": (qdq("LeakyRelu", [A], Y, alpha=0.1), ["integer.table"]),
    "resize": (
        qdq("Resize", [A], Quantised(Y.array, 0.0213, 3), constants=TWICE, **LARGER),
        ["take", "take"],
    ),
    "concat": (qdq("Concat", [A, B], Y, axis=1), ["integer.table", "integer.table", "concat"]),
    "padded": (
        qdq("Pad", [A], A_AGAIN, constants=[AROUND]),
        ["nn.pad"],
    ),
    "padded with a number": (
        qdq(
            "Pad", [A], Y, constants=[np.array([0, 0, 1, 2, 0, 0, 0, 1]), np.array(-0.7, "float32")]
        ),
        ["integer.table", "nn.pad"],
    ),
    "gemm": (qdq("Gemm", [MATRIX], Y, constants=[ROWS], transB=1), ["integer.matmul"]),
    "matmul": (qdq("MatMul", [MATRIX], Y, constants=[DENSE]), ["integer.matmul"]),
}


@pytest.mark.variants(3)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_equal_onnx_runtime(name: str) -> None:
    model, expected = OPERATORS[name]
    inputs = [MATRIX] if name in ("gemm", "matmul") else [A, B]
    signed = name in ("signed", "sigmoid", "softmax, signed")
    inputs = [SIGNED, SIGNED] if signed else inputs
    arrays = [x.array for x in inputs[: len(model.graph.input)]]
    assert [kind for kind in kinds(load_network(model)) if kind != "reshape"] == expected
    result = np.asarray(ts.compile(model, cpu_threads=1)(*arrays))
    np.testing.assert_array_equal(result, optimised(model, *arrays))


@pytest.mark.parametrize("shape", [(2, 3), (1, 1), (2, 1, 5)], ids=str)
def test_rows_of_several_axes_equal_onnx_runtime(shape: tuple[int, ...]) -> None:
    x = Quantised(integers(*shape, MATRIX.array.shape[-1], seed=4), MATRIX.scale, MATRIX.zero)
    model = qdq("MatMul", [x], Y, constants=[DENSE])
    found = [kind for kind in kinds(load_network(model)) if kind != "reshape"]
    assert found == ["integer.matmul"]
    result = np.asarray(ts.compile(model, cpu_threads=1)(x.array))
    np.testing.assert_array_equal(result, optimised(model, x.array))


def test_average_counts_no_pixel_beyond_its_padding() -> None:
    """As ONNX says, and as ONNX Runtime does in float; its integers count whole windows."""
    windows = {**POOL, "ceil_mode": 1, "count_include_pad": 1}
    model = qdq("AveragePool", [A], Quantised(Y.array, 0.0131, 20), opset=19, **windows)
    assert kinds(load_network(model)) == ["integer.average"]
    node = onnx.helper.make_node("AveragePool", ["x"], ["y"], **windows)
    x = (A.array - np.float32(A.zero)) * np.float32(A.scale)
    values = [onnx.helper.make_tensor_value_info(n, 1, s) for n, s in (("x", x.shape), ("y", None))]
    graph = onnx.helper.make_graph([node], "floats", values[:1], values[1:])
    opsets = [onnx.helper.make_opsetid("", 19)]
    floats = optimised(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), x)
    want = np.clip(np.rint(floats / np.float32(0.0131)) + 20, 0, 255)
    got = np.asarray(ts.compile(model, cpu_threads=1)(A.array)).astype(int)
    assert np.abs(got - want).max() <= 1  # halves
    assert (got != want).mean() < 0.01


@pytest.mark.parametrize(
    "options",
    [
        {"pads": [1, 1, 1, 1], "zero": 3, "then": "Relu"},
        {"pads": [2, 2, 2, 2], "dilations": [2, 2], "weights": "uint8", "bias": False},
        {"pads": [1, 0, 0, 1], "strides": [2, 2], "dtype": "int8", "zero": -5, "batch": 2},
        {"groups": 4, "then": "Clip"},
        {"groups": 16, "pads": [1, 1, 1, 1]},
    ],
)
def test_convolutions_equal_onnx_runtime(options: dict[str, Any]) -> None:
    model, x = qdq_conv(16, 16, 3, 9, **options)
    assert kinds(load_network(model)) == ["integer.conv2d"]
    result = np.asarray(ts.compile(model, cpu_threads=1)(x))
    np.testing.assert_array_equal(result, optimised(model, x))


@pytest.mark.parametrize("name", ["conv", "gemm", "add", "concat", "sigmoid"])
def test_operators_of_onnx_runtime_come_the_same_way(name: str) -> None:
    model, arrays, kind = qoperator(name)
    assert kind in kinds(load_network(model))
    result = np.asarray(ts.compile(model, cpu_threads=1)(*arrays))
    np.testing.assert_array_equal(result, optimised(model, *arrays))


def qoperator(name: str) -> tuple[onnx.ModelProto, list[np.ndarray], str]:
    """An operator of QuantFormat.QOperator, and its inputs."""
    a, b, y = (parameters(x) for x in (A, B, Y))
    if name == "add":
        return (
            qlinear("QLinearAdd", ["x0", *a, "x1", *b, *y], A, B),
            [A.array, B.array],
            "integer.add",
        )
    if name == "concat":
        inputs = [*y, "x0", *a, "x1", *b]
        return qlinear("QLinearConcat", inputs, A, B, axis=1), [A.array, B.array], "concat"
    if name == "sigmoid":
        return qlinear("QLinearSigmoid", ["x0", *a, *y], A), [A.array], "integer.table"
    if name == "gemm":
        rows = [ROWS.array, np.asarray(ROWS.scale), np.zeros(12, "int8")]
        bias = np.arange(12, dtype="int32") * 100
        inputs = ["x0", *parameters(MATRIX), *rows, bias, *y]
        return qlinear("QGemm", inputs, MATRIX, transB=1), [MATRIX.array], "integer.matmul"
    weight = [integers(8, 16, 3, 3, dtype="int8", seed=2), SCALES, np.zeros(8, "int8")]
    inputs = ["x0", *a, *weight, *y, BIAS * 1000]
    conv = qlinear("QLinearConv", inputs, A, domain="", pads=[1, 1, 1, 1], kernel_shape=[3, 3])
    return conv, [A.array], "integer.conv2d"


def parameters(x: Quantised) -> list[np.ndarray]:
    return [np.array(x.scale, "float32"), np.array(x.zero, x.array.dtype)]


def test_alpha_of_qgemm_belongs_to_the_bias_too() -> None:
    x = Quantised(np.array([[10, 20]], "uint8"), 0.1, 0)
    weight = Quantised(np.array([[1, 2], [3, 4]], "int8"), 1.0, 0)
    result = parameters(Quantised(np.zeros(0, "uint8"), 1.0, 0))
    bias = np.array([100, 200], "int32")
    operands = ["x0", *parameters(x), weight.array, *parameters(weight), bias, *result]
    model = qlinear("QGemm", operands, x, alpha=2.0)
    got = np.asarray(ts.compile(model, cpu_threads=1)(x.array))
    np.testing.assert_array_equal(got, optimised(model, x.array))
    np.testing.assert_array_equal(got, [[34, 60]])


def test_operators_of_onnx_runtime_that_are_refused() -> None:
    y, rows = parameters(Y), [np.full(2, 0.02, "float32"), np.full(2, 9, "uint8")]
    weight = [DENSE.array, *parameters(DENSE)]
    several = {
        1: ["x0", *rows, *weight, *y],
        6: ["x0", *parameters(MATRIX), *weight, *rows],
    }
    for index, operands in several.items():
        with pytest.raises(ts.UnsupportedError, match=f"one scale as input {index} for QLinearMat"):
            load_network(qlinear("QLinearMatMul", operands, MATRIX))
    softmax = qlinear("QLinearSoftmax", ["x0", *parameters(A), *y], A, opset=12)
    with pytest.raises(ts.UnsupportedError, match=r"before opset 13 .* got axis 1"):
        load_network(softmax)
    load_network(qlinear("QLinearSoftmax", ["x0", *parameters(A), *y], A, opset=13))


@pytest.mark.parametrize("opset", [13, *range(19, 25)])
def test_every_operator_set_says_the_same(opset: int) -> None:
    """What changes in QuantizeLinear and DequantizeLinear is not what quantisers write."""
    model, _ = qdq_conv(8, 8, 3, 5, then="Relu", opset=opset)
    assert model.opset_import[0].version == opset
    expected = load_network(qdq_conv(8, 8, 3, 5, then="Relu")[0])
    assert_structural_equal(load_network(model), expected)


def test_scale_of_zero_is_refused() -> None:
    model = qdq("Relu", [Quantised(A.array, 0.0, 3)], Y)
    with pytest.raises(ts.ModelError, match=r"scales above zero for DequantizeLinear.*got 0"):
        load_network(model)


@pytest.mark.parametrize(
    "scales",
    [
        ((0.025718402, 134), (0.04548939, 115), (0.027929354, 0)),
        ((0.0213, 3), (0.0387, 250), (0.0501, 128)),
    ],
)
def test_sums_of_all_pairs_equal_onnx_runtime(scales: tuple[tuple[float, int], ...]) -> None:
    """Some lie between two integers but for the last digit, as which they are added decides."""
    pairs = np.indices((256, 256), dtype="uint8")[:, None, None]
    a, b = (Quantised(n, *s) for n, s in zip(pairs, scales[:2], strict=True))
    model = qdq("Add", [a, b], Quantised(pairs[0], *scales[2]))
    result = np.asarray(ts.compile(model, cpu_threads=1)(*pairs))
    np.testing.assert_array_equal(result, optimised(model, *pairs))


def test_scales_of_channels_that_groups_share() -> None:
    """Of a transposed convolution: an index of the second axis of the weights."""

    def body(x: relax.Expr) -> relax.Expr:
        weight = relax.op.dequantize(
            relax.const(integers(4, 3, 2, 2, dtype="int8", limit=127)),
            relax.const(np.float32([0.01, 0.02, 0.03])),
            relax.const(np.zeros(3, "int8")),
            1,
        )
        y = relax.op.nn.conv2d_transpose(dequantise(x, 0.02, 3), weight, strides=2, groups=2)
        return quantise(y, 0.1, 100)

    before = relax.transform.CanonicalizeBindings()(module(body, (1, 4, 3, 5), dtype="uint8"))
    after = FormIntegers()(before)
    assert kinds(after)[0] == "integer.conv2d"
    x = integers(1, 4, 3, 5)
    np.testing.assert_array_equal(run(after, x)[0], run(DecomposeQuantisation()(before), x)[0])


@pytest.mark.full
def test_sums_that_no_quantising_follows_become_floats() -> None:
    weight = relax.const(integers(8, 5, dtype="int8"))

    def body(x: relax.Expr) -> relax.Expr:
        y = relax.op.nn.relu(layer(x))
        mean = relax.op.reshape(relax.op.mean(y, [2, 3]), (2, 8))
        logits = quantise(mean, 0.1, 5)
        return relax.op.matmul(dequantise(logits, 0.1, 5), dequantise(weight, 0.1, dtype="int8"))

    before = module(body, (2, 4, 6, 6), dtype="uint8")
    after = formed(before)
    assert describe_integers(after["main"]).startswith("2 integer operators")
    assert not {"nn.conv2d", "matmul"} & set(kinds(after))
    x = integers(2, 4, 6, 6)
    want = run(DecomposeQuantisation()(before), x)[0]
    for got in (run(DecomposeQuantisation()(after), x)[0], np.asarray(ts.compile(before)(x))):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("length", [2, 1000])
def test_softmax_of_a_sure_answer_saturates(length: int) -> None:
    """A probability of one is 256 / 256, one more than there is."""
    array = np.full((1, length), -128, "int8")
    array[0, 1] = 127
    model = qdq("Softmax", [Quantised(array, 0.3, 0)], Quantised(array, 1 / 256, -128), axis=1)
    result = np.asarray(ts.compile(model, cpu_threads=1)(array))
    assert result[0, 1] == 127
    np.testing.assert_array_equal(result, optimised(model, array))
