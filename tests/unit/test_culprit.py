"""What TVM refuses with an error of its own becomes one of ours, which names the operator."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tvm
from helpers.cpu_targets import TARGET
from helpers.relax_helpers import module, op_names
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.make.code.generate import generate
from tvm_stretch.network.properties.verify import blaming
from tvm_stretch.read import load_network

op = relax.op
SHAPE = (2, 6)


@pytest.mark.parametrize(
    ("body", "dtype", "message"),
    [
        (
            lambda x: op.negative(x),
            "bool",
            r"^expected an operator that TVM can compile, got negat",
        ),
        (
            lambda x: op.max(op.flip(x, 1), 1),
            "bool",
            "got max '.*' of bool .*; convert its operands",
        ),
        (lambda x: op.logical_and(x, op.flip(x, 1)), "float32", "got logical_and '.*' of float32"),
        (lambda x: op.power(x, op.flip(x, 1)), "int32", "got power '.*' of int32 .*float"),
        (lambda x: op.nonzero(x), "float32", "results whose shapes are known, got nonzero '"),
    ],
)
def test_operators_that_tvm_refuses(
    body: Callable[[relax.Expr], relax.Expr], dtype: str, message: str
) -> None:
    network = module(lambda x: op.permute_dims(body(x)), SHAPE, dtype=dtype)
    with pytest.raises(ts.UnsupportedError, match=message):
        ts.compile(network, [TARGET], cpu_threads=1)


@pytest.mark.parametrize(
    ("arithmetic", "logic"),
    [
        (op.add, "relax.logical_or"),
        (op.maximum, "relax.logical_or"),
        (op.multiply, "relax.logical_and"),
        (op.minimum, "relax.logical_and"),
    ],
)
def test_sums_and_products_of_booleans(arithmetic: Callable[..., relax.Expr], logic: str) -> None:
    network = module(lambda x: arithmetic(x, op.flip(x, 1)), SHAPE, dtype="bool")
    assert op_names(load_network(network)) == ["relax.flip", logic]


def test_kernels_that_tvm_refuses() -> None:
    kernel = next(
        function
        for function in relax.transform.LegalizeOps()(module(op.exp, SHAPE)).functions.values()
        if isinstance(function, tvm.tirx.PrimFunc)
    )

    def code_of(_function: tvm.tirx.PrimFunc) -> bytes:
        raise RuntimeError("trace\nCheck failed")

    with pytest.raises(ts.UnsupportedError, match=r"got fused_exp \(Check failed\); replace"):
        generate({"fused_exp": kernel}, None, TARGET, code_of)


def test_who_is_not_to_blame_is_not_blamed() -> None:
    with pytest.raises(KeyError), blaming(module(op.exp, SHAPE)):
        raise KeyError("ours")
    with pytest.raises(MemoryError), blaming(module(op.exp, SHAPE)):
        raise MemoryError
