"""The pages are true: their code runs, and their command lines are those of the command."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.onnx_models import Net

import tvm_stretch as ts
from tvm_stretch.api.cli.arguments import parser
from tvm_stretch.targets.hexagon.code.dsp_code import has_zig
from tvm_stretch.targets.opencl.opencl import local_device

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md", *ROOT.glob("tutorials/*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def command_lines() -> list[str]:
    """Lines of the blocks of pages that call the command."""
    blocks = (
        block
        for page in PAGES
        for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    )
    lines = {line for block in blocks for line in block.splitlines()}
    return sorted(line for line in lines if line.startswith("tvm-stretch "))


@pytest.mark.parametrize("line", command_lines())
def test_a_command_line_has_known_options(line: str) -> None:
    words = shlex.split(line.replace("..", ""), comments=True)[1:]
    assert words
    parser().parse_args(words)


def blocks(page: str, *which: int) -> str:
    found = BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    return "\n".join(found[index] for index in which or range(len(found)))


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """An image beside networks under the names that pages use, in the present folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("net", "resnet50", "resnet18", "detector", "classifier"):
        net = Net()
        x = net.input("x" if name == "net" else "input", (1, 3, 32, 32))
        for _ in range(2):
            x = net.op("Relu", net.conv(x, 16, (3, 3), pads=[1] * 4))
        onnx.save(net.model(net.op("Flatten", net.op("GlobalAveragePool", x))), f"{name}.onnx")
    return np.random.default_rng(0).standard_normal((1, 3, 32, 32), dtype="float32")


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
    return run(blocks("docs/migration.md", 0, 1), image=image)


def from_litert(_image: np.ndarray) -> dict[str, Any]:
    pytest.importorskip("ai_edge_litert")
    tflite_models = pytest.importorskip("helpers.tflite_models")
    net = tflite_models.Builder((1, 8, 8, 3))
    net.conv(4, 3, activation="RELU6")
    Path("net.tflite").write_bytes(net.finish())
    pixels = np.random.default_rng(0).standard_normal((1, 8, 8, 3), dtype="float32")
    return run(blocks("docs/migration.md", 2, 3), pixels=pixels)


def from_executorch(image: np.ndarray) -> dict[str, Any]:
    """ExecuTorch has an environment of its own, as `make setup-phone-peers` makes it."""
    beside = ROOT / ".venv-phone/bin/python"
    python = Path(os.environ.get("TVM_STRETCH_PHONE_PYTHON") or beside)
    if not python.exists():
        pytest.skip("make setup-phone-peers has not installed ExecuTorch")
    pytest.importorskip("torch")
    np.save("image.npy", image)
    there = f"{NETWORK}{blocks('docs/migration.md', 4)}np.save('theirs.npy', theirs.detach())\n"
    subprocess.run([python, "-c", there], check=True, env={**os.environ, "PYTHONPATH": ""})
    names = run(NETWORK + blocks("docs/migration.md", 5))
    return {"theirs": np.load("theirs.npy"), "ours": names["ours"]}


def from_tvm(image: np.ndarray) -> dict[str, Any]:
    return run(blocks("docs/migration.md", 6, 7), image=image)


@pytest.mark.full
@pytest.mark.parametrize("both", [from_onnxruntime, from_litert, from_executorch, from_tvm])
def test_both_engines_have_one_answer(
    both: Callable[[np.ndarray], dict[str, Any]], image: np.ndarray
) -> None:
    names = both(image)
    theirs, ours = np.asarray(names["theirs"]), np.asarray(names["ours"])
    assert theirs.shape == ours.shape and np.abs(theirs).max() > 0
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("page", ["docs/passes.md", "docs/extending.md"])
def test_pages_that_stand_alone(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(blocks(page))


needs_opencl = pytest.mark.skipif(local_device() is None, reason="no OpenCL device")
needs_hexagon = pytest.mark.skipif(
    shutil.which("qemu-hexagon") is None or not has_zig(), reason="needs qemu-hexagon and zig"
)


@pytest.mark.full
@pytest.mark.parametrize(
    ("page", "which"),
    [
        pytest.param("README.md", (), marks=[needs_opencl, needs_hexagon]),
        # the others need a meter of energy, and a network that is faster on both processors
        pytest.param("docs/processors.md", (0, 2), marks=needs_opencl),
        ("docs/stretching.md", (4,)),
    ],
)
def test_pages_about_a_network(page: str, which: tuple[int, ...], image: np.ndarray) -> None:
    """Networks, inputs and images that a reader has are named as the page names them."""
    images = np.concatenate([image] * 4)
    network = onnx.load("net.onnx")
    run(blocks(page, *which), ts=ts, np=np, x=image, images=images, network=network, small=network)


@pytest.mark.full
def test_an_artifact_in_plain_tvm(image: np.ndarray) -> None:
    ts.compile("resnet18.onnx", ["llvm"]).export("resnet18.so")
    names = run(blocks("docs/apps.md", 1), x=image)
    assert names["y"].shape == (1, 16)
