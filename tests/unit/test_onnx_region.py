"""Regions as ONNX models: the same numbers, scales that fit, refusals with a reason."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from helpers.engine_regions import regions
from helpers.integer_networks import read_otherwise
from helpers.quantised_models import Quantised, integers, qdq
from helpers.quantised_networks import IMAGES, excited, grouped, residual
from helpers.relax_helpers import answers, module, random_const, random_inputs
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.network.integers import integer_of
from tvm_stretch.network.operators import Calls
from tvm_stretch.read import load_network
from tvm_stretch.targets.engines.code.onnx_operators import onnx_of, repetitions_of, why_not_onnx
from tvm_stretch.targets.engines.code.onnx_scales import bindings, function_of, with_copies


def run(model: bytes, *inputs: np.ndarray) -> list[np.ndarray]:
    """The outputs of a region's model in ONNX Runtime, in exact integers."""
    onnx.checker.check_model(onnx.load_model_from_string(model), full_check=True)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.run(None, {f"i{number}": x for number, x in enumerate(inputs)})


op = relax.op
FLOATS: dict[str, Callable[[relax.Expr], relax.Expr]] = {
    "conv2d": lambda x: op.nn.conv2d(
        x, random_const(6, 2, 3, 3), strides=2, padding=(1, 0, 2, 1), groups=2
    ),
    "pools": lambda x: op.concat(
        [op.nn.max_pool2d(x, (3, 3), (2, 2)), op.nn.avg_pool2d(x, (3, 3), (2, 2))], axis=1
    ),
    "padded average": lambda x: op.nn.avg_pool2d(
        x, (3, 3), (2, 2), padding=1, count_include_pad=True
    ),
    "means": lambda x: op.add(op.mean(x, [2, 3], keepdims=True), op.mean(x, [1], keepdims=True)),
    "matmul": lambda x: op.matmul(op.reshape(x, (9, 28)), random_const(28, 5)),
    "moves": lambda x: op.permute_dims(op.reshape(x, (1, 7, 4, 9)), [0, 3, 1, 2]),
    "slices": lambda x: op.concat(
        [
            op.strided_slice(x, [2, 3], [1, -6], [8, 10**9], [2, 3]),
            op.strided_slice(x, [-1, 2], [0, 4], [2, 8]),
        ],
        axis=1,
    ),
    "pads": lambda x: op.nn.pad(x, [0, 0, 1, 0, 2, 1, 0, 3], pad_value=0.5),
    "rows": lambda x: op.take(x, relax.const([2, 0, 1, 1], "int32"), axis=2),
    "repeated rows": lambda x: op.take(x, relax.const(np.repeat(np.arange(7), 3)), axis=3),
    "splits": lambda x: op.add(*[op.split(x, [1, 2], axis=1)[part] for part in (0, 1)]),
    "activations": lambda x: op.multiply(
        op.nn.leakyrelu(op.sigmoid(x), 0.3), op.nn.silu(op.clip(x, -0.5, 0.5))
    ),
    "softmax": lambda x: op.nn.softmax(op.maximum(x, op.tanh(x)), axis=1),
    "types": lambda x: op.astype(op.astype(op.round(x), "int32"), "float32"),
}


@pytest.mark.variants(2)
@pytest.mark.parametrize("name", FLOATS)
def test_floats(name: str) -> None:
    mod = load_network(module(FLOATS[name], (1, 4, 9, 7)))
    (x,) = random_inputs(mod)
    expected = answers(mod, x)
    for value, wanted in zip(run(onnx_of(mod["main"]), x), expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5)


def test_pads_that_are_no_constants_are_refused() -> None:
    mod = module(lambda x: op.nn.pad(x, [0, 0, 0, 0, 1, 2, 2, 1], "replicate"), (1, 4, 9, 7))
    (call,) = Calls(mod["main"]).calls.values()
    assert why_not_onnx(call) == "nn.pad: engines pad with a constant, not with replicate"


@pytest.mark.parametrize("network", [residual, grouped, excited])
def test_integers_are_the_same(network: Callable[[], onnx.ModelProto]) -> None:
    quantised = ts.quantize(network(), [image[None] for image in IMAGES])
    mod, found = regions(quantised)
    assert found
    for function in found:
        dice = np.random.default_rng(0)
        inputs = [
            dice.integers(0, 256, [int(d) for d in p.ty.shape.values]).astype(str(p.ty.dtype))
            for p in function.params
        ]
        kernels = {v: f for v, f in mod.functions.items() if not isinstance(f, relax.Function)}
        main = function.without_attr("processor").with_attr("global_symbol", "main")
        alone = tvm.IRModule({**kernels, tvm.ir.GlobalVar("main"): main})
        expected = answers(alone, *inputs)
        for value, wanted in zip(run(onnx_of(function), *inputs), expected, strict=True):
            assert np.abs(value.astype(int) - wanted.astype(int)).max() <= 1
            assert (value == wanted).mean() > 0.99  # tables that change a scale round at halves


def test_scales_of_a_sum_give_its_factors() -> None:
    """Scales and zero points are not those of the network, but the function is the same."""
    a = Quantised(integers(1, 4, 5, 5), 0.02, 3)
    b = Quantised(integers(1, 4, 5, 5, seed=1), 0.05, 200)
    mod = load_network(qdq("Add", [a, b], Quantised(np.zeros(0, "uint8"), 0.06, 90)))
    function = mod["main"]
    ((var, call),) = [(v, c) for v, c in bindings(function) if integer_of(c) is not None]
    _, scales = with_copies(function)
    integer = integer_of(call)
    assert integer is not None
    for param, factor in zip(function.params, integer.factors, strict=False):
        assert scales[param][0] / scales[var][0] == pytest.approx(factor, rel=1e-5)
    offset = scales[var][1] - sum(
        f * scales[p][1] for p, f in zip(function.params, integer.factors, strict=False)
    )
    assert offset == pytest.approx(integer.factors[-1], abs=0.05)


def test_tensors_that_are_read_otherwise_than_written_are_copied() -> None:
    mod = read_otherwise()
    bound, scales = with_copies(mod["main"])
    copies = [value for _, value in bound if isinstance(value, relax.Var)]
    assert 2 <= len(copies) < len(scales)
    x = np.random.default_rng(0).integers(0, 256, (1, 4, 5, 5)).astype("uint8")
    (expected,) = answers(mod, x)
    (answer,) = run(onnx_of(mod["main"]), x)
    assert len(np.unique(expected)) > 30
    assert np.abs(answer.astype(int) - expected.astype(int)).max() <= 1
    assert (answer == expected).mean() > 0.95  # zero points of sums are off by a little


@pytest.mark.parametrize(("ratio", "zero", "result_zero"), [(0.71, 3, 40), (1.9, 128, 7)])
def test_tables_that_change_the_scale(ratio: float, zero: int, result_zero: int) -> None:
    """The function is the number itself, whatever the table limits."""
    x = Quantised(integers(1, 4, 5, 5), 0.02 * ratio, zero)
    y = Quantised(np.zeros(0, "uint8"), 0.02, result_zero)
    mod = load_network(qdq("Relu", [x], y))
    ((_, call),) = [(v, c) for v, c in bindings(mod["main"]) if integer_of(c) is not None]
    found = function_of(call)
    assert found is not None and (found.function.operator, found.low) == ("", result_zero)
    (answer,) = run(onnx_of(mod["main"]), x.array)
    (expected,) = answers(mod, x.array)
    assert np.abs(answer.astype(int) - expected.astype(int)).max() <= 1
    assert (answer == expected).mean() > 0.95


@pytest.mark.variants(2)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(
    ("operator", "scale", "zero"),  # of the result; zero in steps above the least number
    [
        *[("Sigmoid", 1 / 256, 0), ("Tanh", 1 / 128, 128), ("HardSigmoid", 1 / 255, 0)],
        *[("HardSwish", 0.025, 15), ("Elu", 0.025, 40), ("LeakyRelu", 0.04, 60)],
        *[("Gelu", 0.025, 9), ("Softplus", 0.025, 0), ("Abs", 0.03, 0), ("Neg", 0.05, 127)],
        *[("Exp", 3.0, 0), ("Log", 0.02, 200)],
    ],
)
def test_tables_of_functions(operator: str, scale: float, zero: int, dtype: str) -> None:
    least = int(np.iinfo(dtype).min)
    x = Quantised(np.arange(least, least + 256).astype(dtype), 0.05, least + 128)
    attributes = {"HardSigmoid": {"alpha": 1 / 6}, "LeakyRelu": {"alpha": 0.3}}.get(operator, {})
    result = Quantised(np.zeros(0, dtype), scale, least + zero)
    mod = load_network(qdq(operator, [x], result, opset=20, **attributes))
    (call,) = Calls(mod["main"]).calls.values()
    found = function_of(call)
    assert found is not None and found.function.operator == operator
    assert why_not_onnx(call) is None
    (answer,) = run(onnx_of(mod["main"]), x.array)
    (expected,) = answers(mod, x.array)
    assert len(np.unique(expected)) > 25
    assert np.abs(answer.astype(int) - expected.astype(int)).max() <= 1
    assert (answer == expected).mean() > 0.95  # the slope of LeakyRelu is a little off


SILU = """<ir_version: 9, opset_import: ["" : 17]>
f (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {
    g = Sigmoid (x)
    y = Mul (x, g)
}"""


def test_a_function_of_two_operators() -> None:
    """The network rounds the sigmoid and the product to 8 bits; they are one table."""
    data = [np.random.default_rng(seed).standard_normal((1, 4, 8, 8)) * 3 for seed in range(4)]
    quantised = ts.quantize(onnx.parser.parse_model(SILU), [x.astype("float32") for x in data])
    calls = Calls(load_network(quantised)["main"]).calls.values()
    (call,) = [call for call in calls if integer_of(call) is not None]
    found = function_of(call)
    assert found is not None
    assert (found.function.operator, found.function.gates) == ("Sigmoid", True)


def test_tables_of_other_functions_are_refused() -> None:
    x = Quantised(integers(1, 4, 5, 5), 0.05, 128)
    mod = load_network(qdq("Mish", [x], Quantised(np.zeros(0, "uint8"), 0.025, 13), opset=18))
    (call,) = Calls(mod["main"]).calls.values()
    assert why_not_onnx(call) == "integer.table: a function that ONNX has no operator for"


@pytest.mark.parametrize(
    ("rows", "size", "times"),
    [([0, 0, 1, 1], 2, 2), ([0, 1, 0, 1], 2, None), ([0, 0, 1], 2, None), ([], 0, None)],
)
def test_rows_that_repeat(rows: list[int], size: int, times: int | None) -> None:
    mod = module(
        lambda x: op.take(x, relax.const(np.array(rows, "int64")), axis=2), (1, 3, size, 4)
    )
    (call,) = Calls(mod["main"]).calls.values()
    assert repetitions_of(call) == times


def test_refusals_say_why() -> None:
    mod = load_network(module(lambda x: op.sin(x), (2, 3)))
    (call,) = Calls(mod["main"]).calls.values()
    assert why_not_onnx(call) == "sin: no engine's form of it is known"
    last = module(lambda x: op.take(x, relax.const([-1], "int32"), axis=0), (2, 3))
    (call, *_) = Calls(last["main"]).calls.values()
    assert why_not_onnx(call) == "take: its indices are computed, or end outside"
    with pytest.raises(
        ts.UnsupportedError, match="an operator that ONNX has for an engine, got sin"
    ):
        onnx_of(mod["main"])
