"""What a newcomer meets first: the package's names, what it loads, targets that are misspelt."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tvm
from helpers import relax_helpers
from helpers.cpu_targets import TARGET
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.read import load_network
from tvm_stretch.targets.processors import make_processors


def test_the_package_lists_its_names_and_version() -> None:
    assert set(dir(ts)) == {*ts.__all__, "__version__"}
    assert all(getattr(ts, name) is not None for name in dir(ts))


def test_every_public_name_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "results.md").read_text(encoding="utf-8")
    errors = {name for name in ts.__all__ if name.endswith("Error")}
    for name in (*({*ts.__all__} - errors), *ts.tune.__all__, *ts.results.__all__):
        assert f"{name}`" in page or f"`{name}" in page, name
    for module in (ts.tune, ts.results, ts.stretching):
        assert all(hasattr(module, name) for name in module.__all__)
    assert ts.__version__.count(".") >= 2


def test_imports_wait_for_nothing_that_is_not_needed() -> None:
    """TVM imports PyTorch where it is installed, which takes seconds; the compiler needs none."""
    code = """
import sys, tvm_stretch
assert not {'numpy', 'torch', 'tvm', 'tvm_ffi'} & set(sys.modules), "tvm_stretch"
sys.modules['torch'] = None
import tvm_stretch.api.compiler
assert not {'xgboost', 'scipy', 'onnxslim'} & set(sys.modules), "what only learning needs"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_measuring_without_xgboost_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)  # as where it is not installed
    with pytest.raises(ts.StretchError, match=r"^expected xgboost .*, got none .*; pip install"):
        ts.tune.measure("llvm", budget=1)


@pytest.mark.parametrize("kind", ["nothing", "pipe", "folder"])
@pytest.mark.parametrize("ending", ["onnx", "pt2"])
def test_what_is_no_file_is_told_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, ending: str
) -> None:
    path = tmp_path / f"net.{ending}"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    monkeypatch.setattr(
        "tvm_stretch.api.options.site_of", lambda *_, **__: pytest.fail("it went on")
    )
    said = {"nothing": "no file", "pipe": "a pipe", "folder": "a folder"}[kind]
    with pytest.raises(ts.ModelError, match=f"^expected a file .*, got {said} at {path}; check"):
        ts.compile(path)


@pytest.mark.parametrize(
    ("given", "meant"),
    [("openCL", "opencl"), ("LLVM", "llvm"), ("ocl", ""), ("CPU", "llvm"), ("gpu", "opencl")],
)
def test_misspelt_targets(given: str, meant: str) -> None:
    with pytest.raises(ts.TargetError, match=f"got '{given}'.*{meant}"):
        make_processors([given], 1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mcpu": "no-such-core"}, "a core of x86_64-linux-gnu for mcpu, got 'no-such-core'; look"),
        ({"mcpu": "cortex-a76"}, "add its triple: 'mtriple': 'aarch64-linux-gnu'"),
        ({"mcpu": "haswel"}, "for mcpu, got 'haswel'; write 'haswell'"),
        ({"mattr": ["+avx2", "-avx512"]}, r"for mattr, got '-avx512'; write '-avx512\w+'"),
        ({"mattr": ["avx2"]}, r"\+ or - and a feature of .* got 'avx2'; write .*'\+avx2'"),
    ],
)
def test_cores_and_features_that_do_not_exist(given: dict[str, object], said: str) -> None:
    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", **given}
    with pytest.raises(ts.TargetError, match=said):
        make_processors([target], 1)


def test_features_that_no_core_has_by_itself_are_known() -> None:
    target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+sve2p1", "-sme"]}
    assert make_processors([target], 1)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="cores of x86-64")
@pytest.mark.parametrize("given", [{"mcpu": "x86-64"}, {"mattr": ["-avx"]}])
def test_a_core_needs_no_triple(given: dict[str, object]) -> None:
    network = relax_helpers.module(lambda x: relax.op.nn.relu(x), (1, 3, 8, 8))
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8), "float32")
    model = ts.compile(network, [{"kind": "llvm", **given}], cpu_threads=1)
    np.testing.assert_array_equal(model(x), np.maximum(x, 0))


@pytest.mark.parametrize(
    "given",
    ["cuda", "rocm", {"kind": "cuda"}, '{"kind": "rocm", "mcpu": "gfx900"}', {"kind": "vulkan"}],
)
def test_kinds_of_tvm_that_are_not_ours(given: object, capfd: pytest.CaptureFixture[str]) -> None:
    """TVM would look for their drivers, and warn of what it does not find."""
    with pytest.raises(ts.TargetError, match=r"opencl or openvino, got '.*'; choose one of these"):
        make_processors([given], 1)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ts.compile("x.onnx", target="llvm"), "compile, got target=; did you mean targets"),
        (lambda: ts.compile("x.onnx", threads=2), "got threads=; did you mean cpu_threads="),
        (lambda: ts.compile("x.onnx", zzz=2), "got zzz=; there are source, targets, device,"),
        (
            lambda: ts.plan_for("x.onnx", devices="a"),
            "got devices=; did you mean device=",
        ),
        (lambda: ts.tune.measure(target="llvm"), "measure, got target=; did you mean targets="),
        (lambda: ts.load(file="a.so"), "load, got file=; there are path"),
    ],
)
def test_arguments_that_there_are_not(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ts.InputError, match=f"^expected an argument of .*{said}"):
        call()


@pytest.fixture(scope="module")
def model() -> ts.Model:
    """The function max(x, 0)."""
    return ts.compile(relax_helpers.module(relax.op.nn.relu, (4,)), TARGET, cpu_threads=1)


MISTAKES: dict[str, tuple[Callable[[ts.Model, Path], object], str]] = {
    "no targets": (lambda _m, _p: make_processors(None, 1), "a list of them .* got None"),
    "a device": (lambda _m, _p: make_processors(tvm.cpu(), 1), "a list of them .*'llvm'"),
    "one shape": (lambda _m, _p: load_network(b"", (1, 3)), r"a dictionary .* got \(1, 3\)"),
    "no function": (lambda _m, _p: ts.compile(b"", progress=5), "a function .* got 5"),
    "an artifact": (lambda _m, p: load_network(written(p / "net.so")), "open it with ts.load"),
    "a checkpoint": (lambda _m, p: load_network(written(p / "net.pth")), "torch.export.export"),
    "nothing to load": (lambda _m, _p: ts.load(None), "path of the artifact, got NoneType"),
    "bytes to load": (lambda _m, _p: ts.load(b"\x7fELF"), "path of the artifact, got bytes"),
    "runs as text": (lambda m, _p: m.benchmark("3"), "at least 1 for repeat, got '3'"),
    "half a run": (lambda m, _p: m.profile(1.5), "at least 1 for repeat, got 1.5"),
    "peak as text": (lambda m, p: m.report(p / "a.html", "9"), "for peak_gflops, got '9'"),
    "seconds as text": (lambda _m, _p: ts.tune.measure(budget="9"), "for budget, got '9'"),
    "export nowhere": (lambda m, _p: m.export(None), "path of the artifact, got NoneType"),
    "export to a folder": (lambda m, p: m.export(p), "got the folder"),
    "a trace nowhere": (
        lambda m, p: m.timeline(p / "no" / "t"),
        "write the trace .*no folder for .*no/t; check",
    ),
}


def written(path: Path) -> Path:
    """A file that is no network."""
    path.write_bytes(b"\x7fELF or PK")
    return path


@pytest.mark.parametrize("name", MISTAKES)
def test_what_is_said(name: str, model: ts.Model, tmp_path: Path) -> None:
    mistake, said = MISTAKES[name]
    with pytest.raises(ts.StretchError, match=f"^expected .*{said}"):
        mistake(model, tmp_path)


@pytest.mark.parametrize(("limit", "threads"), [("1", 1), ("", None), ("100000", None)])
def test_tvm_num_threads_is_obeyed(
    limit: str, threads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TVM_NUM_THREADS")
    every = make_processors("llvm", None)[0][0].machine.threads
    monkeypatch.setenv("TVM_NUM_THREADS", limit)
    assert make_processors("llvm", None)[0][0].machine.threads == (threads or every)


@pytest.mark.parametrize("limit", ["0", "many", "-1"])
def test_tvm_num_threads_that_are_none(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", limit)
    with pytest.raises(ts.InputError, match=f"for TVM_NUM_THREADS, got '{limit}'; unset it"):
        make_processors("llvm", None)


@pytest.mark.parametrize("count", [True, 0, 2.0])
def test_cpu_threads_that_are_none(count: object) -> None:
    with pytest.raises(ts.InputError, match=f"for cpu_threads, got {count}; this process"):
        make_processors("llvm", count)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ts.compile(b"x", dump_dir=3),
            "the folder for the phases, got int",
        ),
        (
            lambda: ts.compile(b"x", [{"kind": ["llvm"]}]),
            "expected target engine, hexagon, little-cores, llvm, npu, opencl or openvino, got",
        ),
        (lambda: ts.compile(b"x", cpu_threads=10**6), "from 1 to 1024 for cpu_threads, got"),
        (lambda: ts.tune.measure(cache=3), "the path of the folder for measurements, got int"),
        (lambda: ts.tune.measure(cache="a\0b"), "no path has a null character"),
        (lambda: ts.tune.measure(networks=["x.onnx"]), "networks by their names for networks, got"),
        (lambda: ts.tune.measure(seed=[]), r"a whole number for seed, got \[\]"),
        (
            lambda: ts.tune.probe("x.onnx", "llvm", cache=3),
            "the path of the file of verdicts, got int",
        ),
        (
            lambda: ts.tune.calibrate("t.csv", 3, name="mine"),
            "networks by their names for networks",
        ),
        (lambda: ts.stretch("x.onnx", rules=3), "expected a Rules for rules, got 3"),
        (lambda: ts.load("a\0b"), "no path has a null character"),
        (lambda: ts.Plan(3, 3), "expected a tuple of str for a plan, got 3"),
        (lambda: ts.Plan(("cpu",), 3), "expected a tuple of PlannedRegion for a plan, got 3"),
        (lambda: ts.Plan(("cpu",), ()).write(3), "the path of the plan, got int"),
        (lambda: ts.stretching.Design(()).write(3), "the path of the design, got int"),
        (lambda: ts.Model(None).set_affinity(3), "numbers of cores for cores, got 3"),
        (lambda: ts.Model(None).report(3), "the path of the report, got int"),
    ],
)
def test_arguments_of_other_kinds(call: Callable[[], object], message: str) -> None:
    """They are refused before any work begins."""
    with pytest.raises(ts.StretchError, match=message):
        call()
