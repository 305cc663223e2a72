"""An engine that takes operators one by one, and refuses, hangs or crashes over regions of them."""

from __future__ import annotations

import functools
import itertools
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.engine_targets import ENGINE, eager, free, needs_engine, network
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.network.expressions import bindings_of
from tvm_stretch.plan.plan import PlannedRegion
from tvm_stretch.run.autoload import find_file
from tvm_stretch.targets.engines import engine
from tvm_stretch.targets.engines.code import engine_code
from tvm_stretch.targets.engines.code.engine_code import Engine

pytestmark = needs_engine

PROGRAM = f"""#!{sys.executable} -S
import os, signal, sys, time
if sys.argv[1] == "describe":
    print("scripted {{version}}")
    sys.exit(0)
head, _, rest = open(sys.argv[2], "rb").read().partition(b"\\nend\\n")
for line in head.split(b"\\n"):
    if line.startswith(b"model "):
        size = int(line.split()[1])
        model, rest = rest[:size], rest[size:]
        for together in {{rules}}:
            if all(b"\\x22" + bytes([len(kind)]) + kind.encode() in model for kind in together):
                {{fault}}
                break
        else:
            print("verdict takes", flush=True)
"""
FAULTS = {
    "refuses": 'print("verdict too much at once", flush=True)',
    "crashes": "os.kill(os.getpid(), signal.SIGSEGV)",
    "hangs": "time.sleep(99)",
}
KINDS = ("Conv", "Relu", "Mul", "Add", "Sigmoid")


X = np.random.default_rng(0).standard_normal((1, 8, 12, 10)).astype("float32")


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program that is asked, instead of the real one, which runs what it took."""
    program = tmp_path / "program"
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(Engine, "is_built_in", False)
    monkeypatch.setattr(engine_code, "_REFUSED", {})
    real = find_file
    monkeypatch.setattr(
        "tvm_stretch.targets.engines.engine.find_file",
        lambda name: program if "engine" in name else real(name),
    )
    return program


def rule(program: Path, fault: str, *together: tuple[str, ...]) -> None:
    """What must not be in one region, and what the program does then."""
    program.write_text(PROGRAM.format(rules=together, fault=FAULTS[fault], version=hash(together)))
    program.chmod(0o755)
    engine_code.describe.cache_clear()
    engine_code._REFUSED.clear()


def check(expected: np.ndarray) -> ts.Model:
    model = ts.compile(network(), [ENGINE, "llvm"], plan=eager("engine"), cpu_threads=1)
    np.testing.assert_allclose(model(X), expected, rtol=1e-4, atol=1e-4)
    assert {"cpu"} <= set(model.plan.processor_of().values())
    return model


def in_regions(model: ts.Model) -> list[set[str]]:
    """The kinds of operators in each region of the engine."""
    regions = [region for region in model.plan.regions if region.processor == "engine"]
    return [{name.rstrip("0123456789") for name in region.operators} for region in regions]


@functools.cache
def answer() -> np.ndarray:
    return ts.compile(network(), ["llvm"])(X)


@pytest.mark.variants(2)
@pytest.mark.parametrize("pair", [*itertools.combinations(KINDS, 2)], ids="+".join)
def test_each_pair_of_kinds(scripted: Path, pair: tuple[str, ...]) -> None:
    """A valid plan follows, it gives the same answer, and it says what is elsewhere and why."""
    rule(scripted, "refuses", pair)
    model = check(answer())
    kinds = {"Conv": "conv2d", "Mul": "multiply"}
    names = {kinds.get(kind, kind.lower()) for kind in pair}
    assert not any(names <= found for found in in_regions(model)), pair
    told = [r for r in model.plan.refusals if "too much at once" in r.reason]
    meet = set(pair) <= {"Conv", "Relu"} or not set(pair) & {"Conv", "Relu"}
    assert len(told) == meet, "only what is at fault goes elsewhere"
    assert ("too much at once" in model.plan.explain()) == meet


@pytest.mark.parametrize("fault", ["crashes", "hangs"])
def test_a_compiler_that_does_not_answer(
    scripted: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_code, "_LONGEST_S", 1.0)
    rule(scripted, fault, ("Conv", "Relu"))
    model = check(answer())
    reason = "killed by signal 11" if fault == "crashes" else "no answer within 1 s"
    assert any(reason in refusal.reason for refusal in model.plan.refusals)


@pytest.mark.full  # it compiles for twelve seconds
def test_random_sets(scripted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to three rules at once; the search measures what is left, and nothing fails."""
    monkeypatch.setattr("tvm_stretch.plan.search.site.planning_costs", free)
    dice, expected = random.Random(0), ts.compile(network(), ["llvm"])(X)
    for _ in range(6):
        sets = [tuple(dice.sample(KINDS, dice.randint(2, 3))) for _ in range(dice.randint(1, 3))]
        rule(scripted, "refuses", *sets)
        check(expected)
        raced = ts.compile(network(), ["llvm", ENGINE], cpu_threads=1)
        np.testing.assert_allclose(raced(X), expected, rtol=1e-4, atol=1e-4)
        assert any(one.measured_ns for one in raced.plan.considered), sets


def compiled_with(
    scripted: Path, monkeypatch: pytest.MonkeyPatch, swaps: dict[bytes, bytes], alone: bool = False
) -> ts.Model:
    """The model for an engine whose compiler takes operators for others."""
    monkeypatch.setattr("tvm_stretch.plan.search.site.planning_costs", free)
    rule(scripted, "refuses")
    honest = engine.onnx_of

    def swapped(region: relax.Function) -> bytes:
        model = honest(region)
        for kind, other in swaps.items():
            if alone or len([*bindings_of(region)]) > 1:  # asked alone, it looks right
                model = model.replace(b"\x22\x04" + kind, b"\x22\x04" + other)
        return model

    monkeypatch.setattr(engine, "onnx_of", swapped)
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", str(scripted.parent / "other"))
    model = ts.compile(network(), ["llvm", ENGINE], cpu_threads=1)
    np.testing.assert_allclose(model(X), answer(), rtol=1e-4, atol=1e-4)
    assert "expected engine to compute what the CPU computes, got answers" in model.plan.explain()
    return model


@pytest.mark.parametrize("alone", [False, True])
def test_a_compiler_that_makes_another_operator(
    scripted: Path, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    """Its answer is compared before it can win; that operator is found, and goes to the CPU."""
    model = compiled_with(scripted, monkeypatch, {b"Relu": b"Sinh"}, alone)
    assert model.plan.processor_of()["relu"] == "cpu"
    assert "relu go elsewhere" in model.plan.explain()
    refused = [one for one in model.plan.refusals if one.processor == "engine"]
    assert {"relu"} == {one.operator for one in refused if "in a region with others" in one.reason}


def test_a_compiler_at_whose_fault_no_operator_is(
    scripted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no operator alone is at fault, the engine is left out, and the plan says so."""
    monkeypatch.setattr("tvm_stretch.plan.search.wrong_answers.first_wrong", lambda names, _: [])
    model = compiled_with(scripted, monkeypatch, {b"Relu": b"Sinh"})
    assert {*model.plan.processor_of().values()} == {"cpu"}
    assert "it is left out" in model.plan.explain()


def test_a_region_that_is_refused_whatever_is_in_it(scripted: Path) -> None:
    """Five questions find no single fault: the CPU does everything in the end."""
    rule(scripted, "refuses", *((kind,) for kind in KINDS))
    model = check(answer())
    assert not in_regions(model)


def test_a_plan_that_places_there_what_is_refused(scripted: Path) -> None:
    """The caller's regions are the caller's: the error names what is refused, and nothing loops."""
    rule(scripted, "refuses", ("Conv", "Relu"))
    plan = ts.compile(network(), [ENGINE, "llvm"], plan=eager("engine"), cpu_threads=1).plan
    whole = ts.Plan(plan.processors, ())
    names = [name for region in plan.regions for name in region.operators]
    sines = [name for name in names if name.startswith("sin")]
    placed = [
        PlannedRegion(f"r{i}", "cpu" if name in sines else "engine", (name,))
        for i, name in enumerate(names)
    ]
    rule(scripted, "refuses", ("Conv",))
    with pytest.raises(ts.UnsupportedError, match="too much at once; place them elsewhere"):
        ts.compile(network(), [ENGINE, "llvm"], plan=ts.Plan(whole.processors, tuple(placed)))
