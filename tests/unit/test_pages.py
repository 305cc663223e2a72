"""The pages are true: their code runs, and their command lines are those of the command."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.page_code import PAGES, ROOT, Block, Reader, blocks, words_of
from helpers.page_readers import a_network, prepared

from tvm_stretch.api.cli.arguments import parser
from tvm_stretch.targets.hexagon.code.dsp_code import has_zig
from tvm_stretch.targets.opencl.opencl import local_device

CODE = [block for page in PAGES for block in blocks(page) if block.language]
ELSEWHERE = {
    "docs/install.md": "tests/unit/test_run_only.py",
    "docs/migration.md": "tests/unit/test_pages.py",
    "java/README.md": "tests/unit/test_java.py",
}
"""Pages whose code another test runs."""
QUICK = ("docs/passes.md", "docs/states.md", "docs/streams.md")
"""`make test` runs the code of these pages, too."""


def test_every_block_is_run_or_says_why_not() -> None:
    """Here is the whole list of what no test runs."""
    assert {(block.page, block.untested) for block in CODE if block.untested} == {
        ("docs/install.md", "downloads 656 MB; make release-check runs it"),
        ("docs/language.md", "downloads a model of 135 million weights, to try"),
        ("docs/processors.md", "needs a meter of energy"),
        ("java/README.md", "needs Kotlin"),
        ("java/README.md", "needs Android"),
        ("tvm_stretch/phone/server/README.md", "needs a board"),
        (
            "tvm_stretch/phone/server/README.md",
            "the folders are those of a board, and the server does not end",
        ),
    }
    for page, test in ELSEWHERE.items():
        assert f'"{page}"' in (ROOT / test).read_text(encoding="utf-8")
    drawn = [block for page in PAGES for block in blocks(page) if not block.language]
    commands = re.compile(r"^(tvm-stretch|python|pip|make|cmake|cc|import|from) ", re.MULTILINE)
    assert not [block.place for block in drawn if commands.search(block.code)]


def command_lines() -> list[str]:
    """Lines of the blocks of pages that call the command."""
    lines = {line for block in CODE if block.language == "sh" for line in block.commands()}
    return sorted(line for line in lines if line.startswith("tvm-stretch "))


@pytest.mark.parametrize("line", command_lines())
def test_a_command_line_has_known_options(line: str) -> None:
    words = words_of(line)[1:]
    assert words
    parser().parse_args(words)


def test_what_is_installed_and_made_is_there() -> None:
    """Extras of pip and targets of make, in the lines that no test runs."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    options = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1]
    extras = set(re.findall(r"^(\w+) = \[", options, re.MULTILINE))
    lines = [line for block in CODE if block.language == "sh" for line in block.setup()]
    made = {words_of(line)[1] for line in lines if line.startswith("make ")}
    assert made and made <= targets
    asked = {name for line in lines for name in re.findall(r"tvm-stretch\[(\w+)\]", line)}
    assert asked and asked <= extras


def _lacking(block: Block) -> str | None:
    """What this machine lacks of what a block needs."""
    intel = "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    here = {
        '"opencl"': ("an OpenCL device", local_device() is not None),
        "-t opencl": ("an OpenCL device", local_device() is not None),
        '"hexagon"': ("qemu-hexagon and zig", shutil.which("qemu-hexagon") and has_zig()),
        '"npu"': ("onnxruntime-qnn", find_spec("onnxruntime_qnn")),
        '"openvino"]': (
            "onnxruntime-ep-openvino, Intel",
            find_spec("onnxruntime_ep_openvino") and intel,
        ),
        "convert_pt2e": ("torchao", find_spec("torchao")),
        "cmake ": ("CMake", shutil.which("cmake")),
        "pkg-config": ("pkg-config", shutil.which("pkg-config")),
    }
    return next(
        (what for word, (what, is_here) in here.items() if word in block.code and not is_here), None
    )


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if page in QUICK else [pytest.mark.full])
        for page in dict.fromkeys(block.page for block in CODE)
        if page not in ELSEWHERE
    ],
)
def test_the_code_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks run in their order in one folder; from the first that lacks something, none runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", str(tmp_path / "cache"))
    reader = Reader()
    with prepared(page, reader):
        for block in blocks(page):
            if block.language and not block.untested:
                if lack := _lacking(block):
                    pytest.skip(f"{block.place} needs {lack}")
                reader.runs(block)


def code_of(page: str, *which: int) -> str:
    """Blocks of a page as one program."""
    found = [block.code for block in blocks(page) if block.language == "python"]
    return "\n".join(found[index] for index in which)


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """An image beside networks under the names that pages use, in the present folder."""
    monkeypatch.chdir(tmp_path)
    reader = Reader()
    a_network(reader)
    return np.asarray(reader.names["x"])


def run(code: str, **names: Any) -> dict[str, Any]:
    exec(compile(code, "page", "exec"), names)
    return names


NETWORK = """
import numpy as np, torch
net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
for values in net.parameters():
    values.data = torch.linspace(-1, 1, values.numel()).reshape(values.shape)
tensor = torch.from_numpy(np.load("image.npy"))
"""


def from_onnxruntime(image: np.ndarray) -> dict[str, Any]:
    return run(code_of("docs/migration.md", 0, 1), image=image)


def from_litert(_image: np.ndarray) -> dict[str, Any]:
    pytest.importorskip("ai_edge_litert")
    tflite_models = pytest.importorskip("helpers.tflite_models")
    net = tflite_models.Builder((1, 8, 8, 3))
    net.conv(4, 3, activation="RELU6")
    Path("net.tflite").write_bytes(net.finish())
    pixels = np.random.default_rng(0).standard_normal((1, 8, 8, 3), dtype="float32")
    return run(code_of("docs/migration.md", 2, 3), pixels=pixels)


def from_executorch(image: np.ndarray) -> dict[str, Any]:
    """ExecuTorch has an environment of its own, as `make setup-phone-peers` makes it."""
    beside = ROOT / ".venv-phone/bin/python"
    python = Path(os.environ.get("TVM_STRETCH_PHONE_PYTHON") or beside)
    if not python.exists():
        pytest.skip("make setup-phone-peers has not installed ExecuTorch")
    pytest.importorskip("torch")
    np.save("image.npy", image)
    there = f"{NETWORK}{code_of('docs/migration.md', 4)}np.save('theirs.npy', theirs.detach())\n"
    subprocess.run([python, "-c", there], check=True, env={**os.environ, "PYTHONPATH": ""})
    names = run(NETWORK + code_of("docs/migration.md", 5))
    return {"theirs": np.load("theirs.npy"), "ours": names["ours"]}


def from_tvm(image: np.ndarray) -> dict[str, Any]:
    return run(code_of("docs/migration.md", 6, 7), image=image)


@pytest.mark.full
@pytest.mark.parametrize("both", [from_onnxruntime, from_litert, from_executorch, from_tvm])
def test_both_engines_have_one_answer(
    both: Callable[[np.ndarray], dict[str, Any]], image: np.ndarray
) -> None:
    names = both(image)
    theirs, ours = np.asarray(names["theirs"]), np.asarray(names["ours"])
    assert theirs.shape == ours.shape and np.abs(theirs).max() > 0
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
