"""Products with weights of 4 bits in blocks: the kernel, ONNX Runtime's operator, bad input."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from helpers.cpu_targets import ALL_LANES, TARGET, host_of
from helpers.relax_helpers import run
from onnx import TensorProto, helper, numpy_helper
from tvm import relax
from tvm.target import Target

import tvm_stretch as ts
from tvm_stretch.base.errors import ModelError, UnsupportedError
from tvm_stretch.read import load_network
from tvm_stretch.targets.cpu.cpu import cpu_processor
from tvm_stretch.targets.cpu.kernels.nibbles import by_unit, nibbles_call, pack
from tvm_stretch.targets.kernels.schedule import schedule_kernel
from tvm_stretch.targets.opencl.opencl import OpenCLDevice, local_device, opencl_processor


def weights(
    outputs: int, depth: int, size: int, bits: int = 4
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random weights, scales and zero points."""
    rng = np.random.default_rng(outputs)
    blocks = -(-depth // size)
    return (
        rng.integers(0, 1 << bits, (outputs, depth), dtype="uint8"),
        rng.uniform(0.5, 1, (outputs, blocks)).astype("float32"),
        rng.integers(0, 1 << bits, (outputs, blocks), dtype="uint8"),
    )


def with_minima(scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales of float16, and the zero points that are minima of float16."""
    scale = scale.astype("float16").astype("float32")
    least = np.random.default_rng(5).uniform(-9, 2, scale.shape).astype("float16")
    return scale, -least.astype("float32") / scale


def expected(x: np.ndarray, values: np.ndarray, scale: Any, zero: Any, size: int) -> np.ndarray:
    """The product in float64."""
    depth = values.shape[1]
    factor, offset = (np.repeat(part, size, axis=1)[:, :depth] for part in (scale, zero))
    weight = (values.astype("float64") - offset) * factor
    return x.astype("float64") @ weight.T


def bound(x: np.ndarray, depth: int, bits: int = 4) -> float:
    """This bounds the rounding of products and offsets, whose terms are below ``2**bits``."""
    return 2.0**-22 * depth * (2**bits - 1) * float(np.abs(x).max())


def halved(values: np.ndarray, bits: int) -> np.ndarray:
    """Two numbers of 4 bits in a byte."""
    return values[:, 0::2] | values[:, 1::2] << 4 if bits == 4 else values


def nbits(
    rows: int,
    values: np.ndarray,
    scale: np.ndarray,
    zero: np.ndarray | None,
    size: int,
    **attrs: Any,
) -> onnx.ModelProto:
    """A network of one `MatMulNBits`."""
    outputs, depth = values.shape
    blocks = scale.shape[1]
    padded = np.zeros((outputs, blocks * size), "uint8")
    padded[:, :depth] = values
    bits = attrs.get("bits", 4)
    arrays = {"B": halved(padded, bits).reshape(outputs, blocks, -1), "scales": scale.ravel()}
    if zero is not None and zero.dtype == np.uint8:
        even = np.pad(zero, ((0, 0), (0, blocks % 2 if bits == 4 else 0)))
        arrays["zeros"] = halved(even, bits).ravel()
    elif zero is not None:
        arrays["zeros"] = zero.ravel()
    given = {"K": depth, "N": outputs, "bits": 4, "block_size": size, **attrs}
    node = helper.make_node("MatMulNBits", ["x", *arrays], ["y"], domain="com.microsoft", **given)
    graph = helper.make_graph(
        [node],
        "nbits",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, rows, depth])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, rows, outputs])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=domains)
    model.ir_version = 8
    return model


def test_weights_lie_as_the_kernel_reads_them() -> None:
    values = np.arange(20 * 4, dtype="uint8").reshape(20, 4) % 16
    packed = pack(values)
    assert packed.shape == (2, 2, 16)
    assert packed[1, 0, 3] == values[19, 0] | values[19, 1] << 4
    assert not packed[1, :, 4:].any()
    assert by_unit(np.arange(20.0).reshape(20, 1))[1, 0, 3] == 19


@pytest.mark.variants(4)
@pytest.mark.parametrize(
    ("rows", "outputs", "depth", "size"),
    [(1, 16, 32, 32), (1, 150, 96, 32), (3, 33, 64, 32), (6, 16, 40, 32), (1, 5, 130, 128)],
)
@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize(("bits", "minima"), [(4, False), (4, True), (8, False)])
def test_the_kernel_computes_the_plain_sum(
    rows: int, outputs: int, depth: int, size: int, lanes: int, bits: int, minima: bool
) -> None:
    values, scale, zero = weights(outputs, depth, size, bits)
    if minima:
        scale, zero = with_minima(scale)
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((rows, depth), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            call = nibbles_call(bb, x, values, scale, zero, size, bits)
            result = bb.emit_output(bb.normalize(call))
        bb.emit_func_output(result)
    mod = bb.get()
    machine = dataclasses.replace(cpu_processor(TARGET, 1).machine, lanes=lanes)
    scheduled = tvm.IRModule(
        {
            var: func if isinstance(func, relax.Function) else schedule_kernel(func, machine)
            for var, func in mod.functions.items()
        }
    )
    given = np.random.default_rng(1).standard_normal((rows, depth)).astype("float32")
    wanted = expected(given, values, scale, zero, size)
    for one in (mod, scheduled):
        atol = bound(given, depth, bits)
        np.testing.assert_allclose(run(one, given)[0], wanted, rtol=0, atol=atol)


@pytest.mark.parametrize("targets", [["llvm"], ["opencl"]])
@pytest.mark.parametrize("rows", [1, 6])
def test_minima_of_float16_are_stored_so(targets: list[str], rows: int) -> None:
    """A weight of a block of 32 then has 5 bits instead of 5.5, as in Q4_1."""
    values, scale, _ = weights(48, 96, 32)
    scale, zero = with_minima(scale)
    x = np.random.default_rng(2).standard_normal((1, rows, 96)).astype("float32")
    model = ts.compile(nbits(rows, values, scale, zero, 32), targets, cpu_threads=1)
    assert model.graph.weights_bytes < 48 * 96 * 5 / 8 + 300
    wanted = expected(x[0], values, scale, zero, 32)
    np.testing.assert_allclose(model(x)[0], wanted, rtol=0, atol=2 * bound(x, 96))


@pytest.mark.parametrize("targets", [["llvm"], ["opencl"]])
@pytest.mark.parametrize(("rows", "depth"), [(1, 96), (7, 96), (2, 45)])
def test_weights_of_8_bits(targets: list[str], rows: int, depth: int) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    values, scale, zero = weights(50, depth, 32, 8)
    model = nbits(rows, values, scale, zero, 32, bits=8)
    x = np.random.default_rng(2).standard_normal((1, rows, depth)).astype("float32")
    compiled = ts.compile(model, targets, cpu_threads=1)
    assert compiled.graph.weights_bytes < 64 * depth * 1.25
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_allclose(compiled(x), wanted, rtol=0, atol=2 * bound(x, depth, 8))


@pytest.mark.parametrize("targets", [["llvm"], ["opencl"]])
@pytest.mark.parametrize(("rows", "with_zeros"), [(1, True), (1, False), (5, True)])
def test_the_answer_is_onnx_runtimes(targets: list[str], rows: int, with_zeros: bool) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    values, scale, zero = weights(48, 96, 32)
    model = nbits(rows, values, scale, zero if with_zeros else None, 32)
    x = np.random.default_rng(2).standard_normal((1, rows, 96)).astype("float32")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    compiled = ts.compile(model, targets, cpu_threads=1)
    assert any("nibbles" in node.kernel for node in compiled.graph.nodes)
    assert compiled.graph.weights_bytes < 48 * 96 * 4 / 2, "the weights keep their 4 bits"
    np.testing.assert_allclose(
        compiled(x), session.run(None, {"x": x})[0], rtol=0, atol=2 * bound(x, 96)
    )


@pytest.mark.parametrize("targets", [["llvm"], ["opencl"]])
@pytest.mark.parametrize(("rows", "level"), [(1, 0), (6, 0), (3, 4)])
def test_scales_of_float16_are_stored_so(targets: list[str], rows: int, level: int) -> None:
    """They may be negative, as those of llama.cpp; a scale of more digits keeps all in float32."""
    values, scale, zero = weights(20, 96, 32)
    scale = (scale * np.where(np.arange(3) % 2, -1, 1)).astype("float16").astype("float32")
    x = np.random.default_rng(2).standard_normal((1, rows, 96)).astype("float32")
    given = rounded(x[0], 32) if level else x[0]
    stored = []
    for last in (0, np.float32(1 / 3)):
        scale[19, 2] = last
        model = ts.compile(nbits(rows, values, scale, zero, 32, accuracy_level=level), targets)
        wanted = expected(given, values, scale, zero, 32)
        np.testing.assert_allclose(model(x)[0], wanted, rtol=0, atol=4 * bound(x, 96))
        stored.append(model.graph.weights_bytes)
    assert stored[1] - stored[0] >= 2 * scale.size


def test_threads_share_the_outputs() -> None:
    values, scale, zero = weights(150, 64, 32)
    model = nbits(1, values, scale, zero, 32)
    x = np.random.default_rng(2).standard_normal((1, 1, 64)).astype("float32")
    one, two = (ts.compile(model, cpu_threads=count)(x) for count in (1, 2))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"bits": 2}, "weights of 4 or 8 bits .* got 2"),
        ({"K": 64}, r"K as the input has it.* got K=64"),
        ({"N": 47}, "47 x 48 numbers .* got shape"),
        ({"block_size": 24}, "block_size a power of 2"),
        ({"block_size": 0}, "block_size a power of 2"),
    ],
)
def test_what_does_not_fit_is_refused(attrs: dict[str, int], message: str) -> None:
    with pytest.raises((ModelError, UnsupportedError), match=message):
        ts.compile(nbits(1, *weights(48, 96, 32), 32, **attrs))


def test_scales_that_are_no_numbers_are_refused() -> None:
    values, scale, zero = weights(48, 96, 32)
    scale[3, 1] = np.nan
    with pytest.raises(ModelError, match="expected finite scales"):
        ts.compile(nbits(1, values, scale, zero, 32))


@pytest.mark.parametrize("level", [0, 4])
def test_scales_of_zero_give_zeros(level: int) -> None:
    """As in ONNX Runtime."""
    values, scale, zero = weights(48, 96, 32)
    scale[:40] = 0
    x = np.random.default_rng(2).standard_normal((1, 2, 96)).astype("float32")
    y = ts.compile(nbits(2, values, scale, zero, 32, accuracy_level=level), cpu_threads=1)(x)
    assert not y[..., :40].any() and y[..., 40:].all()


def dequantised(
    op: str, kind: int, rows: int, shape: tuple[int, int], size: int, axis: int, turned: bool
) -> onnx.ModelProto:
    """A product with a matrix that `DequantizeLinear` makes of 4 bits; `shape` is the matrix's."""
    rng = np.random.default_rng(size)
    low = -8 if kind == TensorProto.INT4 else 0
    scales = [*shape]
    scales[axis] = -(-shape[axis] // size) if size else 1
    if not size:
        scales = [] if axis < 0 else [shape[axis]]
    arrays = {
        "w": rng.integers(low, low + 16, shape),
        "z": rng.integers(low, low + 16, scales),
    }
    scale = rng.uniform(0.5, 1, scales).astype("float32")
    tensors = [
        helper.make_tensor(name, kind, array.shape, array.ravel().tolist())
        for name, array in arrays.items()
    ]
    tensors.append(numpy_helper.from_array(scale, "s"))
    given = {"axis": axis, "block_size": size} if size else {"axis": axis} if axis >= 0 else {}
    nodes = [helper.make_node("DequantizeLinear", ["w", "s", "z"], ["f"], **given)]
    if turned and op == "MatMul":
        nodes.append(helper.make_node("Transpose", ["f"], ["t"], perm=[1, 0]))
    depth, outputs = shape[::-1] if turned else shape
    inputs = ["x", "t" if turned and op == "MatMul" else "f"]
    if op == "Gemm":
        inputs.append("bias")
        tensors.append(numpy_helper.from_array(np.arange(outputs, dtype="float32"), "bias"))
    attrs = {"transB": 1} if turned and op == "Gemm" else {}
    nodes.append(helper.make_node(op, inputs, ["y"], name="fc", **attrs))
    lead = [rows] if op == "Gemm" else [1, rows]
    graph = helper.make_graph(
        nodes,
        "dequantised",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [*lead, depth])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [*lead, outputs])],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def in_float(network: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """ONNX Runtime's answer; its optimiser would round the inputs to 8 bits."""
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(network.SerializeToString(), options)
    answer: np.ndarray = session.run(None, {"x": x})[0]
    return answer


@pytest.mark.variants(2)
@pytest.mark.parametrize(
    ("op", "kind", "rows", "shape", "size", "axis", "turned"),
    [
        ("MatMul", TensorProto.INT4, 1, (96, 48), 32, 0, False),
        ("MatMul", TensorProto.UINT4, 3, (90, 20), 32, 0, False),  # blocks that do not divide
        ("MatMul", TensorProto.UINT4, 1, (33, 20), 16, 0, False),  # an odd depth
        ("MatMul", TensorProto.INT4, 6, (31, 7), 31, 0, False),  # one odd block
        ("MatMul", TensorProto.INT4, 1, (20, 64), 16, 1, True),
        ("MatMul", TensorProto.INT4, 2, (64, 20), 0, 1, False),  # a scale for each output
        ("MatMul", TensorProto.UINT4, 1, (64, 20), 0, -1, True),  # one scale
        ("Gemm", TensorProto.INT4, 5, (20, 64), 32, 1, True),
        ("Gemm", TensorProto.UINT4, 1, (64, 20), 32, 0, False),
    ],
)
def test_dequantised_weights_keep_their_bits(
    op: str, kind: int, rows: int, shape: tuple[int, int], size: int, axis: int, turned: bool
) -> None:
    network = dequantised(op, kind, rows, shape, size, axis, turned)
    model = ts.compile(network, cpu_threads=1)
    assert any("nibbles" in node.kernel for node in model.graph.nodes)
    assert "in float" not in model.plan.explain()
    x = np.random.default_rng(2).standard_normal(model.inputs[0].shape).astype("float32")
    wanted = in_float(network, x)
    depth = shape[1 if turned else 0]
    np.testing.assert_allclose(model(x), wanted, rtol=0, atol=2 * bound(x, depth))


@pytest.mark.parametrize(
    ("size", "axis"),
    [(3, 0), (16, 1), (0, 0)],  # odd blocks, blocks of outputs, a scale for each input
)
def test_other_blocks_are_computed_in_float(size: int, axis: int) -> None:
    network = dequantised("MatMul", TensorProto.INT4, 2, (48, 32), size, axis, False)
    model = ts.compile(network, cpu_threads=1)
    assert not any("nibbles" in node.kernel for node in model.graph.nodes)
    assert "in float for weights of int4" in model.plan.explain()
    x = np.random.default_rng(2).standard_normal((1, 2, 48)).astype("float32")
    np.testing.assert_allclose(model(x), in_float(network, x), rtol=0, atol=bound(x, 48))


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_scales_of_dequantised_weights(bad: float) -> None:
    network = dequantised("MatMul", TensorProto.INT4, 1, (32, 16), 32, 0, False)
    network.graph.initializer[2].CopyFrom(
        numpy_helper.from_array(np.full((1, 16), bad, "float32"), "s")
    )
    with pytest.raises(ModelError, match="scales above zero"):
        ts.compile(network, cpu_threads=1)


STEPS = {2: 127 * 128, 4: 127}
"""How fine inputs are rounded, by `accuracy_level`."""


def rounded(x: np.ndarray, size: int, level: int = 4) -> np.ndarray:
    """Inputs as `accuracy_level` lets kernels round them, with a scale for each block."""
    rows, depth = x.shape
    padded = np.zeros((rows, -(-depth // size) * size), "float32")
    padded[:, :depth] = x
    parts = padded.reshape(rows, -1, size)
    factor = np.maximum(np.abs(parts).max(-1, keepdims=True), np.float32(1e-30))
    factor = factor / np.float32(STEPS[level])
    found: np.ndarray = np.round(parts / factor) * factor.astype("float64")
    return found.reshape(rows, -1)[:, :depth]


ROUNDED = [
    (1, 16, 32, 32),
    (1, 150, 96, 32),
    (13, 33, 128, 64),
    (3, 20, 80, 16),
    (30, 5, 100, 128),
    (40, 37, 64, 32),
]


@pytest.mark.variants(12)
@pytest.mark.parametrize(
    ("rows", "outputs", "depth", "size", "largest"),
    [*((*shape, False) for shape in ROUNDED), (*ROUNDED[1], True)],
)
@pytest.mark.parametrize(("lanes", "plain"), [*((n, False) for n in ALL_LANES), (8, True)])
@pytest.mark.parametrize(("bits", "level"), [(4, 4), (4, 2), (8, 4), (8, 2)])
def test_inputs_are_rounded_where_the_network_allows_it(
    rows: int,
    outputs: int,
    depth: int,
    size: int,
    largest: bool,
    lanes: int,
    plain: bool,
    bits: int,
    level: int,
) -> None:
    """Sums of a block are exact, also if all products are as large as they can be."""
    values, scale, zero = weights(outputs, depth, size, bits)
    rng = np.random.default_rng(7)
    x = rng.standard_normal((1, rows, depth)).astype("float32")
    x[0, 0, :16] = 0
    if largest:
        values[:], zero[:] = 2**bits - 1, 3
        x[:] = np.where(rng.random((rows, 1)) < 0.5, -127, 127)
    host = host_of(lanes)
    machine = dataclasses.replace(host.machine, dot="") if plain else host.machine
    network = nbits(rows, values, scale, zero, size, accuracy_level=level, bits=bits)
    model = ts.compile(network, [dataclasses.replace(host, machine=machine)])
    assert any("words" in node.kernel for node in model.graph.nodes)
    wanted = expected(rounded(x[0], size, level), values, scale, zero, size)
    np.testing.assert_allclose(model(x)[0], wanted, rtol=0, atol=4 * bound(x, depth, bits))
    error = np.abs(model(x)[0] - expected(x[0], values, scale, zero, size)).max()
    if level == 4 and not largest:
        assert error > 100 * bound(x, depth), "it did not round"
    assert error < 2**bits * depth * np.abs(x).max() / STEPS[level]


def check_on_a_gpu(
    rows: int, outputs: int, depth: int, size: int, level: int, bits: int = 4
) -> None:
    """The kernel of work-groups, on an OpenCL device."""
    device = OpenCLDevice("gpu", "NVIDIA of the test", max_group_size=512, local_bytes=48 * 1024)
    gpu = opencl_processor(Target("opencl"), cpu_processor(TARGET, 1), device)
    values, scale, zero = weights(outputs, depth, size, bits)
    scale = scale.astype("float16").astype("float32") if rows % 2 else scale
    given = zero if rows % 3 else None
    network = nbits(rows, values, scale, given, size, accuracy_level=level, bits=bits)
    x = np.random.default_rng(3).standard_normal((1, rows, depth)).astype("float32")
    model = ts.compile(network, [gpu])
    assert {region.processor for region in model.plan.regions} == {"opencl"}
    rows_given = rounded(x[0], size, level) if level else x[0]
    middle = np.full_like(zero, 2 ** (bits - 1)) if given is None else zero
    wanted = expected(rows_given, values, scale, middle, size)
    np.testing.assert_allclose(model(x)[0], wanted, rtol=0, atol=4 * bound(x, depth, bits))


@pytest.mark.variants(2)
@pytest.mark.gpu
@pytest.mark.skipif(local_device() is None, reason="no OpenCL device")
@pytest.mark.parametrize(("level", "bits"), [(0, 4), (4, 4), (2, 4), (4, 8), (2, 8)])
@pytest.mark.parametrize(
    ("rows", "outputs", "depth", "size"),
    [(1, 150, 96, 32), (3, 20, 48, 16), (6, 33, 320, 64), (2, 16, 40, 32)],
)
def test_work_groups_read_four_bits(
    rows: int, outputs: int, depth: int, size: int, level: int, bits: int
) -> None:
    check_on_a_gpu(rows, outputs, depth, size, level, bits)


@pytest.mark.parametrize(("bits", "level"), [(4, 4), (8, 2)])
def test_rounded_products_are_plain_sums(bits: int, level: int) -> None:
    """TVM's virtual machine, and OpenCL on a CPU, compute them too."""
    values, scale, zero = weights(20, 64, 32, bits)
    network = nbits(2, values, scale, zero, 32, accuracy_level=level, bits=bits)
    x = np.random.default_rng(2).standard_normal((1, 2, 64)).astype("float32")
    wanted = expected(rounded(x[0], 32, level), values, scale, zero, 32)
    for found in (run(load_network(network), x)[0], ts.compile(network, ["opencl"])(x)):
        np.testing.assert_allclose(found[0], wanted, rtol=0, atol=4 * bound(x, 64, bits))
