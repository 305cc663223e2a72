"""A processor is one file: what it registers is all that the compiler knows of it."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.cpu_targets import TARGET
from helpers.fake_targets import fake_processor
from helpers.relax_helpers import module, random_const
from helpers.rooms import tree_of
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.plan.cost.fingerprint import fingerprint
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.search.costs import planning_costs
from tvm_stretch.targets import registry
from tvm_stretch.targets.processor import Hardware, Processor, Speed
from tvm_stretch.targets.processors import drop_absent, make_processors
from tvm_stretch.targets.registry import Attributes, ProcessorKind, register

ROOT = Path(__file__).resolve().parents[2]
ABACUS = Speed(cycles_per_ns=0.5, bytes_per_ns=1.0, start_ns=7.0, handover_ns=9.0)


def abacus(target: Attributes, host: Processor) -> Processor:
    """A processor for pooling, or whatever `takes` says; TVM knows no such kind of target."""
    takes = target.get("takes", "max_pool2d")

    def refuse(call: relax.Call) -> str | None:
        return None if takes in call.op.name else f"an abacus counts {takes}"

    assert host.is_host
    made = fake_processor("abacus", refuse=refuse)
    return dataclasses.replace(made, speed=ABACUS, hardware=Hardware(driver="wood"))


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> dict[str, ProcessorKind]:
    known = dict(registry._KINDS)
    monkeypatch.setattr(registry, "_KINDS", known)
    return known


@pytest.fixture
def registered(kinds: dict[str, ProcessorKind]) -> None:
    register(ProcessorKind("abacus", abacus))


def network() -> object:
    weight = random_const(8, 8, 3, 3)

    def build(x: relax.Expr) -> relax.Expr:
        x = relax.op.nn.max_pool2d(x, pool_size=(2, 2), strides=(2, 2))
        return relax.op.nn.conv2d(x, weight, padding=1)

    return module(build, (1, 8, 6, 6))


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("target", "counted"),
    [("abacus", "max_pool2d"), ({"kind": "abacus", "takes": "conv2d"}, "conv2d")],
)
def test_one_registration_is_enough(target: registry.TargetLike, counted: str) -> None:
    first_that_takes_it = Plan(("cpu", "abacus"), ())
    model = ts.compile(network(), [target, TARGET], plan=first_that_takes_it, cpu_threads=1)
    owner = model.plan.processor_of()
    assert owner == {name: "abacus" if counted in name else "cpu" for name in owner}
    assert f"an abacus counts {counted}" in model.plan.explain()
    x = np.random.default_rng(0).standard_normal((1, 8, 6, 6), dtype="float32")
    alone = ts.compile(network(), TARGET, cpu_threads=1)
    np.testing.assert_array_equal(model(x), alone(x))


@pytest.mark.usefixtures("registered")
def test_what_it_says_is_what_plans_reckon_with() -> None:
    processors, _ = make_processors(["llvm", "abacus"], 1)
    costs = planning_costs(processors)
    assert costs.models["abacus"].speed == ABACUS
    assert costs.hand_over(0, 1, 5000) == 1000 + 5000  # it shares no cache with the CPU
    assert fingerprint(processors[1])["driver"] == "wood"
    assert "driver" not in fingerprint(processors[0])
    assert (
        fingerprint(dataclasses.replace(processors[1], hardware=Hardware(device="a phone")))[
            "machine"
        ]
        == "a phone"
    )


def test_absent_and_in_need_of_cores(kinds: dict[str, ProcessorKind]) -> None:
    register(ProcessorKind("abacus", abacus, lambda target: target.get("lost", ""), lambda _: 999))
    (host, _), _ = make_processors(["llvm", "abacus"], None)
    assert host.threads == 1
    lost = {"kind": "abacus", "lost": "it fell down"}
    assert drop_absent(["llvm", lost]) == (["llvm"], "abacus left out: it fell down")
    assert drop_absent([lost]) == ([lost], "")
    assert drop_absent(["abacus"]) == (["abacus"], "")


def test_unknown_kinds_and_kinds_twice(kinds: dict[str, ProcessorKind]) -> None:
    with pytest.raises(ts.TargetError, match="expected a TVM target for targets, got 'abacus'"):
        ts.compile(network(), ["llvm", "abacus"])
    *others, last = sorted(kinds)
    with pytest.raises(ts.TargetError, match=f"target {', '.join(others)} or {last}, got 'cuda'"):
        ts.compile(network(), ["llvm", "cuda"])
    register(ProcessorKind("abacus", abacus))
    with pytest.raises(ts.TargetError, match=r"expected a new name .* got 'abacus' again"):
        register(ProcessorKind("abacus", abacus))
    with pytest.raises(ts.TargetError, match="every processor once in targets"):
        ts.compile(network(), ["abacus", {"kind": "abacus"}])


OWN_FILES = {
    "hexagon": (
        "targets/hexagon/",
        "targets/engines/npu.py",  # which stands for it
        "tvm_stretch/base/elf.py",
        "tvm_stretch/plan/measuring/calibrate",
    ),
    "fake": ("tvm_stretch/run/testing/",),
}
"""Where the word for a kind of processors may stand in code. Other words stand in a folder of
their own name, or in one file of `targets/`: the one that registers the kind."""


def words() -> Iterator[tuple[str, str]]:
    """File and value of every string in our code that is no docstring of more than a word."""
    for folder in ("tvm_stretch", "passes", "targets"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(tree_of(path)):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield str(path.relative_to(ROOT)), node.value


def test_no_other_file_knows_a_processor() -> None:
    kinds = {*registry._KINDS, "fake", "abacus"} - {"llvm"}
    said: dict[str, set[str]] = {word: set() for word in kinds}
    for path, word in words():
        if word in said:
            said[word].add(path)
    for word, paths in said.items():
        strays = {p for p in paths if not p.startswith(OWN_FILES.get(word, (f"targets/{word}/",)))}
        one_file = len(paths) == 1 and min(paths).startswith("targets/")
        assert not strays or one_file, f"{sorted(strays)} say {word!r}"
