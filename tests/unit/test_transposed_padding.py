"""Transposed convolutions of ONNX whose size is given or follows from their strides."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.relax_helpers import answers
from onnx import TensorProto, helper, numpy_helper

from tvm_stretch.read import load_network


def layer(seed: int) -> tuple[onnx.ModelProto, np.ndarray]:
    """One of random attributes, as ONNX Runtime takes them, and its input."""
    rng = np.random.default_rng(seed)
    rank, groups = int(rng.choice([1, 2, 2, 3])), int(rng.choice([1, 2]))
    size, kernel, strides = rng.integers(1, 6, (3, rank))
    dilations = rng.integers(1, 4, rank)
    attributes = {
        "auto_pad": str(rng.choice(["SAME_UPPER", "SAME_LOWER"])),
        "strides": strides.tolist(),
        "dilations": dilations.tolist(),
        "group": groups,
    }
    if rng.random() < 0.75:
        attributes["output_padding"] = rng.integers(0, strides).tolist()
    else:
        whole = (size - 1) * strides + (kernel - 1) * dilations + 1
        attributes["output_shape"] = np.maximum(whole - rng.integers(0, strides), 1).tolist()
    x = rng.standard_normal((1, 2 * groups, *size), dtype=np.float32)
    weight = rng.standard_normal((2 * groups, 3, *kernel), dtype=np.float32)
    bias = rng.standard_normal(3 * groups, dtype=np.float32)
    weights = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")]
    names = ["x", "w", "b"][: int(rng.integers(2, 4))]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", x.shape), ("y", None))
    ]
    node = helper.make_node("ConvTranspose", names, ["y"], **attributes)
    graph = helper.make_graph([node], f"layer{seed}", ends[:1], ends[1:], weights)
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8), x


@pytest.mark.variants(2)
@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.full) for seed in range(8, 300))]
)
def test_the_result_is_onnx_runtimes(seed: int) -> None:
    model, x = layer(seed)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = session.run(None, {"x": x})
    (found,) = answers(load_network(model), x)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
