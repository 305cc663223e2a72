"""Random convolutions, poolings, dense layers and little networks against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
from helpers.cpu_targets import TARGET
from helpers.onnx_models import Net, assert_same, random_inputs, run_onnxruntime
from hypothesis import given
from hypothesis import strategies as st

import tvm_stretch as ts

CHANNELS = st.sampled_from([1, 2, 3, 5, 8, 12, 16, 17, 31, 32, 40])
SIZES = st.integers(1, 23)
LAYERS = ("conv", "depthwise", "pool", "add", "concat", "split", "shift", "relu")
SEEDS = st.integers(0, 2**16)
EPILOGUES = ("none", "relu", "relu6", "hardswish", "sigmoid", "batch_norm", "add", "add_relu")


def check(model: onnx.ModelProto) -> None:
    """Compiled and run, the model answers what ONNX Runtime answers."""
    inputs = random_inputs(model)
    result = ts.compile(model, targets=[TARGET])(**inputs)
    outputs = result if isinstance(result, tuple) else (result,)
    assert_same(run_onnxruntime(model, inputs), outputs)


def add_epilogue(net: Net, x: str, kind: str) -> str:
    """What networks put behind a convolution or a dense layer."""
    if kind in ("add", "add_relu"):
        total = net.op("Add", x, net.input("residual", net.shapes[x]))
        return net.op("Relu", total) if kind == "add_relu" else total
    simple = {"relu": "Relu", "hardswish": "HardSwish", "sigmoid": "Sigmoid"}
    if kind in simple:
        return net.op(simple[kind], x)
    if kind == "relu6":
        return net.relu6(x)
    return net.batch_norm(x) if kind == "batch_norm" else x


@st.composite
def windows(draw: st.DrawFn, max_kernel: int, max_dilation: int) -> tuple[dict, list[int]]:
    """Attributes of a sliding window and a feature map that it fits in."""
    kernel = draw(st.lists(st.integers(1, max_kernel), min_size=2, max_size=2))
    strides = draw(st.lists(st.integers(1, 3), min_size=2, max_size=2))
    dilations = draw(st.lists(st.integers(1, max_dilation), min_size=2, max_size=2))
    pads = [draw(st.integers(0, k - 1)) for k in kernel + kernel]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    sizes = [max(draw(SIZES), reach[i] - pads[i] - pads[i + 2]) for i in range(2)]
    attributes = {"kernel_shape": kernel, "strides": strides, "pads": pads}
    if max_dilation > 1:
        attributes["dilations"] = dilations
    return attributes, sizes


@st.composite
def convolutions(draw: st.DrawFn) -> onnx.ModelProto:
    """One convolution, dense, grouped or depthwise, with its epilogue."""
    attributes, sizes = draw(windows(max_kernel=5, max_dilation=2))
    kernel = attributes.pop("kernel_shape")
    kind = draw(st.sampled_from(["dense", "grouped", "depthwise"]))
    channels, outputs = draw(CHANNELS), draw(CHANNELS)
    groups = 1
    if kind == "grouped":
        groups = draw(st.integers(2, 4))
        channels, outputs = channels * groups, outputs * groups
    elif kind == "depthwise":
        groups, outputs = channels, channels * draw(st.integers(1, 2))
    net = Net(draw(SEEDS))
    x = net.input("x", (draw(st.integers(1, 2)), channels, *sizes))
    y = net.conv(x, outputs, kernel, groups=groups, bias=draw(st.booleans()), **attributes)
    return net.model(add_epilogue(net, y, draw(st.sampled_from(EPILOGUES))))


@given(convolutions())
def test_convolution(model: onnx.ModelProto):
    check(model)


@st.composite
def winograd_sized_convolutions(draw: st.DrawFn) -> onnx.ModelProto:
    """3×3, stride 1, many channels: where a compiler leaves the direct algorithm."""
    net = Net(draw(SEEDS))
    channels = draw(st.sampled_from([32, 64, 72]))
    sizes = draw(st.lists(st.integers(5, 30), min_size=2, max_size=2))
    pads = draw(st.lists(st.integers(0, 1), min_size=4, max_size=4))
    x = net.input("x", (1, channels, *sizes))
    y = net.conv(x, draw(st.sampled_from([32, 64, 70])), (3, 3), pads=pads)
    return net.model(add_epilogue(net, y, draw(st.sampled_from(EPILOGUES))))


@given(winograd_sized_convolutions())
def test_convolution_3x3(model: onnx.ModelProto):
    check(model)


@st.composite
def poolings(draw: st.DrawFn) -> onnx.ModelProto:
    """One pooling, alone or between two convolutions (so that it meets a blocked layout)."""
    kind = draw(st.sampled_from(["MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"]))
    attributes, sizes = draw(windows(max_kernel=4, max_dilation=2 if kind == "MaxPool" else 1))
    if kind.startswith("Global"):
        attributes = {}
    else:
        attributes["ceil_mode"] = int(draw(st.booleans()))
    if kind == "AveragePool":
        attributes["count_include_pad"] = int(draw(st.booleans()))
    channels = draw(CHANNELS)
    net = Net(draw(SEEDS))
    y = net.input("x", (draw(st.integers(1, 2)), channels, *sizes))
    blocked = draw(st.booleans())
    if blocked:
        y = net.conv(y, channels, (1, 1))
    y = net.op(kind, y, **attributes)
    return net.model(net.conv(y, channels + 3, (1, 1)) if blocked else y)


@given(poolings())
def test_pooling(model: onnx.ModelProto):
    check(model)


def test_pooling_whose_vectors_cross_the_batch():
    net = Net()
    x = net.input("x", (2, 3, 1, 3))
    check(net.model(net.op("AveragePool", x, kernel_shape=[1, 1])))


@st.composite
def dense_layers(draw: st.DrawFn) -> onnx.ModelProto:
    """`Gemm` with all its attributes, or `MatMul` with up to two leading dimensions."""
    rows, inner, columns = draw(st.integers(1, 9)), draw(st.integers(1, 70)), draw(CHANNELS)
    net = Net(draw(SEEDS))
    if draw(st.booleans()):
        turned = draw(st.booleans())
        weight = net.weight((columns, inner) if turned else (inner, columns))
        shift = net.weight(draw(st.sampled_from([(columns,), (rows, columns), (1,)])))
        x = net.input("x", (rows, inner))
        attributes = {"alpha": draw(st.sampled_from([1.0, 0.5])), "transB": int(turned)}
        y = net.op("Gemm", x, weight, shift, beta=draw(st.sampled_from([1.0, 2.0])), **attributes)
    else:
        leading = draw(st.lists(st.integers(1, 3), max_size=2))
        x = net.input("x", (*leading, rows, inner))
        two_inputs = draw(st.booleans())
        shape = (*leading, inner, columns) if two_inputs else (inner, columns)
        y = net.op("MatMul", x, net.input("z", shape) if two_inputs else net.weight(shape))
    kinds = [kind for kind in EPILOGUES if kind != "batch_norm"]
    return net.model(add_epilogue(net, y, draw(st.sampled_from(kinds))))


@given(dense_layers())
def test_dense(model: onnx.ModelProto):
    check(model)


@st.composite
def networks(draw: st.DrawFn) -> onnx.ModelProto:
    """A few layers that take any earlier tensors: layouts, fusion and views must all agree."""
    net = Net(draw(SEEDS))
    size = draw(st.integers(4, 12))
    tensors = [net.input("x", (1, draw(CHANNELS), size, size))]
    for _ in range(draw(st.integers(2, 7))):
        x = draw(st.sampled_from(tensors))
        channels = net.shapes[x][1]
        same_shape = [t for t in tensors if net.shapes[t] == net.shapes[x]]
        kind = draw(st.sampled_from(LAYERS))
        if kind == "conv":
            y = net.conv(x, draw(CHANNELS), (3, 3), pads=[1] * 4)
        elif kind == "depthwise":
            y = net.conv(x, channels, (3, 3), groups=channels, pads=[1] * 4)
        elif kind == "pool":
            y = net.op("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4)
        elif kind == "add":
            y = net.op("Add", x, draw(st.sampled_from(same_shape)))
        elif kind == "concat":
            others = draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=3))
            y = net.op("Concat", x, *others, axis=1)
        elif kind == "split" and channels > 1:
            y = _split(net, x, draw(st.integers(1, channels - 1)), draw(st.booleans()))
        elif kind == "shift":
            y = _shift(net, x, size, [draw(st.integers(0, 2)) for _ in range(4)])
        else:
            y = net.op("Relu", x)
        tensors.append(y)
    outputs = [tensors[-1]]
    if len(tensors) > 2 and draw(st.booleans()):
        outputs.append(tensors[-2])  # an output that another layer also reads
    return net.model(*outputs)


def _split(net: Net, x: str, at: int, second: bool) -> str:
    """One part of the channels."""
    start, end = (at, net.shapes[x][1]) if second else (0, at)
    bounds = (net.constant(np.array([v], np.int64)) for v in (start, end, 1))
    return net.op("Slice", x, *bounds)


def _shift(net: Net, x: str, size: int, pads: list[int]) -> str:
    """Rows and columns that go at one end, and zeros at the other; the size stays."""
    top, left, bottom, right = pads
    padded = net.op("Pad", x, net.constant(np.array([0, 0, top, left, 0, 0, bottom, right])))
    first = np.array([bottom, right])
    bounds = map(net.constant, (first, first + size, np.array([2, 3])))
    return net.op("Slice", padded, *bounds)


@given(networks())
def test_little_networks(model: onnx.ModelProto):
    check(model)
