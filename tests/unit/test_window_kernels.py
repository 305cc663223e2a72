"""Depthwise convolution and pooling kernels against their meaning and ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import tvm
from helpers.cpu_targets import built
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tvm import te, tirx, topi

from tvm_stretch.targets.cpu.kernels import window_nest as window_kernels
from tvm_stretch.targets.cpu.kernels.window import WindowConfig
from tvm_stretch.targets.cpu.kernels.window_nest import write_window
from tvm_stretch.targets.kernels.fused import split_fused
from tvm_stretch.targets.kernels.machine import VectorMachine

AVX2 = VectorMachine(lanes=8, registers=16, broadcast_operand=False, l2_bytes=2**19, threads=1)
NEON = VectorMachine(lanes=4, registers=32, broadcast_operand=True, l2_bytes=2**19, threads=1)


def window(kind, channels, size, kernel, **changes):
    """A configuration with the usual defaults."""
    config = WindowConfig(
        kind=kind, batch=1, channels=channels, in_size=size, kernel=kernel, stride=(1, 1),
        padding=(0, 0, 0, 0), dilation=(1, 1), lanes=8,
    )  # fmt: skip
    return replace(config, **changes)


def block(array, lanes):
    """NCHW -> NCHW[c]."""
    n, c, h, w = array.shape
    padded = np.pad(array, ((0, 0), (0, -c % lanes), (0, 0), (0, 0)))
    return np.ascontiguousarray(padded.reshape(n, -1, lanes, h, w).transpose(0, 1, 3, 4, 2))


def unblock(array, channels):
    """NCHW[c] -> NCHW."""
    n, b, h, w, lanes = array.shape
    return array.transpose(0, 1, 4, 2, 3).reshape(n, b * lanes, h, w)[:, :channels]


def build(config, machine, relu=False):
    """The meaning of a window reduction, and its template."""
    shape = (config.batch, config.blocks, *config.in_size, config.lanes)
    inputs = [te.placeholder(shape, name="data")]
    if config.kind == "depthwise":
        inputs.append(te.placeholder((config.blocks, *config.kernel, config.lanes), name="weight"))
    result = config.meaning(*inputs)
    if relu:
        inputs.append(te.placeholder((1, config.blocks, 1, 1, config.lanes), name="bias"))
        result = topi.nn.relu(topi.add(result, inputs[-1]))
    meaning = te.create_prim_func([*inputs, result])
    fused = split_fused(meaning)
    assert fused is not None
    body = write_window(config, machine, fused)
    attrs = {"global_symbol": "main", "s_tir": True, "tirx.noalias": True}
    return meaning, tirx.PrimFunc(meaning.params, body).with_attrs(attrs)


def run(func, *arrays, shape):
    """Build for this machine and run."""
    out = tvm.runtime.tensor(np.full(shape, 7e7, "float32"))
    built(func)["kernel"](*map(tvm.runtime.tensor, arrays), out)
    return out.numpy()


def check_against_meaning(config, machine=AVX2, relu=False):
    """The template computes what `window_compute` says."""
    rng = np.random.default_rng(0)
    shapes = [(config.batch, config.blocks, *config.in_size, config.lanes)]
    if config.kind == "depthwise":
        shapes.append((config.blocks, *config.kernel, config.lanes))
    if relu:
        shapes.append((1, config.blocks, 1, 1, config.lanes))
    arrays = [rng.standard_normal(s, dtype="float32") for s in shapes]
    out = (config.batch, config.blocks, *config.out_size, config.lanes)
    meaning, kernel = build(config, machine, relu)
    expected, actual = run(meaning, *arrays, shape=out), run(kernel, *arrays, shape=out)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def onnx_run(operator, inputs, **attributes):
    """One ONNX operator in ONNX Runtime."""
    names = [f"x{i}" for i in range(len(inputs))]
    values = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, x.shape)
        for n, x in zip(names, inputs, strict=True)
    ]
    node = helper.make_node(operator, names, ["y"], **attributes)
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = helper.make_model(
        helper.make_graph([node], "g", values, [result]),
        opset_imports=[helper.make_opsetid("", 19)], ir_version=9,
    )  # fmt: skip
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, dict(zip(names, inputs, strict=True)))[0]


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [3, 5])
def test_depthwise_equals_onnx_runtime(kernel, stride):
    pad = kernel // 2
    config = window("depthwise", 20, (15, 17), (kernel, kernel), stride=(stride, stride),
                    padding=(pad, pad, pad, pad), batch=2)  # fmt: skip
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 20, 15, 17), dtype="float32")
    w = rng.standard_normal((20, 1, kernel, kernel), dtype="float32")
    weight = te.placeholder(w.shape, name="weight")
    pack = te.create_prim_func([weight, config.pack(weight)])
    packed = run(pack, w, shape=(config.blocks, kernel, kernel, 8))
    assert (packed[-1, ..., 4:] == 0).all()
    out = (2, config.blocks, *config.out_size, 8)
    y = run(build(config, AVX2)[1], block(x, 8), packed, shape=out)
    expected = onnx_run("Conv", [x, w], group=20, pads=[pad] * 4, strides=[stride, stride])
    np.testing.assert_allclose(unblock(y, 20), expected, rtol=1e-4, atol=1e-4)


POOLS = [
    ("max", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("max", {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ("max", {"kernel_shape": [2, 3], "dilations": [2, 1], "pads": [1, 0, 0, 2]}),
    ("max", {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("max", {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]}),
    ("avg", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    ("avg", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
    ("avg", {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1, "pads": [1, 1, 0, 0]}),
    (
        "avg",
        {
            "kernel_shape": [3, 2],
            "strides": [2, 2],
            "ceil_mode": 1,
            "pads": [1, 0, 1, 0],
            "count_include_pad": 1,
        },
    ),
    ("avg", {"kernel_shape": [5, 5], "strides": [3, 3], "pads": [2, 2, 2, 2]}),
]


def pool_config(kind, x, attributes, out):
    """The configuration of an ONNX pooling node."""
    pair = lambda name: tuple(attributes.get(name, [1, 1]))  # noqa: E731
    return window(
        kind, x.shape[1], x.shape[2:], pair("kernel_shape"), stride=pair("strides"),
        padding=tuple(attributes.get("pads", [0] * 4)), dilation=pair("dilations"), out=out,
        count_include_pad=bool(attributes.get("count_include_pad", 0)),
    )  # fmt: skip


@pytest.mark.variants(3)
@pytest.mark.parametrize(("kind", "attributes"), POOLS)
@pytest.mark.parametrize("special", [None, np.nan, np.inf, -np.inf])
def test_pool_equals_onnx_runtime(kind, attributes, special):
    x = np.random.default_rng(0).standard_normal((1, 10, 14, 13), dtype="float32")
    if special is not None:
        x[0, :, 5::6, 4::5] = special
    operator = {"max": "MaxPool", "avg": "AveragePool"}[kind]
    expected = onnx_run(operator, [x], **attributes)
    if kind == "max" and np.isnan(special or 0):  # of which ONNX Runtime keeps some and loses some
        reached = onnx_run(operator, [np.isnan(x).astype("float32")], **attributes) > 0
        others = onnx_run(operator, [np.nan_to_num(x, nan=-np.inf)], **attributes)
        expected = np.where(reached, np.nan, others)
    config = pool_config(kind, x, attributes, expected.shape[2:])
    out = (1, config.blocks, *config.out_size, 8)
    y = unblock(run(build(config, AVX2)[1], block(x, 8), shape=out), 10)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_maximum_of_infinities_is_minus_infinity():
    config = window("max", 8, (4, 4), (3, 3), padding=(1, 1, 1, 1))
    x = np.full((1, 1, 4, 4, 8), -np.inf, "float32")
    for func in build(config, AVX2):
        assert (run(func, x, shape=x.shape) == -np.inf).all()


@pytest.mark.parametrize("threads", [3, 4])
@pytest.mark.parametrize("height", [2, 7, 29])
def test_every_row_is_written_once_by_any_number_of_threads(threads, height, monkeypatch):
    monkeypatch.setattr(window_kernels, "_WORTH_THREADS", 0)
    machine = replace(AVX2, threads=threads)
    config = window("depthwise", 12, (height, 5), (3, 3), padding=(1, 1, 1, 1), batch=2)
    assert "T.parallel" in build(config, machine)[1].script()
    check_against_meaning(config, machine)


def test_epilogue_is_fused():
    config = window("depthwise", 16, (9, 11), (3, 3), padding=(1, 1, 1, 1))
    check_against_meaning(config, relu=True)


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_any_window_computes_its_meaning(data):
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    kernel, dilation = (draw(1, 5), draw(1, 5)), (draw(1, 2), draw(1, 2))
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    padding = tuple(draw(0, spans[i % 2] - 1) for i in range(4))
    smallest = [max(1, s - padding[i] - padding[i + 2]) for i, s in enumerate(spans)]
    machine = data.draw(st.sampled_from([AVX2, NEON]))
    config = window(
        data.draw(st.sampled_from(["depthwise", "max", "avg"])), draw(1, 20),
        (smallest[0] + draw(0, 12), smallest[1] + draw(0, 20)), kernel, padding=padding,
        stride=(draw(1, 3), draw(1, 3)), dilation=dilation, lanes=machine.lanes,
        count_include_pad=data.draw(st.booleans()),
    )  # fmt: skip
    check_against_meaning(config, machine)
