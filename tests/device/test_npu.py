"""Networks in 8 bits on the emulator of Qualcomm's tensor unit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.engine_targets import compiled, needs_npu, quantised
from helpers.integer_networks import read_otherwise
from helpers.quantised_models import Quantised, qdq
from helpers.quantised_networks import IMAGES
from helpers.relax_helpers import module, random_const, random_inputs
from tvm import relax

import tvm_stretch as ts
from tutorials import zoo
from tvm_stretch.read import load_network
from tvm_stretch.targets.engines import npu
from tvm_stretch.targets.engines.code import engine_code
from tvm_stretch.targets.engines.code.engine_code import compiled as ahead
from tvm_stretch.targets.engines.code.engine_code import why_refused
from tvm_stretch.targets.engines.code.onnx_operators import onnx_of

pytestmark = [needs_npu, pytest.mark.full]


@pytest.mark.parametrize("arch", ["68", "73", "75"])
def test_answers_of_the_emulator(arch: str, tmp_path: Path) -> None:
    source, x = quantised(), IMAGES[:1]
    model = compiled({"kind": "npu", "htp_arch": arch}, source, "npu")
    assert sum(owner == "npu" for owner in model.plan.processor_of().values()) == 9
    expected = ts.compile(source, "llvm", cpu_threads=1)(x)
    step = (expected.max() - expected.min()) / 255
    answer = model(x)
    assert np.abs(answer - expected).max() <= 2 * step
    assert answer.argmax() == expected.argmax()
    model.export(tmp_path / "net.so")
    np.testing.assert_array_equal(ts.load(tmp_path / "net.so")(x), answer)


def test_float16() -> None:
    """It needs a CPU with float16 only for operators that stay in float32."""

    def body(x: relax.Expr) -> relax.Expr:
        y = relax.op.nn.relu(relax.op.nn.conv2d(x, random_const(16, 8, 3, 3), padding=1))
        z = relax.op.add(y, relax.op.nn.conv2d(y, random_const(16, 16, 1, 1)))
        return relax.op.nn.max_pool2d(z, (2, 2), (2, 2))

    source = module(body, (1, 8, 12, 12))
    model = ts.compile(source, ["npu"], precision="float16")
    (x,) = random_inputs(source)
    expected = ts.compile(source, "llvm", cpu_threads=1)(x)
    np.testing.assert_allclose(model(x), expected, rtol=2e-3, atol=2e-3 * np.abs(expected).max())
    with pytest.raises(ts.UnsupportedError, match="tensors of float32: the HTP computes integers"):
        ts.compile(source, ["npu"])
    assert not np.array_equal(model(x), expected), "it computes in float16"


def test_for_a_phone_it_says_what_an_app_brings(tmp_path: Path) -> None:
    phone = {"kind": "npu", "htp_arch": "75", "device": "snapdragon-8-gen-3"}
    model = compiled(phone, quantised(), "npu")
    assert "an app brings tvm_stretch_engine" in model.plan.explain()
    model.export(tmp_path / "net.so")
    assert b"EPContext" in (tmp_path / "net.so").read_bytes()


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_damaged_context(damage: str) -> None:
    """The library's own checks refuse it, in the engine's process."""
    engine = npu.PROVIDER.described({"kind": "npu"})
    integers = Quantised(np.zeros((1, 4, 8, 8), "uint8"), 0.1, 3)
    network = load_network(qdq("MaxPool", [integers], integers, kernel_shape=[2, 2]))
    model = onnx.load_model_from_string(ahead(engine, onnx_of(network["main"])))
    (context,) = (a for a in model.graph.node[0].attribute if a.name == "ep_cache_context")
    data = bytearray(context.s)
    data[200::997] = bytes(255 - byte for byte in data[200::997])
    context.s = bytes(data) if damage == "changed" else context.s[: len(context.s) // 2]
    assert "Failed to load from EpContext" in why_refused(engine, [model.SerializeToString()])[0]


def test_a_context_that_cannot_be_opened_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of a version that is not installed."""
    monkeypatch.setattr(engine_code, "compiled", lambda engine, model: cut(ahead(engine, model)))
    model = compiled("npu", quantised(), "npu")
    model.export(tmp_path / "net.so")
    with pytest.raises(ts.DeviceError) as caught:
        ts.load(tmp_path / "net.so")(IMAGES[:1])
    text = str(caught.value)
    assert "got some that were compiled with onnxruntime" in text and ":73:" in text
    assert "Failed to load from EpContext" in text
    assert "compile the network again for this device and these versions, or install" in text


def cut(context: bytes) -> bytes:
    """The first half of a context."""
    model = onnx.load_model_from_string(context)
    (found,) = (a for a in model.graph.node[0].attribute if a.name == "ep_cache_context")
    found.s = found.s[: len(found.s) // 2]
    return model.SerializeToString()


def test_a_phone_gets_the_middle_of_the_network_on_its_npu(tmp_path: Path) -> None:
    """The CPU quantises and dequantises; the artifact is for aarch64 and the HTP."""
    source = ts.quantize(zoo.build("resnet18", size=64), noise(64))
    model = ts.compile(source, ["llvm", "npu"], device="snapdragon-8-gen-2")
    owners = [*model.plan.processor_of().values()]
    assert owners[0] == owners[-1] == "cpu" and owners.count("npu") >= 30
    model.export(tmp_path / "net.so")
    data = (tmp_path / "net.so").read_bytes()
    assert b"EPContext" in data and b"compiled onnxruntime" in data


def noise(size: int) -> list[np.ndarray]:
    """Images to quantise with."""
    dice = np.random.default_rng(0)
    return [dice.standard_normal((1, 3, size, size)).astype("float32") for _ in range(2)]


def test_tensors_that_are_read_otherwise_and_slices() -> None:
    """The emulator takes the products and sums that copy a tensor to another zero point."""
    mod = read_otherwise()
    model = compiled("npu", mod, "npu")
    assert set(model.plan.processor_of().values()) == {"npu"}
    x = np.random.default_rng(0).integers(0, 256, (1, 4, 5, 5)).astype("uint8")
    expected = ts.compile(mod, "llvm", cpu_threads=1)(x)
    assert np.abs(model(x).astype(int) - expected.astype(int)).max() <= 2


FUNCTIONS = ("Sigmoid", "Tanh", "HardSwish", "Elu", "LeakyRelu", "Gelu", "Softplus", "Neg", "Exp")


def test_functions_of_one_number() -> None:
    """The HTP computes them as tables, like our CPU does."""
    x = Quantised(np.arange(256, dtype="uint8").reshape(1, 4, 8, 8), 0.05, 128)
    for function in FUNCTIONS:
        network = qdq(function, [x], Quantised(np.zeros(0, "uint8"), 0.05, 100), opset=20)
        model = compiled("npu", network, "npu")
        assert set(model.plan.processor_of().values()) == {"npu"}, function
        expected = ts.compile(network, "llvm", cpu_threads=1)(x.array)
        off = np.abs(model(x.array).astype(int) - expected.astype(int))
        assert off.max() <= 1, function
        assert (off > 0).mean() < 0.1, function


def test_moves_at_the_ends_of_a_region() -> None:
    """A mere rounding or a transpose at a region's end needs an operator, a pad its real number."""
    builder, shape = relax.BlockBuilder(), (1, 8, 12, 12)
    x = relax.Var("x", relax.TensorType(shape, "uint8"))
    with builder.function("main", [x]):
        with builder.dataflow():
            real = relax.op.dequantize(x, relax.const(0.05), relax.const(7, "uint8"))
            pads = [0, 0, 0, 0, 1, 1, 2, 2]
            made = [
                relax.op.nn.max_pool2d(relax.op.nn.pad(real, pads, "constant", 0.35), 3, 2),
                relax.op.permute_dims(relax.op.reshape(real, (1, 8, 144)), [0, 2, 1]),
                relax.op.take(real, relax.const(np.repeat(np.arange(12), 2)), axis=2),
                real,
            ]
            scale, zero = relax.const(0.07), relax.const(3, "uint8")
            ends = [relax.op.quantize(one, scale, zero, out_dtype="uint8") for one in made]
            out = builder.emit_output(relax.Tuple([builder.emit(end) for end in ends]))
        builder.emit_func_output(out)
    model = compiled("npu", builder.get(), "npu")
    assert set(model.plan.processor_of().values()) == {"npu"}
    value = np.random.default_rng(0).integers(0, 256, shape).astype("uint8")
    expected = ts.compile(builder.get(), "llvm", cpu_threads=1)(value)
    for one, other in zip(model(value), expected, strict=True):
        assert np.abs(one.astype(int) - other.astype(int)).max() <= 1
