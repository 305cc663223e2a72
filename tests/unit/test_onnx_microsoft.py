"""Operators that ONNX Runtime's optimiser writes, beside ONNX Runtime's own results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, helper, numpy_helper
from relax_helpers import run

from tvm_stretch.errors import UnsupportedError
from tvm_stretch.frontend import load_network

DICE = np.random.default_rng(0)


def _numbers(*shape: int) -> np.ndarray:
    return DICE.standard_normal(shape).astype("float32")


def _whole(most: int, *shape: int) -> np.ndarray:
    return DICE.integers(0, most, shape).astype("int32")


@dataclass
class Case:
    """One operator; inputs that are None are left out, those of ``fixed`` are weights."""

    op: str
    inputs: Sequence[np.ndarray | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    results: Sequence[int] = (0,)
    fixed: Sequence[int] = ()
    domain: str = "com.microsoft"

    def model(self) -> ModelProto:
        """A model of this operator alone."""
        names = [f"x{i}" if x is not None else "" for i, x in enumerate(self.inputs)]
        given = [(i, n, x) for i, (n, x) in enumerate(zip(names, self.inputs, strict=True)) if n]
        results = [f"y{i}" if i in self.results else "" for i in range(max(self.results) + 1)]
        graph = helper.make_graph(
            [helper.make_node(self.op, names, results, domain=self.domain, **self.attributes)],
            "g",
            [
                helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
                for i, n, x in given
                if i not in self.fixed
            ],
            [helper.make_empty_tensor_value_info(name) for name in results if name],
            [numpy_helper.from_array(x, n) for i, n, x in given if i in self.fixed],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)

    def feeds(self) -> dict[str, np.ndarray]:
        """The values of the model's inputs."""
        given = {f"x{i}": x for i, x in enumerate(self.inputs) if i not in self.fixed}
        return {name: x for name, x in given.items() if x is not None}


MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], "int32")
IMAGE = (_numbers(1, 3, 8, 8), _numbers(4, 3, 3, 3), _numbers(4))
TOKENS = (_numbers(2, 5, 8), _numbers(8, 24), _numbers(24))
WORDS = (_whole(9, 2, 5), _whole(2, 2, 5), _numbers(9, 8), _numbers(7, 8), _numbers(2, 8))
SUM = (_numbers(2, 3, 8), _numbers(2, 3, 8), _numbers(8))


def _convolution(kind: str, *numbers: float) -> Case:
    attributes: dict[str, Any] = {"activation": kind, "pads": [1] * 4}
    if numbers:
        attributes["activation_params"] = [*numbers]
    return Case("FusedConv", IMAGE, attributes, fixed=(1, 2))


CASES = {
    "gelu": Case("Gelu", [_numbers(3, 8)]),
    "gelu of a sum": Case("BiasGelu", [_numbers(3, 8), _numbers(8)]),
    "gelu by tanh": Case("FastGelu", [_numbers(3, 8), _numbers(8)]),
    "gelu by sigmoid": Case("QuickGelu", [_numbers(3, 8)], {"alpha": 1.5}),
    "product": Case(
        "FusedMatMul",
        [_numbers(2, 4, 3), _numbers(2, 5, 4)],
        {"transA": 1, "transB": 1, "alpha": 0.5},
    ),
    "convolution": _convolution("Relu"),
    "convolution, LeakyRelu": _convolution("LeakyRelu", 0.2),
    "convolution, Clip": _convolution("Clip", -1.0, 2.0),
    "convolution, HardSigmoid": _convolution("HardSigmoid", 0.2, 0.5),
    "convolution and sum": Case(
        "FusedConv",
        [*IMAGE, _numbers(1, 4, 8, 8)],
        {"activation": "Relu", "pads": [1] * 4},
        fixed=(1, 2),
    ),
    "normalised sum": Case(
        "SkipLayerNormalization",
        [*SUM, _numbers(8), _numbers(8)],
        {"epsilon": 1e-5},
        results=(0, 3),
    ),
    "normalised sum without mean": Case(
        "SkipSimplifiedLayerNormalization", [*SUM, _numbers(8)], {"epsilon": 1e-5}, results=(0, 3)
    ),
    "normalised without mean": Case(
        "SimplifiedLayerNormalization",
        [_numbers(2, 3, 8), _numbers(8)],
        {"epsilon": 1e-5, "axis": -1},
        domain="",
    ),
    "words": Case(
        "EmbedLayerNormalization", [*WORDS, _numbers(8), _numbers(8), MASK], results=(0, 1)
    ),
    "words without segments": Case(
        "EmbedLayerNormalization",
        [WORDS[0], None, WORDS[2], WORDS[3], None, _numbers(8), _numbers(8)],
        results=(0, 2),
    ),
    "attention": Case("Attention", TOKENS, {"num_heads": 2}),
    "attention, mask": Case("Attention", [*TOKENS, MASK], {"num_heads": 2}),
    "attention, lengths": Case("Attention", [*TOKENS, np.int32([3, 5])], {"num_heads": 2}),
    "attention, causal": Case("Attention", TOKENS, {"num_heads": 2, "unidirectional": 1}),
    "attention, numbers": Case(
        "Attention", [*TOKENS, None, None, _numbers(2, 2, 5, 5)], {"num_heads": 2}
    ),
}
QUICK = ("gelu of a sum", "convolution and sum", "normalised sum", "words", "attention, mask")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.full) for n in CASES]
)
def test_same_as_onnx_runtime(name: str) -> None:
    """Sums have at most 27 products of numbers below 5, and few roundings after them."""
    model, feeds = CASES[name].model(), CASES[name].feeds()
    want = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    for got, expected in zip(run(load_network(model), *feeds.values()), want, strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=2e-6, atol=27 * 25 * 2.0**-24)


def test_caches_are_refused() -> None:
    past = _numbers(2, 2, 2, 3, 4)
    case = Case("Attention", [*TOKENS, None, past], {"num_heads": 2}, results=(0, 1))
    with pytest.raises(UnsupportedError, match="without a cache for Attention"):
        load_network(case.model())
