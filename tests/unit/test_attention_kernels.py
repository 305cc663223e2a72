"""Products of computed matrices, and softmax, against NumPy, for vectors of every width."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from helpers.cpu_targets import TARGET
from helpers.cpu_targets import built as compiled
from helpers.relax_helpers import assert_same_numerics, module, op_names
from tvm import te, topi

import tvm_stretch as ts
from tvm_stretch.passes.block_channels import BlockChannels
from tvm_stretch.passes.expand_math import ExpandMath
from tvm_stretch.passes.keep_nan import KeepNan
from tvm_stretch.targets.cpu.kernels.softmax import exponential
from tvm_stretch.targets.kernels.layers import MatmulShape, SoftmaxShape
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.schedule import schedule_kernel
from tvm_stretch.targets.kernels.template import choose

AVX2 = VectorMachine(lanes=8, registers=16, broadcast_operand=False, l2_bytes=2**19, threads=1)
NEON = VectorMachine(lanes=4, registers=32, broadcast_operand=True, l2_bytes=2**19, threads=1)
TWO_CORES = VectorMachine(16, 32, False, 2**20, threads=2)

SHAPES = {
    "vectors that divide the columns": ((2, 7, 5), (2, 5, 32)),
    "a last vector that overlaps": ((3, 19, 6), (3, 6, 37)),
    "columns of one vector": ((5, 9), (9, 17)),
    "columns below a vector": ((2, 7, 5), (2, 5, 6)),
    "the fewest columns": ((3, 9), (9, 4)),
    "one row": ((1, 8), (8, 50)),
    "stacks that repeat": ((2, 1, 5, 4), (3, 4, 18)),
}


def built(a: tuple[int, ...], b: tuple[int, ...], machine: VectorMachine) -> tvm.tirx.PrimFunc:
    """max(a @ b, bias), scheduled."""
    config = choose(MatmulShape(a, b), machine)
    assert config is not None
    inputs = [te.placeholder(shape, name=name) for shape, name in ((a, "a"), (b, "b"))]
    product = config.meaning(*inputs)
    bias = te.placeholder(product.shape, name="bias")
    meaning = te.create_prim_func([*inputs, bias, topi.maximum(product, bias)])
    return schedule_kernel(meaning, machine)


@pytest.mark.variants(3)
@pytest.mark.parametrize("machine", [AVX2, NEON, TWO_CORES], ids=["avx2", "neon", "avx512"])
@pytest.mark.parametrize("name", SHAPES)
def test_same_as_numpy(name: str, machine: VectorMachine) -> None:
    a, b = SHAPES[name]
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape, "float32") for shape in (a, b))
    bias = rng.standard_normal(np.matmul(x, y).shape, "float32")
    out = tvm.runtime.tensor(np.full(bias.shape, 7e7, "float32"))
    library = compiled(built(a, b, machine))
    library["kernel"](*map(tvm.runtime.tensor, (x, y, bias)), out)
    np.testing.assert_allclose(out.numpy(), np.maximum(x @ y, bias), rtol=1e-5, atol=1e-5)


def test_every_row_of_sums_is_in_vectors() -> None:
    """Of 197 columns none is computed by itself."""
    text = built((3, 197, 64), (3, 64, 197), AVX2).script()
    assert "vectorized" in text and "T.int64(197 - 8)" not in text
    assert "T.int64(189)" in text  # where the last vector begins


@pytest.mark.parametrize(
    ("a", "b"), [((4, 5), (5, 3)), ((0, 5), (5, 8)), ((4, 0), (0, 8))], ids=str
)
def test_no_template(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    assert choose(MatmulShape(a, b), AVX2) is None


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    with np.errstate(all="ignore"):
        power = np.exp(x - x.max(axis, keepdims=True))
        return power / power.sum(axis, keepdims=True)


def run_softmax(
    x: np.ndarray, machine: VectorMachine, denormals: bool = True, axis: int = -1
) -> np.ndarray:
    """Softmax, then twice of it."""
    config = choose(SoftmaxShape(x.shape, axis, denormals), machine)
    assert config is not None
    data = te.placeholder(x.shape, name="x")
    result = config.meaning(data)
    func = te.create_prim_func([data, topi.multiply(result, 2.0)])
    func = KeepNan()(ExpandMath()(tvm.IRModule({"f": func})))["f"]
    out = tvm.runtime.tensor(np.full(x.shape, 7e7, "float32"))
    compiled(schedule_kernel(func, machine))["kernel"](tvm.runtime.tensor(x), out)
    return out.numpy()


@pytest.mark.variants(3)
@pytest.mark.parametrize("machine", [AVX2, NEON, TWO_CORES], ids=["avx2", "neon", "avx512"])
@pytest.mark.parametrize("columns", [8, 16, 17, 37, 64, 555])
def test_softmax_is_that_of_numpy(columns: int, machine: VectorMachine) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, columns), "float32") * 9
    np.testing.assert_allclose(run_softmax(x, machine), 2 * softmax(x), rtol=3e-6, atol=1e-9)


@pytest.mark.variants(2)
@pytest.mark.parametrize("machine", [AVX2, NEON, TWO_CORES], ids=["avx2", "neon", "avx512"])
@pytest.mark.parametrize("shape", [(2, 3, 37), (300, 16), (2, 1, 5), (1, 260, 1)], ids=str)
def test_softmax_of_columns(shape: tuple[int, ...], machine: VectorMachine) -> None:
    """Each lane with a row of its own; the last vector overlaps the one before."""
    x = np.random.default_rng(0).standard_normal(shape, "float32") * 9
    got = run_softmax(x, machine, axis=-2)
    np.testing.assert_allclose(got, 2 * softmax(x, -2), rtol=3e-6, atol=1e-9)


@pytest.mark.parametrize("axis", [-1, -2])
def test_softmax_of_special_values(axis: int) -> None:
    x = np.random.default_rng(0).standard_normal((5, 19), "float32")
    x[0, 3], x[1, 18], x[2, 0], x[3] = np.nan, np.inf, -np.inf, -np.inf
    x = x if axis == -1 else np.ascontiguousarray(x.T)
    got = run_softmax(x, AVX2, axis=axis)
    np.testing.assert_allclose(got, 2 * softmax(x, axis), rtol=3e-6, atol=1e-9)


@pytest.mark.parametrize("axis", [-1, -2])
def test_weights_of_masked_elements_are_not_denormal(axis: int) -> None:
    x = np.random.default_rng(0).standard_normal((40, 49), "float32")
    x -= np.linspace(70, 110, 40, dtype="float32")[:, None] * (np.arange(49) % 2)
    x = x if axis == -1 else np.ascontiguousarray(x.T)
    result = run_softmax(x, AVX2, denormals=False, axis=axis)
    np.testing.assert_allclose(result, 2 * softmax(x, axis), rtol=3e-6, atol=2e-36)
    small = result[result < np.finfo("float32").tiny]
    assert small.size and not small.any()


@pytest.mark.parametrize(("shape", "axis"), [((4, 7, 2), 0), ((9, 3), 1), ((0, 8), 1)], ids=str)
def test_softmax_without_template(shape: tuple[int, ...], axis: int) -> None:
    assert choose(SoftmaxShape(shape, axis), AVX2) is None


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_along_any_axis_takes_the_template(axis: int) -> None:
    before = module(lambda x: tvm.relax.op.nn.softmax(x, axis), (3, 21, 4, 7))
    after = BlockChannels({"cpu": AVX2})(before)
    assert "relax.nn.softmax" not in op_names(after)
    assert_same_numerics(before, after)


def test_softmax_of_small_elements_that_are_normal() -> None:
    """Less than 1e-34 of a row of 1,000 is zero only where a float32 could not hold it."""
    x = np.full((2, 1000), -84.0, "float32")
    x[:, 7] = 0
    got = run_softmax(x, AVX2, denormals=False)
    np.testing.assert_allclose(got, 2 * softmax(x), rtol=1e-4, atol=0)


@pytest.mark.parametrize("machine", [AVX2, NEON, TWO_CORES], ids=["avx2", "neon", "avx512"])
def test_softmax_of_denormal_elements(machine: VectorMachine) -> None:
    x = np.zeros((1, 70), "float32")
    x[0, 1:] = -np.linspace(80, 110, 69)
    result, wanted = run_softmax(x, machine), 2 * softmax(x.astype("float64"))
    assert 0 < result[result > 0].min() < 1e-44
    np.testing.assert_allclose(result, wanted, rtol=3e-6, atol=3e-45)


@pytest.mark.parametrize("denormals", [False, True])
def test_exponentials_are_those_of_float64(denormals: bool) -> None:
    """Within two units in the last place where a reader can tell, without clamping or rounding."""
    x = -np.linspace(0, 86, 20_001, dtype="float32")
    data = te.placeholder(x.shape, name="x")
    power = te.compute(x.shape, lambda i: exponential(data[i], denormals))
    func, out = te.create_prim_func([data, power]), tvm.runtime.tensor(np.zeros_like(x))
    assert "floor" not in func.script() and "Cast" not in func.script()
    compiled(func)["kernel"](tvm.runtime.tensor(x), out)
    right = np.exp(x.astype("float64"))
    error = np.abs(out.numpy() - right) / (right if denormals else np.maximum(right, 0.02))
    assert error.max() < 3e-7


def test_logarithms_of_softmax_are_finite_where_those_of_numpy_are() -> None:
    op, emit = tvm.relax.op, lambda expr: tvm.relax.BlockBuilder.current().emit(expr)

    def network(x: tvm.relax.Expr) -> tvm.relax.Expr:
        return op.log(emit(op.reshape(emit(op.nn.softmax(x)), (64,))))

    x = np.random.default_rng(0).standard_normal((2, 32), "float32")
    x[:, ::3] -= 92
    got = ts.compile(module(network, x.shape), TARGET, cpu_threads=1)(x)
    np.testing.assert_allclose(got, np.log(softmax(x.astype("float64"))).ravel(), atol=0.01)


def test_what_is_fused_may_read_the_second_matrix_first() -> None:
    """exp(y) stands before x @ y in their kernel, which is given y before x."""
    op, emit = tvm.relax.op, lambda expr: tvm.relax.BlockBuilder.current().emit(expr)

    def network(x: tvm.relax.Expr, y: tvm.relax.Expr) -> tvm.relax.Expr:
        power = emit(op.exp(y))
        return op.add(emit(op.matmul(x, y)), power)

    x, y = np.random.default_rng(0).standard_normal((2, 20, 20), "float32")
    model = ts.compile(module(network, x.shape, y.shape), TARGET, cpu_threads=1)
    assert len(model.graph.nodes) == 1
    np.testing.assert_allclose(model(x, y), x @ y + np.exp(y), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("logs", [False, True])
def test_weights_are_what_only_products_read(logs: bool) -> None:
    """As attention reads them; a logarithm beside it tells small numbers from zero."""
    op, emit = tvm.relax.op, lambda expr: tvm.relax.BlockBuilder.current().emit(expr)

    def network(x: tvm.relax.Expr) -> tvm.relax.Expr:
        weights = emit(op.nn.softmax(x))
        product = emit(op.matmul(emit(op.permute_dims(weights, [0, 2, 1])), x))
        return op.add(emit(op.log(weights)), product) if logs else product

    text = BlockChannels({"cpu": AVX2})(module(network, (2, 12, 12))).script()
    assert ('\\"denormals\\": true' in text) is logs


def test_attention_takes_the_template_and_a_matrix_may_meet_itself() -> None:
    def network(x: tvm.relax.Expr) -> tvm.relax.Expr:
        emit, op = tvm.relax.BlockBuilder.current().emit, tvm.relax.op
        scores = emit(op.matmul(x, emit(op.permute_dims(x, [0, 2, 1]))))
        return op.matmul(emit(op.matmul(emit(op.nn.softmax(scores)), scores)), x)

    before = module(network, (2, 12, 9))
    after = BlockChannels({"cpu": AVX2})(before)
    assert op_names(after).count("relax.call_tir") == 4
    assert_same_numerics(before, after)
    x = np.random.default_rng(0).standard_normal((2, 12, 20), "float32")
    scores = x @ x.swapaxes(1, 2)
    got = ts.compile(module(network, x.shape), TARGET, cpu_threads=1)(x)
    np.testing.assert_allclose(got, softmax(scores) @ scores @ x, rtol=1e-4, atol=1e-3)
