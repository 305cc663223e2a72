"""Gathers compute their own indices; data that other kernels make are not computed again."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.cpu_targets import TARGET
from helpers.relax_helpers import random_const
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.read import load_network


def gathers(kind: str, computed: str = "") -> ts.Model:
    """Rows of a table of 6, or its elements; the table may be computed, or the index converted."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((6, 8), "float32"))
    places = relax.Var("i", relax.TensorType((4,) if kind == "take" else (4, 8), "int32"))
    with bb.function("main", [x, places]):
        with bb.dataflow():
            table: relax.Expr = x
            if computed:
                table = bb.emit(relax.op.exp(x))
            index = bb.emit(relax.op.astype(places, "int64"))
            found = (
                relax.op.take(table, index, 0)
                if kind == "take"
                else relax.op.gather_elements(table, index, 0)
            )
            scale = random_const(1, 8, seed=1)
            out = bb.emit_output(relax.op.multiply(bb.emit(found), scale))
        bb.emit_func_output(out)
    return ts.compile(load_network(bb.get()), TARGET, cpu_threads=1)


@pytest.mark.parametrize("kind", ["take", "gather_elements"])
def test_an_index_is_computed_where_it_is_read(kind: str) -> None:
    """Conversion, guard, gather and what follows are one kernel."""
    model = gathers(kind)
    assert len(model.graph.nodes) == 1
    x = np.random.default_rng(0).standard_normal((6, 8)).astype("float32")
    places = np.array([5, -1, 0, -6], "int32")
    if kind != "take":
        places = np.stack([np.roll(places, column) for column in range(8)], 1)
    found = x[places] if kind == "take" else np.take_along_axis(x, places % 6, 0)
    scale = random_const(1, 8, seed=1).value.numpy()
    np.testing.assert_allclose(model(x=x, i=places), found * scale, rtol=1e-6)
    places.flat[0] = 6
    with pytest.raises(ts.InputError, match=r"expected -6 to 5 .* got 6 at \[0"):
        model(x=x, i=places)


def test_a_table_is_computed_once() -> None:
    """Not for each element that is read of it."""
    names = [node.kernel for node in gathers("take", computed="exp").graph.nodes]
    assert len(names) > 1
    assert not any("exp" in name and "take" in name for name in names)
