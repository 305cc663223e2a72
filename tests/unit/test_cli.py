"""The command: what it prints, where, and how it ends."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from helpers.cpu_targets import QUICK
from helpers.onnx_models import Net

import tvm_stretch as ts
from tvm_stretch.api.cli import main
from tvm_stretch.plan.cost.verdicts import Verdicts

TARGET = ["--target", json.dumps(QUICK), "--threads", "1"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a network, its artifact and an input."""
    folder = tmp_path_factory.mktemp("cli")
    net = Net()
    x = net.input("x", (1, 4, 8, 8))
    onnx.save(net.model(net.op("Relu", net.conv(x, 4, (3, 3)))), str(folder / "net.onnx"))
    np.save(folder / "x.npy", np.ones((1, 4, 8, 8), "float32"))
    artifact = str(folder / "net.so")
    assert main(["compile", str(folder / "net.onnx"), "-o", artifact, "--json", *TARGET]) == 0
    return folder


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


def test_what_is_compiled_runs(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = files / "answer.npz"
    given = ["--input", f"x={files / 'x.npy'}", "--output", str(answer)]
    text = said(capsys, "run", str(files / "net.so"), *given)
    assert "float32[1, 4, 6, 6]" in text
    model = ts.load(files / "net.so")
    expected = model(np.ones((1, 4, 8, 8), "float32"))
    np.testing.assert_array_equal(np.load(answer)[model.outputs[0].name], expected)
    text = said(capsys, "run", str(files / "net.so"), "--json", "-i", str(files / "x.npy"))
    listed = json.loads(text)
    np.testing.assert_allclose(listed[model.outputs[0].name], expected, rtol=1e-6)


def test_a_network_is_compiled_first(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "explain", str(files / "net.onnx"), *TARGET)
    assert "fell back" in text
    assert json.loads(said(capsys, "explain", str(files / "net.so"), "--json"))["regions"]


def test_a_fast_compile_searches_nothing(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    efforts: list[object] = []
    own = ts.compile

    def compiled(*given: object, **options: object) -> ts.Model:
        efforts.append(options.get("effort"))
        return own(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(ts, "compile", compiled, raising=False)
    artifact = str(files / "fast.so")
    said(capsys, "compile", str(files / "net.onnx"), "-o", artifact, "--fast", *TARGET)
    said(capsys, "compile", str(files / "net.onnx"), "-o", artifact, *TARGET)
    assert efforts == ["low", None]
    assert main(["run", artifact, "--fast"]) == 1
    assert "for the artifact" in capsys.readouterr().err


def test_a_compile_says_why_it_has_its_plan(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = ["-t", json.dumps({"kind": "opencl", "device": "adreno"})]
    given = ["compile", str(files / "net.onnx"), "-o", str(files / "both.so"), *TARGET, *absent]
    text = said(capsys, *given)
    reason = ts.load(files / "both.so").plan.reason
    assert reason and text.endswith(f"\nplan: {reason}\n")


def test_precision_for_a_core_that_is_not_here(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    core = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76", "opt-level": 0}
    options = ["--target", json.dumps(core), "--precision", "float16"]
    assert "3 operators in float16" in said(capsys, "explain", str(files / "net.onnx"), *options)


def test_times_and_timelines(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifact = str(files / "net.so")
    bench = said(capsys, "bench", artifact, "--repeat", "3", "--json", "--kernels")
    assert len(json.loads(bench)["samples_ms"]) == 3
    assert json.loads(bench)["kernels"]
    assert json.loads(bench)["p99_ms"] >= json.loads(bench)["p90_ms"] > 0
    assert json.loads(bench)["first_ms"] > 0 and json.loads(bench)["memory_most_mib"] > 1
    lines = said(capsys, "bench", artifact, "--repeat", "3").splitlines()
    names = ["start", "load", "first", "median", "p25", "p75", "p90", "p99", "fastest", "memory"]
    assert [line.split()[0] for line in lines] == names  # start: of Python alone
    trace = files / "trace.json"
    text = said(capsys, "timeline", artifact, "-o", str(trace))
    assert "critical path" in text
    assert json.loads(trace.read_text())["traceEvents"]
    page = files / "page.html"
    assert str(page) in said(capsys, "report", artifact, "-o", str(page))
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_processors_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(said(capsys, "devices", "--json"))["llvm"]["threads"] >= 1
    assert any(line.startswith("llvm ") for line in said(capsys, "devices").splitlines())


def test_the_version_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code in (0, None)
    assert capsys.readouterr() == (f"tvm-stretch {version('tvm_stretch')}\n", "")


@pytest.mark.parametrize("text", ["=x.npy", "x=", ""])
def test_an_input_without_a_name_or_a_file(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "net.so", f"--input={text}"])
    assert f"expected x.npy or INPUT=x.npy, got '{text}'" in capsys.readouterr().err


def test_measure_and_probe_get_their_options(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[object] = []

    def measure(targets: object, **options: object) -> dict[str, object]:
        asked.append((targets, options["budget"], options["resume"]))
        return {"cpu": SimpleNamespace(families={"conv": None})}

    def probe(*where: object, **_options: object) -> Verdicts:
        asked.append(where)
        return Verdicts({}, {"nn.relu": "", "nn.conv2d": "compile: no"})

    monkeypatch.setattr(ts.tune, "measure", measure)
    monkeypatch.setattr(ts.tune, "probe", probe)
    measured = said(capsys, "measure", "-t", "llvm", "-t", '{"kind": "opencl"}', "--budget", "9")
    assert measured == "cpu: learned conv\n"
    network = str(files / "net.onnx")
    assert said(capsys, "probe", network, "-t", "opencl").splitlines() == [
        "2 kinds of operators tried: 1 refused",
        "nn.conv2d: compile: no",
    ]
    assert asked == [(["llvm", {"kind": "opencl"}], 9.0, True), (network, "opencl")]


def test_limits_are_those_of_compile(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compiled(*_network: object, **options: object) -> None:
        asked = {"max_share": {"opencl": 0.7, "cpu": 1.0}, "share_parts": 8, "scheduler": "heft"}
        assert {name: options[name] for name in asked} == asked
        raise ts.PlanError("expected nothing else, got this; done")

    monkeypatch.setattr(ts, "compile", compiled, raising=False)
    limits = ["--max-share", "opencl=0.7", "--max-share", "cpu=1", "--share-parts", "8"]
    limits += ["--scheduler", "heft"]
    assert main(["explain", str(files / "net.onnx"), *limits]) == 1
    assert capsys.readouterr().err == "tvm-stretch: expected nothing else, got this; done\n"


def test_errors_are_one_line(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "damaged.npz").write_bytes(b"PK\x03\x04")
    for wrong in (
        ["run", str(files / "absent.so")],
        ["run", str(files / "net.so")],
        ["run", str(files / "net.so"), "-i", str(files / "net.onnx")],
        ["run", str(files / "net.so"), "-i", str(files / "x.npy"), "-o", "/no/such/folder/y"],
        ["timeline", str(files / "net.so"), "-o", "/no/such/folder/y"],
        ["compile", str(files / "absent.onnx"), "-o", "/dev/null"],
        ["bench", str(files / "net.so"), "--plan", "plan.json"],
        ["explain", str(files / "net.so"), "-t", "opencl", "--threads", "2"],
        ["run", str(files / "net.so"), "--precision", "float16", "--spare"],
        ["run", str(files / "net.so"), "--device", "snapdragon-855"],
        ["compare", str(files / "net.onnx"), "--device", "snapdragon-855"],
        ["quantize", str(files / "net.onnx"), "--images", "/no/images.npy", "-o", "/dev/null"],
        ["explain", str(files / "net.onnx"), "-t", "openCL"],
        ["plan", str(files / "net.onnx"), *TARGET[:2], "--scheduler", "greedy"],
        ["explain", str(files / "net.so"), "--scheduler", "hope"],
        ["explain", str(files / "net.onnx"), "--shape", f"x={'9' * 30}"],
        ["explain", str(files / "net.onnx"), "--max-share", "opencl=70", *TARGET],
        ["run", str(files / "net.so"), "-i", str(files / "damaged.npz")],
        ["measure", "--budget", "0"],
        ["explain", str(files / "net.onnx"), "--shape", "x=1", "--shape", "x=2"],
        ["run", str(files / "net.so"), "-i", f"x={files}/x.npy", "-i", f"x={files}/x.npy"],
    ):
        assert main(wrong) == 1, wrong
        out, err = capsys.readouterr()
        assert out == "", wrong
        assert err.startswith("tvm-stretch: expected "), (wrong, err)
        assert err.count("\n") == 1, wrong


@pytest.mark.parametrize("place", ["/no/such/folder/y", "."])
@pytest.mark.parametrize("command", ["compile", "run", "timeline", "report"])
def test_no_work_for_what_cannot_be_written(
    command: str, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ts, "compile", pytest.fail, raising=False)
    assert main([command, "net.onnx", "-o", place]) == 1
    assert "expected a file in an existing folder for --output" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        ["fly"],
        ["compile", "net.onnx"],
        ["compile", "net.onnx", "-o", "net.so", "--shape", "x=1;2"],
        ["compile", "net.onnx", "-o", "net.so", "--length", "n=many"],
        ["compile", "net.onnx", "-o", "net.so", "--length", "n=1.."],
        ["explain", "net.onnx", "--target", "{kind"],
        ["explain", "net.onnx", "--max-share", "opencl=most"],
        ["explain", "net.onnx", "--target", '{"a":' * 100_000],
        ["bench", "net.so", "--repeat", "0"],
    ],
)
def test_wrong_usage(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(wrong)
    assert ended.value.code == 2
    assert "usage: tvm-stretch" in capsys.readouterr().err


def test_completion(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert "pip install 'tvm-stretch[completion]'" in capsys.readouterr().err
    monkeypatch.undo()
    pytest.importorskip("shtab")
    script = said(capsys, "completion", "bash")
    assert "_pos_0_choices=(compile run " in script and "compile__o_COMPGEN" in script


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("tvm-stretch co", "compile compare completion"),
        ("tvm-stretch compile --ta", "--target"),
        ("tvm-stretch compile ne", "network.onnx"),
        ("tvm-stretch completion z", "zsh"),
    ],
)
def test_bash_completes(
    typed: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the Tab key calls, with the words so far."""
    pytest.importorskip("shtab")
    (tmp_path / "network.onnx").touch()
    words = f"COMP_WORDS=({typed}); COMP_CWORD={len(typed.split()) - 1}"
    code = (
        f"{said(capsys, 'completion', 'bash')}\n{words}\n_shtab_tvm_stretch\necho ${{COMPREPLY[@]}}"
    )
    done = subprocess.run(["bash", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == expected.split(), done.stderr


def test_an_artifact_is_compiled_already(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(files / "net.so"), "-t", "llvm", "--threads", "1"]) == 1
    error = capsys.readouterr().err
    assert "got --target, --threads; give the network instead" in error


def test_help_imports_neither_tvm_nor_numpy() -> None:
    """TVM takes three seconds; a process of its own, because this one has it already."""
    code = (
        "import sys, time; from tvm_stretch.api.cli import main\n"
        "try: main(['compile', '--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'tvm', 'numpy', 'tvm_ffi'} & set(sys.modules)\n"
        "assert main(['compile', 'absent.onnx', '-o', '/dev/null']) == 1\n"
        "assert 'tvm' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage: tvm-stretch compile" in done.stdout


def test_predictions_and_quantised_networks(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network, plan = str(files / "net.onnx"), files / "plan.json"
    text = said(capsys, "plan", network, "--device", "snapdragon-855", "-o", str(plan))
    assert "predicted for snapdragon-855" in text and ts.Plan.read(plan).regions
    images, quantised = files / "images.npy", files / "int8.onnx"
    np.save(images, np.random.default_rng(0).standard_normal((3, 4, 8, 8)).astype("float32"))
    assert str(quantised) in said(
        capsys, "quantize", network, "--images", str(images), "-o", str(quantised)
    )
    assert "integer operators" in said(capsys, "explain", str(quantised), *TARGET)


def test_calibrate_stretch_and_compare_get_their_options(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    network, asked = str(files / "net.onnx"), {}

    def noted(name: str, result: object) -> Callable[..., object]:
        def call(*given: object, **options: object) -> object:
            asked[name] = (given, options)
            return result

        return call

    written: list[object] = []
    best = SimpleNamespace(design=SimpleNamespace(write=written.append))
    found = SimpleNamespace(best=best, candidates=[])
    table = SimpleNamespace(devices=("a", "b"), seconds={}, best="a", plan=best.design)
    monkeypatch.setattr(
        ts.tune,
        "calibrate",
        noted("calibrate", SimpleNamespace(write=written.append)),
        raising=False,
    )
    monkeypatch.setattr(ts, "stretch", noted("stretch", found), raising=False)
    monkeypatch.setattr(ts, "connect", lambda tracker, key: f"{key} of {tracker}", raising=False)
    monkeypatch.setattr(ts.tune, "compare_plans", noted("compare", table), raising=False)
    out = ["-o", str(files / "out")]
    said(capsys, "calibrate", "t.csv", "--network", f"R-50={network}", "--name", "mine", *out)
    said(capsys, "stretch", network, "-t", "llvm", "-t", "opencl", *out)
    phones = ["--device", "h:1/pixel-8", "--device", "h:1/mi-9"]
    said(capsys, "compare", network, *phones, *out)
    assert asked["calibrate"] == (
        ("t.csv", {"R-50": network}),
        {"name": "mine", "like": "snapdragon-855"},
    )
    assert asked["stretch"][0] == (network, ["llvm", "opencl"])
    assert asked["compare"][0] == (network, ["pixel-8 of h:1", "mi-9 of h:1"], None)
    assert written == [str(files / "out")] * 3
