"""Models of one ONNX operator, beside ONNX Runtime's own results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime
from helpers.cpu_targets import TARGET
from onnx import ModelProto, helper, numpy_helper

import tvm_stretch as ts


class Dice:
    """Random tensors of one file of tests: they depend on no other file."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)

    def numbers(self, *shape: int) -> np.ndarray:
        """Normal numbers."""
        return self._random.standard_normal(shape).astype("float32")

    def whole(self, most: int, *shape: int, dtype: str = "int32") -> np.ndarray:
        """Integers from 0 on."""
        return self._random.integers(0, most, shape).astype(dtype)

    def signed(self, *shape: int) -> np.ndarray:
        """Weights of 7 bits, whose products with bytes do not saturate in pairs."""
        return self._random.integers(-63, 64, shape).astype("int8")


@dataclass
class Case:
    """One operator; inputs that are None are left out, those of ``fixed`` are weights."""

    op: str
    inputs: Sequence[np.ndarray | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    results: Sequence[int] = (0,)
    fixed: Sequence[int] = ()
    domain: str = "com.microsoft"
    opset: int = 17

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
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=11)

    def feeds(self) -> dict[str, np.ndarray]:
        """The values of the model's inputs."""
        given = {f"x{i}": x for i, x in enumerate(self.inputs) if i not in self.fixed}
        return {name: x for name, x in given.items() if x is not None}

    def expected(self) -> list[np.ndarray]:
        """ONNX Runtime's results."""
        session = onnxruntime.InferenceSession(self.model().SerializeToString())
        return list(session.run(None, self.feeds()))

    def computed(self) -> list[np.ndarray]:
        """Our results, on this machine's CPU."""
        found = ts.compile(self.model(), [TARGET])(**self.feeds())
        return list(found) if isinstance(found, tuple) else [found]

    def check(self, products: int) -> None:
        """Ours are ONNX Runtime's, whose sums have at most so many products of numbers below 5."""
        for result, expected in zip(self.computed(), self.expected(), strict=True):
            assert result.dtype == expected.dtype
            np.testing.assert_allclose(result, expected, rtol=2e-6, atol=25 * products * 2.0**-24)
