"""ts.tune.probe: every class of operators is tried once, and compile() believes what came of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm
from helpers.fake_targets import TARGET, fake_processor
from helpers.relax_helpers import module, random_const
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.base.errors import CostModelError, TargetError, UnsupportedError
from tvm_stretch.base.files import sealed
from tvm_stretch.make.pipeline import Job, build_parts
from tvm_stretch.network.operators import Calls
from tvm_stretch.plan.cost.fingerprint import default_folder, fingerprint
from tvm_stretch.plan.cost.verdicts import (
    FORMAT,
    PLAIN,
    Verdicts,
    blocked_layout,
    in_layout,
    operator_class,
    verdicts_path,
)
from tvm_stretch.plan.measuring import probe as probing
from tvm_stretch.plan.measuring.probe import probe
from tvm_stretch.plan.measuring.sample_networks import chain
from tvm_stretch.plan.measuring.samples import Sample
from tvm_stretch.plan.plan import Plan
from tvm_stretch.read import load_network
from tvm_stretch.targets.cpu.cpu import cpu_processor
from tvm_stretch.targets.processor import Processor


def host() -> Processor:
    return cpu_processor(TARGET, 1)


BLOCKED = blocked_layout(host())


def network(size: int = 6, channels: int = 16) -> tvm.IRModule:
    """conv2d, relu."""
    weight = random_const(channels, channels, 3, 3)

    def body(x: relax.Expr) -> relax.Expr:
        return relax.op.nn.relu(relax.op.nn.conv2d(x, weight, padding=1))

    return load_network(module(body, (1, channels, size, size)))


def class_of(mod: tvm.IRModule, operator: str, layout: str = BLOCKED) -> str:
    return in_layout(operator_class(Calls(mod["main"]).calls[operator]), layout)


def no_trials(*_args: object) -> str:
    raise AssertionError("tried again")


def test_verdicts_are_found_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "verdicts.json"
    verdicts = probe(network(), host(), cache=path, cpu_threads=1)
    assert verdicts.refused == {}
    assert [key.split()[0] for key in verdicts.reasons] == ["nn.conv2d", "nn.relu"]
    monkeypatch.setattr(probing, "_try", no_trials)
    assert probe(network(size=10), host(), cache=path, cpu_threads=1) == verdicts
    with pytest.raises(AssertionError, match="tried again"):
        probe(network(channels=12), host(), cache=path, cpu_threads=1)


def test_operators_are_tried_in_the_layout_that_they_run_in() -> None:
    """The ReLU behind a convolution computes on blocks of channels, one by itself does not."""
    npu = fake_processor("npu")
    for mod, layout, rank in (
        (network(), blocked_layout(npu), 5),
        (load_network(module(lambda x: relax.op.nn.relu(x), (1, 16, 6, 6))), PLAIN, 4),
    ):
        trials = dict(probing._trials(mod, npu))
        trial = trials[class_of(mod, "relu", layout)]
        alone, before = probing._alone(trial)
        processors = [host(), npu]
        job = Job(alone, processors, processors, probing._plan(before, npu, host()))
        model = ts.Model.from_parts(build_parts(job))
        (node,) = (node for node in model.graph.nodes if node.name.startswith("probed"))
        assert len(model.graph.tensors[node.inputs[0]].shape) == rank
        assert probing._try(trial, probing._Trials(npu, host())) == ""


@pytest.mark.full
def test_parts_that_the_search_makes_are_tried_too(tmp_path: Path) -> None:
    weight = random_const(128, 128, 3, 3)
    mod = module(lambda x: relax.op.nn.conv2d(x, weight, padding=1), (1, 128, 28, 28))
    found = probe(mod, fake_processor("npu"), cache=tmp_path / "npu.json", cpu_threads=1)
    assert {key.split()[0] for key in found.reasons} > {"nn.conv2d"}
    assert any(key.startswith(("concat", "strided_slice")) for key in found.reasons)


def breaking(monkeypatch: pytest.MonkeyPatch, operator: str, result: Any) -> None:
    """The NPU computes something else for an operator."""
    is_wrong = False

    def seen(job: Job) -> Any:
        nonlocal is_wrong
        assert job.requested is not None
        is_wrong = f"R.{operator}" in job.mod.script() and "npu" in job.requested.processors
        return build_parts(job)

    def made(parts: Any) -> Any:
        model = ts.Model.from_parts(parts)
        return (lambda *values: result(model(*values))) if is_wrong else model

    monkeypatch.setattr(probing, "build_parts", seen)
    monkeypatch.setattr(probing, "Model", SimpleNamespace(from_parts=made))


def test_what_computes_wrongly_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    breaking(monkeypatch, "nn.relu", lambda y: y + 1)
    npu = fake_processor("npu")
    verdicts = probe(network(), npu, cache=tmp_path / "npu.json", cpu_threads=1)
    assert [key.split()[0] for key in verdicts.refused] == ["nn.relu"]
    calls = Calls(network()["main"]).calls
    careful = verdicts.apply(npu)
    reason = str(careful.why_not(calls["relu"]))
    assert reason.startswith("probe: result: differs") and reason.endswith(f"({BLOCKED})")
    assert careful.why_not(calls["conv2d"]) is None
    monkeypatch.undo()
    again = probe(network(), npu, cache=tmp_path / "npu.json", cpu_threads=1)
    assert again.refused == {}, "mended, and tried again"


def test_what_the_table_refuses_is_no_verdict(tmp_path: Path) -> None:
    """A row that is added later holds at once."""

    def no_relu(call: relax.Call) -> str | None:
        return "no relu here" if call.op.name == "relax.nn.relu" else None

    path = tmp_path / "npu.json"
    refusing = fake_processor("npu", refuse=no_relu)
    refused = probe(network(), refusing, cache=path, cpu_threads=1).refused
    assert set(refused.values()) == {"no relu here"}
    assert [key.split()[0] for key in json.loads(path.read_text())["reasons"]] == ["nn.conv2d"]
    assert probe(network(), fake_processor("npu"), cache=path, cpu_threads=1).refused == {}


def test_not_a_number_is_equal_to_itself_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mod = module(lambda x: relax.op.sqrt(x), (4, 5))  # of negative numbers too
    npu = fake_processor("npu")
    assert probe(mod, npu, cache=tmp_path / "a.json", cpu_threads=1).refused == {}
    breaking(monkeypatch, "sqrt", np.nan_to_num)
    refused = probe(mod, npu, cache=tmp_path / "b.json", cpu_threads=1).refused
    assert "differs from the virtual machine's by inf" in next(iter(refused.values()))


def test_what_does_not_compile_is_refused(tmp_path: Path) -> None:
    def broken(_kernels: object, _schedule: object) -> tvm.runtime.Module:
        raise RuntimeError("a trace\nthe driver has no such instruction")

    npu = replace(npu := fake_processor("npu"), code=replace(npu.code, build=broken))
    refused = probe(network(), npu, cache=tmp_path / "npu.json", cpu_threads=1).refused
    assert set(refused.values()) == {"compile: the driver has no such instruction"}


def test_a_device_that_is_lost_is_no_verdict(tmp_path: Path) -> None:
    """Else nothing would ever be placed on it again."""
    lost = fake_processor("npu", regions={"r1": {"fails": "the device is lost"}})
    path = tmp_path / "npu.json"
    first = class_of(network(), "conv2d")
    Verdicts(fingerprint(lost), {first: ""}).write(path)
    with pytest.raises(
        CostModelError, match=r"^expected npu to be there .* the device is lost.*; "
    ):
        probe(network(), lost, cache=path, cpu_threads=1)
    assert json.loads(path.read_text())["reasons"] == {first: ""}


def test_targets_that_cannot_be_probed(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="a processor of this machine for probe"):
        probe(network(), {"kind": "opencl", "device": "gpu"}, cache=tmp_path / "gpu.json")


# --- compile() ------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache, for this device."""
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", str(tmp_path))
    found = default_folder(host())
    assert found is not None
    return found


def test_compile_believes_the_verdicts_in_the_cache(folder: Path) -> None:
    mod, npu = network(), fake_processor("npu")
    everything_on_npu = Plan(("cpu", "npu"), ())
    targets = [npu, TARGET]
    model = ts.compile(mod, targets, plan=everything_on_npu, cpu_threads=1)
    assert set(model.plan.processor_of().values()) == {"npu"}
    found = {class_of(mod, "relu"): "result: differs", class_of(mod, "conv2d"): ""}
    Verdicts(fingerprint(npu), found).write(verdicts_path(folder, npu))
    careful = ts.compile(mod, targets, plan=everything_on_npu, cpu_threads=1)
    assert careful.plan.processor_of() == {"conv2d": "npu", "relu": "cpu"}
    assert f"npu  relu  probe: result: differs ({BLOCKED})" in careful.plan.explain()
    with pytest.raises(UnsupportedError, match=r"relu on npu: probe: result: differs"):
        ts.compile(mod, targets, plan=json.loads(model.plan.to_json()), cpu_threads=1)
    decided = ts.compile(mod, targets, cpu_threads=1)
    assert decided.plan.processor_of()["relu"] == "cpu"
    assert any(refusal.reason.startswith("probe: ") for refusal in decided.plan.refusals)


def test_probe_and_compile_use_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", str(tmp_path))
    breaking(monkeypatch, "nn.relu", lambda y: y + 1)
    npu = fake_processor("npu")
    probe(network(), npu, cpu_threads=1)
    (path,) = tmp_path.rglob("npu.probe.json")
    assert sum(map(bool, json.loads(path.read_text())["reasons"].values())) == 1
    plan = Plan(("npu",), ())
    plan = ts.compile(network(), [npu, "llvm"], plan=plan, cpu_threads=1).plan
    assert plan.processor_of() == {"conv2d": "npu", "relu": "cpu"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 1}, r"for the format and version of .*, got .*; delete the file"),
        ({"device": {"machine": "phone"}}, r"expected measurements of this device in .*machine"),
        (
            {"reasons": 3},
            r"expected an object for reasons .*, got 3; delete",
        ),
        (None, r"expected JSON for the verdicts of ts\.tune\.probe in .*, got "),
    ],
)
def test_verdicts_that_cannot_be_believed(
    folder: Path, change: dict[str, Any] | None, says: str
) -> None:
    npu = fake_processor("npu")
    path = verdicts_path(folder, npu)
    Verdicts(fingerprint(npu), {"nn.relu": ""}).write(path)
    data = {**FORMAT.head, **FORMAT.read(path)}
    changed = path.read_text()[:70] if change is None else sealed(json.dumps({**data, **change}))
    path.write_text(changed)
    for use in (
        lambda: ts.compile(network(), [TARGET, npu], cpu_threads=1),
        lambda: probe(network(), npu, cache=path, cpu_threads=1),
    ):
        with pytest.raises(CostModelError, match=says):
            use()
    assert path.exists(), "what is damaged is for the user to delete"


def test_classes_forget_sizes_but_not_kinds() -> None:
    def of(sample: Sample) -> str:
        calls: list[str] = []

        def visit(expr: tvm.relax.Expr) -> None:
            if isinstance(expr, tvm.relax.Call) and "conv2d" in str(expr.op):
                calls.append(operator_class(expr))

        tvm.relax.analysis.post_order_visit(chain([sample])["main"], visit)
        return calls[0]

    one = of(Sample("conv", 32, (48, 48), 32))
    assert one == of(Sample("conv", 64, (16, 16), 96))
    assert one != of(Sample("conv", 36, (48, 48), 32))
    assert one != of(Sample("conv", 32, (48, 48), 32, stride=(2, 2)))
    assert one != of(Sample("conv", 32, (48, 48), 32, groups=32))
