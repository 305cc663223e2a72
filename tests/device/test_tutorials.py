"""The tutorials run; each checks what it shows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from helpers import fresh_process
from helpers.fake_targets import FOLDER

from tvm_stretch.run.native_processor import build_processor
from tvm_stretch.run.testing import SOURCE
from tvm_stretch.targets.hexagon.code.dsp_code import has_zig
from tvm_stretch.targets.opencl.opencl import local_device

ROOT = Path(__file__).resolve().parents[2]


QUICK = """
import tvm, tvm_stretch.targets.cpu.cpu as cpu
import tvm_stretch.plan.search.contest as contest, tvm_stretch.plan.search.choose as decide
describe = cpu.complete_target
cpu.complete_target = lambda target: describe(
    tvm.target.Target({**dict(target.attrs), "kind": "llvm", "opt-level": 0})
)
contest._PATIENCE, contest._TRACED, decide._SURPRISING = 1, 2, 1e9
"""
"""Kernels as LLVM makes them without its optimisations, and plans measured a few times only: what
is shown is not how fast they are, and `unit/test_decide.py` looks at what becomes of surprises."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A new reader's: what one tutorial compiled, another finds.

    The second processor's driver is there already: a C++ compiler takes seconds for it.
    """
    folder = tmp_path_factory.mktemp("cache")
    (folder / "processors").mkdir(mode=0o700)
    shutil.copy(build_processor(SOURCE, FOLDER), folder / "processors")
    return str(folder)


OUTSIDE = f"""
import importlib.util, sys
from pathlib import Path
checkout = Path({str(ROOT)!r})
folders = [checkout / name for name in ("benchmarks", "tests", "tutorials")]
sys.path[:] = [name for name in sys.path if Path(name).resolve() not in (checkout, *folders)]
for name, module in list(sys.modules.items()):  # the forked process has those of other tests
    inside = {{*Path(getattr(module, "__file__", None) or "/").parents}} & {{*folders}}
    if inside or name.partition(".")[0] in ("benchmarks", "helpers", "tests", "tutorials"):
        del sys.modules[name]
for name in ("benchmarks", "helpers", "tests", "tutorials"):
    assert name not in sys.modules, name
    assert importlib.util.find_spec(name) is None, (importlib.util.find_spec(name), sys.path)
"""
"""Only what is installed can be imported: no tests, no benchmarks, nothing of a checkout."""


def _run(cache: str, tutorial: str, *args: object, **environment: str) -> str:
    """What a tutorial prints if its folder is copied away from the checkout."""
    place = Path(cache) / "elsewhere"
    place.mkdir(exist_ok=True)
    shutil.copytree(ROOT / "tutorials", place, dirs_exist_ok=True)
    words = [str(place / tutorial), *map(str, args)]
    code = f"""
import os, runpy, sys
os.chdir({str(place)!r})
sys.argv = {words}
{OUTSIDE}
sys.path.insert(0, {str(place)!r})  # as for `python tutorial.py`
{QUICK}
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    return fresh_process.run(code, TVM_STRETCH_CACHE_DIR=cache, **environment)


def test_from_onnx_to_artifact(cache: str) -> None:
    text = _run(cache, "01_from_onnx_to_artifact.py")
    assert "stock TVM sees a module of kind tvm_stretch.executor" in text


def test_two_processors(cache: str, tmp_path: Path) -> None:
    text = _run(cache, "02_two_processors.py", tmp_path)
    if "expected an OpenCL device" in text:
        pytest.skip("no OpenCL device")
    assert "critical path stem" in text
    for name in ("plan.json", "trace.json", "timeline.svg"):
        assert (tmp_path / name).stat().st_size > 0
    picture = (tmp_path / "timeline.svg").read_text()
    assert picture.count('marker-end="url(#head)"') == 2  # stem -> right, right -> join


def test_two_processors_without_opencl(cache: str) -> None:
    text = _run(cache, "02_two_processors.py", TVM_STRETCH_OPENCL_LIB="/no/such/driver.so")
    assert text.startswith("expected an OpenCL device, got none")


@pytest.mark.full  # more than ten seconds
def test_writing_a_scheduler(cache: str) -> None:
    text = _run(cache, "03_writing_a_scheduler.py")
    assert "refused: expected " in text
    assert "the same numbers as on one processor" in text


@pytest.mark.full  # more than ten seconds
def test_adding_a_processor(cache: str, tmp_path: Path) -> None:
    text = _run(cache, "04_adding_a_processor.py", tmp_path)
    assert "systolic  gate       the NPU has no sigmoid" in text
    assert "got others: stem_conv on systolic: the systolic array takes kernels up to 3x3" in text
    assert "chosen: " in text
    for name in ("plan.json", "trace.json"):
        assert (tmp_path / name).stat().st_size > 0


@pytest.mark.full
def test_calibrating_a_phone(cache: str, tmp_path: Path) -> None:
    text = _run(cache, "05_calibrating_a_phone.py", tmp_path)
    assert "left out: mean" in text and "predicted for my-phone, not measured" in text
    assert "got 'cores' too" in text
    for name in ("phone.csv", "my-phone.toml"):
        assert (tmp_path / name).stat().st_size > 0


@pytest.mark.full
def test_stretching(cache: str) -> None:
    text = _run(cache, "06_stretching.py")
    assert "pruned: segment 1: capacity" in text
    assert "refused: expected a depth from 1 to 2 blocks" in text
    assert "the same numbers as on one processor" in text


@pytest.mark.full
def test_training(cache: str) -> None:
    text = _run(cache, "07_training.py")
    assert "imitating: " in text
    assert "the same numbers as in torch" in text


@pytest.mark.full
def test_integers(cache: str) -> None:
    text = _run(cache, "08_integers.py", "--without-dsp")
    assert "8 of 19 operators are integer operators" in text
    assert "largest difference from ONNX Runtime: 0.0 steps" in text


@pytest.mark.full
@pytest.mark.skipif(shutil.which("qemu-hexagon") is None, reason="needs qemu-hexagon")
@pytest.mark.skipif(not has_zig(), reason="needs ziglang")
@pytest.mark.skipif(local_device() is None, reason="no OpenCL device")
def test_three_processors(cache: str, tmp_path: Path) -> None:
    assert "packets that the DSP executed" in _run(cache, "08_integers.py", tmp_path)
    picture = (tmp_path / "three_processors.svg").read_text()
    for name in ("cpu", "opencl", "hexagon"):
        assert f">{name}</text>" in picture


@pytest.mark.full
def test_a_phone(cache: str) -> None:
    pytest.importorskip("tornado")
    text = _run(cache, "09_a_phone.py")
    assert "pixel-8: " in text and "MB for another plan" in text
    assert "{'pixel-8': 1}" in text


@pytest.mark.full
def test_an_npu(cache: str, tmp_path: Path) -> None:
    text = _run(cache, "10_an_npu.py", tmp_path)
    assert "steps, the same class: True" in text
    assert "nothing was measured here" in text
    assert (tmp_path / "net.so").stat().st_size > 0


@pytest.mark.full  # more than ten seconds
def test_language(cache: str) -> None:
    pytest.importorskip("torch")
    text = _run(cache, "11_language.py")
    assert "all 64 tokens are equal to the reference's" in text


@pytest.mark.full  # more than ten seconds
def test_speech(cache: str) -> None:
    pytest.importorskip("torch")
    text = _run(cache, "12_speech.py")
    assert "all 64 tokens are equal to the reference's" in text
    assert "the first sound again has its tokens again" in text


@pytest.mark.full
def test_the_first_ten_minutes(cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The notebook runs in a kernel of Jupyter, from an empty folder."""
    pytest.importorskip("ipykernel")
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", cache)
    notebook = nbformat.read(ROOT / "tutorials/first_ten_minutes.ipynb", as_version=4)
    nbformat.validate(notebook)
    client = nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": tmp_path}}
    )
    client.execute()  # raises the error of a cell
    written = [
        output.get("text", "")
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    ]
    assert "operators fell back" in "".join(written)
    assert (tmp_path / "net.so").stat().st_size > 0
