"""Regions in a process that runs ONNX Runtime: answers, faults, and what an artifact carries."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.engine_targets import ENGINE, compiled, needs_engine, network, quantised
from helpers.killed import killed_while_it_runs, process_of
from helpers.quantised_networks import IMAGES
from helpers.relax_helpers import module, random_const
from onnx import numpy_helper
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.run.autoload import find_file
from tvm_stretch.targets.engines.code.onnx_operators import onnx_of

pytestmark = needs_engine
X = np.random.default_rng(0).standard_normal((1, 8, 12, 10), dtype="float32")


def test_answers_and_reasons() -> None:
    model, alone = compiled(), ts.compile(network(), "llvm", cpu_threads=1)
    owners = model.plan.processor_of()
    assert owners.pop("sin") == "cpu"
    assert set(owners.values()) == {"engine"}
    assert "sin: no engine's form of it is known" in model.plan.explain()
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal(X.shape, dtype="float32")
        np.testing.assert_allclose(model(x), alone(x), rtol=1e-4, atol=1e-5)
    assert model.health()["engine"]["state"] == "running"


def test_integers_are_exact_in_an_artifact_too(tmp_path: Path) -> None:
    source, x = quantised(), IMAGES[:1]
    model = compiled(source=source)
    expected = ts.compile(source, "llvm", cpu_threads=1)(x)
    np.testing.assert_array_equal(model(x), expected)
    model.export(tmp_path / "net.so")
    assert model.graph.weights_bytes == 0, "the model of the region has them"
    del model
    np.testing.assert_array_equal(ts.load(tmp_path / "net.so")(x), expected)


def test_the_timeline_has_its_regions() -> None:
    timeline = compiled().timeline()
    (usage,) = (usage for usage in timeline.usage if usage.processor == "engine")
    assert usage.kernels > 0


def test_several_results_and_rows_with_gaps() -> None:
    """A region reads rows of a tensor, and two regions read its two results."""

    def body(x: relax.Expr) -> relax.Expr:
        y = relax.op.nn.relu(relax.op.nn.conv2d(x, random_const(16, 8, 1, 1)))
        rows = relax.op.strided_slice(y, [2], [2], [7])
        first = relax.op.nn.conv2d(rows, random_const(16, 16, 3, 3, seed=1))
        second = relax.op.nn.relu(first)
        return relax.op.add(relax.op.exp(first), relax.op.sin(second))

    source = module(body, (1, 8, 12, 10))
    alone = ts.compile(source, "llvm", cpu_threads=1)
    owner = dict.fromkeys(alone.plan.processor_of(), "cpu") | {
        "conv2d1": "engine",
        "relu1": "engine",
    }
    names = list(owner)
    first = names.index("conv2d1")
    cut = (names[:first], ["conv2d1", "relu1"], [n for n in names[first:] if owner[n] == "cpu"])
    regions = tuple(
        PlannedRegion(f"r{n}", owner[part[0]], tuple(part)) for n, part in enumerate(cut)
    )
    plan = Plan(("cpu", "engine"), regions)
    model = ts.compile(source, ["llvm", ENGINE], plan=plan, cpu_threads=1)
    np.testing.assert_allclose(model(X), alone(X), rtol=1e-4, atol=1e-5)


def test_a_killed_engine_costs_one_run() -> None:
    model = compiled()
    expected = model(X)
    future = killed_while_it_runs(model, "engine", X)
    with pytest.raises(ts.DeviceError, match="got an engine that was killed by signal 9"):
        future.result()
    np.testing.assert_array_equal(model(X), expected)
    assert model.health()["engine"]["starts"] == 2


def test_a_hanging_engine_is_given_up() -> None:
    model = compiled({**ENGINE, "deadline_ms": 200})
    expected = model(X)
    os.kill(process_of(model, "engine"), signal.SIGSTOP)
    with pytest.raises(ts.DeviceError, match="got no answer within the deadline"):
        model(X)
    np.testing.assert_array_equal(model(X), expected)


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        (
            {"provider": "NoneSuch", "library": "libnone_such.so"},
            "libnone_such.so for NoneSuch, got none",
        ),
        ({"library": "libc.so.6", "provider": "C"}, "the library libc.so.6 of C, got: "),
        ({"colour": "red"}, "in target engine, got 'colour'"),
        ({"provider": 3}, "expected a word for provider of target engine, got 3"),
        ({"threads": -1}, "expected a whole number from 0 to 1024 for threads"),
        ({"options": {"a": 1}}, "expected a word for a of target engine, got 1"),
        ({"options": "abc"}, "expected texts by name for options of target engine, got 'abc'"),
        ({"options": {"a b": "1"}}, "expected texts by name for options of target engine"),
    ],
)
def test_bad_targets(more: dict[str, object], fault: str) -> None:
    with pytest.raises(ts.TargetError, match=fault):
        ts.compile(network(), [{**ENGINE, **more}])


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_an_older_runtime_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        "static const void* none(unsigned v) { return 0; }"
        'static const char* version(void) { return "1.21.0"; }'
        "static const void* base[] = {none, version};"
        "const void* OrtGetApiBase(void) { return base; }"
    )
    command = ["cc", "-shared", "-fPIC", "-xc", "-", "-o", str(tmp_path / "libonnxruntime.so")]
    subprocess.run(command, input=source, text=True, check=True)
    monkeypatch.setenv("TVM_STRETCH_ENGINE_PATH", str(tmp_path))
    other = {**ENGINE, "spin_us": 51}  # versions are asked once for each engine
    with pytest.raises(ts.TargetError, match=r"1.22 or later for an engine, got 1\.21\.0"):
        ts.compile(network(), [other])


@pytest.mark.parametrize("source", [network, quantised])
def test_a_spare_takes_over(source: Callable[[], object]) -> None:
    """The CPU's kernel of a region is all of its loops in one."""
    plan = Plan(("engine", "cpu"), ())
    model = ts.compile(source(), [ENGINE, "llvm"], plan=plan, spare=True, cpu_threads=1)
    x = X if source is network else IMAGES[:1]
    expected = model(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = killed_while_it_runs(model, "engine", x).result()
    np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-5)
    assert model.health()["engine"]["failures"] == 1


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_library_that_crashes_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends its own process, and not that of the compiler."""
    source = "void abort(void); __attribute__((constructor)) static void end(void) { abort(); }"
    command = ["cc", "-shared", "-fPIC", "-xc", "-", "-o", str(tmp_path / "libcrash.so")]
    subprocess.run(command, input=source, text=True, check=True)
    monkeypatch.setenv("TVM_STRETCH_ENGINE_PATH", str(tmp_path))
    with pytest.raises(ts.TargetError, match="it was killed by signal 6"):
        ts.compile(network(), [{**ENGINE, "provider": "Crash", "library": "libcrash.so"}])


def test_a_library_of_another_architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(find_file("bin/tvm_stretch_engine").read_bytes())
    data[18:20] = (0x103).to_bytes(2, "little")  # the ELF number of a LoongArch
    (tmp_path / "libother.so").write_bytes(data)
    monkeypatch.setenv("TVM_STRETCH_ENGINE_PATH", str(tmp_path))
    other = {**ENGINE, "provider": "Other", "library": "libother.so"}
    with pytest.raises(ts.TargetError, match=r"libother\.so of Other, got: .*libother\.so"):
        ts.compile(network(), [other])


HEAD = b"tvm_stretch.engine 1\nprovider CPUExecutionProvider\n"


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (b"", "got another format"),
        (b"tvm_stretch.engine 2\nend\n", "got another format"),
        (HEAD, "got a part of it"),
        (HEAD + b"colour red\nend\n", "got 'colour red'"),
        (HEAD + b"model x 1 1\nend\n", "got 'model x 1 1'"),
        (HEAD + b"model 9 99 1\nend\n", "got 'model 9 99 1'"),
        (HEAD + b"model 99999999999 1 1\nend\nabc", "got a part of it"),
        (HEAD + b"end\nabc", "got more than it says"),
    ],
)
def test_damaged_code(code: bytes, fault: str, tmp_path: Path) -> None:
    done = checked(code, tmp_path)
    assert done.returncode == 3 and fault in done.stderr.splitlines()[-1]


def test_models_of_which_one_is_damaged(tmp_path: Path) -> None:
    """Each has a verdict."""
    good = onnx_of(module(relax.op.nn.relu, (1, 4))["main"])
    lengths = b"model %d 1 1\nmodel 3 1 1\nmodel %d 1 1\nend\n" % (len(good), len(good))
    done = checked(HEAD + lengths + good + b"abc" + good, tmp_path)
    said = [line for line in done.stdout.splitlines() if line.startswith("verdict")]
    assert said[0] == said[2] == "verdict takes" and done.returncode == 0
    assert said[1].startswith("verdict expected success of a session of CPUExec")


def checked(code: bytes, folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "code"
    path.write_bytes(code)
    command = [str(find_file("bin/tvm_stretch_engine")), "check", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_for_another_machine_it_compiles_and_does_not_run() -> None:
    model = compiled({**ENGINE, "device": "a-phone"})
    with pytest.raises(ts.DeviceError, match=r"no such processor .engine of a-phone is another"):
        model(X)


def pooled(x: relax.Expr) -> relax.Expr:
    return relax.op.nn.max_pool2d(x, [2, 2], [1, 1], dilation=[2, 2])


def twice(x: relax.Expr) -> relax.Expr:
    return relax.op.add(x, x)  # of bytes: ONNX Runtime saturates where TVM wraps around


def clipped(x: relax.Expr) -> relax.Expr:
    return relax.op.concat([x, relax.op.nn.relu(x)], axis=1)


def last_channels(x: relax.Expr) -> relax.Expr:
    return relax.op.nn.max_pool2d(x, [2, 2], [2, 2], layout="NHWC", out_layout="NHWC")


@pytest.mark.parametrize(
    ("body", "dtype"),
    [(pooled, "float32"), (last_channels, "float32"), (twice, "uint8"), (clipped, "int8")],
)
def test_operators_that_onnx_has_otherwise(
    body: Callable[[relax.Expr], relax.Expr], dtype: str
) -> None:
    """They are computed as they are, or elsewhere."""
    source = module(body, (1, 8, 12, 10), dtype=dtype)
    alone = ts.compile(source, "llvm", cpu_threads=1)
    x = (np.abs(X) * 50).astype(dtype) if dtype != "float32" else X
    np.testing.assert_array_equal(compiled(source=source)(x), alone(x))


def test_zero_points_that_contradict() -> None:
    """A tensor that is written with one zero point and read with another stays on the engine."""
    source = quantised()
    made = {node.output[0] for node in source.graph.node if node.op_type == "QuantizeLinear"}
    reads = [n for n in source.graph.node if n.op_type == "DequantizeLinear" and n.input[0] in made]
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in source.graph.initializer}
    other = np.array(values[reads[1].input[2]] // 2 + 7)
    source.graph.initializer.append(numpy_helper.from_array(other, "another_zero"))
    reads[1].input[2] = "another_zero"
    expected = ts.compile(source, "llvm", cpu_threads=1)(IMAGES[:1])
    model = compiled(source=source)
    assert set(model.plan.processor_of().values()) == {"engine"}
    np.testing.assert_array_equal(model(IMAGES[:1]), expected)
