"""Layers in bfloat16: rounding, kernels on tile registers, and machines without them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from helpers.relax_helpers import answers, module, random_const
from tvm import relax, te

import tvm_stretch as ts
from tvm_stretch.base.errors import TargetError
from tvm_stretch.network.expressions import shape_of
from tvm_stretch.read import load_network
from tvm_stretch.run.autoload import load_native_library
from tvm_stretch.targets.cpu.cpu import TILES
from tvm_stretch.targets.cpu.kernels.bfloat import BfloatConfig, BfloatConvConfig, rounded, widened

AMX = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "sapphirerapids"}


def nearest(value: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return value.astype(ml_dtypes.bfloat16).astype("float32")


def computed(tensor: te.Tensor, *operands: tuple[te.Tensor, np.ndarray]) -> np.ndarray:
    """A tensor expression, by stock TVM."""
    function = te.create_prim_func([*(place for place, _ in operands), tensor])
    built = tvm.compile(tvm.IRModule({"main": function}), target="llvm")
    result = tvm.runtime.empty([int(d) for d in tensor.shape], str(tensor.dtype))
    built["main"](*(tvm.runtime.tensor(value) for _, value in operands), result)
    return result.numpy()


def test_numbers_are_rounded_to_nearest_and_halves_to_even() -> None:
    edges = [0x3F808000, 0x3F818000, 0x3F808001, 0x3F80FFFF, 0x7F7FFFFF, 0x80000000, 0x00000001]
    special = [0x7F800000, 0xFF800000, 0x7FFFFFFF, 0x7F800001]
    bits = np.array([*edges, *special], "uint32").view("float32")
    numbers = np.concatenate([bits, np.random.default_rng(0).standard_normal(99, "float32")])
    x = te.placeholder(numbers.shape, "float32")
    found = computed(te.compute(x.shape, lambda i: widened(rounded(x[i]))), (x, numbers))
    np.testing.assert_array_equal(found, nearest(numbers))


@pytest.mark.parametrize("shape", [(3, 5, 7), (2, 40, 33)])
def test_the_meaning_is_a_sum_of_rounded_products(shape: tuple[int, int, int]) -> None:
    rows, depth, columns = shape
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((rows, depth)), rng.standard_normal((depth, columns))
    x, weight = x.astype("float32"), weight.astype("float32")
    config = BfloatConfig(*shape)
    w = te.placeholder(weight.shape, "float32")
    packed = computed(config.pack(w), (w, weight))
    assert packed.size * 2 >= weight.nbytes / 2 and packed.dtype == "uint16"
    a, b = te.placeholder(x.shape, "float32"), te.placeholder(packed.shape, "uint16")
    found = computed(config.meaning(a, b), (a, x), (b, packed))
    np.testing.assert_allclose(found, nearest(x) @ nearest(weight), rtol=1e-5, atol=1e-5)


def dense(depth: int, columns: int) -> Any:
    weight, bias = random_const(depth, columns), random_const(columns, seed=1)
    return lambda x: relax.op.nn.relu(relax.op.add(relax.op.matmul(x, weight), bias))


@pytest.mark.parametrize("threads", [1, 2])
def test_any_machine_compiles_for_tiles(threads: int) -> None:
    model = ts.compile(module(dense(64, 70), (5, 64)), [AMX], precision="bf16", cpu_threads=threads)
    assert {*TILES} <= {*model.graph.cpu_features}
    assert [node.kernel.partition("bfloat")[1] for node in model.graph.nodes] == ["bfloat"]
    assert model.graph.prepared_bytes < 1.1 * 64 * 96 * 2  # half of float32's
    assert "dense layers and convolutions are computed in bfloat16" in model.plan.explain()


def test_other_artifacts_need_no_tiles() -> None:
    model = ts.compile(module(dense(16, 16), (5, 16)), [AMX], cpu_threads=1)
    assert not [name for name in model.graph.cpu_features if name.startswith("amx")]


def test_machines_without_tiles_are_refused() -> None:
    target = {**AMX, "mcpu": "skylake-avx512"}
    with pytest.raises(TargetError, match=r"multiply in bfloat16.*got cpu .*skylake-avx512"):
        ts.compile(module(dense(16, 16), (5, 16)), [target], precision="bfloat16")


def convolved(weight: relax.Expr, stride: int, padding: int) -> Any:
    return lambda x: relax.op.nn.relu(
        relax.op.nn.conv2d(x, weight, strides=stride, padding=padding)
    )


CONVOLUTIONS = [
    (32, 64, (9, 7), 3, 1, 1),
    (48, 40, (9, 7), 3, 2, 1),
    (64, 96, (8, 8), 1, 2, 0),
    (20, 100, (5, 6), 5, 1, 2),
]
"""Input and output channels, image, kernel, stride, padding."""


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_the_meaning_of_a_convolution(case: tuple[Any, ...]) -> None:
    channels, outputs, size, kernel, stride, padding = case
    square = (kernel, kernel)
    config = BfloatConvConfig(
        batch=1, in_channels=channels, in_size=size, out_channels=outputs, kernel=square,
        stride=(stride, stride), padding=(padding,) * 4,
    )  # fmt: skip
    x = np.random.default_rng(0).standard_normal((1, channels, *size)).astype("float32")
    weight = random_const(outputs, channels, kernel, kernel)
    blocked = np.zeros((1, config.in_blocks * 16, *size), "float32")
    blocked[:, :channels] = x
    blocked = blocked.reshape(1, -1, 16, *size).transpose(0, 1, 3, 4, 2).copy()
    w = te.placeholder(shape_of(weight), "float32")
    packed = computed(config.pack(w), (w, weight.value.numpy()))
    a, b = te.placeholder(blocked.shape, "float32"), te.placeholder(packed.shape, "uint16")
    found = computed(config.meaning(a, b), (a, blocked), (b, packed))
    want = answer(case, x, weight)
    found = found.transpose(0, 1, 4, 2, 3).reshape(1, -1, *want.shape[2:])[:, :outputs]
    np.testing.assert_allclose(np.maximum(found, 0), want, rtol=1e-4, atol=1e-4)


def answer(case: tuple[Any, ...], x: np.ndarray, weight: relax.Expr) -> np.ndarray:
    """The convolution of rounded numbers, and a relu."""
    weight = relax.const(nearest(weight.value.numpy()))
    network = module(convolved(weight, *case[4:]), x.shape)
    return answers(load_network(network), nearest(x))[0]


def has_tiles() -> bool:
    load_native_library()
    text = str(tvm.get_global_func("tvm_stretch.describe_machine")())
    return all(name in text for name in TILES)


@pytest.mark.skipif(not has_tiles(), reason="this CPU has no tile registers (AMX)")
@pytest.mark.parametrize("shape", [(1, 5, 3), (33, 32, 64), (37, 50, 70), (5, 33, 129)])
@pytest.mark.parametrize("threads", [1, 2])
def test_kernels_compute_their_meaning(shape: tuple[int, int, int], threads: int) -> None:
    rows, depth, columns = shape
    network = module(dense(depth, columns), (rows, depth))
    model = ts.compile(network, [AMX], precision="bfloat16", cpu_threads=threads)
    x = np.random.default_rng(0).standard_normal((rows, depth)).astype("float32")
    weight, bias = (
        c.value.numpy() for c in (random_const(depth, columns), random_const(columns, seed=1))
    )
    want = np.maximum(nearest(x) @ nearest(weight) + bias, 0)
    for _ in range(2):
        np.testing.assert_allclose(model(x), want, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not has_tiles(), reason="this CPU has no tile registers (AMX)")
@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("threads", [1, 2])
def test_convolutions_compute_their_meaning(case: tuple[Any, ...], threads: int) -> None:
    channels, outputs, size, kernel = case[:4]
    weight = random_const(outputs, channels, kernel, kernel)
    network = module(convolved(weight, *case[4:]), (2, channels, *size))
    model = ts.compile(network, [AMX], precision="bfloat16", cpu_threads=threads)
    assert any("bfloat_conv" in node.kernel for node in model.graph.nodes)
    x = np.random.default_rng(0).standard_normal((2, channels, *size)).astype("float32")
    np.testing.assert_allclose(model(x), answer(case, x, weight), rtol=1e-4, atol=1e-4)
