"""Small quantised ONNX networks, as ONNX Runtime's quantiser writes them (QDQ).

```
x = Quantised(np.zeros((1, 3, 9, 9), "uint8"), 0.02, 3)
model = qdq("Relu", [x], Quantised(np.zeros(0, "uint8"), 0.1, 0))
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from helpers.onnx_models import session
from onnx import helper, numpy_helper


@dataclass
class Quantised:
    """Integers and what they mean; of results only the type of the array counts."""

    array: np.ndarray
    scale: np.ndarray | float
    zero: int


def integers(*shape: int, dtype: str = "uint8", seed: int = 0, limit: int = 0) -> np.ndarray:
    """Random integers of 8 bits; below ``limit`` in size if there is one."""
    limits = np.iinfo(dtype)
    low, high = (-limit, limit) if limit else (limits.min, limits.max)
    return np.random.default_rng(seed).integers(low, high + 1, shape).astype(dtype)


def qdq(
    op: str,
    inputs: Sequence[Quantised],
    result: Quantised,
    *,
    constants: Sequence[Quantised | np.ndarray] = (),
    then: str = "",
    opset: int = 17,
    **attributes: object,
) -> onnx.ModelProto:
    """DequantizeLinear of everything, ``op``, perhaps an activation, QuantizeLinear.

    Constants with several scales have one for each index of axis 0.
    """
    nodes, weights, names = [], [], []
    for index, operand in enumerate([*inputs, *constants]):
        if isinstance(operand, np.ndarray):
            weights.append(numpy_helper.from_array(operand, f"c{index}"))
            names.append(f"c{index}")
            continue
        scale = np.asarray(operand.scale, "float32")
        zero = np.full(scale.shape, operand.zero, operand.array.dtype)
        weights += [
            numpy_helper.from_array(v, f"{n}{index}") for v, n in ((scale, "s"), (zero, "z"))
        ]
        if index >= len(inputs):
            weights.append(numpy_helper.from_array(operand.array, f"x{index}"))
        axis = {"axis": 0} if scale.ndim else {}
        operands = [f"x{index}", f"s{index}", f"z{index}"]
        nodes.append(helper.make_node("DequantizeLinear", operands, [f"f{index}"], **axis))
        names.append(f"f{index}")
    nodes.append(helper.make_node(op, names, ["f"], name="layer", **attributes))
    if then:
        bounds = [np.float32(0), np.float32(6)] if then == "Clip" else []
        weights += [numpy_helper.from_array(v, f"b{i}") for i, v in enumerate(bounds)]
        bound_names = [f"b{i}" for i in range(len(bounds))]
        nodes.append(helper.make_node(then, ["f", *bound_names], ["g"], name="activation"))
    weights.append(numpy_helper.from_array(np.float32(result.scale), "s"))
    weights.append(numpy_helper.from_array(np.array(result.zero, result.array.dtype), "z"))
    nodes.append(helper.make_node("QuantizeLinear", ["g" if then else "f", "s", "z"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "quantised",
        [
            helper.make_tensor_value_info(f"x{i}", _kind(x.array), x.array.shape)
            for i, x in enumerate(inputs)
        ],
        [helper.make_tensor_value_info("y", _kind(result.array), None)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def qdq_conv(
    channels: int,
    outputs: int,
    kernel: int,
    size: int,
    *,
    groups: int = 1,
    dtype: str = "uint8",
    zero: int = 0,
    bias: bool = True,
    weights: str = "int8",
    then: str = "",
    batch: int = 1,
    opset: int = 17,
    **attributes: object,
) -> tuple[onnx.ModelProto, np.ndarray]:
    """A convolution whose results fill the range of their type, and an input for it."""
    rng = np.random.default_rng(channels * outputs + kernel)
    x = integers(batch, channels, size, size, dtype=dtype)
    shape = (outputs, channels // groups, kernel, kernel)
    offset = 128 if weights == "uint8" else 0
    weight = integers(*shape, dtype="int8", seed=1, limit=127).astype("int32") + offset
    scales = rng.uniform(0.001, 0.01, outputs).astype("float32")
    constants = [Quantised(weight.astype(weights), scales, offset)]
    if bias:
        numbers = rng.integers(-20000, 20000, outputs).astype("int32")
        constants.append(Quantised(numbers, np.float32(0.02) * scales, 0))
    spread = 0.02 * 0.005 * 73 * 73 * np.sqrt(np.prod(shape[1:])) / 30
    result = Quantised(np.zeros(0, dtype), spread, 7)
    model = qdq(
        "Conv",
        [Quantised(x, 0.02, zero)],
        result,
        constants=constants,
        then=then,
        opset=opset,
        kernel_shape=[kernel, kernel],
        group=groups,
        **attributes,
    )
    return model, x


def qlinear(
    op: str,
    operands: Sequence[str | np.ndarray],
    *inputs: Quantised,
    domain: str = "com.microsoft",
    **attributes: object,
) -> onnx.ModelProto:
    """One operator of QuantFormat.QOperator; ``x0``, ``x1`` are its inputs, arrays constants."""
    weights = [
        numpy_helper.from_array(operand, f"c{index}")
        for index, operand in enumerate(operands)
        if isinstance(operand, np.ndarray)
    ]
    names = [o if isinstance(o, str) else f"c{i}" for i, o in enumerate(operands)]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], name="layer", domain=domain, **attributes)],
        "quantised",
        [
            helper.make_tensor_value_info(f"x{i}", _kind(x.array), x.array.shape)
            for i, x in enumerate(inputs)
        ],
        [helper.make_tensor_value_info("y", onnx.TensorProto.UINT8, None)],
        weights,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _kind(array: np.ndarray) -> int:
    return helper.np_dtype_to_tensor_dtype(array.dtype)


def optimised(model: onnx.ModelProto, *inputs: np.ndarray) -> np.ndarray:
    """What ONNX Runtime's optimised session computes: it rounds otherwise than without."""
    optimiser = session(model, optimised=True)
    names = [value.name for value in optimiser.get_inputs()]
    return optimiser.run(None, dict(zip(names, inputs, strict=True)))[0]


def assert_as_onnx_runtime(
    model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], got: np.ndarray
) -> None:
    """The same class on top and logits within four steps, of processors that round halves up.

    Or within what one step of one pixel does to ONNX Runtime's own: of random weights, deep
    networks make as much of a single unit. Classes that are so near to each other may change.
    """
    want = optimised(model, *inputs.values())
    step = np.diff(np.unique(want)).min()
    apart, behind = np.abs(got - want).max() / step, (want.max() - want.flat[got.argmax()]) / step
    if apart <= 4.01 and not behind:
        return
    (name, image), *_ = inputs.items()
    moved = []
    for place in np.linspace(0, image.size - 1, 8).astype(int)[1:-1]:
        other = image.copy()
        other.flat[place] += (image.max() - image.min()) / 255
        nudged = optimised(model, *{**inputs, name: other}.values())
        moved.append(np.abs(nudged - want).max() / step)
    said = f"{apart:.1f} steps, the class on top {behind:.1f} behind; one pixel moves {moved}"
    assert max(apart, behind) <= 1.5 * max(moved), said
