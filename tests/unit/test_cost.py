"""The cost model: features, learning, intervals, files."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from helpers.cost_kernels import DEVICE, conv, pretended, some_convs
from hypothesis import given
from hypothesis import strategies as st

from tvm_stretch.base.errors import CostModelError
from tvm_stretch.base.files import sealed
from tvm_stretch.plan.cost.describe import describe_copy
from tvm_stretch.plan.cost.family import _weigh_unseen
from tvm_stretch.plan.cost.fingerprint import name_of_cpu
from tvm_stretch.plan.cost.generic_features import (
    LaunchedRunFeatures,
    RunFeatures,
    TransferFeatures,
    families,
    from_json,
    to_json,
)
from tvm_stretch.plan.cost.measured_model import FORMAT, MeasuredModel, load_cost_model, train
from tvm_stretch.plan.cost.prediction import AnalyticModel
from tvm_stretch.targets.cpu.cpu import CORE, speed_of_cores
from tvm_stretch.targets.kernels.conv_features import ConvFeatures
from tvm_stretch.targets.kernels.features import Features
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.opencl.opencl import GPU

LARGEST_EXACT = 2**24


@pytest.fixture(scope="module")
def model() -> MeasuredModel:
    kernels = some_convs(300)
    return train(kernels, pretended(kernels), DEVICE, CORE)


# --- features -------------------------------------------------------------------------------------


def test_features_survive_json() -> None:
    for kernel in some_convs(5):
        assert from_json(json.loads(json.dumps(to_json(kernel)))) == kernel


def test_a_share_of_a_convolution_has_a_group() -> None:
    """Profiles divide by it: a share of a network in frames was an error of Python's."""
    half = conv(64).scaled(Fraction(1, 2), Fraction(1, 2))
    assert isinstance(half, ConvFeatures) and half.groups == 1
    assert half.device_work().multiply_adds > 0


def test_features_of_other_families_and_versions_are_left_out() -> None:
    data = to_json(conv(64))
    assert from_json({**data, "family": "lstm"}) is None
    assert from_json({**data, "version": 0, "an_older_field": 3}) is None


def test_damaged_features_are_refused() -> None:
    data = to_json(conv(64))
    with pytest.raises(CostModelError, match="for family and version, got 'conv' and None"):
        from_json({**data, "version": None})
    with pytest.raises(CostModelError, match=r"a number from 1 to .* vector_lanes of conv"):
        from_json({**data, "vector_lanes": 0})
    del data["tile_pixels"]
    with pytest.raises(CostModelError, match=r"expected the fields .* for conv"):
        from_json(data)


def test_every_field_names_its_unit() -> None:
    units = (
        *("flops", "bytes", "cycles", "channels", "pixels", "taps", "lanes", "vectors", "groups"),
        *("tiles", "permille", "averages", "elements", "steps", "loads", "gathers", "calls"),
        *("conditions", "stages", "processor", "launches", "rows", "columns", "matrices"),
        *("items", "numbers", "ns"),
    )
    for kind in families().values():
        for name in kind.names():
            assert name.endswith(units), f"{kind.__name__}.{name} has no unit"


def test_features_count_what_the_convolution_does() -> None:
    kernel = conv(64, 28, 1, 128)
    assert isinstance(kernel, ConvFeatures)
    assert kernel.flops == 2 * 64 * 128 * 28 * 28
    assert (kernel.in_bytes, kernel.out_bytes) == (4 * 64 * 28 * 28, 4 * 128 * 28 * 28)
    assert kernel.weight_bytes >= 4 * 64 * 128


def test_vectors_are_as_wide_as_the_processors() -> None:
    """28 channels are two vectors of 16, so both tiles are full; of 8 lanes they are four."""
    wide = replace(conv(64, 28, 1, 28), tile_out_vectors=2, vector_lanes=16)
    narrow = replace(wide, vector_lanes=8)
    assert narrow.phases()["tiles"] == 2 * wide.phases()["tiles"]


def test_functions_in_an_epilogue_are_counted_apart() -> None:
    plain = conv(64)
    elements = plain.out_bytes / 4
    relu, swish = (replace(plain, epilogue_flops=n * elements) for n in (2, 30))
    assert relu.phases()["functions"] == 0 < swish.phases()["functions"]
    assert swish.phases()["epilogue"] <= 4 * relu.phases()["epilogue"]


# --- learning -------------------------------------------------------------------------------------


def test_learns_what_the_analytic_model_misses(model: MeasuredModel) -> None:
    unseen = some_convs(200, seed=1)
    truth = pretended(unseen, noise=0.0)
    error = [
        abs(p.nanoseconds / t - 1) for p, t in zip(model.predict_all(unseen), truth, strict=True)
    ]
    assert np.mean(error) < 0.06
    naive = [
        abs(p.nanoseconds / t - 1)
        for p, t in zip(AnalyticModel().predict_all(unseen), truth, strict=True)
    ]
    assert np.mean(error) < np.mean(naive) / 2


def test_what_was_never_measured_costs_what_the_rest_makes_likely(model: MeasuredModel) -> None:
    """No epilogue was measured, but one with exponentials does not come free."""
    plain = conv(64)
    swish = replace(plain, epilogue_flops=30 * plain.out_bytes / 4)
    extra = model.predict_all([swish])[0].nanoseconds - model.predict_all([plain])[0].nanoseconds
    assert extra > 0.3 * swish.phases()["functions"]


def test_intervals_cover_nine_of_ten(model: MeasuredModel) -> None:
    unseen = some_convs(400, seed=2)
    truth = pretended(unseen, seed=3)
    answers = model.predict_all(unseen)
    inside = [p.low <= t <= p.high for p, t in zip(answers, truth, strict=True)]
    assert 0.83 <= np.mean(inside) <= 0.97


def test_says_where_a_prediction_comes_from(model: MeasuredModel) -> None:
    known, transfer = some_convs(1)[0], TransferFeatures(0.0, 4096, 0, 4096, 0.0, 0.0, 0, 1)
    first, second = model.predict_all([known, transfer])
    assert (first.source, first.out_of_range) == ("measured", ())
    assert (second.source, second.out_of_range) == ("analytic", ("nothing measured",))


def test_out_of_range(model: MeasuredModel) -> None:
    (usual,) = model.predict_all([conv(64, 28)])
    (huge,) = model.predict_all([conv(4096, 200)])
    assert usual.out_of_range == ()
    assert any("in_channels beyond" in reason for reason in huge.out_of_range)
    wide = math.log(huge.high / huge.low)
    assert wide > math.log(usual.high / usual.low)


@given(st.integers(1, 30), st.integers(6, 50))
def test_more_work_takes_longer(blocks: int, size: int) -> None:
    kernels = some_convs(300)
    trained = _trained(tuple(kernels))
    less, more = trained.predict_all([conv(8 * blocks, size), conv(32 * blocks, 2 * size)])
    assert less.nanoseconds < more.nanoseconds
    assert less.low <= less.nanoseconds <= less.high


_CACHE: dict[tuple[Features, ...], MeasuredModel] = {}


def _trained(kernels: tuple[Features, ...]) -> MeasuredModel:
    if kernels not in _CACHE:
        _CACHE[kernels] = train(list(kernels), pretended(list(kernels)), DEVICE, CORE)
    return _CACHE[kernels]


def test_few_measurements_leave_the_analytic_model_calibrated() -> None:
    kernels = some_convs(5)
    slow = [4 * ns for ns in pretended(kernels, noise=0.0)]
    trained = train(kernels, slow, DEVICE, CORE)
    assert not trained.families
    (answer,) = trained.predict_all(kernels[:1])
    assert answer.source == "analytic"
    assert answer.nanoseconds > 2 * AnalyticModel().nanoseconds(kernels[0])


def test_a_processor_of_the_same_kernels_needs_few_measurements(model: MeasuredModel) -> None:
    few, unseen = some_convs(30, seed=7), some_convs(200, seed=8)
    slower = [1.5 * ns for ns in pretended(few, noise=0.01)]
    standing = train(few, slower, DEVICE, CORE, below=model)
    alone = train(few, slower, DEVICE, CORE)
    truth = [1.5 * ns for ns in pretended(unseen, noise=0.0)]

    def error(of: MeasuredModel) -> float:
        return float(np.mean(np.abs(of.nanoseconds(unseen) / truth - 1)))

    assert error(standing) < 0.08
    assert error(standing) < error(alone)


def test_starting_a_run_costs_what_undisturbed_runs_say() -> None:
    dice = np.random.default_rng(3)
    runs = [RunFeatures.make(launches) for launches in range(10, 70)]
    disturbed = dice.exponential(1.0, len(runs)) * (dice.random(len(runs)) < 0.5)
    measured = [50_000 + 700 * (10 + i) + 200_000 * d for i, d in enumerate(disturbed)]
    trained = train(runs, measured, DEVICE, GPU)
    for launches in (12, 30, 60, 400):
        (answer,) = trained.predict_all([RunFeatures.make(launches)])
        assert answer.nanoseconds == pytest.approx(50_000 + 700 * launches, rel=0.15)


def test_a_run_on_a_gpu_takes_its_launches_or_its_kernels(tmp_path: Path) -> None:
    def run_ns(launches: int, weighted: int, alone: int) -> int:
        return 6000 + max(5000 * launches + 1000 * weighted, alone - 2000 * launches)

    shapes = [
        (n, w, n * each)
        for n in (20, 40, 60)
        for w in (0, n // 2, n)
        for each in (3000, 5000, 9000, 20_000)
    ]
    runs = [LaunchedRunFeatures(0.0, 0, 0, 0, 0.0, 0.0, *shape) for shape in shapes]
    times = [run_ns(*shape) for shape in shapes]
    disturbed = [ns * (2 if i % 7 == 0 else 1) for i, ns in enumerate(times)]
    kernels = [conv(64, 14, 3), conv(64, 28, 1)]
    model = train(runs, disturbed, DEVICE, GPU)
    model.save(tmp_path / "gpu.json")
    launching = load_cost_model(tmp_path / "gpu.json").launching
    assert launching == model.launching and launching is not None
    for many, each in ((30, 4000), (30, 12_000), (10, 90_000)):
        found = launching.run_ns(kernels[:1] * many, many * each)
        assert found == pytest.approx(run_ns(many, many, many * each), rel=0.06)
    assert launching.added_ns(kernels[0], 1000.0) == pytest.approx(6000, rel=0.1)
    assert launching.added_ns(kernels[0], 90_000.0) == pytest.approx(88_000, rel=0.02)
    computed = float(model.nanoseconds(kernels).sum())
    assert model.run_ns(kernels) == launching.run_ns(kernels, computed)
    data = {**FORMAT.head, **FORMAT.read(tmp_path / "gpu.json")}
    data["launching"]["launch_ns"] = -1.0
    (tmp_path / "gpu.json").write_text(sealed(json.dumps(data)))
    with pytest.raises(CostModelError, match=r"a number from 0 to .* for launch_ns of launching"):
        load_cost_model(tmp_path / "gpu.json")


def test_weights_that_a_cache_holds_cost_less() -> None:
    far = conv(256, 7, 3)
    near = replace(far, round_bytes=200_000)
    assert near.phases()["weights_memory"] < far.phases()["weights_memory"] / 10
    assert near.phases().keys() == far.phases().keys()


def test_no_prediction_is_shorter_than_its_weights_need() -> None:
    """The samples read 1 byte a nanosecond and take 1 ms; VGG's first dense layer is larger."""
    wide = [replace(conv(8), weight_bytes=n * 10**6, round_bytes=2**30) for n in range(20, 40)]
    measured = [1e6 * n for n in range(20, 40)]
    trained = train(wide, measured, DEVICE, CORE)
    assert trained.memory == pytest.approx(1)
    far = wide[0].far_weight_bytes / wide[0].weight_bytes
    # A layer bound by arithmetic does not show that memory is slow, however large its weights are.
    bound = [replace(wide[0], weight_bytes=5 * 10**6), replace(wide[0], weight_bytes=10**8)]
    assert train([*wide, *bound], [*measured, 1e6, 1e9], DEVICE, CORE).memory == pytest.approx(5)
    weightless = {n: 0.0 for n in trained.families["conv"].weights}
    family = replace(trained.families["conv"], weights=weightless)
    blind = replace(trained, families={"conv": family})
    vgg = replace(wide[0], weight_bytes=411 * 10**6)
    assert blind.nanoseconds([vgg])[0] == pytest.approx(0.8 * far * 411e6)
    assert blind.nanoseconds([replace(vgg, round_bytes=10**6)])[0] == 1.0
    assert train(some_convs(20), [1e4] * 20, DEVICE, CORE).memory is None


# --- files ----------------------------------------------------------------------------------------


def test_round_trip_of_a_model_over_another(model: MeasuredModel, tmp_path: Path) -> None:
    kernels = some_convs(60, seed=9)
    over = train(kernels, pretended(kernels, seed=4), DEVICE, CORE, below=model)
    over.save(tmp_path / "opencl.json")
    loaded = load_cost_model(tmp_path / "opencl.json", DEVICE)
    assert loaded.below is not None
    assert loaded.nanoseconds(kernels) == pytest.approx(over.nanoseconds(kernels), rel=1e-4)


def test_round_trip(model: MeasuredModel, tmp_path: Path) -> None:
    model.save(tmp_path / "cpu.json")
    loaded = load_cost_model(tmp_path / "cpu.json", DEVICE)
    kernels = [*some_convs(50, seed=5), conv(4096, 200)]
    for ours, theirs in zip(model.predict_all(kernels), loaded.predict_all(kernels), strict=True):
        assert ours.nanoseconds == pytest.approx(theirs.nanoseconds, rel=1e-4, abs=1)
        assert bool(ours.out_of_range) == bool(theirs.out_of_range)
    assert [path.name for path in tmp_path.iterdir()] == ["cpu.json"]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_truncated_model(model: MeasuredModel, tmp_path: Path, share: float) -> None:
    path = tmp_path / "cpu.json"
    model.save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(CostModelError, match="JSON for the cost model"):
        load_cost_model(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 99}, "format and version"),
        ({"format": "other"}, "format and version"),
        ({"device": {**DEVICE, "machine": "phone"}}, "machine 'phone' .here 'test'"),
        ({"families": {"conv": {"version": 1}}}, "expected the fields family"),
        ({"base": {"speed": 1}}, "expected the fields cycles_per_ns"),
        ({"families": None}, "an object for families"),
        ({"below": {"format": "other"}}, "expected the fields device"),
        ({"memory": 0}, "a number from .* for memory"),
    ],
)
def test_unfit_model(
    model: MeasuredModel, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "cpu.json"
    model.save(path)
    path.write_text(sealed(json.dumps({**FORMAT.head, **FORMAT.read(path), **change})))
    with pytest.raises(CostModelError, match=message):
        load_cost_model(path, DEVICE)


def test_missing_model(tmp_path: Path) -> None:
    with pytest.raises(CostModelError, match="measure and train"):
        load_cost_model(tmp_path / "none.json")


# --- processors that nobody measured --------------------------------------------------------------


def test_more_threads_are_faster_in_the_analytic_model() -> None:
    kernel = conv(256, 28, 3)
    one, two = (AnalyticModel(speed_of_cores(n)).nanoseconds(kernel) for n in (1, 2))
    assert one / 2 < two < one


def test_words_of_a_large_table_cost_what_is_read_of_it() -> None:
    """An embedding reads a row for each word, and not the whole table."""
    words = describe_copy(4 * 128 * 384, VectorMachine(8, 16, False, 2**19, 1))
    of_table = replace(words, in_bytes=4 * 30_000 * 384)
    assert AnalyticModel().nanoseconds(of_table) == AnalyticModel().nanoseconds(words)
    assert of_table.device_work() == words.device_work()


def test_boards_without_a_model_name_are_told_apart() -> None:
    """Their lists of cores differ; else they would share measurements."""
    lines = "processor : 0\nCPU implementer : 0x41\nCPU part : {}\nCPU part : 0xd05\n"
    pi, phone = (name_of_cpu(lines.format(part)) for part in ("0xd08", "0xd0b"))
    assert pi.endswith("0x41 0xd05+0xd08") and phone != pi
    assert name_of_cpu("model name : AMD EPYC\nmodel name : AMD EPYC") == "AMD EPYC"


def test_phases_that_no_kernel_had_weigh_no_more_than_others() -> None:
    """Kernels of a GPU take a launch each; a gather, which none had, is not a launch."""
    amounts = np.asarray([[300.0, 1e5 * i, 0.0] for i in range(1, 9)])
    weights = np.asarray([17.0, 0.01, 0.4])
    _weigh_unseen(weights, amounts, ["start", "loads", "gathers"])
    assert weights.tolist() == [17.0, 0.01, 0.01]
    amounts[0, 2] = 1.0
    weights[2] = 0.4
    _weigh_unseen(weights, amounts, ["start", "loads", "gathers"])
    assert weights[2] == 0.4
