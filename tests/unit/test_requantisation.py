"""Rounding of sums to 8 bits, compiled, against its definition in NumPy: any factor, any limits.

In fixed point: test_use_fixed_point.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
import tvm
from helpers.cpu_targets import TARGET
from helpers.integer_numpy import rounded
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tvm import te

from tvm_stretch.network.integers import Rounding

COUNT = 64
ROUNDINGS = (
    Rounding("uint8", 0, 0, 255),
    Rounding("uint8", 131, 131, 255),  # relu
    Rounding("int8", -128, -128, 117),  # relu6
    Rounding("int8", 5, -128, 127),
)
SUMS = arrays.arrays("int32", COUNT, elements=st.integers(-(2**24), 2**24))
FACTORS = arrays.arrays(
    "float32", COUNT, elements=st.floats(2**-23, 1.0, width=32, exclude_max=True)
)


@functools.cache
def compiled(rounding: Rounding) -> Callable[..., np.ndarray]:
    """``round(float(sums) * factors)`` of vectors, of float32."""
    sums, factors = te.placeholder((COUNT,), "int32"), te.placeholder((COUNT,), "float32")
    result = te.compute((COUNT,), lambda i: rounding.round(sums[i].astype("float32") * factors[i]))
    mod = tvm.IRModule({"main": te.create_prim_func([sums, factors, result])})
    kernel = tvm.tirx.build(mod, target=TARGET)

    def run(*operands: np.ndarray) -> np.ndarray:
        out = tvm.runtime.tensor(np.zeros(COUNT, rounding.dtype))
        kernel["main"](*map(tvm.runtime.tensor, operands), out)
        return out.numpy()

    return run


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=str)
@given(sums=SUMS, factors=FACTORS)
@settings(max_examples=50)
def test_any_factor(rounding: Rounding, sums: np.ndarray, factors: np.ndarray) -> None:
    want = rounded(sums.astype("float32") * factors, rounding)
    np.testing.assert_array_equal(compiled(rounding)(sums, factors), want)
