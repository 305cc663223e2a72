"""The C interface, from an app in a process without Python (native/app.c)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from helpers.c_app import built_app
from helpers.cpu_targets import TARGET
from helpers.relax_helpers import module, random_const
from native.build_native import ENVIRONMENT, ROOT, built
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.network.operators import Operators
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.splits import RowSplit
from tvm_stretch.read import load_network
from tvm_stretch.run.autoload import find_file
from tvm_stretch.targets.opencl.opencl import local_device

SHAPE = (1, 16, 24, 24)
TASKS = ("mistakes", "ways", "callbacks", "cancels", "threads", "maps")
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")


@pytest.fixture(scope="session")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_app(tmp_path_factory.mktemp("app"))


class Case:
    """An exported model with an input and its output, as files."""

    def __init__(self, folder: Path, model: ts.Model) -> None:
        self.model = model
        self.path = folder / "model.so"
        model.export(self.path)
        x = np.random.default_rng(0).standard_normal(SHAPE).astype("float32")
        self.files = [folder / "input", folder / "output"]
        self.output = model(x)
        for file, value in zip(self.files, (x, self.output), strict=True):
            value.tofile(file)

    def run(self, app: Path, task: str) -> str:
        done = subprocess.run(
            [app, self.path, task, *([] if task in ("describe", "mistakes") else self.files)],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
        return done.stdout


def body(x: relax.Expr) -> relax.Expr:
    for seed in range(3):
        weight = random_const(16, 16, 3, 3, seed=seed)
        x = relax.op.nn.relu(relax.op.nn.conv2d(x, weight, padding=1))
    return x


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A model on the CPU."""
    model = ts.compile(load_network(module(body, SHAPE)), [TARGET], cpu_threads=1)
    return Case(tmp_path_factory.mktemp("alone"), model)


def test_the_description_is_the_models(app: Path, alone: Case) -> None:
    words = [line.split() for line in alone.run(app, "describe").splitlines()]
    shape = [str(size) for size in SHAPE]
    graph = alone.model.graph
    assert words == [
        ["input", graph.inputs[0].name, "float32", str(alone.output.nbytes), *shape],
        ["output", graph.outputs[0].name, "float32", str(alone.output.nbytes), *shape],
        ["plan"],
    ]


@pytest.mark.parametrize("task", TASKS)
def test_an_app(app: Path, alone: Case, task: str) -> None:
    alone.run(app, task)


def test_hardware_buffers_of_android(
    app: Path, alone: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a library in place of Android's: locked, read and written in rows, and released."""
    source = Path(__file__).parents[1] / "native/fake_nativewindow.c"
    library = tmp_path / "libnativewindow.so"
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", library], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert "hardware buffers" in alone.run(app, "maps")


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("program", ["checked_app", "threaded_app"])
def test_an_app_under_sanitizers(alone: Case, task: str, program: str) -> None:
    alone.run(built(program) / program, task)


@pytest.mark.parametrize("task", ["callbacks", "threads"])
def test_an_app_that_got_its_network_as_data(
    app: Path, alone: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    case = Case(tmp_path, alone.model)
    alone.model.export(case.path, data=tmp_path / "net.data")
    monkeypatch.setenv("APP_DATA", str(tmp_path / "net.data"))
    case.run(app, task)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("program", ["checked_app", "threaded_app"])
def test_an_app_with_data_under_sanitizers(
    alone: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    case = Case(tmp_path, alone.model)
    alone.model.export(case.path, data=tmp_path / "net.data")
    monkeypatch.setenv("APP_DATA", str(tmp_path / "net.data"))
    case.run(built(program) / program, "threads")
    case.run(built(program) / program, "mistakes")


def test_an_app_with_lengths_and_states(app: Path, tmp_path: Path) -> None:
    weight = np.random.default_rng(1).standard_normal((16, 16, 3, 3)).astype("float32")
    nodes = [
        helper.make_node("Conv", ["x", "weight"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["c"], ["mean"]),
        helper.make_node("Add", ["sum", "mean"], ["next"]),
        helper.make_node("Add", ["c", "next"], ["y"]),
    ]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in {
            "x": [1, 16, "n", 24],
            "sum": [1, 16, 1, 1],
            "y": [1, 16, "n", 24],
            "next": [1, 16, 1, 1],
        }.items()
    ]
    constants = [numpy_helper.from_array(weight, "weight")]
    graph = helper.make_graph(nodes, "sums", ports[:2], ports[2:], constants)
    network = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    model = ts.compile(
        network, [TARGET], lengths={"n": [24, 48]}, states={"sum": "next"}, cpu_threads=1
    )
    Case(tmp_path, model).run(app, "lengths")


def test_an_app_with_any_length(app: Path, tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 5]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "twice", [x], [y])
    network = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    model = ts.compile(network, [TARGET], lengths={"n": ts.Length(2, 48)}, cpu_threads=1)
    model.export(tmp_path / "net.so")
    command = [app, tmp_path / "net.so", "sizes"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_traces_and_statistics(app: Path, alone: Case) -> None:
    trace, statistics = map(json.loads, alone.run(app, "trace").splitlines())
    kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    (region,) = (event for event in trace["traceEvents"] if event.get("cat") == "region")
    assert len(kernels) == len(alone.model.graph.nodes)
    for event in kernels:
        assert region["ts"] <= event["ts"]
        assert event["ts"] + event["dur"] <= region["ts"] + region["dur"] + 1e-3
    assert statistics["runs"] == 2 and statistics["nanoseconds"] > 0
    assert statistics["lost"] == statistics["replaced"] == "" and statistics["processors"] == []
    assert statistics["bytes"]["weights"] == alone.model.graph.weights_bytes


def test_a_library_that_is_closed_during_a_run(alone: Case) -> None:
    """Kernels and threads stay: the library cannot be unloaded."""
    code = """
import ctypes, sys, threading, _ctypes
ctypes.CDLL(sys.argv[2], ctypes.RTLD_GLOBAL)
library = ctypes.CDLL(sys.argv[1])
model = ctypes.c_void_p()
assert library.tvm_stretch_load(sys.argv[3].encode(), ctypes.byref(model)) == 0
class Buffer(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]
def buffer():
    memory = ctypes.create_string_buffer(int(sys.argv[4]))
    return memory, Buffer(ctypes.addressof(memory), len(memory))
(one, x), (other, y) = buffer(), buffer()
over = threading.Event()
call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
callback = call(lambda user, status, text: over.set())
assert library.tvm_stretch_run_async(
    model, ctypes.byref(x), ctypes.c_size_t(1), ctypes.byref(y), ctypes.c_size_t(1), callback, None
) == 0
_ctypes.dlclose(library._handle)
assert over.wait(60)
"""
    ffi = Path(sysconfig.get_path("purelib"), "tvm_ffi/lib/libtvm_ffi.so")
    library = find_file("lib/libtvm_stretch_runtime.so")
    words = [sys.executable, "-c", code, library, ffi, alone.path, str(alone.output.nbytes)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_the_example_is_built_by_cmake(alone: Case, tmp_path: Path) -> None:
    """With ``find_package``, as docs/apps.md says."""
    source = ROOT / "tutorials/app_in_c"
    where = find_file("include/tvm_stretch.h").parents[1]
    configure = ["cmake", "-S", source, "-B", tmp_path, f"-Dtvm_stretch_ROOT={where}"]
    for command in (configure, ["cmake", "--build", tmp_path]):
        subprocess.run(command, check=True, env=ENVIRONMENT, capture_output=True)
    words = [tmp_path / "classify", alone.path, alone.files[0]]
    first, _, statistics = subprocess.check_output(words, text=True).splitlines()
    assert first.startswith(f"class {alone.output.argmax()}, ")
    assert json.loads(statistics)["runs"] == 2
    done = subprocess.run([words[0], alone.files[0]], capture_output=True, text=True)
    assert done.returncode == 1 and "no shared library" in done.stderr


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="needs pkg-config")
def test_the_example_is_built_by_pkg_config(alone: Case, tmp_path: Path) -> None:
    packages = str(find_file("lib/pkgconfig/tvm_stretch.pc").parent)
    found = subprocess.check_output(
        ["pkg-config", "--cflags", "--libs", "tvm_stretch"],
        env={**ENVIRONMENT, "PKG_CONFIG_PATH": packages},
        text=True,
    )
    source, program = ROOT / "tutorials/app_in_c/main.c", tmp_path / "classify"
    subprocess.run(["gcc", source, *found.split(), "-o", program], check=True)
    assert "class " in subprocess.check_output([program, alone.path], text=True)


def test_the_benchmark_program(alone: Case, tmp_path: Path) -> None:
    def run(*words: object) -> subprocess.CompletedProcess[str]:
        program = find_file("bin/tvm_stretch_bench")
        return subprocess.run([program, *map(str, words)], capture_output=True, text=True)

    trace = tmp_path / "trace.json"
    done = run(alone.path, "--runs", 9, "--operators", "--trace", trace, "--plan", 0)
    lines = [line.split() for line in done.stdout.splitlines() if line]
    assert done.returncode == 0, done.stderr
    numbers = {line[0]: float(line[1]) for line in lines if line[-1] == "ms"}
    assert set(numbers) == {"load", "first", "median", "p90", "p99", "fastest"}
    assert 0 < numbers["fastest"] <= numbers["median"] <= numbers["p90"] <= numbers["p99"]
    (state,) = (line[1] for line in lines if line[0] == "state")
    assert json.loads(state)["runs"] == 1 + 5 + 9
    kernels = [node.name for node in alone.model.graph.nodes]
    table = done.stdout.splitlines()[-1 - len(kernels) : -1]
    assert sorted(line.split("  ")[-1] for line in table) == sorted(kernels)
    assert json.loads(trace.read_text())["traceEvents"]
    for words in ([], ["--runs", "no"], [alone.path, "--plan", "fast"], [alone.path, "--nothing"]):
        done = run(*words)
        assert done.returncode == 2 and "expected " in done.stderr and "--help" in done.stderr
    done = run(alone.files[0])
    assert done.returncode == 1 and "no shared library" in done.stderr


@pytest.mark.skipif(local_device() is None, reason="no OpenCL device")
def test_two_processors_in_an_app(app: Path, tmp_path: Path) -> None:
    mod = load_network(module(body, SHAPE))
    end = [*Operators(mod["main"])][-1].name
    plan = Plan(("cpu", "opencl"), (), splits=(RowSplit("x0", end, (12, 12)),))
    case = Case(tmp_path, ts.compile(mod, [TARGET, "opencl"], plan=plan, cpu_threads=1))
    trace, statistics = map(json.loads, case.run(app, "trace").splitlines())
    tracks = {e["args"]["name"]: e["tid"] for e in trace["traceEvents"] if e["ph"] == "M"}
    assert set(tracks) == {"cpu", "opencl"}
    kernels = {e["tid"] for e in trace["traceEvents"] if e.get("cat") == "kernel"}
    assert kernels == set(tracks.values())
    assert len(statistics["processors"]) == 1 and statistics["lost"] == ""
    for task in ("callbacks", "cancels", "threads"):
        case.run(app, task)
