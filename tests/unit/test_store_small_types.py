"""Numbers of 2 to 8 bits: their bits are those of ml_dtypes, for all numbers and ties."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.cpu_targets import TARGET
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.passes.store_small_types import STORED

ROUNDED = [kind for kind in STORED if "float" in kind and kind != "float8_e8m0fnu"]
INTEGERS = [kind for kind in STORED if "int" in kind]


def network(params: list[relax.Var], *values: Any) -> relax.Function:
    """A function of operators, which get what the ones before gave."""
    bb = relax.BlockBuilder()
    with bb.function("main", params):
        with bb.dataflow():
            x = params[0]
            results = []
            for value in values:
                x = bb.emit(value(x))
                results.append(x)
            out = bb.emit_output(relax.Tuple(results) if len(results) > 1 else results[0])
        bb.emit_func_output(out)
    return bb.get()


def _as(kind: str) -> Any:
    return lambda x: relax.op.astype(x, kind)


def _cast(x: np.ndarray, kind: str, target: Any, through: str = "") -> np.ndarray:
    params = [relax.Var("x", relax.TensorType(x.shape, str(x.dtype)))]
    steps = [_as(through)] if through else []
    model = ts.compile(network(params, *steps, _as(kind)), targets=[target], cpu_threads=1)
    result = model(x)
    return result[-1] if isinstance(result, tuple) else result


def _numbers() -> np.ndarray:
    """Each number of the wider types, what lies just beside ties, and what no type has."""
    halves = np.arange(1 << 16, dtype="uint16").view("float16").astype("float32")
    finite = halves[np.isfinite(halves)]
    beside = np.nextafter(finite, np.float32(np.inf)), np.nextafter(finite, np.float32(-np.inf))
    rest = [0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-45, 3e38, -3e38, 2.0**-24]
    return np.concatenate([halves, *beside, np.array(rest, "float32")])


@pytest.mark.parametrize("target", [TARGET, "opencl"], ids=["llvm", "opencl"])
@pytest.mark.parametrize("kind", ROUNDED)
def test_floats_are_rounded(kind: str, target: Any) -> None:
    x = _numbers()
    if kind == "float4_e2m1fn":  # which has no NaN
        x = x[~np.isnan(x)]
    with np.errstate(all="ignore"):
        want = x.astype(getattr(ml_dtypes, kind))
    got = _cast(x, kind, target)
    assert got.dtype == np.uint8
    is_nan = np.isnan(want.astype("float32"))  # which of several, no network should ask
    np.testing.assert_array_equal(np.isnan(got.view(want.dtype).astype("float32")), is_nan)
    np.testing.assert_array_equal(got[~is_nan], want.view("uint8")[~is_nan])


@pytest.mark.parametrize("kind", [*ROUNDED, "float8_e8m0fnu"])
def test_bits_are_read(kind: str) -> None:
    count = 16 if kind.startswith("float4") else 256
    bits = np.arange(count, dtype="uint8")
    params = [relax.Var("x", relax.TensorType(bits.shape, kind))]
    got = ts.compile(network(params, _as("float32")), targets=[TARGET], cpu_threads=1)(bits)
    np.testing.assert_array_equal(got, bits.view(getattr(ml_dtypes, kind)).astype("float32"))


@pytest.mark.parametrize("kind", INTEGERS)
def test_integers_keep_their_lowest_bits(kind: str) -> None:
    x = np.arange(-128, 128, dtype="int8")
    want = x.astype(getattr(ml_dtypes, kind))
    np.testing.assert_array_equal(_cast(x, kind, TARGET), want.astype(STORED[kind]))
    np.testing.assert_array_equal(_cast(x, "int32", TARGET, kind), want.astype("int32"))


def test_elements_are_moved() -> None:
    x = _numbers()[:96].reshape(4, 24)
    moves = (
        lambda x: relax.op.reshape(x, (8, 12)),
        relax.op.permute_dims,
        lambda x: relax.op.concat([x, x], 1),
    )
    params = [relax.Var("x", relax.TensorType(x.shape, "float32"))]
    function = network(params, _as("float8_e5m2"), *moves)
    model = ts.compile(function, targets=[TARGET], cpu_threads=1)
    bits = x.astype(ml_dtypes.float8_e5m2).view("uint8").reshape(8, 12).T
    np.testing.assert_array_equal(model(x)[-1], np.concatenate([bits, bits], 1))


def test_arithmetic_is_refused() -> None:
    params = [relax.Var("x", relax.TensorType((4,), "float8_e5m2"))]
    with pytest.raises(ts.UnsupportedError, match="casts and moves alone for float8_e5m2, got add"):
        ts.compile(network(params, lambda x: relax.op.add(x, x)), targets=[TARGET])
