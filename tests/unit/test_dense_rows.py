"""Dense layers that read and write plain matrices: against NumPy, and where blocks are better."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from helpers.cpu_targets import built
from helpers.relax_helpers import assert_same_numerics, module, random_const
from tvm import relax, te, topi

from tvm_stretch.passes.block_channels import BlockChannels
from tvm_stretch.targets.cpu.kernels.conv import RowsConfig
from tvm_stretch.targets.kernels.layers import dense_shape
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.schedule import schedule_kernel
from tvm_stretch.targets.kernels.template import choose

op, nn = relax.op, relax.op.nn
AVX2 = VectorMachine(lanes=8, registers=16, broadcast_operand=False, l2_bytes=2**19, threads=1)
NEON = VectorMachine(lanes=4, registers=32, broadcast_operand=True, l2_bytes=2**19, threads=1)
TWO_CORES = VectorMachine(16, 32, False, 2**20, threads=2)
SMALL_CACHE = VectorMachine(8, 16, False, 8 * 1024, 1)
MACHINES = {"avx2": AVX2, "neon": NEON, "avx512": TWO_CORES, "small cache": SMALL_CACHE}

SIZES = [(7, 24, 40), (64, 37, 29), (33, 12, 17), (2, 200, 130), (197, 48, 16)]
"""Rows, inputs and outputs."""


def packed(config: RowsConfig, weight: np.ndarray) -> np.ndarray:
    """The weights as the kernel reads them."""
    oihw = te.placeholder((*weight.T.shape, 1, 1), name="oihw")
    out = tvm.runtime.empty(config.weight_shape, "float32")
    kernel = built(te.create_prim_func([oihw, config.pack(oihw)]))["kernel"]
    kernel(tvm.runtime.tensor(np.ascontiguousarray(weight.T)[:, :, None, None]), out)
    return out.numpy()


@pytest.mark.variants(3)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_same_as_numpy(size: tuple[int, int, int], machine: str) -> None:
    rows, inputs, outputs = size
    rng, cpu = np.random.default_rng(0), MACHINES[machine]
    x, w = rng.standard_normal((rows, inputs), "f"), rng.standard_normal((inputs, outputs), "f")
    residual = rng.standard_normal((rows, outputs), "f")
    config = choose(dense_shape(x.shape, outputs), cpu).in_rows()
    arrays = [x, packed(config, w), residual]
    data, weight, other = (te.placeholder(a.shape, name=f"x{i}") for i, a in enumerate(arrays))
    sums = topi.nn.relu(topi.add(config.meaning(data, weight), other))
    kernel = schedule_kernel(te.create_prim_func([data, weight, other, sums], "int64"), cpu)
    out = tvm.runtime.tensor(np.full(residual.shape, 7e7, "float32"))
    built(kernel)["kernel"](*map(tvm.runtime.tensor, arrays), out)
    right = np.maximum(x @ w + residual, 0)
    np.testing.assert_allclose(out.numpy(), right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [(1, 16), (5, 7)], ids=str)
def test_one_row_or_few_outputs_need_blocks(size: tuple[int, int]) -> None:
    rows, outputs = size
    assert choose(dense_shape((rows, 24), outputs), AVX2).in_rows() is None


def kernels(mod: tvm.IRModule) -> list[str]:
    after = BlockChannels({"cpu": AVX2})(mod)
    assert_same_numerics(mod, after)
    return [var.name_hint.rstrip("0123456789") for var in after.get_global_vars()]


def perceptron(x: relax.Expr) -> relax.Expr:
    hidden = nn.gelu(op.add(op.matmul(x, random_const(12, 24)), random_const(24)))
    return op.matmul(hidden, random_const(24, 16))


def test_no_conversions_between_dense_layers() -> None:
    names = kernels(module(perceptron, (20, 12)))
    assert not any("block" in name for name in names)


def test_rows_that_become_pixels_stay_in_blocks() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        image = op.permute_dims(op.reshape(perceptron(x), (1, 4, 5, 16)), [0, 3, 1, 2])
        return nn.conv2d(nn.relu(image), random_const(8, 16, 3, 3))

    names = kernels(module(body, (20, 12)))
    assert sorted(n for n in names if "block" in n) == ["block_channels", "unblock_channels"]


@pytest.mark.parametrize(
    ("width", "inputs", "in_rows"), [(32, 100, True), (31, 100, False), (32, 40, False)]
)
def test_pixels_whose_blocks_collide_in_caches_are_rows(
    width: int, inputs: int, in_rows: bool
) -> None:
    def body(x: relax.Expr) -> relax.Expr:
        rows = nn.relu(op.matmul(x, random_const(inputs, 16)))
        image = op.permute_dims(op.reshape(rows, (1, 32, width, 16)), [0, 3, 1, 2])
        return nn.conv2d(image, random_const(8, 16, 3, 3))

    mod = module(body, (32 * width, inputs))
    after = BlockChannels({"cpu": AVX2})(mod)
    assert (f"out_ty=R.Tensor(({32 * width}, 16)" in after.script()) is in_rows
    assert_same_numerics(mod, after)


@pytest.mark.parametrize("rows", [2, 4, 7, 12])
def test_few_rows_read_weights_once(rows: int) -> None:
    """Weights come from memory: a second tile that reads them again is slower."""
    config = choose(dense_shape((rows, 896), 4864), TWO_CORES)
    assert config.pixels >= rows
