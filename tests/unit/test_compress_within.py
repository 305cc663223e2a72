"""Levels of compression by a budget: which steps are taken, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import tvm
from helpers.stretch_networks import SIZE, conv
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.base.errors import InputError
from tvm_stretch.lab.compress_within import Levels, climb
from tvm_stretch.lab.training import to_torch
from tvm_stretch.passes.canonicalise import CanonicaliseTrainable
from tvm_stretch.plan.search.objective import Cost

IMAGES = np.random.default_rng(0).standard_normal((40, 3, SIZE, SIZE)).astype("float32")
PHONE = "snapdragon-855"


def time_of(levels: Levels) -> float:
    """Scripted milliseconds; 100 for the given network."""
    whole = 0.5 if levels.quantize else 1.0
    return 100 * (1 - (levels.prune or 0)) * (levels.low_rank or 1) * whole


def error_of(weights: dict[str, float]) -> Callable[[Levels], float]:
    """Scripted errors, which add up."""

    def error(levels: Levels) -> float:
        return (
            weights["prune"] * (levels.prune or 0)
            + weights["low_rank"] * (1 - (levels.low_rank or 1))
            + weights["quantize"] * bool(levels.quantize)
        )

    return error


def in_ms(ms: float) -> Cost:
    return Cost(int(ms * 1e6))


@pytest.mark.parametrize(
    ("cheap", "budget", "wanted"),
    [
        ("prune", 75, [Levels(), Levels(0.1), Levels(0.2), Levels(0.3)]),
        ("low_rank", 85, [Levels(), Levels(None, 0.9), Levels(None, 0.8)]),
        ("quantize", 75, [Levels(), Levels(quantize="int8")]),
    ],
)
def test_the_step_with_the_least_error_for_its_gain_is_taken(
    cheap: str, budget: float, wanted: list[Levels]
) -> None:
    weights = dict.fromkeys(("prune", "low_rank", "quantize"), 9.0) | {cheap: 1.0}
    steps = climb(
        ts.Objective(latency_ms=budget), "int8", lambda own: in_ms(time_of(own)), error_of(weights)
    )
    assert [step.levels for step in steps] == wanted
    assert steps[-1].milliseconds <= budget < steps[-2].milliseconds
    assert steps[0].error == 0 and steps[-1].error == error_of(weights)(wanted[-1])


def test_levels_are_mixed_as_errors_grow() -> None:
    """Errors that grow with the square of a level make two levels cheaper than one."""

    def error(levels: Levels) -> float:
        return (levels.prune or 0) ** 2 + (1 - (levels.low_rank or 1)) ** 2

    steps = climb(ts.Objective(latency_ms=50), None, lambda own: in_ms(time_of(own)), error)
    last = steps[-1].levels
    assert last.prune and last.low_rank and last.quantize is None
    assert steps[-1].error < error(Levels(0.5)), "than by pruning alone"
    errors = [step.error for step in steps]
    assert errors == sorted(errors)


def test_what_a_step_saves_beyond_the_budget_does_not_count() -> None:
    """8 bits halve the time, but a tenth less is enough."""
    weights = {"prune": 2.0, "low_rank": 9.0, "quantize": 0.4}
    costs = {90: Levels(0.1), 55: Levels(quantize="uint8")}
    for budget, wanted in costs.items():
        steps = climb(
            ts.Objective(latency_ms=budget),
            "uint8",
            lambda own: in_ms(time_of(own)),
            error_of(weights),
        )
        assert [step.levels for step in steps] == [Levels(), wanted]


def test_rungs_that_save_nothing_are_passed() -> None:
    """Channels go in eights, so a tenth less may be the same network."""

    def cost(levels: Levels) -> Cost:
        return in_ms(100 - 25 * int(4 * (levels.prune or 0)))

    steps = climb(ts.Objective(latency_ms=60), None, cost, lambda own: own.prune or 0)
    assert [step.levels for step in steps] == [Levels(), Levels(0.3), Levels(0.5)]


def test_a_level_that_the_network_has_not_is_not_taken() -> None:
    def cost(levels: Levels) -> Cost | None:
        return None if levels.prune else in_ms(time_of(levels))

    steps = climb(ts.Objective(latency_ms=60), None, cost, lambda own: 1 - (own.low_rank or 1))
    assert steps[-1].levels == Levels(None, 0.6)


def test_a_budget_of_energy_counts_millijoules() -> None:
    def cost(levels: Levels) -> Cost:
        return Cost(10**6, 40 * time_of(levels) / 100)

    steps = climb(ts.Objective(energy_mj=21), None, cost, lambda own: 10 - 9 * (own.low_rank or 1))
    assert steps[-1].levels == Levels(0.5) and steps[-1].millijoules == pytest.approx(20)
    assert {step.milliseconds for step in steps} == {1.0}


def test_a_budget_that_no_levels_meet_is_refused_before_errors_are_known() -> None:
    asked: list[Levels] = []
    with pytest.raises(
        InputError, match=r"within 2 ms .* got 4.5 ms at best \(prune=0.7, low_rank=0.3, quantize"
    ):
        climb(
            ts.Objective(latency_ms=2),
            "uint8",
            lambda own: in_ms(time_of(own)),
            lambda own: float(asked.append(own) is None),
        )
    assert not asked
    with pytest.raises(InputError, match=r"got 9 ms at best \(prune=0.7, low_rank=0.3\); .*8 bits"):
        climb(ts.Objective(latency_ms=5), None, lambda own: in_ms(time_of(own)), lambda _: 0.0)


# --- real networks and real predictions -----------------------------------------------------------


def network() -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 3, SIZE, SIZE), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            for seed, width in enumerate((64, 96, 64)):
                y = builder.emit(relax.op.nn.relu(builder.emit(conv(y, width, 3, seed=seed))))
            y = builder.emit(relax.op.mean(y, [2, 3]))
            weight = np.random.default_rng(4).standard_normal((64, 5)).astype("float32")
            out = builder.emit_output(relax.op.matmul(y, relax.const(weight)))
        builder.emit_func_output(out)
    return CanonicaliseTrainable()(builder.get())


def predicted_ms(given: object) -> float:
    return (ts.plan_for(given, ["cpu"], device=PHONE).predicted_ns or 0) / 1e6


@pytest.mark.full
def test_the_network_that_comes_out_meets_the_budget() -> None:
    mod = network()
    budget = ts.Objective(latency_ms=0.7 * predicted_ms(mod))
    found = ts.compress_within(mod, budget, IMAGES, device=PHONE, targets=["cpu"], steps=0)
    assert predicted_ms(found.network) <= budget.latency_ms < found.steps[-2].milliseconds
    assert predicted_ms(found.network) == pytest.approx(found.steps[-1].milliseconds)
    assert 0 < found.error == pytest.approx(found.steps[-1].error, rel=0.5)
    levels = found.levels
    again = ts.compress(mod, prune=levels.prune, low_rank=levels.low_rank, data=IMAGES, steps=0)
    tvm.ir.assert_structural_equal(again, found.network)
    lines = str(found).splitlines()
    assert lines[2].startswith("| as given |") and str(levels) in lines[1 + len(found.steps)]


@pytest.mark.full
def test_8_bits_are_taken_where_they_are_allowed_and_cost_the_least() -> None:
    """This network has random weights, so no channel is superfluous."""
    mod = network()
    cortex = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"}
    given = (ts.plan_for(mod, [cortex], cpu_threads=1).predicted_ns or 0) / 1e6
    found = ts.compress_within(
        mod,
        ts.Objective(latency_ms=0.85 * given),
        IMAGES,
        targets=[cortex],
        cpu_threads=1,
        quantize="uint8",
        steps=0,
    )
    assert isinstance(found.network, onnx.ModelProto)
    assert [step.levels for step in found.steps] == [Levels(), Levels(quantize="uint8")]
    assert 0 < found.error < 0.02
    model = ts.compile(found.network, cpu_threads=1)
    own = np.concatenate([model(image[None]) for image in IMAGES[:8]])
    wanted = to_torch(mod).eval()(torch.as_tensor(IMAGES[:8])).detach().numpy()
    assert np.square(own - wanted).mean() == pytest.approx(found.error * wanted.var(), rel=0.3)


@pytest.mark.parametrize(
    ("objective", "options", "message"),
    [
        ("latency", {}, "with a budget for objective, got 'latency'"),
        (ts.Objective(), {}, "with a budget for objective"),
        (ts.Objective(latency_ms=1), {"quantize": True}, "or None for quantize, got True"),
        (ts.Objective(latency_ms=1), {"steps": -1}, "steps of 0 or more"),
    ],
)
def test_what_is_no_budget_is_refused(
    objective: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        ts.compress_within(network(), objective, IMAGES, device=PHONE, **options)


@pytest.mark.full
def test_a_real_network_that_cannot_be_so_fast_says_how_fast_it_can_be() -> None:
    budget = ts.Objective(latency_ms=1e-6)
    with pytest.raises(InputError, match=r"within 1e-06 ms .* ms .*at best \(prune=0.7"):
        ts.compress_within(network(), budget, IMAGES, device=PHONE, targets=["cpu"])


def test_a_budget_of_energy_needs_powers() -> None:
    with pytest.raises(InputError, match="expected powers of the processors"):
        ts.compress_within(network(), ts.Objective(energy_mj=1), IMAGES, cpu_threads=1)
