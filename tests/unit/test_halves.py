"""Float16 numbers that are read as float32 without float16 arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.relax_helpers import run
from tvm import relax, te

from tvm_stretch.targets.kernels.halves import HALVES, are_halves, float_of, half_bits

ALL = np.arange(2**16, dtype="uint16").view("float16").astype("float32")
NORMAL = ALL[np.isfinite(ALL) & ((np.abs(ALL) >= 2.0**-14) | (ALL == 0))]


def test_every_number_is_read_exactly() -> None:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(NORMAL.shape, HALVES))
    with bb.function("main", [x]):
        with bb.dataflow():
            floats = bb.emit_te(
                lambda bits: te.compute(bits.shape, lambda i: float_of(bits[i].asobject())), x
            )
            result = bb.emit_output(floats)
        bb.emit_func_output(result)
    assert are_halves(NORMAL)
    found = run(bb.get(), half_bits(NORMAL))[0]
    np.testing.assert_array_equal(found.view("int32"), NORMAL.view("int32"))


@pytest.mark.parametrize("other", [0.1, 65536.0, 2.0**-24, -(2.0**-15), np.inf, np.nan])
def test_other_numbers_stay_float32(other: float) -> None:
    assert not are_halves(np.array([1, other, 0.5], "float32"))
