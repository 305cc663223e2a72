"""Builds TensorFlow Lite files: layers with weights, in float32 or quantised to 8 bits.

    net = Builder((1, 8, 8, 3))
    net.conv(4, 3, activation="RELU6")
    content = net.finish()

Each layer reads the result of the one before it. Quantised tensors are of the type int8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flatbuffers
import numpy as np
import tflite
from flatbuffers import flexbuffers

_TYPES = {
    "float32": tflite.TensorType.FLOAT32,
    "int8": tflite.TensorType.INT8,
    "int32": tflite.TensorType.INT32,
}
SCALE, ZERO = 0.05, 3
"""How feature maps of quantised networks are quantised."""


class Builder:
    """One network.

    Args:
        shape: of its input.
        quantised: whether feature maps are integers.
        weights: of a network in float: "integers", or "dequantised" for the same values as floats.
    """

    def __init__(self, shape: Sequence[int], *, quantised: bool = False, weights: str = "") -> None:
        self.file = flatbuffers.Builder(1024)
        self.rng = np.random.default_rng(0)
        self.quantised, self.weights = quantised, weights
        self.kind = "int8" if quantised else "float32"
        self.buffers: list[bytes] = [b""]
        self.tensors: list[int] = []
        self.codes: list[int] = []
        self.operators: list[int] = []
        self.shapes: dict[int, tuple[int, ...]] = {}
        self.last = self.input = self.feature_map(shape, "input")
        self.inputs, self.outputs = [self.input], []
        self.custom: dict[int, str] = {}  # names of operators by their places among the codes

    # --- tensors ---

    def feature_map(self, shape: Sequence[int], name: str = "") -> int:
        scales = ([SCALE], [ZERO], 0) if self.quantised else None
        return self.tensor(shape, self.kind, name, scales=scales)

    def tensor(
        self,
        shape: Sequence[int],
        kind: str,
        name: str = "",
        data: bytes = b"",
        scales: tuple[Sequence[float], Sequence[int], int] | None = None,
    ) -> int:
        quantisation = None if scales is None else self._quantisation(*scales)
        if data:
            self.buffers.append(data)
        label = self.file.CreateString(name or f"tensor{len(self.tensors)}")
        sizes = self._numbers(tflite.TensorStartShapeVector, shape, "Int32")
        tflite.TensorStart(self.file)
        tflite.TensorAddShape(self.file, sizes)
        tflite.TensorAddType(self.file, _TYPES[kind])
        tflite.TensorAddBuffer(self.file, len(self.buffers) - 1 if data else 0)
        tflite.TensorAddName(self.file, label)
        if quantisation is not None:
            tflite.TensorAddQuantization(self.file, quantisation)
        self.tensors.append(tflite.TensorEnd(self.file))
        self.shapes[len(self.tensors) - 1] = tuple(shape)
        return len(self.tensors) - 1

    def _numbers(self, start: Any, values: Sequence[Any], kind: str) -> int:
        start(self.file, len(values))
        for value in reversed(values):
            getattr(self.file, f"Prepend{kind}")(value)
        return int(self.file.EndVector())

    def _quantisation(self, scales: Sequence[float], zeros: Sequence[int], axis: int) -> int:
        factor = self._numbers(tflite.QuantizationParametersStartScaleVector, scales, "Float32")
        zero = self._numbers(tflite.QuantizationParametersStartZeroPointVector, zeros, "Int64")
        tflite.QuantizationParametersStart(self.file)
        tflite.QuantizationParametersAddScale(self.file, factor)
        tflite.QuantizationParametersAddZeroPoint(self.file, zero)
        tflite.QuantizationParametersAddQuantizedDimension(self.file, axis)
        return int(tflite.QuantizationParametersEnd(self.file))

    def constant(self, value: np.ndarray) -> int:
        return self.tensor(value.shape, str(value.dtype), data=value.tobytes())

    def weight(self, shape: Sequence[int], axis: int) -> tuple[int, int]:
        """A weight and a bias; of quantised networks each output channel has a scale."""
        count = shape[axis]
        if self.weights:
            return self._weight_in_integers(shape, axis), self.constant(np.ones(count, "float32"))
        if not self.quantised:
            bound = 1 / np.sqrt(np.prod(shape) / count)
            values = self.rng.uniform(-bound, bound, shape).astype("float32")
            return self.constant(values), self.constant(
                self.rng.uniform(-1, 1, count).astype("float32")
            )
        scales = self.rng.uniform(0.002, 0.01, count).astype("float32").tolist()
        numbers = self.rng.integers(-127, 128, shape, dtype="int8")
        zeros = [0] * count
        weight = self.tensor(shape, "int8", data=numbers.tobytes(), scales=(scales, zeros, axis))
        bias = self.rng.integers(-999, 999, count, dtype="int32")
        products = [SCALE * scale for scale in scales]
        offset = self.tensor((count,), "int32", data=bias.tobytes(), scales=(products, zeros, 0))
        return weight, offset

    def _weight_in_integers(self, shape: Sequence[int], axis: int) -> int:
        """A quantised weight of a layer that computes in float."""
        scale = 1 / 128
        numbers = self.rng.integers(-127, 128, shape, dtype="int8")
        if self.weights == "dequantised":
            return self.constant(numbers.astype("float32") * np.float32(scale))
        scales = ([scale] * shape[axis], [0] * shape[axis], axis)
        return self.tensor(shape, "int8", data=numbers.tobytes(), scales=scales)

    # --- operators ---

    def operator(
        self,
        code: str,
        inputs: Sequence[int],
        shape: Sequence[int],
        options: str = "",
        **fields: Any,
    ) -> int:
        """Append an operator with a result of ``shape``."""
        result = self.feature_map(shape, f"{code.lower()}{len(self.operators)}")
        number = getattr(tflite.BuiltinOperator, code)
        if number not in self.codes:
            self.codes.append(number)
        made = self._options(options, fields) if options else 0
        reads = self._numbers(tflite.OperatorStartInputsVector, inputs, "Int32")
        writes = self._numbers(tflite.OperatorStartOutputsVector, [result], "Int32")
        tflite.OperatorStart(self.file)
        tflite.OperatorAddOpcodeIndex(self.file, self.codes.index(number))
        tflite.OperatorAddInputs(self.file, reads)
        tflite.OperatorAddOutputs(self.file, writes)
        if options:
            kind = getattr(tflite.BuiltinOptions, options)
            tflite.OperatorAddBuiltinOptionsType(self.file, kind)
            tflite.OperatorAddBuiltinOptions(self.file, made)
        self.operators.append(tflite.OperatorEnd(self.file))
        self.last = result
        return result

    def _options(self, options: str, fields: dict[str, Any]) -> int:
        vectors = {
            name: self._numbers(getattr(tflite, f"{options}Start{name}Vector"), value, "Int32")
            for name, value in fields.items()
            if isinstance(value, list)
        }
        getattr(tflite, f"{options}Start")(self.file)
        for name, value in {**fields, **vectors}.items():
            getattr(tflite, f"{options}Add{name}")(self.file, value)
        return int(getattr(tflite, f"{options}End")(self.file))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.shapes[self.last]

    def _window(self, size: int, stride: int, same: bool) -> tuple[int, int]:
        _, height, width, _ = self.shape
        if same:
            return -(-height // stride), -(-width // stride)
        return (height - size) // stride + 1, (width - size) // stride + 1

    def conv(
        self, channels: int, size: int, stride: int = 1, same: bool = True, activation: str = "NONE"
    ) -> int:
        rows, columns = self._window(size, stride, same)
        weight, bias = self.weight((channels, size, size, self.shape[3]), 0)
        return self.operator(
            "CONV_2D",
            [self.last, weight, bias],
            (1, rows, columns, channels),
            "Conv2DOptions",
            **self._strides(stride, same),
            FusedActivationFunction=_activation(activation),
        )

    def depthwise(
        self, size: int, multiplier: int = 1, stride: int = 1, activation: str = "NONE"
    ) -> int:
        channels = self.shape[3] * multiplier
        rows, columns = self._window(size, stride, True)
        weight, bias = self.weight((1, size, size, channels), 3)
        return self.operator(
            "DEPTHWISE_CONV_2D",
            [self.last, weight, bias],
            (1, rows, columns, channels),
            "DepthwiseConv2DOptions",
            **self._strides(stride, True),
            DepthMultiplier=multiplier,
            FusedActivationFunction=_activation(activation),
        )

    @staticmethod
    def _strides(stride: int, same: bool) -> dict[str, int]:
        padding = tflite.Padding.SAME if same else tflite.Padding.VALID
        return {"Padding": padding, "StrideW": stride, "StrideH": stride}

    def pool(self, kind: str, size: int, stride: int) -> int:
        rows, columns = self._window(size, stride, True)
        fields = {**self._strides(stride, True), "FilterWidth": size, "FilterHeight": size}
        shape = (1, rows, columns, self.shape[3])
        return self.operator(kind, [self.last], shape, "Pool2DOptions", **fields)

    def dense(self, units: int) -> int:
        weight, bias = self.weight((units, self.shape[-1]), 0)
        shape = (self.shape[0], units)
        return self.operator(
            "FULLY_CONNECTED", [self.last, weight, bias], shape, "FullyConnectedOptions"
        )

    def detections(self, boxes: int, scores: int, anchors: np.ndarray, **options: Any) -> None:
        """`TFLite_Detection_PostProcess`, whose four results are the network's."""
        count = options["max_detections"]
        shapes = [(1, count, 4), (1, count), (1, count), (1,)]
        names = ("boxes", "classes", "scores", "found")
        self.outputs = [
            self.tensor(shape, "float32", name) for shape, name in zip(shapes, names, strict=True)
        ]
        self.custom[len(self.codes)] = "TFLite_Detection_PostProcess"
        self.codes.append(tflite.BuiltinOperator.CUSTOM)
        given = [boxes, scores, self.constant(anchors)]
        reads = self._numbers(tflite.OperatorStartInputsVector, given, "Int32")
        writes = self._numbers(tflite.OperatorStartOutputsVector, self.outputs, "Int32")
        made = self.file.CreateByteVector(bytes(flexbuffers.Dumps(options)))
        tflite.OperatorStart(self.file)
        tflite.OperatorAddOpcodeIndex(self.file, len(self.codes) - 1)
        tflite.OperatorAddInputs(self.file, reads)
        tflite.OperatorAddOutputs(self.file, writes)
        tflite.OperatorAddCustomOptions(self.file, made)
        self.operators.append(tflite.OperatorEnd(self.file))

    def finish(self) -> bytes:
        """The content of a file whose result is the last operator's."""
        buffers = [self._buffer(data) for data in self.buffers]
        codes = [self._code(number, self.custom.get(i, "")) for i, number in enumerate(self.codes)]
        tensors = self._numbers(tflite.SubGraphStartTensorsVector, self.tensors, "UOffsetTRelative")
        operators = self._numbers(
            tflite.SubGraphStartOperatorsVector, self.operators, "UOffsetTRelative"
        )
        inputs = self._numbers(tflite.SubGraphStartInputsVector, self.inputs, "Int32")
        results = self.outputs or [self.last]
        outputs = self._numbers(tflite.SubGraphStartOutputsVector, results, "Int32")
        tflite.SubGraphStart(self.file)
        tflite.SubGraphAddTensors(self.file, tensors)
        tflite.SubGraphAddInputs(self.file, inputs)
        tflite.SubGraphAddOutputs(self.file, outputs)
        tflite.SubGraphAddOperators(self.file, operators)
        graph = tflite.SubGraphEnd(self.file)
        graphs = self._numbers(tflite.ModelStartSubgraphsVector, [graph], "UOffsetTRelative")
        listed = self._numbers(tflite.ModelStartBuffersVector, buffers, "UOffsetTRelative")
        known = self._numbers(tflite.ModelStartOperatorCodesVector, codes, "UOffsetTRelative")
        tflite.ModelStart(self.file)
        tflite.ModelAddVersion(self.file, 3)
        tflite.ModelAddOperatorCodes(self.file, known)
        tflite.ModelAddSubgraphs(self.file, graphs)
        tflite.ModelAddBuffers(self.file, listed)
        self.file.Finish(tflite.ModelEnd(self.file), file_identifier=b"TFL3")
        return bytes(self.file.Output())

    def _buffer(self, data: bytes) -> int:
        content = 0
        if data:
            self.file.StartVector(1, len(data), 16)
            self.file.head = self.file.Head() - len(data)
            self.file.Bytes[self.file.Head() : self.file.Head() + len(data)] = data
            content = self.file.EndVector()
        tflite.BufferStart(self.file)
        if data:
            tflite.BufferAddData(self.file, content)
        return int(tflite.BufferEnd(self.file))

    def _code(self, number: int, custom: str = "") -> int:
        name = self.file.CreateString(custom) if custom else 0
        tflite.OperatorCodeStart(self.file)
        if custom:
            tflite.OperatorCodeAddCustomCode(self.file, name)
        tflite.OperatorCodeAddDeprecatedBuiltinCode(self.file, min(number, 127))
        tflite.OperatorCodeAddVersion(self.file, 1)
        tflite.OperatorCodeAddBuiltinCode(self.file, number)
        return int(tflite.OperatorCodeEnd(self.file))


def _activation(name: str) -> int:
    return int(getattr(tflite.ActivationFunctionType, name))
