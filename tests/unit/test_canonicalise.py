"""Canonicalise: the form that the processors start from."""

from __future__ import annotations

import numpy as np
from helpers.relax_helpers import (
    assert_same_numerics,
    assert_unchanged,
    module,
    op_names,
    random_const,
)
from tvm import relax

from tvm_stretch.passes.canonicalise import Canonicalise

op, nn = relax.op, relax.op.nn


def test_block_as_exporters_write_it() -> None:
    bias, weight = random_const(6), random_const(6, 4, 3, 3)
    stats = [random_const(6, seed=s, positive=True) for s in range(4)]

    def body(x: relax.Expr) -> relax.Expr:
        y = op.add(nn.conv2d(x, weight, padding=1), op.reshape(bias, (1, 6, 1, 1)))
        y = relax.TupleGetItem(nn.batch_norm(y, *stats, axis=1, training=False), 0)
        y = op.clip(op.clip(y, relax.prim_value(0.0), relax.prim_value(np.inf)),
                    relax.prim_value(-np.inf), relax.prim_value(6.0))  # fmt: skip
        y = relax.TupleGetItem(nn.dropout(y, 0.5), 0)
        y = op.reshape(op.mean(y, [-1, -2], keepdims=True), (1, 6))
        return op.add(random_const(3), op.matmul(y, op.permute_dims(random_const(3, 6))))

    before = module(body, (1, 4, 5, 5))
    after = Canonicalise()(before)
    assert op_names(after) == [
        "relax.nn.conv2d", "relax.add", "relax.clip", "relax.mean", "relax.reshape",
        "relax.matmul", "relax.add",
    ]  # fmt: skip
    assert_same_numerics(before, after)


def test_equal_parts_are_computed_once_and_unused_ones_never() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        bb = relax.BlockBuilder.current()
        first, second = bb.emit(nn.relu(x)), bb.emit(nn.relu(x))
        bb.emit(nn.silu(x))
        return op.add(first, second)

    assert op_names(Canonicalise()(module(body, (2, 3)))) == ["relax.nn.relu", "relax.add"]


def test_no_op_on_the_canonical_form() -> None:
    weight, bias = random_const(6, 4, 3, 3), random_const(1, 6, 1, 1)
    mod = module(lambda x: nn.relu(op.add(nn.conv2d(x, weight), bias)), (1, 4, 5, 5))
    assert_unchanged(Canonicalise(), Canonicalise()(mod))


def test_attributes_of_the_function_stay() -> None:
    mod = module(lambda x: nn.relu(x), (2, 3))
    mod["main"] = mod["main"].with_attr("output_names", ["y"])
    assert list(Canonicalise()(mod)["main"].attrs["output_names"]) == ["y"]


def test_results_are_returned_one_by_one() -> None:
    """Also those of a tuple that is bound to a variable, or comes from an operator."""
    bound = module(
        lambda x: relax.BlockBuilder.current().emit(relax.Tuple([nn.relu(x), x])), (2, 4)
    )
    split = module(lambda x: op.split(x, 2, axis=1), (2, 4))
    for before in (bound, split):
        after = Canonicalise()(before)
        assert isinstance(after["main"].body.body, relax.Tuple)
        assert_same_numerics(before, after)
