"""RoiAlign and AffineGrid: where regions of a picture are sampled."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.onnx_models import run_onnxruntime
from helpers.relax_helpers import run
from onnx import TensorProto, helper, numpy_helper

from tvm_stretch.read import load_network


def one(op: str, inputs: dict[str, np.ndarray], constants: dict[str, np.ndarray], **attrs: object):
    """A model of one node."""
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in inputs.items()
    ]
    nodes = [helper.make_node(op, [*inputs, *constants], ["y"], **attrs)]
    result = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "net", values, result, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize("mode", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("ratio", [0, 2])
def test_regions_of_feature_maps_smaller_than_the_picture(mode: str, ratio: int) -> None:
    rng = np.random.default_rng(0)
    corners = np.sort(rng.uniform(0, 60, (5, 2, 2)), axis=1).reshape(5, 4).astype("float32")
    features = rng.standard_normal((2, 3, 8, 8)).astype("float32")
    feed = {"x": features, "boxes": corners, "pictures": rng.integers(0, 2, 5)}
    model = one(
        "RoiAlign", feed, {}, output_height=3, output_width=2, spatial_scale=0.125,
        sampling_ratio=ratio, coordinate_transformation_mode=mode,
    )  # fmt: skip
    (want,) = run_onnxruntime(model, feed)
    np.testing.assert_allclose(run(load_network(model), *feed.values())[0], want, atol=1e-5)


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("size", [(1, 3, 4, 5), (2, 3, 2, 6), (1, 3, 2, 4, 5)])
def test_grids_of_affine_transforms(size: tuple[int, ...], aligned: int) -> None:
    rank = len(size) - 2
    theta = np.random.default_rng(0).standard_normal((size[0], rank, rank + 1)).astype("float32")
    model = one("AffineGrid", {"x": theta}, {"size": np.array(size)}, align_corners=aligned)
    (want,) = run_onnxruntime(model, {"x": theta})
    np.testing.assert_allclose(run(load_network(model), theta)[0], want, atol=1e-5)
