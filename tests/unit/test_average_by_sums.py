"""AverageBySums: averages without floats, the same but for halves; other regions stay."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from helpers.relax_helpers import answers, assert_rewrites
from tvm import relax

from tvm_stretch.network.integer_kernels import integer_call
from tvm_stretch.network.integers import Integer, Rounding
from tvm_stretch.passes.average_by_sums import AverageBySums
from tvm_stretch.targets.kernels.machine import VectorMachine

MACHINE = VectorMachine(8, 16, False, 2**19, 1)
MACHINES = {
    "cpu": MACHINE,
    "hexagon": VectorMachine(32, 32, False, 2**20, 1, dsp=True),
}
ROUNDED = Rounding("uint8", 7, 0, 255)
AVERAGE = Integer(
    "average", ROUNDED, (3,), (0.0213, 0.0131), padding=(1, 1, 1, 1), kernel=(3, 3), strides=(2, 2)
)
SUMS = Integer("conv2d", None, (3,), padding=(1, 1, 1, 1), strides=(2, 2), groups=4)
BORDERS = np.float32([[[[4, 6, 6], [6, 9, 9], [6, 9, 9]]]])
FACTOR = np.float32(0.0213) / np.float32(0.0131)
CONSTANTS = [np.ones((4, 1, 3, 3), "int8"), np.zeros(4, "int32")]


def network(processor: str, *steps: tuple[Integer, list[np.ndarray]]) -> tvm.IRModule:
    bb = relax.BlockBuilder()
    x = value = relax.Var("x", relax.TensorType((1, 4, 6, 6), "uint8"))
    with bb.function("main", [x], attrs={"processor": processor}):
        with bb.dataflow():
            for integer, constants in steps:
                call = integer_call(bb, integer, value, *map(relax.const, constants))
                value = bb.emit(call)
            result = bb.emit_output(value)
        bb.emit_func_output(result)
    return relax.transform.CanonicalizeBindings()(bb.get())


def rewritten(mod: tvm.IRModule) -> tvm.IRModule:
    return relax.transform.DeadCodeElimination()(AverageBySums(MACHINES)(mod))


@pytest.mark.parametrize("borders", [True, False])
def test_sums_and_a_factor(borders: bool) -> None:
    counts = BORDERS if borders else BORDERS[:, :, 1:2, 1:2]
    before = network("hexagon", (AVERAGE, [counts]))
    if borders:
        of_pixels = np.float32(0.0213) / (np.float32(0.0131) * BORDERS)
        last = (Integer("round", ROUNDED), [of_pixels])
        expected = network("hexagon", (SUMS, CONSTANTS), last)
    else:
        factor = np.full(4, np.float32(0.0213) / (np.float32(0.0131) * np.float32(9)), "float32")
        rounded = Integer(**{**vars(SUMS), "rounding": ROUNDED})
        expected = network("hexagon", (rounded, [*CONSTANTS, factor]))
    assert_rewrites(rewritten, before, expected)
    x = np.random.default_rng(0).integers(0, 256, (1, 4, 6, 6)).astype("uint8")
    (want,), (got,) = answers(before, x), answers(expected, x)
    assert np.abs(want.astype(int) - got).max() <= 1  # halves


def test_processors_with_floats_average_them() -> None:
    before = network("cpu", (AVERAGE, [BORDERS]))
    assert AverageBySums(MACHINES)(before).same_as(before)
