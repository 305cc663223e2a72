"""`ts.Greedy`: the place of the greatest score, as TVM's own argmax finds it."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.cpu_targets import TARGET
from helpers.relax_helpers import module, run
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.passes.carry_states import carry_states

WIDTHS = (1, 7, 40, 333)
NAN, INF = float("nan"), float("inf")


def network(shape: tuple[int, ...], dtype: str) -> tuple[object, object]:
    """Scores that are an input, beside a token; and their argmax by TVM."""
    tokens = shape[:1]

    def scores(x: relax.Expr, token: relax.Expr) -> relax.Expr:
        return relax.op.add(x, relax.op.astype(relax.op.min(token), dtype))

    kinds = (dtype, "int64")
    return (
        module(scores, shape, tokens, dtype=kinds),
        module(lambda x: relax.op.argmax(x, -1), shape, dtype=dtype),
    )


def hostile(width: int, dtype: str, lowest: float) -> np.ndarray:
    """Rows with ties, infinities and NaN anywhere, of few values, so that all of them meet."""
    rng = np.random.default_rng(width)
    few = [-1.0, 0.0, -0.0, 2.0, 2.0, INF, NAN]
    rows = [rng.choice(few[:count], width) for count in (1, 4, 5, 6, 7) for _ in range(4)]
    rows += [np.full(width, NAN), np.where(np.arange(width) == width - 1, NAN, 1.0)]
    rows += [np.where(np.arange(width) == width // 2, NAN, lowest), rng.standard_normal(width)]
    return np.stack(rows).astype(dtype)


@pytest.mark.variants(2)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_places_are_those_of_argmax(width: int, dtype: str) -> None:
    x = hostile(width, dtype, -2.0)  # TVM's own maximum begins above minus infinity
    mod, plain = network(x.shape, dtype)
    carried = carry_states(mod, {"x1": ts.Greedy("output0")})
    (wanted,) = run(plain, x)
    found = run(carried, x, np.zeros(len(x), "int64"))[1]
    np.testing.assert_array_equal(found, wanted)


def test_integers_have_places_too() -> None:
    x = np.random.default_rng(0).integers(-3, 3, (9, 50)).astype("int32")
    mod, _ = network(x.shape, "int32")
    carried = carry_states(mod, {"x1": ts.Greedy("output0")})
    np.testing.assert_array_equal(run(carried, x, np.zeros(9, "int64"))[1], x.argmax(-1))


def test_a_row_without_any_number_above_minus_infinity_has_a_place() -> None:
    """TVM's own argmax says -1, which no embedding has."""
    x = np.full((2, 40), -INF, "float32")
    mod, _ = network(x.shape, "float32")
    model = ts.compile(mod, [TARGET], states={"x1": ts.Greedy("output0")}, cpu_threads=1)
    assert model(x).next_x1.tolist() == [0, 0]


@pytest.mark.parametrize("width", WIDTHS)
def test_kernels_find_the_same_places(width: int) -> None:
    x = hostile(width, "float32", -INF)
    mod, plain = network(x.shape, "float32")
    model = ts.compile(mod, [TARGET], states={"x1": ts.Greedy("output0")}, cpu_threads=1)
    (wanted,) = run(plain, x)
    np.testing.assert_array_equal(model(x).next_x1, wanted)


def test_the_last_of_several_positions_counts() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 40)).astype("float32")
    mod, plain = network(x.shape, "float32")
    carried = carry_states(mod, {"x1": ts.Greedy("output0")})
    found = run(carried, x, np.zeros(2, "int64"))[1]
    np.testing.assert_array_equal(found, run(plain, x)[0][:, -1])
