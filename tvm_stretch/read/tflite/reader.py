"""Take a TensorFlow Lite (LiteRT) file as a Relax module.

TVM's own importer translates the operators. It leaves feature maps with channels last, which the
pass `ChannelsFirst` changes, and computes quantised layers between dequantising and quantising, of
which `FormIntegers` makes integer operators.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.frontend.tflite.tflite_frontend import OperatorConverter, get_tensor_name

from tvm_stretch.base.errors import (
    InstallError,
    ModelError,
    StretchError,
    UnsupportedError,
    last_line,
)
from tvm_stretch.network.provenance import from_source
from tvm_stretch.read.onnx.reader import read_file

_MOVES = {
    *("DEPTH_TO_SPACE", "EXPAND_DIMS", "GATHER", "PACK", "PAD", "PADV2", "SLICE", "SPACE_TO_DEPTH"),
    *("SPLIT", "SQUEEZE", "STRIDED_SLICE", "TILE", "TRANSPOSE", "UNPACK"),
}
"""Operators that only select numbers, so integers of one scale may stay integers."""


def text_of(name: bytes | str) -> str:
    """A name of the file, whose readers give bytes."""
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


class Converter(OperatorConverter):
    """Binds results under the names of the file's tensors, and takes more of quantised ones."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        converters: dict[str, Callable[..., Any]] = self.convert_map  # type: ignore[has-type]
        self.convert_map = {
            kind: partial(self._named, convert) for kind, convert in converters.items()
        }

    def _named(self, convert: Callable[..., Any], op: Any) -> Any:
        outputs = self.get_output_tensors(op)
        self._dequantise_weights(op, outputs)
        result = convert(op=op)
        if not isinstance(result, relax.Expr) or len(outputs) != 1:
            return result
        name = text_of(outputs[0].tensor.Name())
        return self.bb.emit(result, name_hint=from_source(name)) if name else result

    def check_unsupported_ops(self) -> None:
        """Refuse operators that TVM's importer does not know, or not in integers."""
        operators = [self.subgraph.Operators(i) for i in range(self.subgraph.OperatorsLength())]
        kinds = {self.get_op_code_str(op) for op in operators if self._is_quantised(op)}
        unknown = {self.get_op_code_str(op) for op in operators} - set(self.convert_map)
        refused = kinds - unknown - self._SUPPORTED_QUANTIZED_OPS
        if unknown or refused:
            names = sorted(unknown) + [f"{kind} of integers" for kind in sorted(refused)]
            raise UnsupportedError(
                f"expected operators that are supported in the file, got {', '.join(names)}; "
                "convert the network to ONNX, or leave them out"
            )

    def _is_quantised(self, op: Any) -> bool:
        """Whether the operator computes in integers; weights alone are dequantised."""
        read, wrote = self.get_input_tensors(op), self.get_output_tensors(op)
        integers = [tensor for tensor in (*read, *wrote) if tensor.qnn_params]
        if integers and self.get_op_code_str(op) in _MOVES:
            first, *others = integers
            return not all(self.has_same_qnn_params(first, tensor) for tensor in others)
        return any(tensor.qnn_params for tensor in (*read[:1], *wrote))

    def _dequantise_weights(self, op: Any, outputs: list[Any]) -> None:
        """Weights in integers of a layer in float: "dynamic range quantisation"."""
        first, *others = self.get_input_tensors(op) or [None]
        if first is None or any(tensor.qnn_params for tensor in (first, *outputs)):
            return
        for tensor in others:
            if tensor.qnn_params and not self.has_expr(tensor.tensor_idx):
                weight = self.dequantize(self.get_tensor_expr(tensor), tensor)
                name = get_tensor_name(self.subgraph, tensor.tensor_idx)
                self.exp_tab.set_expr(name, self.bb.emit(weight))

    def get_tensor_value(self, tensor: Any, is_sparse: bool = False) -> np.ndarray:
        """A constant: of a sparse tensor that was made dense, or one that follows the graph."""
        if self.is_prefetched(tensor.tensor_idx):
            return self.get_prefetched_node(tensor.tensor_idx)
        start, size = tensor.buffer.Offset(), tensor.buffer.Size()
        if start <= 1 or not tensor.buffer.DataIsNone():
            return super().get_tensor_value(tensor, is_sparse)
        content = memoryview(tensor.buffer._tab.Bytes)[start : start + size]
        values = np.frombuffer(content, self.get_tensor_type_as_numpy(tensor))
        return values if is_sparse else values.reshape(self.get_tensor_shape(tensor))

    def convert_prelu(self, op: Any) -> relax.Expr:
        """With slopes per channel, where TVM's makes one long row of the tensor."""
        x, slopes = self.get_input_tensors(op)
        shape = [int(size) for size in self.get_tensor_shape(slopes)]
        if shape[-1] == 1 or any(size != 1 for size in shape[:-1]):
            return super().convert_prelu(op)
        slope = relax.op.reshape(self.get_tensor_expr(slopes), [shape[-1]])
        data = self.get_tensor_expr(x)
        return relax.op.nn.prelu(data, slope, axis=len(data.ty.shape) - 1)

    def convert_qnn_fused_activation_function(
        self, expr: relax.Expr, fused_activation_fn: int, *args: Any, **kwargs: Any
    ) -> relax.Expr:
        """Without limits that the type has anyway, which would hide an integer layer."""
        activation = super().convert_qnn_fused_activation_function(
            expr, fused_activation_fn, *args, **kwargs
        )
        if activation.same_as(expr):
            return expr
        low, high = (float(limit.value) for limit in activation.args[1:])
        dtype = str(kwargs["dtype"])
        whole = (tvm.tirx.min_value(dtype).value, tvm.tirx.max_value(dtype).value)
        return expr if (low, high) == tuple(map(float, whole)) else activation


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
