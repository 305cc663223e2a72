"""Plans that the search makes with an engine: measured, stretched, predicted for an emulator."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from helpers.engine_regions import step_of
from helpers.engine_targets import ENGINE, free, needs_engine, needs_npu, network, quantised
from helpers.relax_numpy import evaluate
from helpers.stretch_networks import SIZE, basic
from helpers.stretch_networks import network as stretchable

import tvm_stretch as ts
from tvm_stretch.network.operators import Operators
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.read import load_network
from tvm_stretch.targets.processors import make_processors

pytestmark = [needs_engine, pytest.mark.full]


def test_the_search_measures_plans_with_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_stretch.plan.search.site.planning_costs", free)
    model = ts.compile(network(), ["llvm", ENGINE], cpu_threads=1)
    assert sum(one.measured_ns is not None for one in model.plan.considered) >= 2
    x = np.random.default_rng(0).standard_normal((1, 8, 12, 10), dtype="float32")
    alone = ts.compile(network(), "llvm", cpu_threads=1)
    np.testing.assert_allclose(model(x), alone(x), rtol=1e-4, atol=1e-5)


def test_a_stretched_network_has_a_branch_on_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = stretchable(basic, ((32, 1), (48, 1)), stem=16)
    processors, _ = make_processors(["llvm", ENGINE], 1)
    with monkeypatch.context() as patched:
        patched.setattr("tvm_stretch.plan.search.site.planning_costs", free)
        found = ts.stretch(mod, processors)
    assert "engine 1x" in str(found)
    model = found.compile_untrained()
    x = np.random.default_rng(0).standard_normal((1, 3, SIZE, SIZE), dtype="float32")
    expected = evaluate(found.module(), x)
    assert np.abs(model(x) - expected).max() <= 1e-4 * np.abs(expected).max()


@needs_npu
def test_a_stretched_branch_on_the_emulated_tensor_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 8 bits: one branch there, the other on the CPU meanwhile."""
    mod = stretchable(basic, ((32, 1), (48, 1)), stem=16)
    processors, _ = make_processors(["llvm", ENGINE], 1)
    with monkeypatch.context() as patched:
        patched.setattr("tvm_stretch.plan.search.site.planning_costs", free)
        net = ts.stretch(mod, processors).to_torch().eval()
    images = np.random.default_rng(0).standard_normal((8, 3, SIZE, SIZE), dtype="float32")
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the older exporter, which needs no other package
        torch.onnx.export(net, (torch.tensor(images[:1]),), file, dynamo=False, input_names=["x"])
    source = ts.quantize(file.getvalue(), images)
    regions = branches([op.name for op in Operators(load_network(source)["main"])])
    plan = Plan(("cpu", "npu"), regions)
    model = ts.compile(source, ["llvm", "npu"], plan=plan, cpu_threads=1)
    _, unit, cpu, last = model.graph.regions
    assert unit.after == (0,) and 1 not in cpu.after and 1 in last.after
    alone = ts.compile(source, "llvm", cpu_threads=1)
    for x in np.split(images, 8):
        expected = alone(x)
        assert np.abs(model(x) - expected).max() <= 2 * step_of(source) * 1.01
        assert model(x).argmax() == expected.argmax()


def branches(names: Sequence[str]) -> tuple[PlannedRegion, ...]:
    """Before the branches, the two of them, and what follows."""
    unit = ("/Conv_7", "/Conv_9", "/Conv_8", "/Add_2")
    cpu = ("/Conv_4", "/Conv_6", "/Conv_5", "/Add_1")
    before = names.index("/Add") + 1
    after = tuple(name for name in names[before:] if name not in unit + cpu)
    parts = (("cpu", tuple(names[:before])), ("npu", unit), ("cpu", cpu), ("cpu", after))
    return tuple(PlannedRegion(f"r{n}", owner, part) for n, (owner, part) in enumerate(parts))


@needs_npu
def test_nothing_is_measured_on_an_emulator() -> None:
    model = ts.compile(quantised(), ["llvm", "npu"], cpu_threads=1)
    assert "nothing was measured there" in model.plan.explain()
    assert not any(one.measured_ns for one in model.plan.considered)
