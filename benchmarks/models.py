"""Prepares models of benchmarks, and caches converted ones.

```
"resnet18" or "path/to/net.onnx"  →  Model(name, onnx file in the cache, one input, its shape)
onnx file                         →  net.ncnn.param/.bin (pnnx), net.mnn (mnnconvert),
                                     net.pte (executorch), net.tflite (litert_torch)
```
A converted file's name holds the digest of the ONNX file and the converter's version, so that a
changed model or a new converter never meets an old file. Where there is no converter, any version's
file will do: the folder can be carried to a machine that has the engines alone.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnx

Tensors = dict[str, np.ndarray]


@dataclass(frozen=True)
class BenchModel:
    """One network as every engine gets it: a static ONNX file with float32 inputs."""

    name: str
    path: Path
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    digest: str

    def random_inputs(self, seed: int = 0) -> Tensors:
        """Standard normal inputs, the same for the same seed."""
        rng = np.random.default_rng(seed)
        return {n: rng.standard_normal(s, dtype=np.float32) for n, s in self.inputs}


def cache_dir() -> Path:
    """`$TVM_STRETCH_BENCH_CACHE`, or a folder below the user's XDG cache."""
    own = os.environ.get("TVM_STRETCH_BENCH_CACHE")
    xdg = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(own) if own else xdg / "tvm_stretch" / "peers"
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def prepare_model(source: str, size: int) -> BenchModel:
    """Zoo name or ONNX path → a static ONNX file in the cache."""
    import onnx

    path = Path(source)
    if path.suffix == ".onnx":
        proto, name = onnx.load(path), path.stem
    else:
        from tutorials import zoo

        proto, name = zoo.build(source, size=size), source
    _fix_dynamic_dimensions(proto, size)
    data = proto.SerializeToString()
    digest = hashlib.sha256(data).hexdigest()[:16]
    target = cache_dir() / f"{name}-{digest}.onnx"
    if not target.exists():
        _write_atomically(target, data)
    weights = {t.name for t in proto.graph.initializer}
    inputs = tuple(_signature(i) for i in proto.graph.input if i.name not in weights)
    return BenchModel(name, target, inputs, digest)


def _fix_dynamic_dimensions(proto: onnx.ModelProto, size: int) -> None:
    """Open batch dimensions become 1, all other open dimensions become `size`."""
    for value in proto.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value"):
                dim.dim_value = 1 if axis == 0 else size


def _signature(value: onnx.ValueInfoProto) -> tuple[str, tuple[int, ...]]:
    import onnx

    tensor = value.type.tensor_type
    if tensor.elem_type != onnx.TensorProto.FLOAT:
        kind = onnx.TensorProto.DataType.Name(tensor.elem_type)
        raise ValueError(
            f"expected float32 for input {value.name!r}, got {kind}; use another model"
        )
    return value.name, tuple(d.dim_value for d in tensor.shape.dim)


def _write_atomically(target: Path, data: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
        file.write(data)
    Path(file.name).replace(target)


def ncnn_files(model: BenchModel) -> tuple[Path, Path]:
    """The model's `.param` and `.bin`, converted by pnnx with half precision off."""
    shapes = ",".join("[" + ",".join(map(str, shape)) + "]f32" for _, shape in model.inputs)

    def convert(folder: Path) -> list[str]:
        return [_tool("pnnx"), str(folder / "net.onnx"), f"inputshape={shapes}", "fp16=0"]

    param, weights = _convert(model, "pnnx", convert, ("net.ncnn.param", "net.ncnn.bin"))
    return param, weights


def mnn_file(model: BenchModel) -> Path:
    """The model as MNN's own file, float32 weights."""

    def convert(folder: Path) -> list[str]:
        files = ["--modelFile", str(folder / "net.onnx"), "--MNNModel", str(folder / "net.mnn")]
        # The converter's own library: the `mnnconvert` script around it installs packages into
        # whatever environment it finds and reports to its makers.
        call = "import sys, _tools; _tools.mnnconvert(sys.argv)"
        return [sys.executable, "-c", call, "-f", "ONNX", *files, "--bizCode", "bench"]

    return _convert(model, "mnn", convert, ("net.mnn",))[0]


def executorch_file(model: BenchModel) -> Path:
    """The model for ExecuTorch, whatever XNNPACK can do given to it."""
    return _convert(model, "executorch", _phone_converter("executorch", "net.pte"), ("net.pte",))[0]


def litert_file(model: BenchModel) -> Path:
    """The model for LiteRT."""
    convert = _phone_converter("litert", "net.tflite")
    return _convert(model, "litert_torch", convert, ("net.tflite",))[0]


def _phone_converter(engine: str, product: str) -> Callable[[Path], list[str]]:
    script = Path(__file__).with_name("phone_models.py")
    return lambda folder: [sys.executable, "-I", str(script), engine, "net.onnx", product]


def _convert(
    model: BenchModel,
    tool: str,
    command: Callable[[Path], list[str]],
    products: tuple[str, ...],
) -> list[Path]:
    try:
        version = importlib.metadata.version(tool)
    except importlib.metadata.PackageNotFoundError:
        return [_carried(model, tool, Path(p).suffix) for p in products]
    stem = f"{model.path.stem}-{tool}{version}"
    kept = [cache_dir() / f"{stem}{Path(p).suffix}" for p in products]
    if all(path.exists() for path in kept):
        return kept
    with tempfile.TemporaryDirectory(dir=cache_dir()) as name:
        folder = Path(name)
        shutil.copyfile(model.path, folder / "net.onnx")
        done = subprocess.run(command(folder), cwd=folder, capture_output=True, text=True)
        missing = [p for p in products if not (folder / p).exists()]
        if done.returncode or missing:
            tail = (done.stdout + done.stderr)[-800:]
            raise RuntimeError(
                f"{tool} could not convert {model.name} (code {done.returncode}): {tail}"
            )
        for product, path in zip(products, kept, strict=True):
            (folder / product).replace(path)
    return kept


def _carried(model: BenchModel, tool: str, suffix: str) -> Path:
    """A converted model in the cache, made by any version of a converter that is not installed."""
    found = sorted(cache_dir().glob(f"{model.path.stem}-{tool}*{suffix}"))
    if not found:
        raise RuntimeError(
            f"expected {tool}, or a model converted by it in {cache_dir()}, found neither; "
            f"install it, or convert where it is and carry the folder here"
        )
    return found[-1]


def _tool(name: str) -> str:
    """The converter that was installed beside this interpreter, else the one on the PATH."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name
