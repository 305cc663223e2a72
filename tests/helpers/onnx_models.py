"""Small ONNX models for tests: a graph that grows op by op and knows the shape of each tensor.

```
net = Net(seed=0)
x = net.input("x", (1, 3, 9, 9))
y = net.relu(net.conv(x, 8, kernel=(3, 3), pads=(1, 0, 1, 2)))
model = net.model(y)
```
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper, shape_inference

OPSET = 17


class Net:
    """An ONNX graph under construction; weights come from a seeded generator."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self.shapes: dict[str, tuple[int, ...]] = {}

    def input(self, name: str, shape: Sequence[int]) -> str:
        self._inputs.append(_value(name, shape))
        self.shapes[name] = tuple(shape)
        return name

    def weight(self, shape: Sequence[int], scale: float = 1.0) -> str:
        data = self._rng.standard_normal(tuple(shape)) * scale
        return self.constant(data.astype(np.float32))

    def constant(self, array: np.ndarray) -> str:
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(array, name))
        return name

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        """Adds a node and returns its (first) output."""
        index = len(self._nodes)
        names = [f"t{index}", *(f"t{index}_{i}" for i in range(1, outputs))]
        node = helper.make_node(kind, list(inputs), names, **attributes)
        self._nodes.append(node)
        self._infer(names)
        return names[0]

    def conv(
        self,
        x: str,
        channels: int,
        kernel: Sequence[int],
        *,
        groups: int = 1,
        bias: bool = True,
        **attributes: object,
    ) -> str:
        """A convolution with weights of variance 1 / fan-in."""
        fan_in = self.shapes[x][1] // groups
        shape = (channels, fan_in, *kernel)
        inputs = [x, self.weight(shape, 1 / np.sqrt(np.prod(shape[1:])))]
        if bias:
            inputs.append(self.weight((channels,)))
        return self.op("Conv", *inputs, kernel_shape=list(kernel), group=groups, **attributes)

    def batch_norm(self, x: str) -> str:
        channels = self.shapes[x][1]
        scale, shift, mean = (self.weight((channels,)) for _ in range(3))
        variance = self.constant(self._rng.uniform(0.5, 2, channels).astype(np.float32))
        return self.op("BatchNormalization", x, scale, shift, mean, variance)

    def relu6(self, x: str) -> str:
        bounds = (self.constant(np.float32(bound)) for bound in (0, 6))
        return self.op("Clip", x, *bounds)

    def model(self, *outputs: str) -> onnx.ModelProto:
        model = self._proto([_value(name, self.shapes[name]) for name in outputs])
        onnx.checker.check_model(model, full_check=True)
        return model

    def _proto(self, outputs: list[onnx.ValueInfoProto]) -> onnx.ModelProto:
        graph = helper.make_graph(self._nodes, "net", self._inputs, outputs, self._weights)
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8
        )

    def _infer(self, names: list[str]) -> None:
        """Shapes of the last node's outputs, from a graph of that node alone."""
        node = self._nodes[-1]
        known = [_value(n, self.shapes[n]) for n in node.input if n in self.shapes]
        weights = [w for w in self._weights if w.name in node.input]
        unknown = [_value(n, None) for n in names]
        graph = helper.make_graph([node], "one", known, unknown, weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        inferred = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        for value in inferred.graph.output:
            dims = value.type.tensor_type.shape.dim
            self.shapes[value.name] = tuple(d.dim_value for d in dims)


def random_inputs(model: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    """Standard normal values for every input of the model."""
    rng = np.random.default_rng(seed)
    weights = {w.name for w in model.graph.initializer}
    shapes = {
        value.name: [d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in model.graph.input
        if value.name not in weights
    }
    return {n: rng.standard_normal(s, dtype=np.float32) for n, s in shapes.items()}


def session(model: onnx.ModelProto, optimised: bool) -> onnxruntime.InferenceSession:
    """ONNX Runtime on one thread, with sums of 8-bit products that are exact on every machine.

    On x86 without VNNI its fast kernels add products of bytes in 16 bits, which saturate: whole
    networks are then up to 22 steps of their output from the float network. The entry below takes
    the kernels that do not; elsewhere it changes nothing.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.x64quantprecision", "1")
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers)


def run_onnxruntime(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime answers, without its graph optimiser."""
    return session(model, optimised=False).run(None, inputs)


def assert_same(expected: Sequence[np.ndarray], got: Sequence[np.ndarray]) -> None:
    """Equal within 1e-3 of the value, or 2e-4 of the tensor's largest value near zero."""
    assert len(expected) == len(got)
    for want, have in zip(expected, got, strict=True):
        assert have.dtype == want.dtype
        scale = float(np.abs(want).max(initial=0.0))
        np.testing.assert_allclose(have, want, rtol=1e-3, atol=2e-4 * scale + 1e-7)


def _value(name: str, shape: Sequence[int] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)


def every_template(batch: int = 1) -> onnx.ModelProto:
    """A network of few kernels that needs each template: a device's driver compiles it quickly."""
    net = Net()
    x = net.input("x", (batch, 3, 19, 19))
    x = net.op("Relu", net.conv(x, 16, (3, 3), strides=[2, 2], pads=[1] * 4))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4)
    wide = net.op("Relu", net.conv(x, 32, (3, 3), pads=[1] * 4))
    narrow = net.op("Relu", net.conv(x, 32, (1, 1)))
    x = net.op("Concat", wide, narrow, axis=1)
    y = net.relu6(net.conv(x, 64, (3, 3), groups=64, pads=[1] * 4))
    y = net.conv(y, 64, (3, 3), groups=4, pads=[1] * 4)
    gate = net.op("Sigmoid", net.conv(net.op("GlobalAveragePool", y), 64, (1, 1)))
    x = net.op("Relu", net.op("Add", net.op("Mul", y, gate), x))
    flat = net.op("Flatten", net.op("GlobalAveragePool", x))
    return net.model(net.op("Gemm", flat, net.weight((64, 10), 1 / 8), net.weight((10,))))
