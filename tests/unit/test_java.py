"""The Java binding: its own test, and its example, on this machine's JVM."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest
from helpers.cpu_targets import TARGET
from helpers.page_code import Reader, blocks
from helpers.relax_helpers import module, random_const
from native.build_native import ENVIRONMENT, ROOT
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.read import load_network
from tvm_stretch.run.autoload import find_file

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK"),
]
SHAPE = (1, 3, 32, 32)


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs a class, after everything was compiled without a warning."""
    folder = tmp_path_factory.mktemp("java")
    where = find_file("include/tvm_stretch.h").parents[1]
    native = ["cmake", "-S", ROOT / "java", "-B", folder, f"-Dtvm_stretch_ROOT={where}"]
    sources = sorted((ROOT / "java/src").rglob("*.java"))
    classes = folder / "classes"
    for command in (
        native,
        ["cmake", "--build", folder],
        ["javac", "--release", "11", "-Xlint:all", "-Werror", "-d", classes, *sources],
    ):
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return ["java", "-Xcheck:jni", f"-Djava.library.path={folder}", "-cp", str(classes)]


def exported(folder: Path, model: ts.Model) -> tuple[list[Path], np.ndarray]:
    """The artifact, an input and its output, as files."""
    x = np.random.default_rng(0).standard_normal(SHAPE).astype("float32")
    files = [folder / name for name in ("model.so", "input", "output")]
    model.export(files[0])
    y = model(x)
    x.tofile(files[1])
    y.tofile(files[2])
    return files, y


def network() -> ts.Model:
    def body(x: relax.Expr) -> relax.Expr:
        x = relax.op.nn.relu(relax.op.nn.conv2d(x, random_const(32, 3, 3, 3), strides=2))
        return relax.op.mean(x, axis=[2, 3])

    return ts.compile(load_network(module(body, SHAPE)), [TARGET], cpu_threads=1)


def lengths(path: Path) -> None:
    """A network that adds 1, for 3 to 5 numbers."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy")
    one = numpy_helper.from_array(np.float32(1), "one")
    graph = helper.make_graph([helper.make_node("Add", ["x", "one"], ["y"])], "g", [x], [y], [one])
    onnx = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    ts.compile(onnx, [TARGET], cpu_threads=1, lengths={"n": ts.Length(3, 5)}).export(path)


def tokens(path: Path) -> None:
    """A decoder whose best next token is the one after the last token, of 20."""
    info = helper.make_tensor_value_info
    rows = numpy_helper.from_array(np.eye(20, k=1, dtype="float32"), "rows")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["rows", "tokens"], ["logits"])],
        "g",
        [info("tokens", TensorProto.INT64, [1, "n"])],
        [info("logits", TensorProto.FLOAT, [1, "n", 20])],
        [rows],
    )
    onnx = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    states = {"tokens": ts.Sample("logits", "n", temperature=0.0)}
    lengths = {"n": [1, 2]}
    ts.compile(onnx, [TARGET], cpu_threads=1, lengths=lengths, states=states).export(path)


def test_the_binding(java: list[str], tmp_path: Path) -> None:
    model = network()
    files, _ = exported(tmp_path, model)
    files += [tmp_path / "kernels.so", tmp_path / "net.data", tmp_path / "lengths.so"]
    model.export(files[3], data=files[4])
    lengths(files[5])
    files.append(tmp_path / "tokens.so")
    tokens(files[6])
    done = subprocess.run(
        [*java, "tvm.stretch.ModelTest", *files], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and "all passed" in done.stdout, done.stdout + done.stderr
    assert "WARNING" not in done.stdout, "what -Xcheck:jni found"


def test_the_example_classifies_pictures(java: list[str], tmp_path: Path) -> None:
    """The class is the one that Python finds for the same pixels."""
    model = network()
    files, _ = exported(tmp_path, model)
    pixels = np.random.default_rng(1).integers(0, 256, (48, 64, 3), dtype="uint8")
    png = tmp_path / "picture.png"
    _write_png(png, pixels)
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    nearest = pixels[np.arange(32) * 48 // 32][:, np.arange(32) * 64 // 32]
    x = ((nearest / 255 - mean) / deviation).transpose(2, 0, 1)[None].astype("float32")
    said = subprocess.check_output(
        [*java, "tvm.stretch.example.ClassifyFiles", files[0], png], text=True, timeout=300
    )
    assert re.search(rf": class {model(x).argmax()}$", said.strip()), said


PROGRAM = """
import java.nio.ByteBuffer; import java.nio.file.Path; import java.util.List;
import tvm.stretch.Model;
class Page {
  static void show(ByteBuffer scores) { System.out.println("scores: " + scores.capacity()); }
  public static void main(String[] words) throws Exception { %s }
}
"""


def test_the_code_of_the_page(
    java: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first block, and its commands for a desktop."""
    monkeypatch.chdir(tmp_path)
    model = network()
    model.export("resnet18.so")
    _write_png(Path("picture.png"), np.zeros((32, 32, 3), "uint8"))
    own, _, commands, _ = blocks("java/README.md")
    Path("Page.java").write_text(PROGRAM % own.code)
    subprocess.run(["javac", "-cp", java[-1], "-d", "classes", "Page.java"], check=True)
    words = [*java[:-1], f"classes:{java[-1]}", "Page"]
    said = subprocess.check_output(words, text=True, timeout=300)
    assert f"scores: {4 * model.outputs[0].shape[1]}" in said
    Path("java").symlink_to(ROOT / "java")
    Reader().runs(commands)


def _write_png(path: Path, pixels: np.ndarray) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        checked = kind + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
