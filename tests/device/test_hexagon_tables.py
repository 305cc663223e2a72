"""Tables of 8-bit numbers on Hexagon: looked up in vectors, the very results."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import tvm
from helpers.integer_networks import TABLE
from helpers.quantised_models import Quantised, integers, optimised, qdq
from helpers.relax_helpers import answers
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.network.integer_kernels import integer_call
from tvm_stretch.network.integers import Integer, Rounding
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.plan.splits import RowSplit
from tvm_stretch.targets.hexagon.code.dsp_code import has_zig

pytestmark = [
    pytest.mark.skipif(shutil.which("qemu-hexagon") is None, reason="needs qemu-hexagon"),
    pytest.mark.skipif(not has_zig(), reason="needs ziglang"),
]


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Any of the type."""
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max + 1, shape).astype(dtype)


def same(builder: relax.BlockBuilder, x: relax.Expr, name: str) -> relax.Var:
    """A convolution that leaves its input as it is, in blocks of channels."""
    dtype, channels = str(x.ty.dtype), int(x.ty.shape.values[1])
    limits = np.iinfo(dtype)
    rounding = Rounding(dtype, 0, int(limits.min), int(limits.max))
    one = np.ones((channels, 1, 1, 1), "int8"), np.zeros(channels, "int32")
    constants = map(relax.const, (*one, np.ones(channels, "float32")))
    integer = Integer("conv2d", rounding, (0,), groups=channels)
    return builder.emit(integer_call(builder, integer, x, *constants), name_hint=name)


SHAPES = ((2, 128), (1, 3, 7, 19), (1, 127), (1, 40, 5, 7), (1, 32, 1, 1))
"""A vector each; some numbers are left; too few for a vector; in blocks; a block of one pixel."""


@pytest.mark.parametrize(("dtype", "of"), [("uint8", "uint8"), ("int8", "int8"), ("int8", "uint8")])
def test_tables(dtype: str, of: str) -> None:
    """Plain and in blocks, alone and beside a product."""
    builder, table = relax.BlockBuilder(), relax.const(numbers((256,), of))
    inputs = [relax.Var(f"x{i}", relax.TensorType(s, dtype)) for i, s in enumerate(SHAPES)]
    results = []
    with builder.function("main", inputs):
        with builder.dataflow():
            for x, shape in zip(inputs, SHAPES, strict=True):
                y = same(builder, x, "same") if shape[1] in (32, 40) else x
                results.append(builder.emit(integer_call(builder, TABLE, y, table)))
            out = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(out)
    data = [numbers(shape, dtype, seed) for seed, shape in enumerate(SHAPES)]
    model = ts.compile(builder.get(), ["hexagon"], cpu_threads=1)
    for ours, right in zip(model(*data), answers(builder.get(), *data), strict=True):
        np.testing.assert_array_equal(ours, right)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_a_sigmoid_of_onnx_runtime(dtype: str) -> None:
    """The same bytes; 1,311 of them fill ten vectors and a part of one."""
    least = int(np.iinfo(dtype).min)
    x = Quantised(integers(1, 3, 19, 23, dtype=dtype), 0.043, least + 105)
    model = qdq("Sigmoid", [x], Quantised(np.zeros(0, dtype), 1 / 256, least))
    got = np.asarray(ts.compile(model, ["hexagon"], cpu_threads=1)(x.array))
    np.testing.assert_array_equal(got, optimised(model, x.array))


def gated(shape: tuple[int, ...], *, times_itself: bool) -> tvm.IRModule:
    """A table, perhaps times what it is of, between convolutions."""
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(shape, "uint8"))
    times = Integer("multiply", Rounding("uint8", 0, 0, 255), (3, 5), (0.0117, 3.0))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = same(builder, x, "first")
            table = relax.const(numbers((256,), "uint8"))
            gate = integer_call(builder, TABLE, y, table)
            z = builder.emit(gate, name_hint="gate")
            if times_itself:
                z = builder.emit(integer_call(builder, times, y, z), name_hint="times")
            out = builder.emit_output(same(builder, z, "last"))
        builder.emit_func_output(out)
    return builder.get()


def test_packets_of_a_table_and_a_product() -> None:
    """One number after the other, each took 1.5 packets for the table and 5 with the product."""
    mod, x = gated((1, 32, 16, 16), times_itself=True), numbers((1, 32, 16, 16), "uint8", 1)
    model = ts.compile(mod, ["hexagon"], cpu_threads=1)
    (want,) = answers(mod, x)
    assert np.abs(model(x).astype(int) - want).max() <= 1  # halves
    kernels = {kernel.kernel: kernel.packets / x.size for kernel in model.profile(1).kernels}
    assert sum(found for name, found in kernels.items() if "table" in name) < 0.12, kernels
    assert sum(found for name, found in kernels.items() if "multiply" in name) < 0.4, kernels


@pytest.mark.parametrize("dtype", ["uint8", pytest.param("int8", marks=pytest.mark.full)])
def test_gates(dtype: str) -> None:
    """A number for each channel, of which 32 lie side by side; the last pixels fill no vector."""
    limits, shapes = np.iinfo(dtype), ((1, 96, 7, 7), (1, 96, 1, 1))
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{i}", relax.TensorType(s, dtype)) for i, s in enumerate(shapes)]
    rounding = Rounding(dtype, 0, int(limits.min), int(limits.max))
    times = Integer("multiply", rounding, (int(limits.min) + 3, 5), (0.0117, 3.0))
    with builder.function("main", inputs):
        with builder.dataflow():
            operands = [same(builder, x, f"same{i}") for i, x in enumerate(inputs)]
            product = builder.emit(integer_call(builder, times, *operands))
            out = builder.emit_output(same(builder, product, "last"))
        builder.emit_func_output(out)
    data = [numbers(shape, dtype, seed) for seed, shape in enumerate(shapes)]
    model = ts.compile(builder.get(), ["hexagon"], cpu_threads=1)
    (want,) = answers(builder.get(), *data)
    off = np.abs(model(*data).astype(int) - want)
    assert off.max() <= 1 and np.mean(off > 0) < 0.01  # halves
    packets = [k.packets for k in model.profile(1).kernels if "multiply" in k.kernel]
    assert len(packets) == 1 and packets[0] < 0.5 * data[0].size  # 5 one after the other


def test_bands_of_rows() -> None:
    """Views with gaps: between a band's blocks of channels lie those of the other one."""
    mod, x = gated((1, 64, 8, 7), times_itself=False), numbers((1, 64, 8, 7), "uint8", 2)
    bands = ("gate.r0.first.0to6", "gate.r0"), ("gate.r1.first.6to8", "gate.r1")
    regions = [
        PlannedRegion(f"r{number}", "hexagon", operators)
        for number, operators in enumerate((("first",), *bands, ("gate", "conv2d")))
    ]
    plan = Plan(("hexagon", "cpu"), tuple(regions), splits=(RowSplit("first", "gate", (1, 3)),))
    model = ts.compile(mod, ["hexagon", "llvm"], plan=plan, cpu_threads=1)
    tables = [node for node in model.graph.nodes if "table" in node.kernel]
    assert len(tables) == 2
    for node in tables:
        assert all(model.graph.tensors[i].strides for i in (node.inputs[0], node.outputs[0]))
    np.testing.assert_array_equal(model(x), *answers(mod, x))


@pytest.mark.parametrize("kind", ["mean", "multiply", "table"])
def test_views_of_columns(kind: str) -> None:
    """Between the rows lie columns that are cut off."""
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((1, 64, 8, 8), "uint8"))
    rounding = Rounding("uint8", 0, 0, 255)
    integer = {
        "mean": Integer("mean", rounding, (0,), (1 / 31.7,)),
        "multiply": Integer("multiply", rounding, (3, 5), (0.0117, 3.0)),
        "table": TABLE,
    }[kind]
    with builder.function("main", [x]):
        with builder.dataflow():
            y = same(builder, x, "first")
            cut = builder.emit(relax.op.strided_slice(y, [3], [2], [6]))
            other = {"multiply": [cut], "table": [relax.const(numbers((256,), "uint8"))]}
            z = builder.emit(integer_call(builder, integer, cut, *other.get(kind, [])))
            out = builder.emit_output(same(builder, z, "last"))
        builder.emit_func_output(out)
    data = numbers((1, 64, 8, 8), "uint8", 4)
    model = ts.compile(builder.get(), ["hexagon"], cpu_threads=1)
    assert any(model.graph.tensors[i].strides for node in model.graph.nodes for i in node.inputs)
    (want,) = answers(builder.get(), data)
    assert np.abs(model(data).astype(int) - want).max() <= 1  # halves
