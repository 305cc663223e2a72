"""Segments in bands of rows on several processors: same numbers, and nothing is copied."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.cpu_targets import ALL_LANES, TARGET, host_of
from helpers.fake_targets import fake_processor
from helpers.relax_helpers import answers, module, random_const
from helpers.rounding import assert_rounded
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.make.lowering.executor_graph import COPY_KERNEL
from tvm_stretch.network.operators import Operators
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.splits import RowSplit
from tvm_stretch.read import load_network
from tvm_stretch.targets.cpu.cpu import cpu_processor

HOST = cpu_processor(TARGET, 1)


def network(size: int, channels: int = 16) -> object:
    """A residual block, a strided convolution and a pooling between two convolutions."""
    dice = np.random.default_rng(0)

    def random_weight(kernel: int) -> relax.Expr:
        shape = (channels, channels, kernel, kernel)
        return relax.const(dice.standard_normal(shape).astype("float32") / 8)

    def conv(x: relax.Expr, kernel: int, stride: int = 1) -> relax.Expr:
        padding = kernel // 2
        call = relax.op.nn.conv2d(x, random_weight(kernel), strides=stride, padding=padding)
        return relax.op.nn.relu(call)

    def body(x: relax.Expr) -> relax.Expr:
        x = conv(x, 1)
        x = relax.op.nn.relu(relax.op.add(x, conv(conv(x, 1), 3)))
        x = relax.op.nn.max_pool2d(conv(x, 3, 2), (3, 3), (1, 1), padding=(1, 1))
        return conv(conv(x, 1), 1)

    return load_network(module(body, (1, channels, size, size)))


@pytest.mark.parametrize(
    ("size", "ratios", "lanes"),
    [
        (16, (1, 1), 4),
        (16, (0, 3, 1), 8),
        (16, (1, 2, 1), 16),
        *(
            pytest.param(size, ratios, lanes, marks=pytest.mark.full)
            for size, ratios in ((16, (1, 1)), (32, (1, 2, 1)), (24, (0, 3, 1)))
            for lanes in ALL_LANES
        ),
    ],
)
def test_bands_of_several_processors(size: int, ratios: tuple[int, ...], lanes: int) -> None:
    """Of two blocks of channels, or a band would be dense memory, and no view at all."""
    host, channels = host_of(lanes), 2 * lanes
    mod = network(size, channels)
    names = [op.name for op in Operators(mod["main"])]
    start, end = names[1], names[-3]
    devices = [fake_processor(f"fake{i}", target=host.target) for i in range(len(ratios) - 1)]
    split = {"by": "rows", "start": start, "end": end, "ratios": list(ratios)}
    plan = Plan.read(
        {
            "format": "tvm_stretch.plan",
            "version": 1,
            "processors": ["cpu", *(device.name for device in devices)],
            "splits": [split],
        }
    )
    model = ts.compile(mod, [host, *devices], plan=plan)
    graph = model.graph
    assert COPY_KERNEL not in {node.kernel for node in graph.nodes}
    assert not any("slice" in node.kernel or "concat" in node.kernel for node in graph.nodes)
    bands = [t for t in graph.tensors if t.strides]
    assert len({(t.offset, t.shape) for t in bands}) >= 2 * (len(ratios) - ratios.count(0))
    x = np.random.default_rng(1).standard_normal((1, channels, size, size)).astype("float32")
    (expected,) = answers(mod, x)
    for _ in range(3):
        assert_rounded(mod, [x], model(x), expected)


def test_bands_that_begin_between_cache_lines_are_copied() -> None:
    """Odd rows of 7 pixels: right, only slower."""
    mod = network(14)
    names = [op.name for op in Operators(mod["main"])]
    split = {"by": "rows", "start": names[6], "end": names[-1], "ratios": [1, 1]}
    plan = Plan.read(
        {
            "format": "tvm_stretch.plan",
            "version": 1,
            "processors": ["cpu", "fake"],
            "splits": [split],
        }
    )
    x = np.random.default_rng(1).standard_normal((1, 16, 14, 14)).astype("float32")
    (expected,) = answers(mod, x)
    model = ts.compile(mod, [HOST, fake_processor()], plan=plan)
    assert_rounded(mod, [x], model(x), expected)


def test_nested_concats_of_one_tensor_are_copied_in_pieces() -> None:
    """The copy is recorded before its source becomes a band of a wider tensor, with gaps."""

    def body(x: relax.Expr) -> relax.Expr:
        weights = [random_const(8, 16, kernel, kernel, seed=kernel) for kernel in (1, 3)]
        narrow = relax.op.nn.conv2d(x, weights[0])
        wide = relax.op.nn.relu(relax.op.nn.conv2d(x, weights[1], padding=1))
        inner = relax.op.concat([relax.op.concat([narrow, wide], axis=1), x], axis=1)
        return relax.op.concat([inner, inner], axis=1)

    mod = load_network(module(body, (1, 16, 16, 16)))
    end = [*Operators(mod["main"])][-1].name
    plan = Plan(("cpu", "fake"), (), splits=(RowSplit("x0", end, (8, 8)),))
    x = np.random.default_rng(1).standard_normal((1, 16, 16, 16)).astype("float32")
    (expected,) = answers(mod, x)
    assert_rounded(mod, [x], ts.compile(mod, [HOST, fake_processor()], plan=plan)(x), expected)
