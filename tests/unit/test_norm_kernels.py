"""Normalised rows against NumPy, for vectors of every width, and which networks get the kernel."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from helpers.cpu_targets import TARGET
from helpers.cpu_targets import built as compiled
from helpers.relax_helpers import assert_same_numerics, module, op_names, random_const
from tvm import relax, te

import tvm_stretch as ts
from tvm_stretch.passes.block_channels import BlockChannels
from tvm_stretch.targets.kernels.layers import NormShape
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.schedule import schedule_kernel
from tvm_stretch.targets.kernels.template import choose

AVX2 = VectorMachine(lanes=8, registers=16, broadcast_operand=False, l2_bytes=2**19, threads=1)
NEON = VectorMachine(lanes=4, registers=32, broadcast_operand=True, l2_bytes=2**19, threads=1)
TWO_CORES = VectorMachine(16, 32, False, 2**20, threads=2)
MACHINES = pytest.mark.parametrize(
    "machine", [AVX2, NEON, TWO_CORES], ids=["avx2", "neon", "avx512"]
)


def run_norm(
    x: np.ndarray, epsilon: float, machine: VectorMachine, *, is_centred: bool = True
) -> np.ndarray:
    """The normalised rows times a factor for each column."""
    config = choose(NormShape(x.shape, epsilon, is_centred), machine)
    assert config is not None
    data, factor = te.placeholder(x.shape, name="x"), te.placeholder(x.shape[-1:], name="factor")
    rows = config.meaning(data)
    result = te.compute(x.shape, lambda *at: rows[at] * factor[at[-1]])
    func = schedule_kernel(te.create_prim_func([data, factor, result]), machine)
    out = tvm.runtime.tensor(np.full(x.shape, 7e7, "float32"))
    given = (x, np.arange(x.shape[-1], dtype="float32"))
    compiled(func)["kernel"](*map(tvm.runtime.tensor, given), out)
    return out.numpy()


def expected(x: np.ndarray, epsilon: float) -> np.ndarray:
    """The same by NumPy, in float64."""
    wide = x.astype("float64")
    rows = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + epsilon)
    return rows * np.arange(x.shape[-1])


@pytest.mark.variants(4)
@MACHINES
@pytest.mark.parametrize("columns", [16, 17, 31, 48, 64, 100, 384, 777])
def test_same_as_numpy(columns: int, machine: VectorMachine) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, columns), "float32") * 5 + 3
    np.testing.assert_allclose(
        run_norm(x, 1e-5, machine), expected(x, 1e-5), rtol=2e-5, atol=2e-6 * columns
    )


@pytest.mark.variants(4)
@MACHINES
@pytest.mark.parametrize("columns", [16, 17, 31, 64, 100, 777])
def test_same_as_numpy_without_the_mean(columns: int, machine: VectorMachine) -> None:
    """As RMSNorm has it."""
    x = np.random.default_rng(0).standard_normal((2, 3, columns), "float32") * 5 + 3
    wide = x.astype("float64")
    right = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * np.arange(columns)
    got = run_norm(x, 1e-5, machine, is_centred=False)
    np.testing.assert_allclose(got, right, rtol=2e-5, atol=2e-6 * columns)


@MACHINES
def test_rows_far_from_zero_keep_their_digits(machine: VectorMachine) -> None:
    """Squares are those of differences: of 1000 and 1001 they would lose all digits."""
    x = np.random.default_rng(0).integers(1000, 1002, (4, 100)).astype("float32")
    np.testing.assert_allclose(run_norm(x, 1e-12, machine), expected(x, 1e-12), rtol=1e-3)


def test_equal_numbers_become_zero() -> None:
    np.testing.assert_array_equal(run_norm(np.full((2, 32), 0.5, "float32"), 1e-5, AVX2), 0)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_with_special_values_has_no_numbers(value: float) -> None:
    x = np.ones((2, 37), "float32")
    x[1, 36] = value
    got = run_norm(x, 1e-5, AVX2)
    assert np.isnan(got[1]).all() and not got[0].any()


@pytest.mark.parametrize("shape", [(3, 7), (0, 64), (3, 0)], ids=str)
def test_no_template(shape: tuple[int, ...]) -> None:
    assert choose(NormShape(shape, 1e-5, is_centred=True), AVX2) is None


def layer_norm(x: relax.Expr, inverse: bool = True) -> relax.Expr:
    """Layer normalisation as frontends write it out."""
    scale, shift = random_const(x.ty.shape[-1].value), random_const(x.ty.shape[-1].value)
    apart = relax.op.subtract(x, relax.op.mean(x, [-1], keepdims=True))
    variance = relax.op.mean(relax.op.multiply(apart, apart), [-1], keepdims=True)
    root = relax.op.sqrt(relax.op.add(variance, relax.const(1e-6)))
    factor = relax.op.divide(relax.const(1.0), root)
    y = relax.op.multiply(apart, factor) if inverse else relax.op.divide(apart, root)
    return relax.op.add(relax.op.multiply(y, scale), shift)


@pytest.mark.parametrize("inverse", [False, True])
def test_layer_normalisation_is_one_kernel(inverse: bool) -> None:
    mod = module(lambda x: layer_norm(x, inverse), (1, 7, 48))
    nodes = ts.compile(mod, [TARGET]).graph.nodes
    assert len(nodes) == 1 and "norm" in nodes[0].kernel


ROOTS = {
    "quotient": lambda x, total: relax.op.divide(x, relax.op.sqrt(total)),
    "inverse": lambda x, total: relax.op.multiply(
        x, relax.op.divide(relax.const(1.0), relax.op.sqrt(total))
    ),
    "rsqrt": lambda x, total: relax.op.multiply(x, relax.op.rsqrt(total)),
}


def rms_norm(x: relax.Expr, how: str, other: relax.Expr | None = None) -> relax.Expr:
    """RMSNorm as frontends write it out; of another tensor's squares it is none."""
    x = relax.BlockBuilder.current().emit(x)
    squares = relax.op.multiply(x, x if other is None else other)
    total = relax.op.add(relax.op.mean(squares, [-1], keepdims=True), relax.const(1e-6))
    return relax.op.multiply(ROOTS[how](x, total), random_const(x.ty.shape[-1].value))


@pytest.mark.parametrize("how", ROOTS)
def test_rms_normalisation_is_one_kernel(how: str) -> None:
    mod = module(lambda x: rms_norm(relax.op.abs(x), how), (1, 7, 48))
    blocked = BlockChannels({"cpu": AVX2})(mod)
    assert "relax.call_tir" in op_names(blocked) and "relax.mean" not in op_names(blocked)
    assert_same_numerics(mod, blocked)


@pytest.mark.parametrize("how", ROOTS)
def test_products_of_two_tensors_are_no_squares(how: str) -> None:
    mod = module(lambda x, y: rms_norm(relax.op.abs(x), how, relax.op.abs(y)), *[(1, 7, 48)] * 2)
    blocked = BlockChannels({"cpu": AVX2})(mod)
    assert "relax.mean" in op_names(blocked)
    assert_same_numerics(mod, blocked)


def test_same_numbers_as_the_operators() -> None:
    mod = module(layer_norm, (2, 5, 48))
    blocked = BlockChannels({"cpu": AVX2})(mod)
    assert "relax.call_tir" in op_names(blocked) and "relax.mean" not in op_names(blocked)
    assert_same_numerics(mod, blocked)


def test_short_rows_stay_operators() -> None:
    mod = module(layer_norm, (2, 9, 5))
    assert "relax.mean" in op_names(BlockChannels({"cpu": AVX2})(mod))
