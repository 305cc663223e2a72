"""Read an ONNX model into a plain description that later phases may change freely.

    path or ModelProto  ->  OnnxNetwork(model=<proto>, weights={name: <large array>})

Large weights live outside the proto: simplification and shape inference then never copy them and
never meet the 2 GB limit of protobuf messages. The caller's model is not changed, nothing is
written to disk.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import google.protobuf.message
import numpy as np
import onnx
import onnx.external_data_helper
import onnx.inliner
import onnx.numpy_helper

from tvm_stretch.base.errors import ModelError, StretchError, UnsupportedError, last_line
from tvm_stretch.base.files import read_whole, reason_of
from tvm_stretch.read.network_limits import MOST_ELEMENTS, too_large
from tvm_stretch.read.onnx.functions import needed_functions

LARGE_WEIGHT_BYTES = 4096
"""Constants from this size on are kept outside the proto; shape arithmetic never needs them."""

_MOST_BYTES = 2**31
"""The limit of protobuf messages."""

_OF_ONNX = (onnx.checker.ValidationError, google.protobuf.message.Error, ValueError)
"""Errors of onnx; ValueError if graphs are nested too deeply for its C++ parser."""

_OF_DATA = (OSError, TypeError, LookupError, RuntimeError, MemoryError, OverflowError)
"""Errors while the data of a weight are read."""

_CONTROL_FLOW_HINT = "export the model without control flow or string operators"


@dataclass
class OnnxNetwork:
    """An ONNX graph of which we own every part."""

    model: onnx.ModelProto  # A proto with functions inlined; large weights appear as graph inputs
    weights: dict[str, np.ndarray]  # The large weights by name
    # Real inputs of the network (no weights), in the model's order
    inputs: list[onnx.ValueInfoProto]
    outputs: list[str]  # Output names, in the model's order
    declared: dict[str, int]  # Element types that the model declares, by the tensor's name

    @property
    def opset(self) -> int:
        """Version of the default operator set."""
        return max(
            (o.version for o in self.model.opset_import if o.domain in ("", "ai.onnx")), default=1
        )


def read_onnx(source: str | Path | bytes | onnx.ModelProto) -> OnnxNetwork:
    """Read and check ``source``; see the module docstring.

    Raises:
        ModelError: ``source`` cannot be read, or is not a valid ONNX model.
        UnsupportedError: It uses types or operator sets we do not take.
    """
    folder = Path(source).parent if isinstance(source, str | Path) else None
    if isinstance(source, onnx.ModelProto):
        model = source
    elif isinstance(source, bytes):
        model = _parse(source, "bytes")
    else:
        model = _parse(read_file(Path(source), "an ONNX file"), str(source))
    if not model.HasField("graph") or not model.graph.output:
        raise ModelError(
            "expected a graph with outputs for the ONNX model, got one without; export the "
            "model again"
        )
    _check_opset(model)
    with _refusing_broken():
        functions = needed_functions(model)  # counts operators, before anything else costs time
    weights = _read_weights(model.graph, folder)
    for tensor in _inner_external_tensors(model):
        if folder is not None:  # the model is ours: the caller gave its path
            _embed(tensor, folder)
        else:
            _read_tensor(tensor.name, tensor, folder)
    with _refusing_broken():
        _check_texts(model)
        network = _copy_without_large_weights(model, weights, functions)
        _check_graph(network)
    return network


@contextlib.contextmanager
def _refusing_broken() -> Iterator[None]:
    """Turn errors of onnx about a model into ours."""
    try:
        yield
    except (*_OF_ONNX, RecursionError) as error:
        if isinstance(error, StretchError):
            raise
        raise ModelError(
            f"expected a valid ONNX model, got: {last_line(error)}; export it again, with fewer "
            "nested graphs"
        ) from error


def read_file(path: Path, what: str) -> bytes:
    """The content of a file of a network; `what` names its format in the error."""
    try:
        return read_whole(path, _MOST_BYTES)
    except OSError as error:
        raise ModelError(
            f"expected {what} for the model, got {reason_of(error)}; check the path"
        ) from error


_OF_TORCH = "save torch.export.export(net.eval(), (x,)) as .pt2, or export it to ONNX"
_WHAT_IT_IS = {
    ".so": "if it is an artifact, open it with ts.load",
    **dict.fromkeys((".pt", ".pth", ".bin"), _OF_TORCH),
}
"""What to do with files that other programs call models."""


def _parse(content: bytes, what: str) -> onnx.ModelProto:
    """Parse a file's content; its external data stay where they are."""
    if not content:
        raise ModelError(
            f"expected an ONNX file for the model, got an empty one ({what}); export it again"
        )
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except google.protobuf.message.DecodeError as error:
        raise ModelError(
            f"expected an ONNX file for the model, got {what} ({error}); "
            + _WHAT_IT_IS.get(Path(what).suffix, "it is truncated or of another format")
        ) from error
    return model


def _check_texts(message: google.protobuf.message.Message) -> None:
    """Refuse names that are no text: protobuf hands them out as bytes."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            texts = [value] if isinstance(value, str | bytes) else value
            if any(isinstance(text, bytes) for text in texts):
                raise ModelError(
                    f"expected text in UTF-8 for the {field.name} of a {type(message).__name__}, "
                    "got other bytes; export the model again"
                )
        elif field.type == field.TYPE_MESSAGE and field.message_type.name != "TensorProto":
            is_one = isinstance(value, google.protobuf.message.Message)
            for inner in [value] if is_one else value:
                _check_texts(inner)


def _check_opset(model: onnx.ModelProto) -> None:
    """Refuse operator sets of which we know nothing."""
    if model.ir_version >= 3 and not model.opset_import:
        raise ModelError(
            "expected opset_import for the ONNX model, got none; export the model again"
        )
    newest = onnx.defs.onnx_opset_version()
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx") and not 1 <= entry.version <= newest:
            raise UnsupportedError(
                f"expected an operator set from 1 to {newest} for the ONNX model, got "
                f"{entry.version}; "
                "convert it with onnx.version_converter or install a newer onnx"
            )


def _constant_nodes(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Yield the tensors of ``Constant`` nodes."""
    for node in graph.node:
        if (
            node.op_type == "Constant"
            and len(node.attribute) == 1
            and node.attribute[0].HasField("t")
        ):
            yield node.output[0], node.attribute[0].t


def _read_weights(graph: onnx.GraphProto, folder: Path | None) -> dict[str, np.ndarray]:
    """Return the graph's large constants by name, external ones read from ``folder``."""
    weights = {}
    for tensor in graph.initializer:
        array = _read_tensor(tensor.name, tensor, folder)
        if array is not None:
            weights[tensor.name] = array
    for name, tensor in _constant_nodes(graph):
        array = _read_tensor(name, tensor, folder)
        if array is not None:
            weights[name] = array
    return weights


def _inner_external_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """External tensors of graphs inside of nodes, of functions, and of other attributes.

    Those of the main graph are weights, which `_read_weights` keeps out of the proto.
    """
    weights = [*model.graph.initializer, *(tensor for _, tensor in _constant_nodes(model.graph))]
    own = {id(tensor) for tensor in weights}
    bodies: list[onnx.GraphProto | onnx.FunctionProto] = [model.graph, *model.functions]
    while bodies:
        body = bodies.pop()
        attributes = [attribute for node in body.node for attribute in node.attribute]
        for attribute in attributes:
            bodies += [attribute.g] if attribute.HasField("g") else attribute.graphs
        tensors = [*getattr(body, "initializer", ()), *_tensors_of(attributes)]
        yield from (
            tensor
            for tensor in tensors
            if onnx.external_data_helper.uses_external_data(tensor) and id(tensor) not in own
        )


def _tensors_of(attributes: Iterable[onnx.AttributeProto]) -> Iterator[onnx.TensorProto]:
    for attribute in attributes:
        sparse = list(attribute.sparse_tensors)
        if attribute.HasField("sparse_tensor"):
            sparse.append(attribute.sparse_tensor)
        yield from ([attribute.t] if attribute.HasField("t") else attribute.tensors)
        for tensor in sparse:
            yield from (tensor.values, tensor.indices)


def _embed(tensor: onnx.TensorProto, folder: Path) -> None:
    """Put the data of an external tensor into it."""
    _read_tensor(tensor.name, tensor, folder)  # raises if they are not there, or too few
    onnx.external_data_helper.load_external_data_for_tensor(tensor, str(folder))


def _read_tensor(name: str, tensor: onnx.TensorProto, folder: Path | None) -> np.ndarray | None:
    """Return the value of a large or external tensor, None for a small one."""
    external = onnx.external_data_helper.uses_external_data(tensor)
    if not external and tensor.ByteSize() < LARGE_WEIGHT_BYTES:
        return None
    if tensor.data_type == onnx.TensorProto.STRING:
        raise UnsupportedError(
            f"expected numbers for the constant {name!r}, got strings; {_CONTROL_FLOW_HINT}"
        )
    if external and folder is None:
        raise ModelError(
            f"expected the data of weight {name!r} inside the ModelProto, got a reference to an "
            "external file; call onnx.load_external_data_for_model first or pass the path of "
            "the model"
        )
    if error := too_large(f"the weight {name!r}", tensor.dims, MOST_ELEMENTS):
        raise error
    hint = "keep the external data file beside the model" if external else "export the model again"
    return array_of(name, tensor, folder, hint)


def array_of(
    name: str,
    tensor: onnx.TensorProto,
    folder: Path | None = None,
    hint: str = "export the model again",
) -> np.ndarray:
    """The value of a constant, external ones from ``folder``."""
    try:
        if onnx.external_data_helper.uses_external_data(tensor):
            _bound(tensor)
        return onnx.numpy_helper.to_array(tensor, str(folder or ""))
    except (*_OF_ONNX, *_OF_DATA) as error:
        reason = (str(error).splitlines() or ["not enough memory"])[0]
        raise ModelError(
            f"expected the data of weight {name!r}, got an error: {reason}; {hint}"
        ) from error


def _bound(tensor: onnx.TensorProto) -> None:
    """Limit the read of an external tensor to its own bytes: the file may be endless."""
    elements = math.prod(tensor.dims)
    bits = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize * 8
    kind = onnx.TensorProto.DataType.Name(tensor.data_type)
    bits = next((n for ending, n in _PACKED.items() if kind.endswith(ending)), bits)
    given = {entry.key: entry for entry in tensor.external_data}
    length = given.get("length") or tensor.external_data.add(key="length")
    most = -(-elements * bits // 8)
    if not length.value.isdecimal() or int(length.value) > most:
        length.value = str(most)


_PACKED = {"INT4": 4, "FLOAT4E2M1": 4, "INT2": 2}
"""Bits of the types whose elements share bytes."""


def _copy_without_large_weights(
    model: onnx.ModelProto,
    weights: dict[str, np.ndarray],
    functions: Sequence[onnx.FunctionProto],
) -> OnnxNetwork:
    """Copy ``model``, with large constants as graph inputs and local functions inlined."""
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [_plain(value) for value in graph.input if value.name not in constants]
    weight_inputs = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in weights.items()
    ]
    copied = onnx.helper.make_graph(
        [n for n in graph.node if not (n.op_type == "Constant" and n.output[0] in weights)],
        graph.name or "main",
        [*inputs, *weight_inputs],
        list(graph.output),
        [tensor for tensor in graph.initializer if tensor.name not in weights],
        sparse_initializer=list(graph.sparse_initializer),
    )
    light = onnx.helper.make_model(
        copied,
        ir_version=max(model.ir_version, 4),
        opset_imports=list(model.opset_import) or [onnx.helper.make_opsetid("", 1)],
        functions=functions,
    )
    if light.functions:
        light = _inlined(light)
    light.metadata_props.extend(model.metadata_props)
    declared = {
        value.name: value.type.tensor_type.elem_type
        for value in [*graph.value_info, *graph.output]
        if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type
    }
    outputs = [output.name for output in graph.output]
    return OnnxNetwork(light, weights, inputs, outputs, declared)


def _plain(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """An optional tensor is a tensor here, which each call gives."""
    optional = value.type.optional_type.elem_type
    if not optional.HasField("tensor_type"):
        return value
    return onnx.helper.make_value_info(value.name, optional)


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return onnx.inliner.inline_local_functions(model)
    except RuntimeError as error:  # a call with more operands than the function takes
        what = str(error).rpartition("failed: ")[2].strip().lower()
        raise ModelError(
            f"expected calls that fit their functions, got: {what}; export the model again"
        ) from error


def _check_graph(network: OnnxNetwork) -> None:
    """Refuse broken graphs and types of inputs that no tensor compiler takes."""
    for value in network.inputs:
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            raise UnsupportedError(
                f"expected a tensor for input {value.name!r}, got "
                f"{(kind or 'no type').replace('_', ' ')}; "
                "export the model with plain tensors as inputs"
            )
        if value.type.tensor_type.elem_type == onnx.TensorProto.STRING:
            raise UnsupportedError(
                f"expected numbers for input {value.name!r}, got strings; {_CONTROL_FLOW_HINT}"
            )
    try:
        onnx.checker.check_model(with_every_type(network.model))
    except onnx.checker.ValidationError as error:
        reason = str(error).strip().splitlines()[0]
        if "No Op registered" in reason or "No opset import" in reason or "not supported" in reason:
            return  # the importer names the operator
        raise ModelError(
            f"expected a valid ONNX model, got: {reason}; check it with onnx.checker.check_model"
        ) from error


def with_every_type(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which every output has a type and a shape: the checker insists on them."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in [*copy.graph.input, *copy.graph.output]:
        if not value.type.WhichOneof("value"):
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        if value.type.WhichOneof("value") == "tensor_type":
            value.type.tensor_type.shape.SetInParent()
    return copy
