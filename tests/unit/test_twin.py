"""Plans for a phone that is not here, and models for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
import tvm
from helpers.quantised_models import qdq_conv
from helpers.search_helpers import emit

import tvm_stretch as ts
from tvm_stretch.base.errors import CostModelError, InputError, TargetError, UnsupportedError
from tvm_stretch.plan.cost.profile import Profile
from tvm_stretch.plan.cost.profile_file import load_profile, write_profile
from tvm_stretch.plan.measuring.sample_networks import chain
from tvm_stretch.plan.measuring.samples import Sample, in_integers
from tvm_stretch.plan.search import Found
from tvm_stretch.plan.search import choose as choosing
from tvm_stretch.plan.search.costs import Costs
from tvm_stretch.plan.search.limits import Limits
from tvm_stretch.plan.search.twin import twin_costs, twin_processors, works_of
from tvm_stretch.read import load_network
from tvm_stretch.targets.hexagon.code.dsp_code import has_zig

PHONE = "snapdragon-855"


@pytest.fixture(scope="module")
def phone() -> Profile:
    return load_profile(PHONE)


@pytest.fixture(scope="module")
def wide() -> tvm.IRModule:
    """Two layers that are worth what handing over takes."""
    return emit(["conv", "conv"], size=112, channels=128)


def test_the_plan_says_that_nothing_was_measured(wide: tvm.IRModule) -> None:
    plan = ts.plan_for(wide, device=PHONE)
    assert plan.processors == ("cpu", "opencl", "hexagon")
    assert len({region.processor for region in plan.regions}) > 1
    said = plan.explain()
    assert f"predicted for {PHONE}, not measured" in said
    assert "int8 on cpu, float16 on opencl, int8 on hexagon" in said
    alone = ts.plan_for(wide, ["llvm"], device=PHONE).predicted_ns
    assert plan.predicted_ns is not None and alone is not None and plan.predicted_ns < 0.8 * alone


@pytest.mark.full
def test_three_processors_are_never_predicted_slower_than_two(
    wide: tvm.IRModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though a search of three finds nothing: the plan of two is then one of three."""
    searched = choosing.search

    def blind(mod: tvm.IRModule, costs: Costs, **options: Limits) -> Found:
        found = searched(mod, costs, **options)
        return replace(found, rivals=()) if len(costs.processors) > 2 else found

    both = ts.plan_for(wide, ["llvm", "hexagon"], device=PHONE)
    monkeypatch.setattr(choosing, "search", blind)
    plan = ts.plan_for(wide, device=PHONE)
    assert plan.processors == ("cpu", "opencl", "hexagon")
    assert plan.predicted_ns is not None and both.predicted_ns is not None
    assert plan.predicted_ns <= both.predicted_ns


def test_costs_are_the_profile_s(phone: Profile, wide: tvm.IRModule) -> None:
    processors, _ = twin_processors(phone, ["llvm", "hexagon"])
    costs = twin_costs(phone, processors)
    (layer, _) = (g for g in costs.kernels.lower(wide).groups if g.multiply_adds)
    for place, name in enumerate(("cpu", "hexagon")):
        speed = phone.processor(name).multiply_adds_per_ns["dense"]
        ns = costs.whole(layer, place)
        assert ns is not None and 1 < ns / (layer.multiply_adds / speed) < 1.2
        half = costs.part(layer, place, "outputs", 0.5)
        assert 0.45 < half / ns < 0.6
        assert costs.start(place) == round(1e3 * phone.processor(name).kernel_us)
    assert costs.hand_over(0, 1, 4000) == phone.hand_over("cpu", "hexagon", 4000)


def test_a_slower_processor_changes_the_plan(
    phone: Profile, wide: tvm.IRModule, tmp_path: Path
) -> None:
    """The same phone with a DSP that is a hundred times slower: it gets nothing to do."""
    dsp = phone.processors["hexagon"]
    speeds = {family: speed / 100 for family, speed in dsp.multiply_adds_per_ns.items()}
    slow = MappingProxyType(
        {**phone.processors, "hexagon": replace(dsp, multiply_adds_per_ns=speeds)}
    )
    write_profile(replace(phone, processors=slow), tmp_path / "slow.toml")
    for device, is_used in ((PHONE, True), (tmp_path / "slow.toml", False)):
        plan = ts.plan_for(wide, ["llvm", "hexagon"], device=device)
        assert ("hexagon" in plan.processor_of().values()) == is_used


def test_without_the_cpu_it_only_holds_inputs_and_outputs(
    phone: Profile, wide: tvm.IRModule
) -> None:
    processors, placeable = twin_processors(phone, ["opencl", "hexagon"])
    assert [p.name for p in processors] == ["cpu", "opencl", "hexagon"]
    assert [p.name for p in placeable] == ["opencl", "hexagon"]
    plan = ts.plan_for(wide, ["opencl", "hexagon"], device=PHONE)
    assert {region.processor for region in plan.regions} <= {"opencl", "hexagon"}


def test_a_model_for_the_phone(wide: tvm.IRModule) -> None:
    """Of the processors that there are kernels for; it can be exported only."""
    model = ts.compile(emit(["conv"], size=8, channels=8), device=PHONE)
    assert "aarch64" in str(model.graph.target)
    assert f"predicted for {PHONE}, not measured" in model.plan.reason
    assert "hexagon" not in model.plan.processors


@pytest.mark.full
def test_several_plans_for_the_phone() -> None:
    """Nothing is known of how long they take there, so all of them expect nothing."""
    model = ts.compile(emit(["conv"], size=28, channels=64), device=PHONE, plans=True)
    assert list(model.plans) == ["fastest", "without cpu"]
    assert [plan.expected_ns for plan in model.graph.plans] == [0, 0]
    assert f"predicted for {PHONE}, not measured" in model.plan.reason


def test_a_processor_without_a_target(
    phone: Profile, wide: tvm.IRModule, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Plans alone can be had for it."""
    path = tmp_path_factory.mktemp("profile") / "odd.toml"
    bare = {**phone.processors, "hexagon": replace(phone.processors["hexagon"], target=None)}
    write_profile(replace(phone, processors=MappingProxyType(bare)), path)
    plan = ts.plan_for(wide, ["hexagon"], device=path)
    with pytest.raises(TargetError, match="got hexagon, which this version makes no kernels for"):
        ts.compile(wide, ["llvm", "hexagon"], device=path, plan=plan)


@pytest.mark.full
@pytest.mark.skipif(not has_zig(), reason="needs ziglang")
def test_a_model_for_the_phone_and_its_dsp(tmp_path: Path) -> None:
    """Code of the version that the profile says; floats are refused with the reason."""
    model = ts.compile(qdq_conv(32, 32, 1, 4)[0], ["hexagon"], device=PHONE)
    assert f"predicted for {PHONE}, not measured" in model.plan.reason
    assert {region.processor for region in model.plan.regions} == {"hexagon"}
    model.export(tmp_path / "net.so")
    assert b"Hexagon v66 of snapdragon-855" in (tmp_path / "net.so").read_bytes()
    with pytest.raises(UnsupportedError, match="vectors of v66 hold no float32"):
        ts.compile(emit(["conv"], size=8, channels=8), ["hexagon"], device=PHONE)


def test_what_the_profile_refuses_goes_elsewhere(
    phone: Profile, wide: tvm.IRModule, tmp_path_factory: pytest.TempPathFactory
) -> None:
    refusing = replace(phone.processors["hexagon"], refuses={"nn.relu": "no relu there"})
    processors = MappingProxyType({**phone.processors, "hexagon": refusing})
    path = tmp_path_factory.mktemp("profile") / "odd.toml"
    write_profile(replace(phone, processors=processors), path)
    with pytest.raises(UnsupportedError, match=r"nn\.relu: no relu there"):
        ts.plan_for(wide, ["hexagon"], device=path)
    plan = ts.plan_for(wide, ["llvm", "hexagon"], device=path)
    on_dsp = [op for r in plan.regions if r.processor == "hexagon" for op in r.operators]
    assert not any(op.startswith("relu") for op in on_dsp)


@pytest.mark.parametrize(
    ("targets", "error", "message"),
    [
        ([], InputError, "different processors of snapdragon-855 for targets, got"),
        (["llvm", "cpu"], InputError, "different processors"),
        (
            ["llvm", "npu"],
            CostModelError,
            r"a processor of snapdragon-855 \(cpu, opencl, hexagon\)",
        ),
        ([{"kind": "llvm"}], InputError, "expected names of processors for targets"),
    ],
)
def test_wrong_targets(targets: list[object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ts.plan_for(emit(["conv"]), targets, device=PHONE)


def test_the_profile_says_how_many_cores() -> None:
    with pytest.raises(InputError, match="no cpu_threads with a device, got 2"):
        ts.compile(emit(["conv"]), device=PHONE, cpu_threads=2)


def test_floats_cost_what_floats_take(phone: Profile, wide: tvm.IRModule) -> None:
    """As built, in four bytes a value; a plan alone is for 8 bits, and its DSP takes part."""
    known = {name: phone.processor(name) for name in ("cpu", "opencl", "hexagon")}
    floats = phone.in_floats()
    assert floats.processor("hexagon") == known["hexagon"]
    for name in ("cpu", "opencl"):
        one, slower = floats.processor(name), known[name].float32_slowdown
        assert one.precision == "float32" and slower is not None
        speed = known[name].multiply_adds_per_ns["dense"] / slower
        assert one.multiply_adds_per_ns["dense"] == pytest.approx(speed)
    for name in ("cpu", "opencl"):
        times = [
            ts.plan_for(wide, [name], device=PHONE, as_built=built).predicted_ns or 0
            for built in (False, True)
        ]
        slower = known[name].float32_slowdown
        assert slower is not None and 0.8 * slower < times[1] / times[0] < 1.2 * slower
    with pytest.raises(UnsupportedError, match="vectors of v66 hold no float32"):
        ts.plan_for(wide, ["hexagon"], device=PHONE, as_built=True)
    said = ts.plan_for(wide, ["llvm"], device=PHONE, as_built=True).explain()
    assert "float32 on cpu" in said and "predicts 8 bits" not in said
    model = ts.compile(emit(["conv"], size=8, channels=8), ["llvm"], device=PHONE)
    assert "float32 on cpu" in model.plan.explain()


def test_traffic_waits_where_memory_is_too_slow_for_all(phone: Profile, wide: tvm.IRModule) -> None:
    """This phone's is fast enough for its three; a fifth of it is not for two of them."""
    names = ["cpu", "hexagon"]
    assert [one.crowding for one in phone.crowded([*names, "opencl"])] == [1.0] * 3
    wanted = sum(phone.processor(name).activation_bytes_per_ns for name in names)
    narrow = replace(phone, memory_bytes_per_ns=wanted / 2)
    assert [one.crowding for one in narrow.crowded(names)] == [2.0, 2.0]
    assert [one.crowding for one in narrow.crowded(["cpu"])] == [max(1.0, 8.67 / (wanted / 2))]
    processors, _ = twin_processors(phone, ["llvm", "hexagon"])
    free, tight = (twin_costs(profile, processors) for profile in (phone, narrow))
    tight.kernels = free.kernels
    (layer, _) = (g for g in free.kernels.lower(wide).groups if g.multiply_adds)
    kernels = free.kernels.whole(layer, 0)
    cpu = phone.processor("cpu")
    memory = sum(
        k.device_work().values / cpu.activation_bytes_per_ns
        + k.device_work().weights / cpu.weight_bytes_per_ns
        for k in kernels
    )
    assert free.whole(layer, 0) == tight.whole(layer, 0), "alone it has the memory for itself"
    assert free.slower(kernels, 0) == 1.0
    assert tight.slower(kernels, 0) == pytest.approx(1 + memory / tight.sum(kernels, 0), rel=1e-3)
    parts = [costs.part(layer, 0, "outputs", 0.5) for costs in (free, tight)]
    assert parts[1] == pytest.approx(parts[0] * tight.slower(kernels, 0), rel=1e-3)


def test_a_network_of_8_bits_is_priced_as_one_of_floats(phone: Profile) -> None:
    """What the CPU of the profile computes in 8 bits anyway takes as long however it is written."""
    floats = Sample("conv", 64, (14, 14), 64, (3, 3), epilogue="relu")
    (cpu, *_), _ = twin_processors(phone, ["cpu"])
    works = [
        next(
            w
            for works in works_of(load_network(chain([s])), cpu).values()
            for w in works
            if w.multiply_adds
        )
        for s in (floats, in_integers(floats))
    ]
    assert works[1].values == pytest.approx(works[0].values, rel=0.05)
    assert replace(works[1], values=0.0) == replace(works[0], values=0.0)
