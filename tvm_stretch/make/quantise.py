"""`quantize`: a float network and a few images -> the network in 8 bits, as ONNX Runtime does it.

q = ts.quantize("resnet50.onnx", images)     # an onnx.ModelProto with QuantizeLinear nodes
model = ts.compile(q)

Batch normalisations are folded into the convolutions before them first (`fold_onnx_norms.py`).

A network in another form, such as a stretched one after training, is written as ONNX first. The
processors of its branches stay in the file's metadata.
"""

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnx.version_converter
from onnx import helper, numpy_helper

from tvm_stretch.base.compiling import compiling
from tvm_stretch.base.errors import InputError, InstallError, ModelError, last_line
from tvm_stretch.base.named_arguments import named_arguments
from tvm_stretch.make.fold_onnx_norms import drop_unread, fold_batch_norms
from tvm_stretch.make.onnx_file import onnx_file
from tvm_stretch.make.reading import Reader
from tvm_stretch.read.onnx.node import dtype_of
from tvm_stretch.read.onnx.reader import read_onnx
from tvm_stretch.read.tflite.reader import is_tflite

Images = np.ndarray | Iterable[np.ndarray | Mapping[str, np.ndarray]]
_OLDEST = 13
"""The first operator set that knows a scale for each channel."""


@named_arguments
def quantize(
    source: object,
    images: Images,
    *,
    activations: str = "uint8",
) -> onnx.ModelProto:
    """The network with weights and activations of 8 bits, to be compiled.

    Weights get a scale for each output channel, activations one for each tensor, from the least and
    the greatest number that ``images`` lead to.

    Args:
        source: as for ``ts.compile``, in float32, such as an ONNX file or what ``load_torch`` made
            of a stretched network that was trained. It is not changed.
        images: typical inputs, of which a hundred are plenty: an array of many images (the
            first dimension counts them; as many at a time as the network takes, fewer at the end
            are left out), or inputs one after the other, as arrays or, where the network has
            several, dictionaries by name.
        activations: ``"uint8"`` or ``"int8"``.

    Raises:
        InputError: ``images`` do not fit the network, or are not finite; ``activations``.
        InstallError: ONNX Runtime is not installed.
        ModelError: the network cannot be read, is quantised already, or cannot be quantised.

    Examples:
        >>> images = np.random.default_rng(0).standard_normal((8, 3, 224, 224), dtype="float32")
        >>> small = ts.quantize("resnet18.onnx", images)
        >>> ts.compile(small)(images[:1]).shape
        (1, 1000)
    """
    if not isinstance(activations, str) or activations not in ("uint8", "int8"):
        raise InputError(
            f"expected 'uint8' or 'int8' for activations, got {activations!r}; see ts.quantize"
        )
    network = _as_onnx(source)
    inputs = read_onnx(network).inputs
    model = _model(network)
    feeds = list(_feeds(inputs, images))
    try:
        import onnxruntime.quantization as quantiser
        from onnxruntime.quantization.shape_inference import quant_pre_process
    except ImportError as error:
        raise InstallError(
            f"expected ONNX Runtime, whose quantiser this is, got: {last_line(error)}; "
            "pip install tvm-stretch[quantize]"
        ) from error

    class Reader(quantiser.CalibrationDataReader):
        """Hands out the images."""

        def __init__(self) -> None:
            self.left = iter(feeds)

        def get_next(self) -> dict[str, np.ndarray] | None:
            """The next one."""
            return next(self.left, None)

    kinds = {"uint8": quantiser.QuantType.QUInt8, "int8": quantiser.QuantType.QInt8}
    with tempfile.TemporaryDirectory() as folder, _quiet():
        given, prepared, result = (Path(folder) / f"{i}.onnx" for i in range(3))
        try:
            onnx.save(fold_batch_norms(model), given)
            quant_pre_process(given, prepared, skip_symbolic_shape=True)
            _plain_biases(prepared)
            quantiser.quantize_static(
                prepared,
                result,
                Reader(),
                quant_format=quantiser.QuantFormat.QDQ,
                per_channel=True,
                activation_type=kinds[activations],
                weight_type=quantiser.QuantType.QInt8,
            )
        except Exception as error:  # it raises many kinds
            raise ModelError(
                "expected a network that ONNX Runtime can quantise, got: "
                f"{last_line(error)}; export it again without its optimiser, smaller than 2 GB, "
                "and make room for temporary files"
            ) from error
        return _with_room_for_sums(onnx.load(result))


def onnx_answers(model: onnx.ModelProto, images: np.ndarray) -> np.ndarray:
    """What ONNX Runtime answers to images, as a quantised network will; its first output."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (port,) = session.get_inputs()
    taken = port.shape[0]
    count = len(images) // taken * taken
    parts = np.split(images[:count], count // taken)
    return np.concatenate([session.run(None, {port.name: part})[0] for part in parts])


def _as_onnx(source: Any) -> str | Path | bytes | onnx.ModelProto:
    """The network as ONNX."""
    is_path = isinstance(source, str | Path)
    is_onnx = Path(source).suffix not in (".pt2", ".gguf") if is_path else False
    if (is_onnx or isinstance(source, bytes | onnx.ModelProto)) and not is_tflite(source):
        return cast("str | Path | bytes | onnx.ModelProto", source)
    with compiling():
        return onnx_file(Reader(source).sized({}).mod, None)


def _model(source: str | Path | bytes | onnx.ModelProto) -> onnx.ModelProto:
    """The network in an operator set that can be quantised."""
    if isinstance(source, onnx.ModelProto):
        model = source
    else:
        model = onnx.load_from_string(source) if isinstance(source, bytes) else onnx.load(source)
    for node in model.graph.node:
        if "QuantizeLinear" in node.op_type or node.op_type.startswith(("QLinear", "QGemm")):
            raise ModelError(
                f"expected a network in float, got {node.op_type} {node.name!r} in it; it is "
                "quantised already, compile it as it is"
            )
    versions = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    if max(versions, default=1) >= _OLDEST:
        return model
    try:
        return onnx.version_converter.convert_version(model, _OLDEST)
    except Exception as error:  # whatever it is, a newer export helps
        raise ModelError(
            f"expected operator set {_OLDEST} or later, got {max(versions, default=1)}, which "
            f"cannot be converted ({last_line(error)}); export the model again"
        ) from error


def _plain_biases(path: Path) -> None:
    """Each dense layer adds one number of its own to each channel, and scales none of them.

    The quantiser takes a row, or a single number, for what it is not, fails on numbers that images
    have of their own, and forgets ``beta``.
    """
    model = onnx.load(path)
    graph = model.graph
    values = {value.name: value for value in graph.initializer}
    for node in list(graph.node):
        if node.op_type != "Gemm" or len(node.input) < 3 or not {*node.input[1:]} <= {*values}:
            continue
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        bias, beta = numpy_helper.to_array(values[node.input[2]]), attributes.get("beta", 1.0)
        count = values[node.input[1]].dims[0 if attributes.get("transB") else 1]
        if bias.shape == (count,) and beta == 1:
            continue
        name, numbers = f"{node.output[0]}.plain_bias", beta * bias
        if bias.shape[:-1] in ((), (1,)):
            numbers = np.broadcast_to(numbers.reshape(-1), count)
            node.input[2] = name
        else:  # one number an image, not a channel: added afterwards
            product, result = f"{node.output[0]}.product", node.output[0]
            node.output[0] = product
            del node.input[2]
            added = helper.make_node(
                "Add", [product, name], [result], f"{node.name or result}.bias"
            )
            graph.node.insert(list(graph.node).index(node) + 1, added)
        graph.initializer.append(numpy_helper.from_array(numbers.astype(bias.dtype), name))
        kept = [a for a in node.attribute if a.name != "beta"]
        del node.attribute[:]
        node.attribute.extend(kept)
    drop_unread(graph)
    onnx.save(model, path)


def _with_room_for_sums(model: onnx.ModelProto) -> onnx.ModelProto:
    """A trained channel may have hardly any weights: only its bias matters.

    The quantiser then takes a scale so small that the bias nearly fills 32 bits, and sums of the
    channel could overflow, for which no integer operator is formed. Larger scales prevent that.
    """
    values = {value.name: value for value in model.graph.initializer}
    makers = {node.output[0]: node for node in model.graph.node}
    readers = Counter(name for node in model.graph.node for name in node.input)
    for node in model.graph.node:
        both = [makers.get(name) for name in node.input[1:3]]
        if node.op_type not in ("Conv", "Gemm") or len(both) < 2 or None in both:
            continue
        names = [name for dequantise in both for name in dequantise.input[:2]]  # type: ignore[union-attr]
        if any(name not in values or readers[name] > 1 for name in names):
            continue
        weight, scale, bias, bias_scale = (numpy_helper.to_array(values[n]) for n in names)
        axis = next((a.i for a in both[0].attribute if a.name == "axis"), 0)  # type: ignore[union-attr]
        if not scale.shape == bias.shape == bias_scale.shape == weight.shape[axis : axis + 1]:
            continue
        others = tuple(i for i in range(weight.ndim) if i != axis)
        sums = 255 * np.abs(weight, dtype="int64").sum(others) + np.abs(bias, dtype="int64")
        times = np.where(sums < 2**31, 1, 2.0 ** np.ceil(np.log2(np.maximum(sums, 1) / 2**30)))
        along = times.reshape(-1, *[1] * (weight.ndim - 1 - axis))
        smaller = weight / along, scale * times, bias / times, bias_scale * times
        for name, number in zip(names, smaller, strict=True):
            before = numpy_helper.to_array(values[name])
            rounded = np.rint(number) if before.dtype.kind in "iu" else number
            values[name].CopyFrom(numpy_helper.from_array(rounded.astype(before.dtype), name))
    return model


def _feeds(inputs: list[onnx.ValueInfoProto], images: Images) -> Iterator[dict[str, np.ndarray]]:
    """The inputs of each run of the network, checked."""
    if isinstance(images, np.ndarray):
        images = _in_runs(inputs, images)
    if isinstance(images, str | bytes | Mapping) or not isinstance(images, Iterable):
        raise InputError(
            f"expected arrays for images, got {type(images).__name__}; give an array of images, "
            "or a list of inputs"
        )
    count = 0
    for count, image in enumerate(images, 1):
        feed = image if isinstance(image, Mapping) else {inputs[0].name: image}
        names, got = (", ".join(sorted(n)) for n in ([value.name for value in inputs], feed))
        if got != names:
            raise InputError(
                f"expected {names} for image {count - 1}, got {got}; "
                "give a dictionary with an array for each input"
            )
        yield {v.name: _checked(v, feed[v.name], count - 1) for v in inputs}
    if not count:
        raise InputError("expected at least one image to quantise with, got none; give some")


def _in_runs(inputs: list[onnx.ValueInfoProto], images: np.ndarray) -> list[np.ndarray]:
    """As many images at a time as the network takes."""
    dims = inputs[0].type.tensor_type.shape.dim
    if images.ndim != len(dims) or not len(images):
        raise InputError(
            f"expected an array of images of {len(dims)} dimensions, the first of which counts "
            f"them, got shape {images.shape}; {_shape_text(inputs[0])}"
        )
    batch = dims[0].dim_value or 1
    if len(images) < batch:
        raise InputError(
            f"expected at least {batch} images, which the network takes at once, got "
            f"{len(images)}; give more"
        )
    return [images[i : i + batch] for i in range(0, len(images) - batch + 1, batch)]


def _checked(value: onnx.ValueInfoProto, image: Any, index: int) -> np.ndarray:
    where, tensor = f"input {value.name!r} of image {index}", value.type.tensor_type
    try:
        array = np.asarray(image)
    except Exception as error:  # lists of several lengths, tensors of other frameworks
        raise InputError(
            f"expected an array for {where}, got {type(image).__name__} ({last_line(error)}); "
            "convert it to NumPy"
        ) from error
    wanted = dtype_of(tensor.elem_type)
    if str(array.dtype) != wanted:
        raise InputError(f"expected {wanted} for {where}, got {array.dtype}; convert it")
    dims = [dim.dim_value for dim in tensor.shape.dim]
    fits = len(dims) == array.ndim and all(
        not dim or dim == size for dim, size in zip(dims, array.shape, strict=True)
    )
    if not fits:
        raise InputError(
            f"expected another shape for {where}, got {array.shape}; {_shape_text(value)}"
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(
            f"expected finite numbers for {where}, got NaN or infinity; leave it out or mend it"
        )
    return array


def _shape_text(value: onnx.ValueInfoProto) -> str:
    dims = (str(d.dim_value or d.dim_param or "?") for d in value.type.tensor_type.shape.dim)
    return f"the network takes ({', '.join(dims)})"


@contextmanager
def _quiet() -> Iterator[None]:
    """The quantiser warns of what `quantize` does itself."""
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
