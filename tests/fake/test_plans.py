"""Models with several plans: they share their weights, and runs take the plan that is fast now."""

from __future__ import annotations

import dataclasses
import itertools
import json
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from pathlib import Path

import numpy as np
import pytest
import tvm
from helpers.fake_targets import TARGET, fake_code, fake_processor
from helpers.relax_helpers import two_convolutions as network
from helpers.rounding import assert_rounded
from tvm import rpc

import tvm_stretch as ts
from tvm_stretch.make.lowering.executor_graph import FORMAT, Graph
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.plan.search.objective import Cost, Objective
from tvm_stretch.run.measures_of_model import MetersOfModel
from tvm_stretch.targets.cpu.code import object_code

X = np.random.default_rng(0).standard_normal((1, 16, 9, 9)).astype("float32")
USUAL_US, SLOW_US = 5_000, 100_000
CALM = 6.0  # a test machine may stumble: slow is more than so many times what is usual


def want(x: np.ndarray = X) -> np.ndarray:
    return ts.compile(network(), TARGET, cpu_threads=1)(x)


def check(model: ts.Model, x: np.ndarray = X) -> None:
    assert_rounded(network(), [x], model(x), want(x))


def several(**script: object) -> ts.Model:
    """Half of a layer on a device; and plans without it, and without the CPU."""
    plan = Plan(("cpu", "fake"), (), shares={"conv2d1": (8, 8)})
    targets = [TARGET, fake_processor(**script)]
    return ts.compile(network(), targets, plan=plan, plans=True, cpu_threads=1)


def on_two(first: dict[str, object] | None = None, spare: bool = False) -> ts.Model:
    """Everything on one device, or on the other, which takes four times as long."""
    scripts = first or {}, {"regions": {"r0": {"latency_us": 4 * USUAL_US}}}
    devices = [fake_processor(f"d{i}", **script) for i, script in enumerate(scripts)]
    operators = ("conv2d", "relu", "conv2d1", "relu1")
    plans = {
        name: Plan(("cpu", "d0", "d1"), (PlannedRegion("r0", device, operators),))
        for name, device in (("quick", "d0"), ("calm", "d1"))
    }
    model = ts.compile(network(), [TARGET, *devices], plans=plans, cpu_threads=1, spare=spare)
    model.adapt(CALM)
    return model


def take(model: ts.Model, microseconds: int) -> None:
    """How long the first device takes from now on."""
    assert model.parts is not None
    model.parts.devices[0]["take"]("r0", microseconds)


def runs_until(model: ts.Model, name: str, most: int = 40) -> int:
    """How many runs it takes, all with right answers, until another plan is the next."""
    for count in itertools.count():
        if model.in_use == name or count == most:
            return count
        check(model)
    raise AssertionError


def test_each_plan_computes_the_network() -> None:
    model = several()
    assert list(model.plans) == ["fastest", "without cpu", "without fake"]
    placed = [set(plan.processor_of().values()) for plan in model.plans.values()]
    assert placed == [{"cpu", "fake"}, {"fake"}, {"cpu"}]
    for name, plan in model.plans.items():
        model.use(name)
        check(model)
        check(model, 2 * X)
        assert model.in_use == name and model.plan == plan
        assert str(model.plan.execution).startswith("0 of ")
        assert {t.processor for t in model.timeline().regions} == set(plan.processor_of().values())
        assert len(model.profile(1).kernels) == len(model.running.nodes)


def test_plans_share_weights_and_arena() -> None:
    """Packed weights too: alone, a processor computes the parts of the layer that is shared."""
    plan = Plan(("cpu", "fake"), (), shares={"conv2d1": (8, 8)})
    one = ts.compile(network(), [TARGET, fake_processor()], plan=plan, cpu_threads=1).graph
    graph = several().graph
    assert graph.weights_bytes == one.weights_bytes
    assert graph.prepared_bytes == one.prepared_bytes
    assert graph.arena_bytes <= 1.1 * one.arena_bytes
    assert all(plan.expected_ns > 0 for plan in graph.plans)


def test_other_shares_have_the_same_weights(tmp_path: Path) -> None:
    """So that a device has them already when it gets another plan."""
    files = []
    for number, widths in enumerate([(8, 8), (4, 12)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        plan = Plan(("cpu", "fake"), (), shares={"conv2d1": widths})
        model = ts.compile(network(), [TARGET, fake_processor()], plan=plan, cpu_threads=1)
        check(model)
        assert model.parts is not None
        files.append([path.read_bytes() for path in model.parts.write_weights(folder)])
    assert files[0] == files[1]
    assert [len(file) for file in files[0]] == [64 + 2 * 16 * 16 * 9 * 4]


def test_an_artifact_holds_its_plans(tmp_path: Path) -> None:
    model = several()
    model.export(tmp_path / "net.so")
    loaded = ts.load(tmp_path / "net.so")
    assert loaded.plans == model.plans and loaded.graph.plans == model.graph.plans
    loaded.use("without fake")
    check(loaded)
    loaded.report(tmp_path / "net.html")
    assert loaded.in_use == "without fake"
    other = loaded.create_instance()
    other.use("without cpu")
    check(other)
    assert loaded.in_use == "without fake"


@pytest.mark.full
def test_a_slow_processor_is_left_alone_and_comes_back() -> None:
    model = on_two({"regions": {"r0": {"latency_us": USUAL_US}}})
    for _ in range(5):
        check(model)
    assert model.in_use == "quick"
    take(model, SLOW_US)
    assert runs_until(model, "calm") <= 5
    for _ in range(4):
        check(model)
    take(model, USUAL_US)
    assert runs_until(model, "quick") <= 20
    check(model)
    assert model.in_use == "quick"


@pytest.mark.full
def test_a_plan_that_is_pinned_stays() -> None:
    model = on_two({"regions": {"r0": {"latency_us": USUAL_US}}})
    model.use("quick")
    take(model, SLOW_US)
    for _ in range(6):
        check(model)
    assert model.in_use == "quick"
    model.adapt(CALM)
    assert runs_until(model, "calm") <= 5


def test_no_run_is_lost_when_a_processor_fails() -> None:
    model = on_two()
    assert model.parts is not None
    device = model.parts.devices[0]
    device["fail"]("r0", "gone", 1)
    with pytest.warns(RuntimeWarning, match="a run took another plan: .*'d0'.* got: gone"):
        check(model)
    assert model.in_use == "calm"
    assert runs_until(model, "quick") <= 20
    device["fail"]("r0", "gone", 1)
    model.use("quick")
    with pytest.raises(ts.DeviceError, match="got: gone"):
        model(X)


def test_a_model_elsewhere_warns_as_one_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_STRETCH_STORE", str(tmp_path))
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", str(tmp_path / "cache"))
    model = on_two()
    assert model.parts is not None
    fails = fake_code(mirrored=True, regions={"r0": {"fails": "gone", "failures": 1}})
    parts = dataclasses.replace(model.parts, devices=(fails, model.parts.devices[1]))
    there = ts.connect(rpc.LocalSession(), "pixel").load(ts.Model(model.module, parts=parts))
    with pytest.warns(RuntimeWarning, match="a run took another plan: .*'d0'.* got: gone"):
        check(there)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(there)


def test_a_run_in_which_two_processors_fail_ends() -> None:
    model = on_two()
    assert model.parts is not None
    for device in model.parts.devices:
        device["fail"]("r0", "gone", 10**9)
    with pytest.raises(ts.DeviceError, match="got: gone"):
        model.run_async(X).result(60)


def test_the_spare_runs_only_plans_that_need_what_is_lost() -> None:
    model = on_two(spare=True)
    assert model.parts is not None
    first, second = model.parts.devices
    first["fail"]("r0", "gone", 1)
    model.use("quick")
    with pytest.warns(RuntimeWarning, match="gone.*; the CPU runs everything now"):
        check(model)
    model.use("calm")
    check(model)
    assert model.lost is None and {t.processor for t in model.timeline().regions} == {"d1"}
    model.use("quick")
    assert model.lost and "gone" in model.lost
    model.adapt()
    second["fail"]("r0", "gone too", 1)
    model.use("calm")
    model.adapt()
    check(model)
    assert model.lost and "gone too" in model.lost


@pytest.mark.parametrize("method", ["timeline", "profile"])
def test_a_plan_may_change_while_it_is_traced(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = several()
    assert model.parts is not None
    device, run, before = model.parts.devices[0], MetersOfModel.random_run, model.in_use
    model.adapt(50.0)

    def fails_after(meters: MetersOfModel) -> Callable[[], None]:
        first = run(meters)

        def go() -> None:
            first()
            for region in model.graph.regions:
                device["fail"](region.name, "gone", 1)

        return go

    monkeypatch.setattr(MetersOfModel, "random_run", fails_after)
    found = getattr(model, method)(repeat=2)
    assert before == "fastest" and model.in_use == "without fake"
    if method == "timeline":
        assert {t.processor for t in found.regions} == {"cpu"}
    else:
        assert [k.name for k in found.kernels] == [node.name for node in model.running.nodes]


def test_a_graph_of_another_version_is_refused() -> None:
    version = FORMAT.version
    now, before = f'"version":{version}', f'"version":{version - 1}'
    text = several().graph.to_json().replace(now, before, 1)
    expected = rf"{version}\) for the format and version .* {version - 1}\)"
    with pytest.raises(ts.ArtifactError, match=expected):
        Graph.from_json(text)


def test_plans_are_linked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    linked: list[str] = []
    create = object_code.cc.create_shared

    def noted(path: str, *args: object) -> None:
        linked.append(path)
        create(path, *args)

    monkeypatch.setattr(object_code.cc, "create_shared", noted)
    targets = [TARGET, fake_processor()]
    plan = Plan(("cpu", "fake"), (), shares={"conv2d1": (8, 8)})
    ts.compile(network(), targets, plans={"mine": plan}, cpu_threads=1)
    assert len(linked) == 1


def test_one_plan_keeps_its_name() -> None:
    plan = Plan(("cpu", "fake"), (), shares={"conv2d1": (8, 8)})
    targets = [TARGET, fake_processor()]
    model = ts.compile(network(), targets, plans={"mine": plan}, cpu_threads=1)
    assert list(model.plans) == ["mine"] and model.in_use == "mine"
    model.use("mine")
    check(model)


def test_wrong_words() -> None:
    model = several()
    with pytest.raises(ts.InputError, match=r"one of the plans \['fastest', .* got 'best'"):
        model.use("best")
    for numbers in ((1.0, 3, 16), (1.3, 0, 16), (1.3, 3, 0), (float("nan"), 3, 16)):
        with pytest.raises(ts.InputError, match="a factor above 1 and at least 1 run"):
            model.adapt(*numbers)
    for plans in ([], {}, "all", {"": "plan.json"}, 3):
        with pytest.raises(ts.InputError, match="expected True or plans by name for plans"):
            ts.compile(network(), TARGET, plans=plans)
    with pytest.raises(ts.InputError, match="expected no plan beside plans by name"):
        ts.compile(network(), TARGET, plan=model.plan, plans=model.plans)


def test_one_plan_is_a_model_as_any_other() -> None:
    model = ts.compile(network(), TARGET, plans=True, cpu_threads=1)
    assert not model.graph.plans and model.in_use == "plan"
    assert model.plans == {"plan": model.plan}
    model.use("plan")
    model.adapt()
    check(model)


def test_the_spare_remembers_all_that_were_lost() -> None:
    """Not only the last one: plans of the others would fail again in every run."""
    model = on_two(spare=True)
    assert model.parts is not None
    for device in model.parts.devices:
        device["fail"]("r0", "gone", 10**9)
    with pytest.warns(RuntimeWarning, match="the CPU runs everything now"):
        check(model)
    logs = [json.loads(device["log"]())["regions"] for device in model.parts.devices]
    assert all(logs), "both were tried"
    for name in (*model.plans, *model.plans):
        model.use(name)
        check(model)
        assert model.lost
    assert not any(json.loads(device["log"]())["regions"] for device in model.parts.devices)


def test_a_run_that_was_announced_is_cancelled_and_no_other() -> None:
    model = several()
    announce = tvm.get_global_func("tvm_stretch.announce_run")
    cancel = tvm.get_global_func("tvm_stretch.cancel_run")
    announce(7)
    cancel(7)
    with pytest.raises(CancelledError, match="got a call of cancel"):
        model(X)
    cancel(7)
    check(model)
    announce(8)
    cancel(7)
    check(model)
    cancel(8)
    check(model)


def test_a_slow_device_is_known_by_its_pace() -> None:
    """A plan that promises more than the calm one, but on the slow device, is not tried."""
    usual = {"regions": {"r0": {"latency_us": USUAL_US}, "r1": {"latency_us": 2 * USUAL_US}}}
    scripts = usual, {"regions": {"r0": {"latency_us": 4 * USUAL_US}}}
    devices = [fake_processor(f"d{i}", **script) for i, script in enumerate(scripts)]
    operators = ("conv2d", "relu", "conv2d1", "relu1")
    plans = {
        name: Plan(("cpu", "d0", "d1"), (PlannedRegion(region, device, operators),))
        for name, region, device in (
            ("quick", "r0", "d0"),
            ("other", "r1", "d0"),
            ("calm", "r0", "d1"),
        )
    }
    model = ts.compile(network(), [TARGET, *devices], plans=plans, cpu_threads=1)
    model.adapt(CALM)
    assert all(len(plan.work_ns) == 1 for plan in model.graph.plans)
    for _ in range(3):
        check(model)
    assert model.paces["d0"] < CALM and model.in_use == "quick"
    for region in ("r0", "r1"):
        model.parts.devices[0]["take"](region, SLOW_US)
    used = []
    while model.in_use != "calm" and len(used) < 10:
        used.append(model.in_use)
        check(model)
    assert set(used) == {"quick"} and model.in_use == "calm"
    assert model.paces["d0"] > 3
    assert model.predicted["other"] > 2 * model.predicted["calm"]


def test_the_plan_of_the_least_energy_is_taken() -> None:
    """The quick one takes a quarter of the time and a hundred times the power."""
    model = on_two({"regions": {"r0": {"latency_us": USUAL_US}}})
    names, seconds = list(model.plans), [USUAL_US / 1e6, 4 * USUAL_US / 1e6]
    for within_ms, wanted in ((0, "calm"), (2, "quick")):  # no plan takes 2 ms
        assert model.parts is not None
        within = within_ms * 1_000_000
        parts = model.parts.named(names, seconds, watts=[100.0, 1.0], within_ns=within)
        thrifty = ts.Model.from_parts(parts)
        thrifty.adapt(CALM)
        assert [plan.milliwatts for plan in thrifty.graph.plans] == [100_000, 1_000]
        for _ in range(3):
            check(thrifty)
        assert thrifty.in_use == wanted


def test_plans_are_found_with_their_power(monkeypatch: pytest.MonkeyPatch) -> None:
    """One watt, whatever runs; by latency nothing is metered."""

    def measure(_: Objective, _models: object, seconds: Sequence[float]) -> list[Cost]:
        return [Cost(round(1e9 * taken), 1e3 * taken) for taken in seconds]

    monkeypatch.setattr(Objective, "measure", measure)
    targets = [TARGET, fake_processor()]
    wanted = Objective("energy", latency_ms=500)
    model = ts.compile(network(), targets, plans=True, cpu_threads=1, objective=wanted)
    assert len(model.graph.plans) > 1 and model.graph.within_ns == 500_000_000
    assert {plan.milliwatts for plan in model.graph.plans} == {1000}
    assert not any(plan.milliwatts for plan in several().graph.plans)
