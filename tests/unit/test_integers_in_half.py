"""Integer operators of quantised networks in float16, beside processors that keep integers."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tvm
from helpers.cpu_targets import TARGET
from helpers.fake_targets import fake_processor
from helpers.quantised_networks import IMAGES, grouped, residual
from helpers.relax_helpers import answers
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.network.integer_kernels import integer_call
from tvm_stretch.network.integers import Integer, Rounding, integer_of
from tvm_stretch.network.operators import Calls
from tvm_stretch.passes.integers_in_half import IntegersInHalf
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.read import load_network
from tvm_stretch.targets.cpu.cpu import cpu_processor
from tvm_stretch.targets.processor import Arithmetic, Processor

HALVES = ("float16", "float16+float32")
NETWORKS = {"residual": residual, "grouped": grouped}
STEPS = 2.0
"""How many steps of the logits may lie between two ways to round: each layer's rounding is at most
half a step of its own scale, and later layers add such errors with mixed signs. Five in a row give
0.5 * sqrt(5) steps at most in one direction; 2 leaves room for scales that differ."""


@pytest.fixture(scope="module", params=NETWORKS)
def quantised(request: pytest.FixtureRequest) -> Any:
    return ts.quantize(NETWORKS[request.param](), IMAGES)


def gpu() -> Processor:
    """A second processor that prefers float16, which LLVM emulates."""
    return dataclasses.replace(
        fake_processor("gpu"), arithmetic=Arithmetic(half=True, prefers_half=True)
    )


def in_half(mod: tvm.IRModule, wide: bool) -> tvm.IRModule:
    marked = tvm.IRModule(dict(mod.functions))
    marked["main"] = mod["main"].with_attr("processor", "gpu")
    return relax.transform.DeadCodeElimination()(IntegersInHalf({"gpu": wide})(marked))


def step_of(mod: tvm.IRModule) -> float:
    """The scale of the logits: they are dequantised by one last product."""
    *_, last = Calls(mod["main"]).calls.values()
    return float(last.args[1].value.numpy())


@pytest.mark.parametrize("wide", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_network_in_half(quantised: Any, wide: bool) -> None:
    mod = load_network(quantised)
    made = in_half(mod, wide)
    kept = {integer_of(call) for call in Calls(made["main"]).calls.values()} - {None}
    assert {integer.kind for integer in kept} <= {"table", "average"}
    image = IMAGES[:1]
    (want,), (got,) = answers(mod, image), answers(made, image)
    assert np.abs(got - want).max() <= STEPS * step_of(mod)


def test_operators_keep_their_names(quantised: Any) -> None:
    mod = load_network(quantised)
    assert set(Calls(mod["main"]).calls) <= set(Calls(in_half(mod, False)["main"]).calls)


def test_other_processors_keep_integers(quantised: Any) -> None:
    mod = load_network(quantised)
    assert IntegersInHalf({"gpu": False})(mod).same_as(mod)


def single(integer: Integer, dtype: str, *constants: np.ndarray) -> tvm.IRModule:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 4, 6, 6), dtype))
    with bb.function("main", [x]):
        with bb.dataflow():
            made = bb.emit(integer_call(bb, integer, x, *map(relax.const, constants)))
            result = bb.emit_output(made)
        bb.emit_func_output(result)
    return bb.get()


def weights(factor: float) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [
        rng.integers(-127, 128, (8, 4, 3, 3)).astype("int8"),
        rng.integers(-999, 999, 8).astype("int32"),
        np.full(8, factor, "float32"),
    ]


CONV = Integer("conv2d", Rounding("uint8", 7, 0, 255), (3,), padding=(1, 1, 1, 1))


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_one_layer_is_the_same_but_for_rounding(dtype: str) -> None:
    mod = single(CONV, dtype, *weights(0.004))
    x = np.random.default_rng(1).integers(0, 120, (1, 4, 6, 6)).astype(dtype)
    (want,), (got,) = answers(mod, x), answers(in_half(mod, True), x)
    # 36 products with weights of 11 bits: 0.5 for a half, 255 * 2^-11 for the weights
    assert np.abs(got.astype(int) - want.astype(int)).max() <= 1
    assert (got == want).mean() > 0.9 and got.dtype == want.dtype


@pytest.mark.parametrize("wide", [True, False])
def test_factors_that_half_does_not_have_stay_integers(wide: bool) -> None:
    mod = single(CONV, "uint8", *weights(1e-6))
    x = np.random.default_rng(1).integers(0, 256, (1, 4, 6, 6)).astype("uint8")
    made = in_half(mod, wide)
    assert [*Calls(made["main"]).calls] == [*Calls(mod["main"]).calls]
    np.testing.assert_array_equal(answers(made, x)[0], answers(mod, x)[0])


@pytest.mark.parametrize("kind", ["add", "multiply"])
def test_factors_whose_products_half_does_not_have_stay_integers(kind: str) -> None:
    """A product beyond 65504 would be infinite, and less another one no number."""
    factors = (400.0, 1.0, -7.0) if kind == "add" else (400.0, 7.0)
    integer = Integer(kind, Rounding("uint8", 0, 0, 255), (3, 3), factors)
    bb = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType((1, 4, 6, 6), "uint8")) for name in "xy")
    with bb.function("main", [x, y]):
        with bb.dataflow():
            result = bb.emit_output(bb.emit(integer_call(bb, integer, x, y)))
        bb.emit_func_output(result)
    mod = bb.get()
    assert [*Calls(in_half(mod, False)["main"]).calls] == [*Calls(mod["main"]).calls]


def test_sums_that_leave_a_region_are_integers() -> None:
    sums = dataclasses.replace(CONV, rounding=None)
    mod = single(sums, "uint8", *weights(1.0)[:2])
    x = np.random.default_rng(1).integers(0, 256, (1, 4, 6, 6)).astype("uint8")
    # whole numbers below 2^24 in float32
    np.testing.assert_array_equal(answers(in_half(mod, False), x)[0], answers(mod, x)[0])


# --- compiled -------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", [pytest.param(HALVES[0], marks=pytest.mark.full), HALVES[1]])
def test_both_in_one_plan(quantised: Any, precision: str) -> None:
    exact = ts.compile(quantised, [TARGET], cpu_threads=1)
    names = [*exact.plan.processor_of()]
    middle = len(names) // 2
    regions = (
        PlannedRegion("first", "gpu", tuple(names[:middle])),
        PlannedRegion("second", "cpu", tuple(names[middle:])),
    )
    plan = Plan(("cpu", "gpu"), regions)
    model = ts.compile(
        quantised, [TARGET, gpu()], plan=plan, precision=precision, cpu_threads=1, debug=True
    )
    assert f"integer operators are computed in {precision} on gpu" in model.plan.reason
    types = {tensor.dtype for tensor in model.graph.tensors}
    assert {"float16", "uint8"} <= types
    step = step_of(load_network(quantised))
    for image in IMAGES:
        assert np.abs(model(image[None]) - exact(image[None])).max() <= STEPS * step


def test_shares_of_a_layer() -> None:
    """One layer's channels on both: their halves meet as integers."""
    quantised = ts.quantize(residual(), IMAGES)
    exact = ts.compile(quantised, [TARGET], cpu_threads=1)
    plan = Plan(("cpu", "gpu"), (), shares={"conv2d1": (8, 8)})
    model = ts.compile(
        quantised, [TARGET, gpu()], plan=plan, precision="float16", cpu_threads=1, debug=True
    )
    step = step_of(load_network(quantised))
    for image in IMAGES:
        assert np.abs(model(image[None]) - exact(image[None])).max() <= STEPS * step


def test_nothing_prefers_half() -> None:
    quantised = ts.quantize(residual(), IMAGES)
    with pytest.raises(ts.TargetError, match="expected a processor that is faster in float16"):
        ts.compile(quantised, [cpu_processor(TARGET, 1)], precision="float16")


def test_a_phone_computes_what_is_predicted() -> None:
    """Its profile predicts 8 bits on the CPU, and float16 on the GPU."""
    quantised = ts.quantize(residual(), IMAGES)
    model = ts.compile(quantised, ["opencl"], device="snapdragon-855")
    assert "integer operators are computed in float16 on opencl" in model.plan.reason
    assert "float16" in {tensor.dtype for tensor in model.graph.tensors}
    plan = ts.plan_for(residual(), ["llvm", "opencl"], device="snapdragon-855")
    assert "the network is not quantised, but the profile predicts 8 bits" in plan.reason
