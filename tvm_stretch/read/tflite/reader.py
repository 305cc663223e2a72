"""Take a TensorFlow Lite (LiteRT) file as a Relax module.

TVM's own importer translates the operators. It leaves feature maps with channels last, which the
pass `ChannelsFirst` changes, and computes quantised layers between dequantising and quantising, of
which `FormIntegers` makes integer operators.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import tvm
from tvm import relax

from tvm_stretch.base.errors import (
    InstallError,
    ModelError,
    StretchError,
    UnsupportedError,
    last_line,
)
from tvm_stretch.read.onnx.reader import read_file

_IDENTIFIER = b"TFL3"


def is_tflite(source: object) -> bool:
    """Whether ``source`` is a path that ends with ``.tflite``, or the content of such a file."""
    if isinstance(source, bytes):
        return source[4:8] == _IDENTIFIER
    return isinstance(source, str | Path) and Path(source).suffix == ".tflite"


def read_tflite(source: str | Path | bytes) -> tvm.IRModule:
    """Translate a ``.tflite`` file or its content; the first subgraph is the network.

    Raises:
        InstallError: The package tflite, which knows the format, is not installed.
        ModelError: The file is damaged.
        UnsupportedError: TVM's importer cannot take it.
    """
    tflite = _the_package()
    content = (
        source if isinstance(source, bytes) else read_file(Path(source), "a TensorFlow Lite file")
    )
    if not is_tflite(content):
        raise ModelError(
            f"expected a TensorFlow Lite file for the network, got {len(content)} bytes without "
            f"its identifier {_IDENTIFIER.decode()}; convert or download it again"
        )
    try:
        model = tflite.Model.GetRootAsModel(content, 0)
        graph = model.Subgraphs(0)
        names = [graph.Tensors(int(i)).Name().decode() for i in graph.OutputsAsNumpy()]
    except Exception as error:  # whatever the generated readers raise on damaged bytes
        raise ModelError(
            f"expected a whole TensorFlow Lite file, got damaged bytes ({last_line(error)}); "
            "convert or download it again"
        ) from error
    mod = _translated(model)
    mod["main"] = mod["main"].without_attr("params").without_attr("num_input")
    mod["main"] = mod["main"].with_attr("output_names", names)
    return mod


def _the_package() -> ModuleType:
    try:
        import tflite
    except ImportError as error:
        raise InstallError(
            f"expected the package tflite for a .tflite file, got none ({error}); pip install "
            "'tvm-stretch[tflite]'"
        ) from error
    return tflite


def _translated(model: Any) -> tvm.IRModule:
    from tvm.relax.frontend.tflite import from_tflite

    from tvm_stretch.read.tflite.converter import Converter

    builders: list[relax.BlockBuilder] = []

    def converter(*args: Any) -> Converter:
        builders.append(args[-1])
        return Converter(*args)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return from_tflite(model, op_converter=converter)
    except Exception as error:  # the importer raises many kinds
        for builder in builders:
            builder._end_block()  # TVM's scopes leave one open, which its destructor prints
        if isinstance(error, StretchError):
            raise
        raise UnsupportedError(
            "expected a TensorFlow Lite file of operators that TVM's importer takes, got: "
            f"{last_line(error)}; convert the network to ONNX, or leave the operator out"
        ) from error
