"""Computing in float16: what becomes of a network, what stays, who may do it, and the answers."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from collections import Counter
from typing import Any

import numpy as np
import pytest
import tvm
from helpers import onnx_models
from helpers.cpu_targets import TARGET
from helpers.quantised_models import qdq_conv
from helpers.relax_helpers import answers, module, random_const
from tvm import relax
from tvm.target import Target

import tvm_stretch as ts
from benchmarks.kernel_code import build, config_of, hot_loops
from tvm_stretch.make.precision import PRECISIONS, processors_in, read_precision
from tvm_stretch.network.operators import Calls, kind_of
from tvm_stretch.passes.canonicalise import Canonicalise
from tvm_stretch.passes.use_half import UseHalf, describe_halves
from tvm_stretch.read import load_network
from tvm_stretch.targets.cpu.cpu import cpu_processor
from tvm_stretch.targets.kernels.layers import ConvShape
from tvm_stretch.targets.opencl import opencl
from tvm_stretch.targets.processor import Arithmetic, Processor

A76 = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"}
HALVES = PRECISIONS[1:]


def emulated() -> Processor:
    """This machine, which has no such instructions: LLVM computes in float32 and rounds."""
    return dataclasses.replace(cpu_processor(TARGET, 1), arithmetic=Arithmetic(half=True))


def halved(mod: tvm.IRModule, wide_sums: bool = False) -> tvm.IRModule:
    return UseHalf(wide_sums)(Canonicalise()(mod))


def types(mod: tvm.IRModule) -> dict[str, str]:
    return {name: str(call.ty.dtype) for name, call in Calls(mod["main"]).calls.items()}


def gated() -> tvm.IRModule:
    weight, bias = random_const(16, 8, 3, 3, seed=1), random_const(1, 16, 1, 1, seed=2)

    def body(x: relax.Expr) -> relax.Expr:
        op = relax.op
        y = op.nn.relu(op.add(op.nn.conv2d(x, weight, padding=1), bias))
        gate = op.sigmoid(op.mean(y, [2, 3], keepdims=True))
        return op.nn.softmax(op.reshape(op.multiply(y, gate), (1, 16 * 36)))

    return module(body, (1, 8, 6, 6))


def test_layers_are_halves_and_the_rest_is_named() -> None:
    mod = halved(gated())
    found = types(mod)
    assert {found[n] for n in ("conv2d", "add", "relu", "multiply", "reshape")} == {"float16"}
    assert {found[n] for n in ("mean", "sigmoid", "softmax")} == {"float32"}
    assert describe_halves(mod["main"]) == (
        "4 operators in float16; in float32: mean, sigmoid, softmax"
    )
    casts = [call for call in Calls(mod["main"]).calls.values() if kind_of(call) == "astype"]
    assert len(casts) == 4, "x, what mean reads, the gate, what softmax reads"
    assert str(mod["main"].ret_ty.dtype) == str(mod["main"].params[0].ty.dtype) == "float32"


@pytest.mark.parametrize("wide_sums", [False, True])
def test_the_numbers_are_those_of_the_network(wide_sums: bool) -> None:
    mod, x = gated(), np.random.default_rng(0).uniform(-0.2, 0.2, (1, 8, 6, 6)).astype("float32")
    (want,), (got,) = (answers(m, x) for m in (Canonicalise()(mod), halved(mod, wide_sums)))
    np.testing.assert_allclose(got, want, rtol=2e-2, atol=1e-5)


def test_wide_sums_are_rounded_once() -> None:
    mod = halved(gated(), wide_sums=True)
    calls = Calls(mod["main"]).calls
    sums = [call for call in calls.values() if kind_of(call) == "nn.conv2d"]
    assert [str(call.ty.dtype) for call in sums] == ["float32"]
    assert str(sums[0].args[0].ty.dtype) == "float16"


def test_what_has_no_room_stays() -> None:
    """Numbers beyond 65504, products of computed matrices, integers and what only moves them."""

    def body(x: relax.Expr, i: relax.Expr) -> relax.Expr:
        op = relax.op
        y = op.add(op.multiply(x, relax.const(np.float32(1e5))), op.matmul(x, x))
        return op.astype(op.add(i, op.astype(y, "int32")), "float32")

    bb = relax.BlockBuilder()
    x, i = (
        relax.Var(n, relax.TensorType((4, 4), t)) for n, t in (("x", "float32"), ("i", "int32"))
    )
    with bb.function("main", [x, i]):
        with bb.dataflow():
            out = bb.emit_output(bb.normalize(body(x, i)))
        bb.emit_func_output(out)
    mod = halved(bb.get())
    assert Counter(types(mod).values())["int32"] == 2
    assert types(mod)["multiply"] == types(mod)["matmul"] == "float32"


@pytest.mark.parametrize("scale", [1e-4, 1.0, 300.0])
def test_normalising_keeps_its_range(scale: float) -> None:
    """Squares do not become infinite, and its epsilon not zero."""

    def body(x: relax.Expr) -> relax.Expr:
        op = relax.op
        centred = op.subtract(x, op.mean(x, [1], keepdims=True))
        variance = op.mean(op.multiply(centred, centred), [1], keepdims=True)
        return op.divide(centred, op.sqrt(op.add(variance, relax.const(np.float32(1e-12)))))

    mod = module(body, (2, 64))
    x = np.random.default_rng(0).standard_normal((2, 64)).astype("float32") * np.float32(scale)
    x[0] = scale  # its variance is 0
    (want,), (got,) = (answers(m, x) for m in (Canonicalise()(mod), halved(mod)))
    np.testing.assert_allclose(got, want, atol=1e-2)


@pytest.mark.parametrize(("bound", "dtype"), [(3.4e38, "float32"), (np.inf, "float16")])
def test_bounds_that_it_does_not_have_stay(bound: float, dtype: str) -> None:
    """As of a clip without an upper one, which exporters write as float32's greatest number."""

    def body(x: relax.Expr) -> relax.Expr:
        return relax.op.nn.pad(relax.op.clip(x, 1, bound), [0, 0, 1, 1], pad_value=-1e30)

    mod, x = module(body, (2, 4)), np.ones((2, 4), "float32")
    (want,), (got,) = (answers(m, x) for m in (Canonicalise()(mod), halved(mod)))
    np.testing.assert_array_equal(got, want)
    assert types(halved(mod))["clip"] == dtype


@pytest.mark.parametrize("precision", [HALVES[0], pytest.param(HALVES[1], marks=pytest.mark.full)])
def test_every_template(precision: str) -> None:
    source = onnx_models.every_template()
    x = np.random.default_rng(1).standard_normal((1, 3, 19, 19)).astype("float32")
    model = ts.compile(source, emulated(), cpu_threads=1, precision=precision, debug=True)
    want = ts.compile(source, TARGET, cpu_threads=1)(x)
    got = model(x)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, atol=(5e-3 if precision == "float16" else 2e-3) * 4)
    made = Counter(str(model.graph.tensors[n.outputs[0]].dtype) for n in model.graph.nodes)
    assert made["float16"] >= 2 * made["float32"]
    assert "22 operators in float16; in float32: mean, sigmoid, mean1" in model.plan.explain()


def test_a_core_that_has_it_is_asked_for() -> None:
    """An artifact says so: elsewhere it is refused when it is loaded."""
    net = module(lambda x: relax.op.nn.conv2d(x, random_const(8, 8, 1, 1)), (1, 8, 6, 6))
    model = ts.compile(net, A76, cpu_threads=1, precision="float16")
    assert "fullfp16" in model.graph.cpu_features


@pytest.mark.parametrize("precision", [HALVES[0], pytest.param(HALVES[1], marks=pytest.mark.full)])
def test_gpus_that_have_it(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of halves, sums as asked for; clang finds no fault with the text where there is one."""
    texts: list[str] = []
    made = opencl.compile_opencl

    def compiled(*args: Any, **options: Any) -> str:
        code = made(*args, **options)
        texts.extend(json.loads(code)["sources"])
        return code

    monkeypatch.setattr(opencl, "compile_opencl", compiled)
    net, target = onnx_models.every_template(), {"kind": "opencl", "device": "adreno"}
    ts.compile(net, target, cpu_threads=1, precision=precision)
    (text,) = texts
    sums = {"float16": "half", "float16+float32": "float"}[precision]
    assert set(re.findall(r"^ +(half|float)\d+ acc\d*_ptr", text, re.MULTILINE)) == {sums}
    if clang := shutil.which("clang") or shutil.which("clang-15"):
        options = ["-x", "cl", "-cl-std=CL1.2", "-Xclang", "-finclude-default-header"]
        command = [clang, *options, "-target", "spir64", "-fsyntax-only", "-"]
        done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("shape", [(1, 1), (3, 3)])
def test_loops_multiply_eight_halves_without_spills(shape: tuple[int, int]) -> None:
    processor = cpu_processor(Target(A76), 1)
    (processor,), _ = processors_in("float16", [processor], [processor])
    pad = (shape[0] // 2,) * 4
    layer = ConvShape(1, 64, (14, 14), 64, shape, padding=pad)
    config = config_of(layer, processor.machine)
    text = str(build(config, processor.machine, A76).inspect_source("asm"))
    loops = hot_loops(text)
    assert "fmla\tv" in text and ".8h" in text
    assert loops and all(loop.spills == loop.stores == 0 for loop in loops)
    assert all(loop.share > 0.6 for loop in loops)


@pytest.mark.parametrize(
    ("target", "precision", "error"),
    [
        (TARGET, "float16", "expected processors that compute in float16 .* got cpu"),
        ({**A76, "mcpu": "cortex-a53"}, "float16", "fullfp16, such as cortex-a76"),
        ({"kind": "opencl", "device": "adreno"}, "int8", "expected one of 'float32', 'float16'"),
    ],
)
def test_who_does_not_have_it(target: object, precision: str, error: str) -> None:
    with pytest.raises(ts.StretchError, match=error):
        ts.compile(gated(), target, cpu_threads=1, precision=precision)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("fp16", "float16"),
        ("half", "float16"),
        ("F16", "float16"),
        ("fp32", "float32"),
        ("half+float", "float16+float32"),
        ("float16+float32", "float16+float32"),
    ],
)
def test_other_names_of_precisions(given: str, meant: str) -> None:
    assert read_precision(given) == meant


@pytest.mark.parametrize("given", [None, 16, "float16+float16", "int8", ""])
def test_what_is_no_precision(given: object) -> None:
    with pytest.raises(ts.InputError, match=r"expected one of .* for precision, got"):
        read_precision(given)  # type: ignore[arg-type]


def test_float32_beside_float16_stays() -> None:
    """What was not halved may be too large for it."""

    def body(x: relax.Var) -> relax.Expr:
        square = relax.op.multiply(x, x)
        return relax.op.concat([relax.op.nn.relu(x), square], axis=1)

    mod = module(body, (1, 2))
    x = np.array([[400.0, 2.0]], "float32")
    np.testing.assert_array_equal(answers(halved(mod), x)[0], [[400, 2, 160000, 4]])


def test_networks_of_integers_and_phones_that_are_not_here() -> None:
    with pytest.raises(ts.TargetError, match="faster in float16 than in integers"):
        ts.compile(qdq_conv(8, 8, 1, 5)[0], emulated(), cpu_threads=1, precision="float16")
    with pytest.raises(ts.InputError, match="no precision for a device that is not here"):
        ts.compile(gated(), device="snapdragon-855", precision="float16")


def test_a_network_with_several_results() -> None:
    """As the ONNX importer makes them; each is converted to its own type."""
    net = onnx_models.Net(seed=3)
    x = net.input("x", (1, 8, 6, 6))
    y = net.op("Conv", x, net.weight((8, 8, 3, 3)), pads=[1] * 4)
    mod = load_network(net.model(y, net.op("Relu", y)))
    value = np.random.default_rng(0).standard_normal((1, 8, 6, 6)).astype("float32")
    got, want = answers(halved(mod), value), answers(mod, value)
    assert [one.dtype for one in got] == ["float32", "float32"]
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=5e-3, atol=0.02)
        assert not np.array_equal(one, other), "computed in float16"
