"""Models of benchmarks, and files of other engines that are converted from them and cached.

```
"resnet18" or "path/to/net.onnx"  →  Model(ONNX, inputs, name), a file in the cache when asked for
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnx
    import onnxruntime
    from torch.export import ExportedProgram

Tensors = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Model:
    """A network as ONNX, its inputs, and its program if torch made it."""

    onnx: bytes
    inputs: Tensors
    program: ExportedProgram | None = None
    name: str = "net"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the inputs, because files of packages leave dimensions open."""
        return {name: value.shape for name, value in self.inputs.items()}

    @cached_property
    def path(self) -> Path:
        """The network as a file in the cache."""
        digest = hashlib.sha256(self.onnx).hexdigest()[:16]
        path = cache_dir() / f"{self.name}-{digest}.onnx"
        if not path.exists():
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                file.write(self.onnx)
            Path(file.name).replace(path)
        return path

    @cached_property
    def expected(self) -> list[np.ndarray]:
        """ONNX Runtime's answer with exact sums of integers."""
        return self.session(exact=True).run(None, dict(self.inputs))

    def session(self, exact: bool = False, threads: int = 1) -> onnxruntime.InferenceSession:
        """ONNX Runtime, and all but its threads as it comes.

        Without VNNI its fast kernels let sums of 8-bit products saturate; ``exact`` ones do not.
        """
        import onnxruntime

        options = onnxruntime.SessionOptions()
        if exact:
            options.add_session_config_entry("session.x64quantprecision", "1")
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        return onnxruntime.InferenceSession(self.onnx, options, ["CPUExecutionProvider"])


def model_of(source: onnx.ModelProto | str, size: int | None = None, batch: int = 1) -> Model:
    """A network, one of the zoo by name, or an ONNX file; inputs are standard normal.

    Open batch dimensions become `batch`, all other open dimensions become `size`.
    """
    import onnx

    name = Path(source).stem if isinstance(source, str) else source.graph.name or "net"
    if not isinstance(source, str):
        proto = source
    elif source.endswith(".onnx"):
        proto = onnx.load(source)
    else:
        from tutorials import zoo

        proto = zoo.build(source, size=size, batch=batch)
    weights, rng = {t.name for t in proto.graph.initializer}, np.random.default_rng(0)
    inputs = {}
    for port in proto.graph.input:
        if port.name in weights:
            continue
        tensor = port.type.tensor_type
        if tensor.elem_type != onnx.TensorProto.FLOAT:
            kind = onnx.TensorProto.DataType.Name(tensor.elem_type)
            raise ValueError(
                f"expected float32 for input {port.name!r}, got {kind}; use another model"
            )
        for axis, dim in enumerate(tensor.shape.dim):
            if not dim.HasField("dim_value"):
                dim.dim_value = size or 1 if axis else batch
        shape = [dim.dim_value for dim in tensor.shape.dim]
        inputs[port.name] = rng.standard_normal(shape, "float32")
    return Model(proto.SerializeToString(), inputs, name=name)


def cache_dir() -> Path:
    """`$TVM_STRETCH_BENCH_CACHE`, or a folder below the user's XDG cache."""
    own = os.environ.get("TVM_STRETCH_BENCH_CACHE")
    xdg = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(own) if own else xdg / "tvm_stretch" / "peers"
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def _to_ncnn(model: Model, folder: Path) -> list[str]:
    """By pnnx, with half precision off."""
    shapes = ",".join("[" + ",".join(map(str, shape)) + "]f32" for shape in model.shapes.values())
    return [_tool("pnnx"), str(folder / "net.onnx"), f"inputshape={shapes}", "fp16=0"]


def _to_mnn(_model: Model, folder: Path) -> list[str]:
    """With float32 weights, by the converter's own library.

    The `mnnconvert` script around it installs packages into whatever environment it finds and
    reports to its makers.
    """
    call = "import sys, _tools; _tools.mnnconvert(sys.argv)"
    files = ["--modelFile", str(folder / "net.onnx"), "--MNNModel", str(folder / "net.mnn")]
    return [sys.executable, "-c", call, "-f", "ONNX", *files, "--bizCode", "bench"]


def _by_script(engine: str, product: str) -> Callable[[Model, Path], list[str]]:
    """By the other environment's converter; ExecuTorch gives XNNPACK all that it can do."""
    script = str(Path(__file__).with_name("phone_models.py"))
    return lambda _model, _folder: [sys.executable, "-I", script, engine, "net.onnx", product]


CONVERTERS: Mapping[str, tuple[str, Callable[[Model, Path], list[str]], tuple[str, ...]]] = {
    "ncnn": ("pnnx", _to_ncnn, ("net.ncnn.param", "net.ncnn.bin")),
    "mnn": ("mnn", _to_mnn, ("net.mnn",)),
    "executorch": ("executorch", _by_script("executorch", "net.pte"), ("net.pte",)),
    "litert": ("litert_torch", _by_script("litert", "net.tflite"), ("net.tflite",)),
}
"""The package of each engine's converter, its command in a folder, and the files that it makes."""


def converted(model: Model, engine: str) -> list[Path]:
    """The model as files of an engine."""
    tool, command, products = CONVERTERS[engine]
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
        call = command(model, folder)
        done = subprocess.run(call, cwd=folder, capture_output=True, text=True)
        missing = [p for p in products if not (folder / p).exists()]
        if done.returncode or missing:
            tail = (done.stdout + done.stderr)[-800:]
            raise RuntimeError(
                f"{tool} could not convert {model.name} (code {done.returncode}): {tail}"
            )
        for product, path in zip(products, kept, strict=True):
            (folder / product).replace(path)
    return kept


def _carried(model: Model, tool: str, suffix: str) -> Path:
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
