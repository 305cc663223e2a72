"""Verdicts on plans, kept: of which network, for how long, and that nothing is measured again."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from helpers.cpu_targets import TARGET
from helpers.fake_targets import fake_processor
from helpers.relax_helpers import module
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.make.branching import Branching
from tvm_stretch.make.pipeline import Job
from tvm_stretch.plan.cost.fingerprint import default_folder
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.plan.search import remembered
from tvm_stretch.plan.search.choose import choose
from tvm_stretch.plan.search.decision import Decision, decided
from tvm_stretch.plan.search.limits import Limits
from tvm_stretch.plan.search.objective import Cost
from tvm_stretch.plan.search.realise import Candidate
from tvm_stretch.plan.search.remembered import Memory, memory_of
from tvm_stretch.plan.search.site import Site
from tvm_stretch.targets import registry
from tvm_stretch.targets.cpu.cpu import cpu_processor

PROCESSORS = [cpu_processor(TARGET, 1), fake_processor("npu")]
PLAN = Plan(("cpu", "npu"), (PlannedRegion("r0", "npu", ("relu",), (0, 7)),), reason="it is faster")

ADD = PlannedRegion("r0", "cpu", ("add",), (0, 3))
BOTH = Plan(("cpu", "npu"), (ADD, PlannedRegion("r1", "npu", ("relu",), (3, 7))))


def network(name: str = "relu", weight: float = 1.0, size: int = 4) -> tvm.IRModule:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, size), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit(relax.op.add(x, relax.const(np.full((1, size), weight, "float32"))), "add")
            out = bb.emit_output(relax.op.nn.relu(y), name)
        bb.emit_func_output(out)
    return bb.get()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(remembered.os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    return tmp_path


def memory(mod: tvm.IRModule) -> Memory:
    found = memory_of(mod, PROCESSORS, "llvm, npu")
    assert found is not None
    return found


def test_the_plan_that_won_is_known_again() -> None:
    memory(network()).store(PLAN)
    assert memory(network()).find() == PLAN
    assert memory(network(weight=2.0)).find() == PLAN, "it was trained further"


@pytest.mark.parametrize("other", [{"name": "relu1"}, {"size": 5}])
def test_another_network_is_not(other: dict[str, object]) -> None:
    memory(network()).store(PLAN)
    assert memory(network(**other)).find() is None  # type: ignore[arg-type]


def test_whatever_decides_who_is_faster_counts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mod = network()
    known = {memory(mod).key}

    def is_new() -> bool:
        count = len(known)
        known.add(memory(mod).key)
        return len(known) > count

    assert not is_new()
    monkeypatch.setenv("TVM_STRETCH_OPENCL_CPUS", "1")
    assert is_new()
    monkeypatch.setattr(remembered.os, "sched_getaffinity", lambda _: {1000})
    assert is_new()
    models = default_folder(PROCESSORS[0])
    assert models is not None and folder in models.parents
    models.mkdir(parents=True)
    (models / "npu.json").write_text("a cost model")
    assert is_new()
    (models / "cpu.probe.json").write_text("refusals")
    assert is_new()
    found = memory_of(mod, PROCESSORS, "npu")
    assert found is not None and found.key not in known


@pytest.mark.parametrize(("plan", "hours"), [(BOTH, 7 * 24), (PLAN, 1)])
def test_a_verdict_ages(plan: Plan, hours: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Soon, if one processor won: the others may have been busy with something else."""
    memory(network()).store(plan)
    now = time.time()
    for later, known in ((0.9 * hours, plan), (1.1 * hours, None), (-7 * 24, None)):
        monkeypatch.setattr(remembered.time, "time", lambda later=later: now + later * 3600)
        assert memory(network()).find() == known


def test_what_others_disturbed_is_kept_for_an_hour_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another program on the GPU makes the CPU alone win, for as long as it runs."""
    now = time.time()
    memory(network()).store(BOTH, is_lasting=False)
    memory(network(size=5)).store(BOTH)
    monkeypatch.setattr(remembered.os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    memory(network(size=6)).store(PLAN)
    memory(network(size=7)).store(BOTH)
    for size, disturbed, hours in ((4, True, 1), (5, False, 168), (6, True, 1), (7, False, 168)):
        plan = memory(network(size=size)).find()
        assert plan is not None and ("disturbed" in plan.reason) == disturbed
        with monkeypatch.context() as later:
            later.setattr(remembered.time, "time", lambda hours=hours: now + 1.1 * hours * 3600)
            assert memory(network(size=size)).find() is None


@pytest.mark.parametrize("entry", [b"{", b"null", b"[1]", b'["now", {}]', b"[0, [[]]]"])
def test_an_entry_of_another_version_is_none(entry: bytes) -> None:
    found = memory(network())
    found.cache.store(found.key, entry)
    assert found.find() is None


def test_a_time_that_is_none_is_none() -> None:
    found = memory(network())
    found.cache.store(found.key, json.dumps(["now", json.loads(PLAN.to_json())]).encode())
    assert found.find() is None


def test_variables_hold_any_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_STRETCH_NOTE", os.fsdecode(b"\xff"))
    memory(network()).store(PLAN)
    assert memory(network()).find() == PLAN


def test_measurements_that_go_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    before = memory(network()).key
    monkeypatch.setattr(Path, "is_file", lambda _: True)
    assert memory(network()).key == before


def test_what_won_is_found_by_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key holds the user's limits, and no address of a function."""
    said: list[str] = []
    site = Site(PROCESSORS, PROCESSORS, lambda model: model, identity="llvm, npu")
    monkeypatch.setattr(
        "tvm_stretch.plan.search.choose.memory_of", lambda *given: said.append(given[2])
    )
    monkeypatch.setattr(
        "tvm_stretch.plan.search.choose.decide", lambda job, *_: Decision(site, job)
    )
    for limits in (Limits({}), Limits({1: 0.5}), Limits({}, 8)):
        choose(site.job(network()), site, limits)
    assert len(set(said)) == 3 and not any(" at 0x" in text for text in said)


def test_no_folder_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", "")
    assert memory_of(network(), PROCESSORS, "llvm, npu") is None


def test_what_won_is_built_without_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a processor that somebody wrote nothing is remembered: it may do anything."""
    monkeypatch.setattr(registry, "_KINDS", dict(registry._KINDS))
    registry.register(registry.ProcessorKind("abacus", lambda *_: fake_processor("abacus")))
    mod = module(lambda x: relax.op.nn.relu(x), (4,))
    measured = []

    def decide(
        job: Job, site: Site, build: Any, _limits: Any, memory: Any, _may_use: Any
    ) -> Decision:
        measured.append(memory)
        plan = Plan(("cpu", "abacus"), (PlannedRegion("r0", "abacus", ("relu",)),), reason="won")
        if memory is not None:
            memory.store(plan)
        candidate = Candidate(plan, "", Cost(0), (0, 0), Branching(job.mod, {}))
        return decided(site, job, candidate, "won", (), build(job.mod, candidate))

    monkeypatch.setattr("tvm_stretch.plan.search.choose.decide", decide)
    first, second, other = (
        ts.compile(mod, targets, cpu_threads=1)
        for targets in ([TARGET, "abacus"], [TARGET, "abacus"], [TARGET, fake_processor("abacus")])
    )
    assert len(measured) == 2 and measured[1] is None
    assert second.plan.regions == first.plan.regions == other.plan.regions
    assert second.plan.reason == "won; measured before, not again"


@pytest.mark.parametrize(("operator", "script"), [("gone", {}), ("relu", {"fails": "device lost"})])
def test_what_won_and_cannot_run_any_more_is_sought_anew(
    operator: str, script: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_KINDS", dict(registry._KINDS))
    abacus = fake_processor("abacus", regions={"r0": script})
    registry.register(registry.ProcessorKind("abacus", lambda *_: abacus))
    known = Plan(("cpu", "abacus"), (PlannedRegion("r0", "abacus", (operator,)),))
    alone = Plan(("cpu", "abacus"), (PlannedRegion("r0", "cpu", ("relu",)),))
    monkeypatch.setattr(Memory, "find", lambda _: known)

    def decide(job: Job, site: Site, build: Any, *_: Any) -> Decision:
        candidate = Candidate(alone, "", Cost(0), (0, 0), Branching(job.mod, {}))
        return decided(site, job, candidate, "", (), build(job.mod, candidate))

    monkeypatch.setattr("tvm_stretch.plan.search.choose.decide", decide)
    mod = module(lambda x: relax.op.nn.relu(x), (4,))
    assert ts.compile(mod, [TARGET, "abacus"], cpu_threads=1).plan.regions == alone.regions


def _only(operator: str) -> Any:
    """A check that refuses all operators but one."""
    return lambda call: None if call.op.name == f"relax.{operator}" else "it cannot"


def test_little_effort_takes_what_won_or_the_first_that_can_and_searches_never(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "_KINDS", dict(registry._KINDS))
    abacus = fake_processor("abacus", refuse=_only("nn.relu"))
    registry.register(registry.ProcessorKind("abacus", lambda *_: abacus))
    monkeypatch.setattr("tvm_stretch.plan.search.choose.search", None)
    given: dict[str, Any] = {"targets": ["abacus", TARGET], "cpu_threads": 1, "effort": "low"}
    relu = module(lambda x: relax.op.nn.relu(x), (4,))
    first = ts.compile(relu, **given)
    assert [region.processor for region in first.plan.regions] == ["abacus"]
    assert "not searched, because effort is low" in first.plan.reason
    more = ts.compile(module(lambda x: relax.op.add(relax.op.nn.relu(x), x), (4,)), **given)
    assert [region.processor for region in more.plan.regions] == ["cpu"], "all on one of them"
    won = Plan(("cpu", "abacus"), (PlannedRegion("r0", "cpu", ("relu",)),), reason="won")
    monkeypatch.setattr(Memory, "find", lambda _: won)
    again = ts.compile(relu, **given)
    assert again.plan.regions == won.regions
    assert again.plan.reason == "won; measured before, not again"


def test_operators_go_to_the_first_that_runs_them_where_none_runs_all() -> None:
    mod = module(lambda x: relax.op.sqrt(relax.op.nn.relu(x)), (4,))
    left, right = (
        fake_processor(name, refuse=_only(operator))
        for name, operator in (("left", "nn.relu"), ("right", "sqrt"))
    )
    host = cpu_processor(TARGET, 1)
    site = Site([host, left, right], [left, right], lambda model: model)
    decision = choose(site.job(mod), site, Limits({}, searches=False))
    assert [region.processor for region in decision.job.plan.regions] == ["left", "right"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"effort": "none"}, "expected 'full' or 'low' for effort, got 'none'"),
        ({"effort": "low", "share_parts": 8, "plans": True}, "beside share_parts, plans, got"),
        ({"effort": "low", "objective": "energy"}, "for effort beside objective, got 'low'"),
    ],
)
def test_an_effort_that_cannot_be(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ts.StretchError, match=message):
        ts.compile(network(), [TARGET], cpu_threads=1, **given)
