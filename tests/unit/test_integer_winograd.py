"""Winograd's convolution of 8-bit numbers: the sums of the direct one, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.cpu_targets import host_of
from helpers.quantised_models import optimised, qdq_conv
from helpers.relax_helpers import answers
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.network.integer_kernels import integer_call
from tvm_stretch.network.integers import Integer
from tvm_stretch.passes.block_channels import BlockChannels
from tvm_stretch.read import load_network
from tvm_stretch.targets.cpu.kernels.integer_winograd import IntegerWinogradConfig
from tvm_stretch.targets.kernels.layers import IntegerConvShape
from tvm_stretch.targets.kernels.template import choose
from tvm_stretch.targets.processor import Processor

CORES = ["vpmaddwd.256", pytest.param("vpmaddwd.512", marks=pytest.mark.full)]
MOST = 1827
"""Inputs of a layer whose sums, times four, fit int32."""


def host_with(dot: str, threads: int = 1) -> Processor:
    """A CPU without VNNI, whose kernels run here."""
    host = host_of(8 if dot.endswith("256") else 16)
    if dot.endswith("512") and not host.machine.dot.endswith("512"):
        pytest.skip("this machine has no AVX-512")
    return replace(host, machine=replace(host.machine, dot=dot, threads=threads))


def is_winograd(model: ts.Model) -> bool:
    return any("integer_winograd" in node.kernel for node in model.graph.nodes)


LAYERS: dict[str, tuple[tuple[int, int, int, int], dict[str, Any]]] = {
    "padded": ((40, 56, 3, 9), {"pads": [1, 1, 1, 1]}),
    "a zero point in the padding": ((32, 32, 3, 12), {"pads": [1, 1, 1, 1], "zero": 200}),
    "signed, then ReLU": ((36, 50, 3, 9), {"dtype": "int8", "zero": -9, "then": "Relu"}),
    "two images": ((32, 48, 3, 8), {"batch": 2, "pads": [0, 1, 2, 0]}),
}


@pytest.mark.parametrize("dot", CORES)
@pytest.mark.parametrize("name", LAYERS)
def test_the_answer_is_onnx_runtimes(name: str, dot: str) -> None:
    arguments, options = LAYERS[name]
    network, x = qdq_conv(*arguments, **options)
    model = ts.compile(network, [host_with(dot)])
    assert is_winograd(model)
    np.testing.assert_array_equal(np.asarray(model(x)), optimised(network, x))


def test_threads_share_the_bands() -> None:
    network, x = qdq_conv(32, 32, 3, 40, pads=[1, 1, 1, 1])
    model = ts.compile(network, [host_with("vpmaddwd.256", threads=2)])
    assert is_winograd(model)
    np.testing.assert_array_equal(np.asarray(model(x)), optimised(network, x))


def test_the_meaning_is_the_same() -> None:
    """TVM's virtual machine computes the three stages as plain sums."""
    network, x = qdq_conv(32, 40, 3, 6, zero=3)
    machine = host_with("vpmaddwd.256").machine
    blocked = BlockChannels({"cpu": machine})(load_network(network))
    assert "integer_winograd" in blocked.script()
    np.testing.assert_array_equal(answers(blocked, x)[0], optimised(network, x))


@pytest.mark.parametrize("pixel", [0, 255])
@pytest.mark.parametrize("pattern", ["all", "chequered"])
def test_the_largest_sums(pattern: str, pixel: int) -> None:
    """They are those of the most inputs that are allowed, with the largest weights and pixels."""
    channels = MOST // 8 * 8
    weight = np.full((32, channels, 3, 3), -128, "int8")
    data = np.full((1, channels, 6, 6), pixel, "uint8")
    if pattern == "chequered":  # differences of neighbours are as large as they can be
        weight[..., 0::2, 1::2] = weight[..., 1::2, 0::2] = 127
        data[..., 0::2, 1::2] = data[..., 1::2, 0::2] = 255 - pixel
    conv = Integer("conv2d", None, (0,))
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(data.shape, "uint8"))
    with builder.function("main", [x]):
        with builder.dataflow():
            constants = map(relax.const, (weight, np.arange(32, dtype="int32")))
            out = builder.emit_output(integer_call(builder, conv, x, *constants))
        builder.emit_func_output(out)
    model = ts.compile(builder.get(), [host_with("vpmaddwd.256")])
    assert is_winograd(model)
    windows = np.lib.stride_tricks.sliding_window_view(data[0], (3, 3), axis=(1, 2))
    wanted = np.einsum("cyxij,ocij->oyx", windows.astype("float64"), weight.astype("float64"))
    wanted += np.arange(32).reshape(32, 1, 1)
    np.testing.assert_array_equal(np.asarray(model(data))[0], wanted)


def test_layers_with_larger_sums_are_direct() -> None:
    machine = host_with("vpmaddwd.256").machine
    for channels, fits in ((MOST, True), (MOST + 1, False)):
        shape = IntegerConvShape(1, channels, (8, 8), 64, (3, 3), dtype="int16")
        assert isinstance(choose(shape, machine), IntegerWinogradConfig) == fits
    wide = IntegerConvShape(1, 64, (8, 8), 64, (3, 3), dtype="int16")
    for other in (
        replace(wide, stride=(2, 2)),
        replace(wide, kernel=(1, 1)),
        replace(wide, groups=2),
    ):
        assert not isinstance(choose(other, machine), IntegerWinogradConfig)
