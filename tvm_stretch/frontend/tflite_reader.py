"""Take a TensorFlow Lite (LiteRT) file as a Relax module.

TVM's own importer translates the operators. It leaves feature maps with channels last, which the
pass `ChannelsFirst` changes, and computes quantised layers between dequantising and quantising, of
which `FormIntegers` makes integer operators.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import tvm
from tvm import relax

from tvm_stretch.errors import InstallError, ModelError, UnsupportedError, last_line
from tvm_stretch.files import read_whole, reason_of
from tvm_stretch.ir.source_names import from_source

_IDENTIFIER = b"TFL3"
_MOST_BYTES = 2**31


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
    content = source if isinstance(source, bytes) else _content(Path(source))
    if not is_tflite(content):
        raise ModelError(
            f"expected a TensorFlow Lite file for the network, got {len(content)} bytes without "
            f"its identifier {_IDENTIFIER.decode()}; convert or download it again"
        )
    try:
        model = tflite.Model.GetRootAsModel(content, 0)
        graph = model.Subgraphs(0)
        names = [_text(graph.Tensors(int(i)).Name()) for i in graph.OutputsAsNumpy()]
    except Exception as error:  # whatever the generated readers raise on damaged bytes
        raise ModelError(
            f"expected a whole TensorFlow Lite file, got damaged bytes ({last_line(error)}); "
            "convert or download it again"
        ) from error
    mod = _translated(model)
    mod["main"] = mod["main"].without_attr("params").without_attr("num_input")
    mod["main"] = mod["main"].with_attr("output_names", names)
    return mod


def _content(path: Path) -> bytes:
    try:
        return read_whole(path, _MOST_BYTES)
    except OSError as error:
        raise ModelError(
            f"expected a TensorFlow Lite file for the network, got {reason_of(error)}; check the "
            "path"
        ) from error


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

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return from_tflite(model, op_converter=_converter())
    except Exception as error:  # the importer raises many kinds
        raise UnsupportedError(
            "expected a TensorFlow Lite file of operators that TVM's importer takes, got: "
            f"{last_line(error)}; convert the network to ONNX, or leave the operator out"
        ) from error


def _text(name: bytes | str) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


@cache
def _converter() -> type:
    """TVM's converter with changes; a function because importing it takes a second."""
    from tvm.relax.frontend.tflite.tflite_frontend import OperatorConverter

    class Converter(OperatorConverter):
        """Binds results under the names of the file's tensors."""

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.convert_map = {
                kind: partial(self._named, convert) for kind, convert in self.convert_map.items()
            }

        def _named(self, convert: Callable[..., Any], op: Any) -> Any:
            made = convert(op=op)
            outputs = self.get_output_tensors(op)
            if not isinstance(made, relax.Expr) or len(outputs) != 1:
                return made
            name = _text(outputs[0].tensor.Name())
            return self.bb.emit(made, name_hint=from_source(name)) if name else made

        def convert_prelu(self, op: Any) -> relax.Expr:
            """With slopes per channel, where TVM's makes one long row of the tensor."""
            x, slopes = self.get_input_tensors(op)
            shape = [int(size) for size in self.get_tensor_shape(slopes)]
            if any(size != 1 for size in shape[:-1]):
                return super().convert_prelu(op)
            slope = relax.op.reshape(self.get_tensor_expr(slopes), [shape[-1]])
            data = self.get_tensor_expr(x)
            if shape[-1] == 1:
                return super().convert_prelu(op)
            return relax.op.nn.prelu(data, slope, axis=len(data.ty.shape) - 1)

        def convert_qnn_fused_activation_function(
            self, expr: relax.Expr, fused_activation_fn: int, *args: Any, **kwargs: Any
        ) -> relax.Expr:
            """Without limits that the type has anyway, behind which no integer layer is found."""
            made = super().convert_qnn_fused_activation_function(
                expr, fused_activation_fn, *args, **kwargs
            )
            if made.same_as(expr):
                return expr
            low, high = (float(limit.value) for limit in made.args[1:])
            dtype = str(kwargs["dtype"])
            whole = (tvm.tirx.min_value(dtype).value, tvm.tirx.max_value(dtype).value)
            return expr if (low, high) == tuple(map(float, whole)) else made

    return Converter
