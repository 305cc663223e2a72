"""Types, ranks and empty tensors on the CPU and an OpenCL device, operator by operator in turns."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers.cpu_targets import TARGET
from helpers.onnx_models import assert_same, run_onnxruntime

import tvm_stretch as ts
from tvm_stretch.network.operators import Calls
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.regions import PlannedRegion
from tvm_stretch.read import load_network
from tvm_stretch.targets.opencl.opencl import local_device

pytestmark = pytest.mark.skipif(local_device() is None, reason="no OpenCL device")

PROCESSORS = ("cpu", "opencl")


def network(text: str) -> onnx.ModelProto:
    """What is written after ``net`` in ONNX's own language."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> net {text}')
    onnx.checker.check_model(model, full_check=True)
    return model


def in_turns(model: onnx.ModelProto, first: int) -> Plan:
    """Every operator is a region; they are the CPU's and the device's in turns."""
    names = Calls(load_network(model)["main"]).calls
    regions = [
        PlannedRegion(f"r{place}", PROCESSORS[(place + first) % 2], (name,))
        for place, name in enumerate(names)
    ]
    return Plan(PROCESSORS, tuple(regions))


def inputs_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Numbers of each type, negative ones where there are any; no more than three digits."""
    dice = np.random.default_rng(0)
    found = {}
    for value in model.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        lowest = 0 if dtype.kind in "ub" else -100
        found[value.name] = dice.integers(lowest, 100, shape).astype(dtype)
    return found


def check(text: str) -> None:
    """Both ways to take turns answer what ONNX Runtime answers, and so does the device alone."""
    model = network(text)
    inputs = inputs_of(model)
    want = run_onnxruntime(model, inputs)
    for first in (0, 1):
        compiled = ts.compile(model, [TARGET, "opencl"], plan=in_turns(model, first), cpu_threads=1)
        result = compiled(**inputs)
        assert_same(want, result if isinstance(result, tuple) else (result,))
    result = ts.compile(model, ["opencl"], cpu_threads=1)(**inputs)  # all in few kernels
    assert_same(want, result if isinstance(result, tuple) else (result,))


ARITHMETIC = """({0}[4, 32] x, {0}[4, 32] y) => ({0}[32, 8] z, float[4, 32] f)
<int64[2] shape = {{8, 32}}> {{
    greater = Greater(x, y)
    chosen = Where(greater, x, y)
    sum = Add(chosen, y)
    both = Concat<axis = 0>(sum, x)
    flat = Reshape(both, shape)
    z = Transpose(flat)
    number = Cast<to = 2>(greater)
    f = Cast<to = 1>(number)
}}"""


def full(*types: str) -> list[object]:
    return [pytest.param(dtype, marks=pytest.mark.full) for dtype in types]


@pytest.mark.parametrize("dtype", ["uint8", *full("int8", "int32", "int64", "uint32", "double")])
def test_types(dtype: str) -> None:
    """OpenCL has no vectors of booleans, and true is -1 in those of comparisons."""
    check(ARITHMETIC.format(dtype))


def test_half_floats_are_refused_or_computed_in_float32_where_there_are_none() -> None:
    """A device without the type cannot read such an input; the CPU converts it."""
    device = local_device()
    assert device is not None
    if device.fp16:
        pytest.skip("the device has them")
    model = network("(float16[4] x) => (float16[4] z) { y = Relu(x) z = Add(y, y) }")
    with pytest.raises(ts.UnsupportedError, match=r"on opencl: .* has no float16"):
        ts.compile(model, ["opencl"])
    x = np.array([-1, 0, 1, 2], "float16")
    result = np.asarray(ts.compile(model, [TARGET, "opencl"], cpu_threads=1)(x))
    assert result.dtype == "float16"
    np.testing.assert_array_equal(result, 2 * np.maximum(x, 0))


@pytest.mark.full
def test_double_precision_is_kept() -> None:
    """No arithmetic for single precision stands in for a function."""
    model = network("(double[64] x) => (double[64] z) { y = Sigmoid(x) w = Exp(y) z = Tanh(w) }")
    x = np.linspace(-3, 3, 64)
    compiled = ts.compile(model, [TARGET, "opencl"], plan=in_turns(model, 0), cpu_threads=1)
    np.testing.assert_allclose(compiled(x), np.tanh(np.exp(1 / (1 + np.exp(-x)))), rtol=1e-14)


BOOLEANS = """(bool[3, 4] x, bool[3, 4] y, float[3, 4] a, float[3, 4] b)
=> (bool[4, 6] z, float[3, 4] w) {
    both = And(x, y)
    one = Xor(both, x)
    none = Not(one)
    either = Or(none, y)
    pair = Concat<axis = 0>(either, x)
    z = Transpose(pair)
    same = Equal(none, y)
    w = Where(same, a, b)
}"""

# Layers of one and three dimensions, a grouped one among them.
RANKS = """(float[1, 4, {1}] x, float[6, 4, {2}] w, float[6, 1, {2}] v, float[6] b)
=> (float[1, 6, {4}] z) {{
    layer = Conv(x, w, b)
    positive = Relu(layer)
    apart = Conv<group = 6>(positive, v)
    pool = MaxPool<kernel_shape = [{3}]>(apart)
    mean = GlobalAveragePool(pool)
    z = Sigmoid(mean)
}}"""

EMPTY = """(float[0, 4] x, float[3, 4] y, float[4, 5] w) => (float[3, 5] z, float[4] s, float[0] m)
<int64[1] first = {0}> {
    none = Relu(x)
    some = Concat<axis = 0>(none, y)
    z = MatMul(some, w)
    s = ReduceSum<keepdims = 0>(none, first)
    product = MatMul(none, w)
    m = ReduceMax<axes = [1], keepdims = 0>(product)
}"""


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(BOOLEANS, id="booleans", marks=pytest.mark.full),
        pytest.param(RANKS.format("", 9, 2, 2, 1), id="one dimension", marks=pytest.mark.full),
        pytest.param(
            RANKS.format("", "5, 5, 5", "2, 2, 2", "2, 2, 2", "1, 1, 1"), id="three dimensions"
        ),
        pytest.param(EMPTY, id="empty"),
    ],
)
def test_shapes(text: str) -> None:
    check(text)
