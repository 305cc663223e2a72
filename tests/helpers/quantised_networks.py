"""Small networks to be quantised, with most of the layers that become integer operators."""

from __future__ import annotations

import numpy as np
import onnx
from helpers.onnx_models import Net

IMAGES = np.random.default_rng(0).standard_normal((3, 3, 12, 12)).astype("float32")
"""Inputs of both."""


def residual() -> onnx.ModelProto:
    """A residual block, a depthwise layer, pooling and a dense layer."""
    net = Net(seed=1)
    x = net.input("x", (1, 3, 12, 12))
    stem = net.op("Relu", net.conv(x, 16, (3, 3), pads=[1, 1, 1, 1]))
    left = net.conv(net.op("Relu", net.conv(stem, 16, (3, 3), pads=[1, 1, 1, 1])), 16, (1, 1))
    both = net.op("Relu", net.op("Add", left, stem))
    deep = net.op("Relu", net.conv(both, 16, (3, 3), groups=16, strides=[2, 2], pads=[1] * 4))
    most = net.op("MaxPool", deep, kernel_shape=[2, 2], strides=[2, 2])
    row = net.op("Flatten", net.op("GlobalAveragePool", most))
    return net.model(net.op("Gemm", row, net.weight((10, 16)), net.weight((10,)), transB=1))


def grouped() -> onnx.ModelProto:
    """Layers of two and four groups, one of them dilated, side by side; then what excites them."""
    net = Net(seed=2)
    x = net.input("x", (1, 3, 12, 12))
    stem = net.op("Relu", net.conv(x, 16, (1, 1)))
    left = net.conv(stem, 24, (3, 3), groups=2, pads=[1] * 4, strides=[2, 2])
    right = net.conv(stem, 8, (3, 3), groups=4, pads=[2] * 4, dilations=[2, 2], strides=[2, 2])
    both = net.op("Concat", net.op("Relu", left), right, axis=1)
    mean = net.op("GlobalAveragePool", both)
    excited = net.op("Mul", both, net.op("Sigmoid", net.conv(mean, 32, (1, 1))))
    pooled = net.op("AveragePool", excited, kernel_shape=[3, 3], strides=[3, 3])
    row = net.op("Flatten", pooled)
    return net.model(net.op("Gemm", row, net.weight((10, 128)), net.weight((10,)), transB=1))


def excited() -> onnx.ModelProto:
    """A layer times a hard sigmoid of its means: linear where 0 is not 0."""
    net = Net(seed=3)
    x = net.input("x", (1, 3, 12, 12))
    stem = net.op("Relu", net.conv(x, 16, (1, 1)))
    mean = net.conv(net.op("GlobalAveragePool", stem), 16, (1, 1))
    factors = net.op("HardSigmoid", mean, alpha=1 / 6, beta=0.5)
    return net.model(net.conv(net.op("Mul", stem, factors), 10, (3, 3)))
