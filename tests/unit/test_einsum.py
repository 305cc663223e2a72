"""Einsum of two tensors: a product of matrices, with the sums that NumPy gives."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.relax_helpers import op_names, run
from onnx import TensorProto, helper

from tvm_stretch.read import load_network

PRODUCTS = {
    "bhqd,bhkd->bhqk": ((2, 3, 4, 5), (2, 3, 6, 5)),
    "bchw,cd->bhwd": ((2, 4, 3, 5), (4, 6)),
    "abc,cde->abde": ((2, 3, 4), (4, 5, 6)),
    "aij,kja->ikj": ((2, 3, 4), (5, 4, 2)),
    "bij,bjk": ((2, 3, 4), (2, 4, 5)),
    "...a,ab->...b": ((2, 3, 4), (4, 5)),
    "...ij,...jk->...ik": ((2, 3, 4), (2, 4, 5)),
    "ji,j->i": ((3, 4), (3,)),
}
OTHERS = {
    "i,j->ij": ((3,), (4,)),  # nothing is summed
    "ii,ij->j": ((3, 3), (3, 4)),  # a diagonal
    "ij,jk->k": ((3, 4), (4, 5)),  # a sum of one operand alone
    "...ij,...jk->...ik ": ((1, 3, 4), (2, 4, 5)),  # broadcast
}


def answer(equation: str, *operands: np.ndarray) -> tuple[np.ndarray, set[str]]:
    """The answer, and the operators that compute it."""
    names = [f"x{i}" for i in range(len(operands))]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape)
        for name, x in zip(names, operands, strict=True)
    ]
    node = helper.make_node("Einsum", names, ["y"], equation=equation)
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "net", ports, [result])
    opsets = [helper.make_opsetid("", 18)]
    mod = load_network(helper.make_model(graph, opset_imports=opsets, ir_version=9))
    return run(mod, *operands)[0], set(op_names(mod))


@pytest.mark.parametrize("equation", [*PRODUCTS, *OTHERS])
def test_sums(equation: str) -> None:
    rng = np.random.default_rng(0)
    shapes = (PRODUCTS | OTHERS)[equation]
    operands = [rng.integers(-3, 4, shape).astype("float32") for shape in shapes]  # exact sums
    got, operators = answer(equation, *operands)
    np.testing.assert_array_equal(got, np.einsum(equation, *operands))
    assert ("einsum" in str(operators)) == (equation in OTHERS)
    assert ("matmul" in str(operators)) == (equation in PRODUCTS)
