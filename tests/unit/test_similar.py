"""A cost model for a new device, from models of similar ones and few measured kernels."""

from __future__ import annotations

import base64
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.cost_kernels import DEVICE, MACHINE, conv, some_convs
from helpers.cpu_targets import TARGET

import tvm_stretch as ts
from tvm_stretch.base.errors import CostModelError, InputError
from tvm_stretch.plan.cost.correction import Ratios
from tvm_stretch.plan.cost.generic_features import RunFeatures
from tvm_stretch.plan.cost.measured_model import MeasuredModel, load_cost_model, train
from tvm_stretch.plan.cost.residual import Residual
from tvm_stretch.plan.measuring.campaign import learn
from tvm_stretch.plan.measuring.dataset import Dataset, Row
from tvm_stretch.plan.measuring.measure import measure
from tvm_stretch.plan.measuring.samples import Sample, load_prior
from tvm_stretch.plan.measuring.similar import similar_models, telling_first
from tvm_stretch.targets.cpu.cpu import CORE, cpu_processor
from tvm_stretch.targets.kernels.features import EpilogueWork, Features
from tvm_stretch.targets.kernels.layers import WindowShape
from tvm_stretch.targets.kernels.template import choose

OLD: Mapping[str, float] = {}
NEW = {"multiply": 0.55, "tiles": 0.6, "input": 1.8, "weights_memory": 1.7, "start": 3.0}
"""How much longer phases take than on the imaginary core."""


def latencies(
    kernels: Sequence[Features], slower: Mapping[str, float], noise: float = 0.03, seed: int = 0
) -> list[float]:
    dice = np.random.default_rng(seed)
    sums = [sum(ns * slower.get(name, 1.0) for name, ns in k.phases().items()) for k in kernels]
    return list(np.asarray(sums) * np.exp(noise * dice.standard_normal(len(sums))))


def pool(channels: int, size: int) -> Features:
    shape = WindowShape("max", 1, channels, (size, size), (3, 3), (2, 2))
    found: Features = choose(shape, MACHINE, 8).work(EpilogueWork(), MACHINE, 4)
    return found


def some_pools(count: int, seed: int) -> list[Features]:
    dice = random.Random(seed)
    return [pool(8 * dice.randint(1, 30), dice.randint(9, 80)) for _ in range(count)]


@pytest.fixture(scope="module")
def old() -> MeasuredModel:
    kernels = [*some_convs(150), *some_pools(60, 1)]
    runs: list[Features] = [RunFeatures.make(n) for n in range(10, 40)]
    measured = [*latencies(kernels, OLD), *(1000.0 * n for n in range(10, 40))]
    return train([*kernels, *runs], measured, DEVICE, CORE).without_residuals()


def error(model: MeasuredModel, kernels: Sequence[Features]) -> float:
    truth = np.asarray(latencies(kernels, NEW, noise=0.0))
    return float(np.mean(np.abs(model.nanoseconds(kernels) / truth - 1)))


def corrected(old: MeasuredModel, few: Sequence[Features], seed: int = 0) -> MeasuredModel:
    return train(few, latencies(few, NEW, seed=seed), DEVICE, CORE, below=old)


def test_few_kernels_correct_a_model_of_a_similar_device(old: MeasuredModel) -> None:
    few, unseen = some_convs(30, seed=7), some_convs(200, seed=8)
    found = corrected(old, few)
    assert error(found, unseen) < 0.06 < 0.2 < error(old, unseen)
    fewer = few[:6]  # too few for a model of their own
    alone = train(fewer, latencies(fewer, NEW), DEVICE, CORE)
    assert error(corrected(old, fewer), unseen) < error(alone, unseen)
    truth = latencies(unseen, NEW, seed=3)
    inside = [p.low <= t <= p.high for p, t in zip(found.predict_all(unseen), truth, strict=True)]
    assert np.mean(inside) > 0.8


def test_families_that_were_not_measured_follow(old: MeasuredModel) -> None:
    pools, runs = some_pools(50, 2), [RunFeatures.make(20)]
    few = some_convs(30, seed=7)
    found = train(few, [2.5 * ns for ns in latencies(few, OLD)], DEVICE, CORE, below=old)
    assert found.nanoseconds(pools) == pytest.approx(2.5 * old.nanoseconds(pools), rel=0.2)
    assert found.predict_all(pools[:1])[0].source == "measured"
    assert found.nanoseconds(runs) == pytest.approx(old.nanoseconds(runs))


def test_ratios_are_never_negative(old: MeasuredModel) -> None:
    few = some_convs(20, seed=5)
    wild = train(few, [1.0 + 1e6 * (i % 2) for i in range(20)], DEVICE, CORE, below=old)
    assert all(w >= 0 for family in wild.families.values() for w in family.weights.values())
    assert np.all(np.isfinite(wild.nanoseconds([*few, conv(4096, 200)])))


def test_the_corrected_model_can_be_corrected_and_saved(old: MeasuredModel, tmp_path: Path) -> None:
    once = corrected(old, some_convs(30, seed=7))
    some, unseen = some_convs(320, seed=9), some_convs(50, seed=8)
    doubled = train(some, [2 * ns for ns in latencies(some, NEW)], DEVICE, CORE, below=once)
    assert doubled.nanoseconds(unseen) / once.nanoseconds(unseen) == pytest.approx(2, rel=0.15)
    doubled.save(tmp_path / "cpu.json")
    assert doubled.families["conv"].residual is not None
    loaded = load_cost_model(tmp_path / "cpu.json")
    assert loaded.nanoseconds(unseen) == pytest.approx(doubled.nanoseconds(unseen), rel=1e-6)


def test_kernels_that_tell_most_beat_chance(old: MeasuredModel) -> None:
    """The errors that are left after so many kernels, weighted by time, for all kinds."""
    kernels = [*some_convs(150, seed=11), *some_pools(50, 12)]
    parts = [found for found in old.parts(kernels) if found is not None]
    assert len(parts) == len(kernels)
    order = Ratios(old.phases).telling_first(parts, parts, 12)
    assert len(set(order)) == 12
    unseen = [*some_convs(200, seed=8), *some_pools(60, 13)]
    truth = np.asarray(latencies(unseen, NEW, noise=0.0))

    def error_by_time(places: Sequence[int], seed: int) -> float:
        found = corrected(old, [kernels[i] for i in places], seed).nanoseconds(unseen)
        return float(np.abs(found - truth).sum() / truth.sum())

    chance = [random.Random(s).sample(range(len(kernels)), 12) for s in range(6)]
    by_chance = np.mean([error_by_time(drawn, s) for s, drawn in enumerate(chance)])
    assert np.mean([error_by_time(order, s) for s in range(3)]) < 0.9 * by_chance


def test_kernels_like_measured_ones_err_like_them() -> None:
    dice = np.random.default_rng(0)
    points, unseen = dice.uniform(0, 4, (300, 6)), dice.uniform(0, 4, (40, 6))
    errors = 0.1 * (points[:, 0] - 2.0)
    found, left = Residual.fit(points, errors, list(range(300)))
    assert np.abs(found.errors(unseen) - 0.1 * (unseen[:, 0] - 2.0)).mean() < 0.02
    assert np.abs(found.errors(unseen + 400.0)).max() <= np.abs(errors).max()
    within, held = np.abs(errors - found.errors(points)).mean(), np.abs(left).mean()
    assert within < held < np.abs(errors).mean() / 2
    _, whole = Residual.fit(points, errors, [0] * 300)
    assert whole == pytest.approx(errors), "of one origin: none is known"
    assert found.is_valid(6) and not found.is_valid(5)


def test_no_damaged_trees_reach_xgboost() -> None:
    """It believes everything: an index out of range would end the process."""
    dice = np.random.default_rng(0)
    points = dice.uniform(0, 4, (60, 6))
    found, _ = Residual.fit(points, points[:, 0], list(range(60)))
    for wrong in ("", "?", "AA", "AAAA", found.trees[4:], found.trees[:-40]):
        assert not replace(found, trees=wrong).is_valid(6)
    nodes, refused = np.frombuffer(base64.b64decode(found.trees), "<i4"), 0
    for _ in range(300):
        damaged = nodes.copy()
        values = (-1, 0, 5, 6, damaged.size // 4, 2**31 - 1, *dice.choice(nodes, 4))
        damaged[dice.integers(64)] = dice.choice(values)
        other = replace(found, trees=base64.b64encode(damaged.tobytes()).decode())
        if other.is_valid(6):
            assert np.abs(other.errors(points)).max() < 5.0
        else:
            refused += 1
    assert refused > 100


def test_samples_in_the_order_of_what_they_tell(old: MeasuredModel) -> None:
    samples = load_prior()[:80]
    found = telling_first(samples, old, MACHINE)
    assert sorted(map(str, found)) == sorted(map(str, samples)) and found != samples
    elementwise = [replace(samples[0], kind="elementwise")]
    assert telling_first(elementwise, old, MACHINE) == elementwise


def test_the_closest_of_several_models_is_corrected(old: MeasuredModel, tmp_path: Path) -> None:
    kernels = some_convs(100)
    far = train(kernels, [1e5 for _ in kernels], DEVICE, CORE).without_residuals()
    few = some_convs(30, seed=7)
    times = latencies(few, NEW)
    rows = [Row(k, round(t), 0.01, 15, batch=0) for k, t in zip(few, times, strict=True)]
    dataset = Dataset(tmp_path / "cpu.jsonl", DEVICE, rows)
    for models in ([far, old], [old, far]):
        assert learn(dataset, cpu_processor(TARGET, 1), models).below is old


def test_a_campaign_corrects_a_similar_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: MeasuredModel
) -> None:
    small = [Sample("conv", 8, (6, 6), 8, epilogue="relu"), Sample("conv", 16, (5, 5), 8)]
    monkeypatch.setattr("tvm_stretch.plan.measuring.campaign.load_prior", lambda: list(small))
    monkeypatch.setattr("tvm_stretch.plan.measuring.bench._SECONDS", 0.05)
    old.save(tmp_path / "old" / "cpu.json")
    settings = {"budget": 0.1, "cpu_threads": 1, "cache": tmp_path / "new"}
    models = measure([TARGET], like=tmp_path / "old", **settings)
    assert models["cpu"].below is not None and models["cpu"].families["pool"].is_correction


def test_bad_arguments(tmp_path: Path, old: MeasuredModel) -> None:
    with pytest.raises(InputError, match=r"folders of ts\.tune\.measure for like, got 5"):
        measure(like=5, cache=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(CostModelError, match="a model of cpu of a similar device, got none"):
        measure([TARGET], like=[tmp_path], cache=tmp_path)
    fleet = ts.tune.Fleet("192.0.2.7:9190", keys=["pixel-8"])
    with pytest.raises(InputError, match="no similar devices for a fleet"):
        measure(device=fleet, like=tmp_path, cache=tmp_path)
    old.save(tmp_path / "cpu.json")
    (found,) = similar_models([tmp_path, tmp_path / "absent"], "cpu")
    assert all(family.residual is None for family in found.families.values())
