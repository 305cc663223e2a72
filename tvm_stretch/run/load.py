"""`load`: a model from an artifact's file."""

from __future__ import annotations

from pathlib import Path

from tvm_stretch.base.files import as_path
from tvm_stretch.base.named_arguments import named_arguments
from tvm_stretch.run.artifact import read_artifact, read_data
from tvm_stretch.run.autoload import load_native_library
from tvm_stretch.run.model import Model


@named_arguments
def load(path: str | Path, data: str | Path | None = None) -> Model:
    """Open an artifact that `Model.export` wrote.

    Args:
        path: the artifact.
        data: the network, if it stands beside its kernels, as `Model.export_data` wrote it.

    Raises:
        ArtifactError: a file is missing, truncated, damaged, no artifact, made for another version
            or processor, or for other kernels, or does not run as its plan says.
        RunError: there is no memory for it: a loaded model keeps the bytes of its artifact.

    Examples:
        >>> ts.compile("resnet18.onnx").export("resnet18.so")
        >>> model = ts.load("resnet18.so")
        >>> model.inputs[0].shape
        (1, 3, 224, 224)
    """
    load_native_library()
    path = as_path(path, "the artifact")
    artifact = read_artifact(path)
    beside = None if data is None else read_data(as_path(data, "the data"))
    return Model.opened(artifact, beside)
