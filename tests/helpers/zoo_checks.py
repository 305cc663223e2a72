"""Sizes of the zoo's networks for tests, and what counts as the same answer."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
from helpers.onnx_models import random_inputs

import tvm_stretch as ts
from tutorials import zoo

# Sizes that every stage survives (strides of 32; valid convolutions of the Inceptions).
QUICK_SIZES = {
    "inception_v3": 107,
    "inception_v4": 107,
    "lstm": 3,
    "squeezenet1_0": 67,
    "squeezenet1_1": 67,
}
DEFAULT_QUICK_SIZE = 64
FULL_ONLY = {"efficientnet_b5", "inception_v4", "nasnet_large", "pnasnet_large", "vgg16", "yolov2"}


VIEWS = ("concat", "flatten", "reshape", "spacetodepth", "split")
"""Beginnings of the names of operators of the zoo that may need no kernel."""


def assert_same_logits(expected: np.ndarray, got: np.ndarray) -> None:
    """Within 1e-3 of the largest logit, and the same class on top."""
    assert got.shape == expected.shape
    assert np.isfinite(expected).all()
    error = np.abs(got - expected).max() / np.abs(expected).max()
    assert error <= 1e-3
    assert got.argmax() == expected.argmax()


def assert_every_operator_is_in_one_node(model: ts.Model) -> None:
    """Views are in none; nothing is in two."""
    nodes = model.graph.nodes
    operators = [op for region in model.plan.regions for op in region.operators]
    named = Counter(op for node in nodes for op in node.provenance.operators)
    missing = [op for op in operators if op not in named]
    assert not [op for op in missing if not op.startswith(VIEWS)]
    assert max(named.values()) == 1
    known = {op for node in nodes for op in node.provenance.served}
    assert known <= set(operators), known - set(operators)
    assert len({node.name for node in nodes}) == len(nodes)


def quick_size(name: str) -> int:
    """An input that does not take long."""
    return QUICK_SIZES.get(name, DEFAULT_QUICK_SIZE)


def quantised_network(name: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A network of the zoo in 8 bits, and an image that it was not quantised with."""
    network = zoo.build(name, size=quick_size(name))
    *images, other = (random_inputs(network, seed) for seed in range(3))
    return ts.quantize(network, images), other
