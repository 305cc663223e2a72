"""Campaigns of random damage to what is read from disk: refused with an error of ours, or right.

Nothing crashes, hangs or raises what others raise. Plans against a network: test_plan_choices.py.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import tvm
from helpers.cost_kernels import DEVICE, pretended, some_convs
from helpers.mutations import (
    campaign,
    damaged_bytes,
    damaged_json,
    damaged_library,
    damaged_numbers,
    dice_of,
)
from helpers.search_helpers import costs, emit
from helpers.small_models import scaled_model
from helpers.stretch_networks import network, regnet

import tvm_stretch as ts
from tvm_stretch.base.errors import ArtifactError, CostModelError, StretchError
from tvm_stretch.base.files import sealed
from tvm_stretch.lab.stretching.design_rules import Rules
from tvm_stretch.lab.stretching.stretching import Stretching, stretch_network
from tvm_stretch.plan.cost.generic_features import TransferFeatures
from tvm_stretch.plan.cost.measured_model import load_cost_model, train
from tvm_stretch.plan.cost.profile_file import load_profile, parse_profile, profile_text
from tvm_stretch.plan.cost.verdicts import Verdicts
from tvm_stretch.plan.design import Design
from tvm_stretch.plan.measuring.dataset import Dataset, Row
from tvm_stretch.plan.measuring.samples import load_prior
from tvm_stretch.run.load import load
from tvm_stretch.run.model import Model
from tvm_stretch.targets.cpu.cpu import CORE

FEW = [*some_convs(30, seed=7), TransferFeatures.make(4096, 0, 1)]


def refused(error: type[StretchError], use: Callable[[], object]) -> bool:
    """Whether it is refused, with a message that says what to do."""
    try:
        use()
    except error as caught:
        message = str(caught)
        assert message.startswith("expected ") and ", got " in message and "; " in message, message
        return True
    return False


def check_damage(
    piece: int,
    whole: bytes,
    path: Path,
    error: type[StretchError],
    use: Callable[[], object],
    damage: Callable[[random.Random, bytes], bytes] = damaged_bytes,
) -> None:
    """Whatever damage there is to a whole file, it is refused."""
    for dice in dice_of(piece):
        damaged = damage(dice, whole)
        path.write_bytes(damaged)
        assert damaged == whole or refused(error, use)


# --- artifacts ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Model:
    return scaled_model()


@pytest.fixture(scope="module")
def artifact(model: Model, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("artifact") / "model.so"
    model.export(path)
    return path.read_bytes()


@campaign(1000)
def test_artifacts(artifact: bytes, tmp_path: Path, piece: int) -> None:
    path = tmp_path / "model.so"
    check_damage(piece, artifact, path, ArtifactError, lambda: load(path), damaged_library)


@campaign(1000)
def test_graphs(model: Model, piece: int) -> None:
    """Damaged before the artifact was sealed. It is only read: kernels trust what was checked."""
    good = json.loads(model.graph.to_json())
    create = tvm.get_global_func("tvm_stretch.create_executor")

    def use(text: str) -> None:
        try:
            executor = create(text, model.parts.weights, model.module.imports[0])
        except ValueError as error:
            raise ArtifactError(str(error).strip().splitlines()[-1]) from error
        changed = Model(executor)
        assert isinstance(changed.inputs, tuple) and isinstance(changed.outputs, tuple)
        assert repr(changed)
        if changed.graph.plan:
            changed.plan.explain()

    for dice in dice_of(piece):
        text = json.dumps(damaged_json(dice, good))
        refused(StretchError, functools.partial(use, text))


# --- what measuring leaves ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A model that corrects another, which has trees."""
    kernels = some_convs(60)
    below = train(kernels, pretended(kernels), DEVICE, CORE)
    slower = [1.5 * ns for ns in pretended(kernels[:30])]
    path = tmp_path_factory.mktemp("model") / "npu.json"
    train(kernels[:30], slower, DEVICE, CORE, below=below).save(path)
    return path.read_bytes()


@campaign(1000)
def test_cost_models(trained: bytes, tmp_path: Path, piece: int) -> None:
    """Of the trees, XGBoost believes everything: damaged ones would end the process."""
    path = tmp_path / "npu.json"
    check_damage(piece, trained, path, CostModelError, lambda: load_cost_model(path, DEVICE))


@campaign(1000)
def test_forged_cost_models(trained: bytes, tmp_path: Path, piece: int) -> None:
    """Sealed by who damaged them: refused, or they predict."""
    path = tmp_path / "npu.json"
    good = json.loads(trained)
    del good["fingerprint"]

    def use() -> None:
        found = load_cost_model(path, DEVICE)
        for answer in found.predict_all(FEW):
            assert 0 <= answer.low <= answer.nanoseconds <= answer.high

    for dice in dice_of(piece):
        path.write_text(sealed(json.dumps(damaged_json(dice, good))))
        refused(CostModelError, use)


@campaign(1000)
def test_verdicts(tmp_path: Path, piece: int) -> None:
    path = tmp_path / "npu.probe.json"
    Verdicts(DEVICE, {"nn.relu tensor:float32[1,8n] in plain": "", "add in plain": "no"}).write(
        path
    )
    check_damage(
        piece, path.read_bytes(), path, CostModelError, lambda: Verdicts.read(path, DEVICE)
    )


@campaign(1000)
def test_measurements(tmp_path: Path, piece: int) -> None:
    """Lines may be missing, and numbers be others; what is read can be learned from."""
    path = tmp_path / "cpu.jsonl"
    kernels = some_convs(12)
    times, samples = pretended(kernels), load_prior()
    Dataset.create(path, DEVICE).append(
        *(
            Row(kernel, round(ns), 0.01, 15, batch=0, sample=sample.to_json())
            for kernel, ns, sample in zip(kernels, times, samples, strict=False)
        )
    )
    whole = path.read_bytes()
    lines = [json.loads(line) for line in whole.splitlines()]

    def use() -> None:
        rows = Dataset.open(path, DEVICE).rows
        found = train([r.features for r in rows], [r.nanoseconds for r in rows], DEVICE, CORE)
        for answer in found.predict_all(FEW):
            assert 0 <= answer.low <= answer.nanoseconds <= answer.high

    for dice in dice_of(piece):
        if dice.random() < 0.5:
            path.write_bytes(damaged_bytes(dice, whole))
        else:
            path.write_text("".join(json.dumps(x) + "\n" for x in damaged_json(dice, lines)))
        refused(CostModelError, use)


# --- what people edit -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stretching() -> Stretching:
    """A network of two stages on two processors, and designs of it."""
    return stretch_network(network(regnet, ((16, 2), (32, 3))), costs(1.0, 1.0), (0, 1), Rules())


@campaign(2000)
def test_designs(stretching: Stretching, tmp_path: Path, piece: int) -> None:
    """Refused, or it can be predicted; files are no trees of JSON only."""
    good = stretching.candidates[0].design.to_data()
    path = tmp_path / "design.json"

    def use() -> None:
        found = Design.read(path)
        assert Design.read(found.to_data()) == found
        assert stretching.judge(found).ns > 0
        assert stretching.module(found)["main"].params

    for dice in dice_of(piece):
        if dice.random() < 0.2:
            path.write_bytes(damaged_bytes(dice, json.dumps(good).encode()))
        else:
            path.write_text(json.dumps(damaged_json(dice, good)))
        refused(StretchError, use)


@campaign(2000)
def test_profiles(tmp_path: Path, piece: int) -> None:
    """Refused, or what it says can be written and predicts."""
    text, small = profile_text(load_profile("snapdragon-855")), emit(["conv", "depthwise"], size=16)
    path = tmp_path / "phone.toml"

    def use() -> None:
        profile = load_profile(path)
        assert parse_profile(profile_text(profile), "again").processors.keys() == (
            profile.processors.keys()
        )
        assert ts.plan_for(small, device=path).regions

    for dice in dice_of(piece):
        if dice.random() < 0.4:
            path.write_bytes(damaged_bytes(dice, text.encode()))
        else:
            path.write_text(damaged_numbers(dice, text))
        refused(StretchError, use)
