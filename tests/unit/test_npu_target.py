"""The HTP of phones: which chips have one, what its targets mean, what artifacts say of it."""

from __future__ import annotations

import platform
from collections.abc import Iterator

import numpy as np
import pytest
from helpers.described_phone import DSP, described
from helpers.quantised_models import Quantised, qdq, qdq_conv
from helpers.relax_helpers import module, random_const
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.base.errors import InstallError
from tvm_stretch.phone.device_processors import processors_of
from tvm_stretch.plan.search.site import site_of
from tvm_stretch.targets.engines import engine
from tvm_stretch.targets.engines.code.engine_code import Engine
from tvm_stretch.targets.processor import Processor

PHONE = described(dsp={**DSP, "soc": 519, "chip": "SM8550"})
"""Its chip is a Snapdragon 8 Gen 2."""


@pytest.fixture
def coded(monkeypatch: pytest.MonkeyPatch) -> list[Engine]:
    """The engines for which code was made, which then is not made."""
    engines: list[Engine] = []
    monkeypatch.setattr(
        "tvm_stretch.targets.engines.engine.engine_module",
        lambda engine, _models: engines.append(engine),
    )
    return engines


def built(processor: Processor) -> None:
    """Make its code, of no kernels."""
    processor.code.build({}, processor.code.schedule)


def network() -> object:
    """A convolution."""
    return module(lambda x: relax.op.nn.conv2d(x, random_const(8, 4, 3, 3)), (1, 4, 8, 8))


@pytest.mark.parametrize("word", ["hexagon", {"kind": "hexagon"}, "npu", {"kind": "npu"}])
def test_a_phone_says_which_version_it_has(word: ts.TargetLike, coded: list[Engine]) -> None:
    """There its word and that of DSPs mean the same, the HTP."""
    (_, npu), placeable = processors_of(PHONE, ["llvm", word], None)
    assert (npu.name, npu.hardware.device, npu.hardware.runs_here) == ("npu", "pixel", False)
    assert npu in placeable
    built(npu)
    assert dict(coded[0].options)["htp_arch"] == "73" and coded[0].device == "npu of pixel"
    assert b"\nmemory QnnHtpShared " in coded[0].code()


def test_a_version_that_a_target_names_comes_first(coded: list[Engine]) -> None:
    (_, npu), _ = processors_of(PHONE, ["llvm", {"kind": "npu", "htp_arch": "69"}], None)
    built(npu)
    assert dict(coded[0].options)["htp_arch"] == "69"


def test_a_phone_without_one() -> None:
    with pytest.raises(ts.TargetError, match="an HTP on pixel, got: Hexagon v66 of SM8150"):
        processors_of(described(), ["llvm", "npu"], None)
    with pytest.raises(ts.TargetError, match="expected a Hexagon on pixel that can be called"):
        processors_of(described(), ["llvm", "hexagon"], None)


def test_a_profile_that_has_one() -> None:
    plan = ts.plan_for(network(), ["llvm", "opencl", "hexagon"], device="snapdragon-8-gen-2")
    assert plan.processors == ("cpu", "opencl", "npu")
    assert "hexagon is the npu of this device" in plan.explain()
    old = ts.plan_for(network(), ["llvm", "hexagon"], device="snapdragon-855")
    assert "hexagon" in old.processors and "is the npu" not in old.explain()
    with pytest.raises(ts.CostModelError, match="got 'hexagonal'; choose"):
        ts.plan_for(network(), ["llvm", "hexagonal"], device="snapdragon-8-gen-2")


def test_artifacts_run_where_they_can_be_opened(coded: list[Engine]) -> None:
    """This machine cannot open one for ARM; one for a phone with its own CPU it could, in vain."""
    site = site_of("snapdragon-8-gen-2", ["cpu", "npu"])
    built(site.processors[1])
    assert coded[0].runs_here is (platform.machine() != "aarch64")
    elsewhere = {"kind": "engine", "provider": "CPUExecutionProvider", "device": "a-phone"}
    (_, engine), _ = processors_of(None, ["llvm", elsewhere], None)
    built(engine)
    assert not coded[1].runs_here


GEN_2 = "snapdragon-8-gen-2"
X = Quantised(np.zeros((1, 4, 8, 8), "uint8"), 0.02, 3)
Y = Quantised(np.zeros(0, "uint8"), 1 / 256, 0)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Whether a provider can be asked (``absent``: why not), and why it refuses everything."""
    said: dict[str, str] = {}

    def describe(_engine: Engine) -> str:
        if "absent" in said:
            raise InstallError(said["absent"])
        return "runtime 1"

    monkeypatch.setattr(engine, "describe", describe)
    monkeypatch.setattr(
        engine, "why_refused", lambda _, models: [said.get("refuses", "")] * len(models)
    )
    engine._why_unasked.cache_clear()
    yield said
    engine._why_unasked.cache_clear()


def test_a_prediction_refuses_what_a_compile_refuses(provider: dict[str, str]) -> None:
    """ONNX 17 has no operator for the table of this function, so both keep it on the CPU."""
    provider["absent"] = "expected the provider, got none; install it"
    network = qdq("Mish", [X], Y, opset=18)
    with pytest.raises(ts.UnsupportedError, match=r"on npu: integer\.table: a function"):
        ts.plan_for(network, ["npu"], device=GEN_2)
    plan = ts.plan_for(network, ["llvm", "npu"], device=GEN_2)
    assert {region.processor for region in plan.regions} == {"cpu"}
    assert "a function that ONNX has no operator for" in plan.explain()


def test_a_prediction_says_what_judged(provider: dict[str, str]) -> None:
    network, _ = qdq_conv(4, 4, 1, 8)
    said = ts.plan_for(network, ["npu"], device=GEN_2).explain()
    assert "operators as runtime 1 takes them" in said
    provider["refuses"] = "no such operator"
    with pytest.raises(ts.UnsupportedError, match="QNNExecutionProvider refuses it: no such op"):
        ts.plan_for(network, ["npu"], device=GEN_2)
    provider["absent"] = "expected the provider, got none; install it"
    engine._why_unasked.cache_clear()
    said = ts.plan_for(network, ["npu"], device=GEN_2).explain()
    assert "by this version's table, as the provider cannot be asked here: expected" in said
