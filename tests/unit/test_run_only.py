"""The package that only runs models: `run_only/`, beside copies of the libraries that it ships."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from helpers.cpu_targets import TARGET
from helpers.page_code import blocks
from helpers.relax_helpers import module
from native.build_native import ROOT
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.run.autoload import find_file

SCRIPT = """
import sys, threading
import numpy as np
import tvm_stretch_run as run

def refused(status, text, call):
    try:
        call()
    except run.RunError as error:
        assert error.status == status and text in str(error), (error.status, error)
    else:
        raise AssertionError(text)

artifact, kernels, data, damaged = sys.argv[1:]
x = np.arange(12, dtype="float32").reshape(3, 4)
for model in (run.load(artifact), run.load(kernels, data)):
    assert model.inputs == (run.TensorInfo("x", (3, 4), "float32"),), model.inputs
    assert [info.name for info in model.outputs] == ["sum", "twice"]
    answer = model(x)
    assert (answer.sum == x + 1).all() and (answer.twice == 2 * x).all()
    assert (model(x[:, ::-1]).sum == x[:, ::-1] + 1).all()  # not contiguous
    assert '"ph"' in model.trace(x) and model.statistics()["runs"] == 3
    assert len(model.plans) == 1 and model.lengths == ("n=3", "n=5"), (model.plans, model.lengths)
    model.use_length(1)
    assert model.inputs[0].shape == (5, 4) and model(np.ones((5, 4), "f")).twice.shape == (5, 4)
    refused("invalid", "expected", lambda: model.use_length(-1))
    model.use_size("n", 4)
    assert model.inputs[0].shape == (4, 4) and (model(np.ones((4, 4), "f")).sum == 2).all()
    refused("invalid", "sizes of one", lambda: model.use_size("n", 6))
    model.use_length(0)
    refused("invalid", "expected 1 inputs, got 2", lambda: model(x, x))
    refused("invalid", "input 'x'", lambda: model(x.astype("f8")))
    refused("invalid", "input 'x'", lambda: model([1, 2]))
    refused("invalid", "one length", model.adapt)
    refused("invalid", "one length", lambda: model.use_plan(0))
    model.set_cores(""), model.reset(), model.cancel()
    twin = model.clone()
    work = lambda m: [m(x) for _ in range(50)]
    threads = [threading.Thread(target=work, args=(m,)) for m in (model, twin, twin)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    model.close(), model.close()
    assert (twin(x).sum == x + 1).all()
    refused("invalid", "closed", lambda: model(x))
    refused("invalid", "closed", lambda: model.inputs)
refused("bad artifact", "damaged", lambda: run.load(damaged))
refused("bad artifact", "missing.so", lambda: run.load("missing.so"))
assert not any(name.split(".")[0] in ("tvm", "tvm_ffi", "tvm_stretch") for name in sys.modules)
"""
BESIDE_TVM = """
import sys, types
import tvm_stretch_run as run
sys.modules["tvm_ffi"] = types.ModuleType("tvm_ffi")
try:
    run.load("any.so")
except run.RunError as error:
    assert "use tvm_stretch.load there" in str(error)
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the module path, as the wheel installs it."""
    folder = tmp_path_factory.mktemp("site")
    module = Path(shutil.copytree(ROOT / "run_only/tvm_stretch_run", folder / "tvm_stretch_run"))
    shutil.copy(find_file("lib/libtvm_stretch_runtime.so"), module)
    site = Path(sysconfig.get_path("purelib"))
    for library in ("tvm_ffi/lib/libtvm_ffi.so", "tvm/lib/libtvm_runtime.so"):
        (module / Path(library).name).symlink_to(site / library)
    return folder


def run(package: Path, script: str, *arguments: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_code_of_the_page(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ts.compile(module(relax.op.nn.relu, (1, 4)), [TARGET], cpu_threads=1).export("resnet18.so")
    (code,) = (b.code for b in blocks("docs/install.md") if b.language == "python")
    checked = f"import numpy as np\nx = np.full((1, 4), -1, 'f')\n{code}\nassert (y == 0).all()"
    run(package, checked)


def test_models_run_without_tvm(package: Path, tmp_path: Path) -> None:
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in "xyz"]
    one, two = (numpy_helper.from_array(np.float32(n), str(n)) for n in (1, 2))
    nodes = [
        helper.make_node("Add", ["x", one.name], ["sum"]),
        helper.make_node("Mul", ["x", two.name], ["twice"]),
    ]
    outputs = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in ("sum", "twice")
    ]
    graph = helper.make_graph(nodes, "net", ports[:1], outputs, [one, two])
    net = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = ts.compile(net, [TARGET], cpu_threads=1, lengths={"n": ts.Length(3, 5)})
    artifact, kernels, data = (tmp_path / name for name in ("model.so", "kernels.so", "net.data"))
    model.export(artifact)
    model.export(kernels, data=data)
    damaged = tmp_path / "damaged.so"
    content = bytearray(artifact.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    run(package, SCRIPT, artifact, kernels, data, damaged)


def test_a_process_with_tvm_is_told_what_to_use(package: Path) -> None:
    run(package, BESIDE_TVM)


def test_its_version_is_the_packages() -> None:
    line = next(
        line for line in (ROOT / "pyproject.toml").read_text().splitlines() if "version =" in line
    )
    assert line in (ROOT / "run_only/pyproject.toml").read_text().splitlines()
