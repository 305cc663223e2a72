"""Measuring: robust times, the dataset, samples, campaigns that are killed and go on."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from helpers.cost_kernels import DEVICE, pretended, some_convs
from helpers.cpu_targets import TARGET
from helpers.described_phone import described
from helpers.fake_targets import fake_processor
from hypothesis import given
from hypothesis import strategies as st

import tvm_stretch as ts
from tvm_stretch.api.compiler import compile
from tvm_stretch.base.errors import CostModelError, DeviceError, InputError
from tvm_stretch.base.progress import reporting
from tvm_stretch.plan.cost.fingerprint import default_folder, fingerprint
from tvm_stretch.plan.cost.generic_features import TransferFeatures
from tvm_stretch.plan.cost.measured_model import load_cost_model, train
from tvm_stretch.plan.measuring import transfers
from tvm_stretch.plan.measuring.bench import Bench, copy_time
from tvm_stretch.plan.measuring.campaign import (
    BATCH,
    Campaign,
    batches_ahead,
    open_dataset,
    pace_of,
)
from tvm_stretch.plan.measuring.dataset import Dataset, Row
from tvm_stretch.plan.measuring.measure import measure
from tvm_stretch.plan.measuring.sample_networks import chain
from tvm_stretch.plan.measuring.samples import EPILOGUES, Sample, in_integers, load_prior, neighbour
from tvm_stretch.plan.measuring.scenes import scene
from tvm_stretch.plan.measuring.timing import GpuStopwatch, QuickestCore, Stopwatch, quartile
from tvm_stretch.plan.measuring.transfers import measure_slowdown, measure_transfers
from tvm_stretch.plan.measuring.workshop import Workshop, recording
from tvm_stretch.plan.search.costs import planning_costs
from tvm_stretch.targets.cpu.cpu import CORE, cpu_processor
from tvm_stretch.targets.opencl.kernels.machine import GpuMachine
from tvm_stretch.targets.processor import Hardware, Processor


def rows(count: int, **settings: Any) -> list[Row]:
    kernels = some_convs(count)
    times = pretended(kernels)
    return [Row(k, round(ns), 0.01, 15, **settings) for k, ns in zip(kernels, times, strict=True)]


# --- times ----------------------------------------------------------------------------------------


class Machine:
    """A scripted machine: `speed` of each step, and interruptions."""

    def __init__(self, speeds: Sequence[float], interrupted: Sequence[int] = ()) -> None:
        self.speeds, self.interrupted, self.step = list(speeds), set(interrupted), 0

    def reference(self) -> int:
        return round(1000 / self._speed())

    def run(self) -> list[int]:
        self.step += 1
        late = 100_000 if self.step in self.interrupted else 0
        return [round(5000 / self._speed()) + late, 70]

    def _speed(self) -> float:
        return self.speeds[min(self.step, len(self.speeds) - 1)]


def test_interruptions_do_not_count() -> None:
    machine = Machine([1.0], interrupted=[3, 5, 8, 9])
    first, second = Stopwatch(machine.reference).watch(machine.run, runs=12)
    assert (first.nanoseconds, second.nanoseconds) == (5000, 70)
    assert (first.runs, first.quiet) == (12, True)


def test_a_reference_kernel_says_nothing_of_a_gpu() -> None:
    core = cpu_processor(TARGET, 1)
    gpu = replace(core, machine=replace(core.machine, gpu=GpuMachine(2)))
    rows = [Row(kernel, 9, 0.1, 5, reference_ns=7) for kernel in some_convs(5)]
    assert (pace_of(rows, core), pace_of(rows, gpu)) == (7, 0)


def test_copies_of_a_trace() -> None:
    spans = [("receive", 0, 9), ("kernel", 9, 20), ("send", 20, 21), ("wait", 21, 50)]
    trace = {"regions": [[{"kind": k, "start": a, "end": b} for k, a, b in spans], []]}
    assert copy_time(trace) == 10


def test_ctrl_c_between_two_runs() -> None:
    machine = Machine([1.0])

    def pressed() -> list[int]:
        signal.raise_signal(signal.SIGINT)
        return machine.run()

    with pytest.raises(KeyboardInterrupt), reporting(print):
        Stopwatch(machine.reference).watch(pressed)
    assert machine.step == 1


def test_runs_while_the_reference_is_slow_are_dropped() -> None:
    machine = Machine([1.0] * 5 + [0.5] * 40 + [1.0] * 100)
    first, _ = Stopwatch(machine.reference).watch(machine.run, runs=15)
    assert (first.nanoseconds, first.quiet) == (5000, True)


def test_a_machine_that_stays_slow_is_said_to_be_disturbed() -> None:
    machine = Machine([1.0] * 3 + [0.5] * 10_000)
    first, _ = Stopwatch(machine.reference).watch(machine.run, runs=15, seconds=0.05)
    assert first.nanoseconds == 10_000
    assert not first.quiet


def test_runs_of_a_gpu_are_compared_with_each_other() -> None:
    """Its reference kernel takes 20 % more or less; half of the runs are disturbed."""
    references, runs = itertools.cycle([100, 120, 120, 125]), itertools.cycle([50, 400, 52, 300])
    watch = GpuStopwatch(lambda: next(references))
    (found,) = watch.watch(lambda: [next(runs)], runs=12)
    assert (found.quiet, found.nanoseconds, found.runs) == (True, 50, 12)
    slower = itertools.count(1_000, 500)
    (never,) = watch.watch(lambda: [next(slower)], runs=12, seconds=0.01)
    assert not never.quiet


def test_a_gpu_is_timed_from_the_core_whose_launches_are_quickest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = [{2, 5, 7}]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: here[-1])
    monkeypatch.setattr(os, "sched_setaffinity", lambda _pid, cores: here.append(cores))
    taken = {2: [250, 250, 180], 5: [181, 181, 400], 7: [179, 254, 254]}
    runs = {core: itertools.cycle(times) for core, times in taken.items()}
    quickest = QuickestCore()
    with pytest.raises(KeyError), quickest.held(lambda: next(runs[min(here[-1])])):
        assert here[-1] == {7}
        raise KeyError
    assert here[-1] == {2, 5, 7}
    runs[2] = itertools.repeat(100)
    for anew, core in ((False, 7), (True, 2), (False, 2)):
        with quickest.held(lambda: next(runs[min(here[-1])]), anew):
            assert here[-1] == {core}


@given(st.lists(st.integers(100, 200), min_size=1, max_size=30), st.integers(10**6, 10**9))
def test_one_outlier_in_five_does_not_move_a_time(samples: list[int], outlier: int) -> None:
    disturbed = samples + [outlier] * (len(samples) // 4)
    assert quartile(disturbed)[0] <= 200


# --- the dataset ----------------------------------------------------------------------------------


def test_rows_survive(tmp_path: Path) -> None:
    dataset = Dataset.create(tmp_path / "cpu.jsonl", DEVICE)
    sample = Sample("conv", 64, (28, 28), 64).to_json()
    for row in rows(5, network="net", sample=sample):
        dataset.append(row)
    again = Dataset.open(tmp_path / "cpu.jsonl", DEVICE)
    assert [r.to_json() for r in again.rows] == json.loads(
        json.dumps([r.to_json() for r in dataset.rows])
    )
    assert Sample.from_json(again.rows[0].sample or {}) == Sample("conv", 64, (28, 28), 64)


@given(cut=st.integers(1, 400))
def test_a_torn_last_line_is_dropped(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("torn") / "cpu.jsonl"
    dataset = Dataset.create(path, DEVICE)
    for row in rows(4):
        dataset.append(row)
    content = path.read_bytes()
    path.write_bytes(content[:-cut])
    whole = content[:-cut].count(b"\n") - 1  # less the header
    again = Dataset.open(path, DEVICE)
    assert len(again.rows) == whole
    again.append(rows(1)[0])
    assert len(Dataset.open(path, DEVICE).rows) == whole + 1


def test_rows_of_a_batch_are_written_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what a killed process left out of its last batch would never be measured."""
    dataset = Dataset.create(tmp_path / "cpu.jsonl", DEVICE)

    def killed(_file: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tvm_stretch.plan.measuring.dataset.os.fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        dataset.append(*rows(5))
    assert len(Dataset.open(tmp_path / "cpu.jsonl").rows) == 5


def test_rows_that_find_no_room_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them: a batch is measured again as a whole."""
    dataset = Dataset.create(tmp_path / "cpu.jsonl", DEVICE)
    dataset.append(*rows(2))
    before = dataset.path.read_bytes()

    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tvm_stretch.plan.measuring.dataset.os.fsync", full)
    with pytest.raises(CostModelError, match=r"^expected a place to write the measurements to, "):
        dataset.append(*rows(5))
    assert dataset.path.read_bytes() == before and len(dataset.rows) == 2


def test_measurements_of_another_device_are_refused(tmp_path: Path) -> None:
    Dataset.create(tmp_path / "cpu.jsonl", DEVICE)
    with pytest.raises(CostModelError, match=r"machine 'test' .here 'phone'"):
        Dataset.open(tmp_path / "cpu.jsonl", {**DEVICE, "machine": "phone"})
    assert (tmp_path / "cpu.jsonl").stat().st_size > 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "format and version"),
        ("no json\n", "expected JSON for line 1"),
        ('{"format": "tvm_stretch.measurements", "version": 0}\n', "format and version"),
        ("[]\n", "expected an object for line 1"),
    ],
)
def test_damaged_head(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "cpu.jsonl").write_text(content)
    with pytest.raises(CostModelError, match=message):
        Dataset.open(tmp_path / "cpu.jsonl", DEVICE)


def test_damaged_line_in_the_middle(tmp_path: Path) -> None:
    dataset = Dataset.create(tmp_path / "cpu.jsonl", DEVICE)
    for row in rows(3):
        dataset.append(row)
    lines = dataset.path.read_text().splitlines(keepends=True)
    dataset.path.write_text("".join([*lines[:2], lines[2][:30] + "\n", *lines[3:]]))
    with pytest.raises(CostModelError, match="expected JSON for line 3"):
        Dataset.open(dataset.path, DEVICE)
    dataset.path.write_text("".join([*lines[:2], "{}\n", *lines[3:]]))
    with pytest.raises(CostModelError, match=r"expected the fields .* for line 3"):
        Dataset.open(dataset.path, DEVICE)


# --- samples --------------------------------------------------------------------------------------


def host() -> Processor:
    return cpu_processor(TARGET, 1)


@given(st.integers(0, 10**6))
def test_neighbours_are_possible(seed: int) -> None:
    dice = random.Random(seed)
    sample = neighbour(dice.choice(load_prior()), dice)
    assert sample.is_possible
    assert sample.epilogue in EPILOGUES


def test_samples_become_the_kernels_they_describe() -> None:
    samples = [
        Sample("conv", 16, (9, 9), 24, (3, 3), padding=(1, 1, 1, 1), epilogue="add_relu"),
        Sample("conv", 16, (8, 8), 16, (1, 1), epilogue="swish"),
        Sample("depthwise", 16, (9, 9), 16, (3, 3), groups=16, epilogue="relu6"),
        Sample("dense", 32, (1, 1), 10, epilogue="bias"),
        Sample("avg", 8, (6, 6), 8, (2, 2), stride=(2, 2), groups=8),
    ]
    assert all(sample.is_possible for sample in samples)
    processor, kernels = recording(host())
    model = compile(chain(samples), [processor], cpu_threads=1)
    found = {kernel.sample for kernel in kernels.values() if kernel.sample is not None}
    assert set(samples) <= found
    assert np.isfinite(model(np.ones((1, 1, 1, 1), "float32"))).all()


def test_samples_of_integers() -> None:
    samples = [
        in_integers(Sample("conv", 32, (9, 9), 32, (3, 3), padding=(1, 1, 1, 1), epilogue="relu")),
        in_integers(Sample("conv", 64, (5, 5), 64, (3, 3), groups=2)),
        in_integers(Sample("depthwise", 32, (9, 9), 32, (3, 3), groups=32)),
        in_integers(Sample("dense", 32, (1, 1), 10)),
    ]
    others = [
        in_integers(Sample(kind, 32, (6, 6), 32, groups=32)) for kind in ("max", "elementwise")
    ]
    processor, kernels = recording(host())
    for apart in (False, True):
        model = compile(chain([*samples, *others], apart), [processor], cpu_threads=1)
    found = {kernel.sample for kernel in kernels.values() if kernel.sample is not None}
    assert set(samples) <= found
    assert model(np.ones((1, 1, 1, 1), "uint8")).dtype == "uint8"


@pytest.mark.parametrize("counts", [False, True])
def test_batches_of_integers(counts: bool, tmp_path: Path) -> None:
    """Some, where a clock tells; all, where packets are counted."""
    processor = (
        replace(host(), hardware=replace(host().hardware, packet_ns=1.0)) if counts else host()
    )
    campaign = Campaign(
        FakeWorkshop(processor), Dataset.create(tmp_path / "x", {}), random.Random(0)
    )
    prepared = [campaign.prepare(batch) for batch in range(5)]
    dtypes = [{sample.dtype for sample in samples} for samples in prepared]
    some = [{"float32"}, {"float32"}, {"uint8"}, {"float32"}, set()]  # the last one is a network
    assert dtypes == ([{"uint8"}] * 5 if counts else some)


def test_layers_come_first_beside_a_similar_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tvm_stretch.plan.measuring.campaign.telling_first", lambda prior, *_: prior
    )
    similar: Any = object()
    dataset = Dataset.create(tmp_path / "x", {})
    found = Campaign(FakeWorkshop(host()), dataset, random.Random(0), similar)
    batches: list[Any] = [found.prepare(batch) for batch in range(13)]
    dtypes = [{sample.dtype for sample in samples} for samples in batches]
    assert dtypes == [{"float32"}] * 10 + [{"uint8"}, {"float32"}, set()]
    layers = [(s.kind, s.in_channels, s.in_size) for s in (*sum(batches[:10], ()), *batches[11])]
    assert layers == [(s.kind, s.in_channels, s.in_size) for s in found.prior[: 11 * BATCH]]


@pytest.mark.full
def test_bench_through_rpc() -> None:
    workshop = Workshop([host()])
    bench = Bench(workshop, ts.connect(tvm.rpc.LocalSession()))
    prepared = workshop.samples([Sample("conv", 16, (9, 9), 16, epilogue="relu")])
    rows = bench.measure(prepared, 0)
    assert {row.features.family for row in rows} >= {"conv"}
    assert all(row.nanoseconds > 0 for row in rows)


# --- campaigns ------------------------------------------------------------------------------------


class FakeWorkshop(Workshop):
    """Compiles nothing: what is prepared are the samples, none of a network."""

    def __init__(self, processor: Processor) -> None:
        super().__init__([processor])

    def samples(self, samples: Sequence[Sample], apart: bool = False) -> Any:
        return tuple(samples)

    def network(self, _network: object) -> Any:
        return ()

    def halves(self, _network: object) -> Any:
        return ()


class FakeBench:
    """Measures at once, and dies when told to."""

    def __init__(self, dies_at: int = 10**9) -> None:
        self.dies_at = dies_at
        self.asked: list[tuple[int, tuple[Sample, ...]]] = []

    def describe(self) -> str:
        return "fake"

    def measure(self, samples: tuple[Sample, ...], batch: int) -> list[Row]:
        self.asked.append((batch, samples))
        if batch >= self.dies_at:
            raise KeyboardInterrupt
        of_sample = {"sample": samples[0].to_json()} if samples else {}
        return rows(12, batch=batch, **of_sample)


class VanishingBench(FakeBench):
    """Its device is gone from some batch on."""

    def measure(self, samples: tuple[Sample, ...], batch: int) -> list[Row]:
        if batch == self.dies_at:
            raise RuntimeError("RPC session closed\nConnection reset by peer")
        return super().measure(samples, batch)


def campaign(folder: Path, dies_at: int, seed: int = 3, ahead: int = 0) -> FakeBench:
    processor = host()
    bench = FakeBench(dies_at)
    dataset = open_dataset(folder, processor)
    run = Campaign(FakeWorkshop(processor), dataset, random.Random(seed))
    with pytest.raises(KeyboardInterrupt):
        run.run(bench, 60.0, {}, ahead)  # type: ignore[arg-type]
    return bench


def test_a_killed_campaign_goes_on_with_the_next_batch(tmp_path: Path) -> None:
    once = campaign(tmp_path / "whole", 4)
    first = campaign(tmp_path / "parts", 2)
    with (tmp_path / "parts" / "cpu.jsonl").open("ab") as file:
        file.write(b'{"features": {"fam')  # killed while it wrote
    second = campaign(tmp_path / "parts", 4)
    assert [*first.asked[:2], *second.asked] == once.asked
    count = len(Dataset.open(tmp_path / "parts" / "cpu.jsonl").rows)
    assert count == len(Dataset.open(tmp_path / "whole" / "cpu.jsonl").rows) == 48


def test_what_is_compiled_ahead_is_the_same(tmp_path: Path) -> None:
    """While the prior lasts; then a batch stands on what was measured before it was compiled."""
    at_once, ahead = (campaign(tmp_path / str(n), 6, ahead=n) for n in (0, 2))
    assert ahead.asked == at_once.asked


def test_batches_are_compiled_ahead_where_that_disturbs_nobody() -> None:
    """On a phone, and where packets are counted instead of time."""
    here = ts.connect(tvm.rpc.LocalSession()).describe()
    counted = replace(host(), hardware=replace(host().hardware, packet_ns=1.0))
    assert [batches_ahead(host(), place) > 0 for place in (None, here, described())] == [
        False,
        False,
        True,
    ]
    assert batches_ahead(counted, None) > 0


def test_a_device_that_disappears_loses_nothing(tmp_path: Path) -> None:
    processor = host()
    dataset = open_dataset(tmp_path, processor)
    run = Campaign(FakeWorkshop(processor), dataset, random.Random(3))
    with pytest.raises(DeviceError, match=r"expected cpu to be there .*reset by peer.* 24 kern"):
        run.run(VanishingBench(2), 60.0, {})  # type: ignore[arg-type]
    assert len(Dataset.open(tmp_path / "cpu.jsonl").rows) == 24
    again = campaign(tmp_path, 3)
    assert [batch for batch, _ in again.asked] == [2, 3]


@pytest.mark.full
def test_scenes_hold_other_kernels_than_samples() -> None:
    kernels = {}
    for seed in range(3):
        processor, found = recording(host())
        compile(scene(seed), [processor], cpu_threads=1)
        kernels |= found
    assert sum(k.features.family == "generic" for k in kernels.values()) >= 5


def test_measure_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = [Sample("conv", 8, (6, 6), 8, epilogue="relu"), Sample("dense", 16, (1, 1), 8)]
    monkeypatch.setattr("tvm_stretch.plan.measuring.campaign.load_prior", lambda: list(small))
    monkeypatch.setattr("tvm_stretch.plan.measuring.bench._SECONDS", 0.05)
    lines: list[str] = []
    models = measure([TARGET], budget=0.5, cache=tmp_path, cpu_threads=1, progress=lines.append)
    assert set(models) == {"cpu"}
    assert lines
    loaded = load_cost_model(tmp_path / "cpu.json", fingerprint(host()))
    found = planning_costs([host()], tmp_path)
    assert found.trusted
    assert found.models["cpu"].device == loaded.device  # type: ignore[attr-defined]
    dataset = Dataset.open(tmp_path / "cpu.jsonl", fingerprint(host()))
    assert {row.features.family for row in dataset.rows} >= {"conv", "dense"}
    assert all(row.nanoseconds > 0 for row in dataset.rows)
    assert loaded.predict_all([dataset.rows[0].features])[0].nanoseconds > 0
    before = len(dataset.rows)
    measure([TARGET], budget=0.5, cache=tmp_path, cpu_threads=1)
    assert len(Dataset.open(tmp_path / "cpu.jsonl").rows) > before


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="positive number of seconds for budget"):
        measure(budget=0, cache=tmp_path)
    with pytest.raises(InputError, match=r"what ts\.connect gives for device"):
        measure(device="phone", cache=tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "is_here",
    [pytest.param(True, id="here", marks=pytest.mark.full), pytest.param(False, id="session")],
)
def test_handovers_and_slowdown(is_here: bool) -> None:
    other = fake_processor("npu")
    device = None if is_here else ts.connect(tvm.rpc.LocalSession())
    timed = Bench(Workshop([other, host()]), device).timed
    rows = measure_transfers(host(), other, timed, sizes=(64, 1024), runs=5)
    pairs = {(r.features.in_bytes, r.features.from_processor) for r in rows}  # type: ignore[attr-defined]
    assert pairs == {(64, 0), (64, 1), (1024, 0), (1024, 1)}
    assert all(row.nanoseconds > 0 for row in rows)
    with pytest.raises(InputError, match="multiple of 64 bytes"):
        measure_transfers(host(), other, timed, sizes=(63,))


@pytest.mark.parametrize(
    ("together", "alone", "slowdown"),
    [(150, (200, 180), 1.5), (150, (180, 200), 1.5), (90, (200, 180), 1.0)],
)
def test_slowdown_is_told_from_whole_runs(
    together: int, alone: tuple[int, int], slowdown: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of all that the slower one does alone is what both would take at best."""
    monkeypatch.setattr(transfers, "_LAYERS", ((32, 1), (32, 2)))
    nanoseconds = iter((together, *alone))

    def scripted(_model: object) -> Callable[[], int]:
        always = next(nanoseconds)
        return lambda: always

    found = measure_slowdown(host(), fake_processor("npu"), scripted, runs=3)
    assert found == slowdown


@pytest.mark.full
def test_planning_finds_what_measuring_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", "")
    assert default_folder(host()) is None
    assert not planning_costs([host()]).trusted
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", str(tmp_path))
    assert not planning_costs([host()]).trusted
    kernels = [
        *some_convs(60),
        *(TransferFeatures.make(64 << i, i % 2, 1 - i % 2) for i in range(16)),
    ]
    times = [*pretended(kernels[:60]), *(2000.0 + (64 << i) / 10 for i in range(16))]
    folder = default_folder(host())
    assert folder is not None
    known = [host(), *(replace(host(), name=name, kind="fake") for name in ("gpu", "dsp"))]
    for slower, own in enumerate(known):  # the CPU hands nothing over to itself
        count = 60 if own.is_host else 76
        taken = [*times[:60], *(slower * ns for ns in times[60:])][:count]
        model = train(kernels[:count], taken, fingerprint(own), CORE, 1.2)
        model.save(folder / f"{own.name}.json")
    assert not planning_costs([replace(host(), hardware=Hardware(runs_here=False))]).trusted
    costs = planning_costs(known)
    assert costs.together == (1.2,) * 3
    assert costs.hand_over(0, 0, 1 << 20) == 0
    small, large = costs.hand_over(0, 1, 64), costs.hand_over(0, 1, 1 << 21)
    assert small < large
    assert costs.hand_over(2, 0, 1 << 21) == pytest.approx(2 * large, rel=0.05), "each its own"
    between = costs.hand_over(1, 2, 1 << 21)
    assert between == pytest.approx(3 * large, rel=0.05), "two devices meet through the CPU"
    (folder / "cpu.json").write_text((folder / "cpu.json").read_text()[:1000])
    with pytest.raises(CostModelError, match="JSON for the cost model"):
        planning_costs([host()])


def test_public_names_stay_functions() -> None:
    assert callable(ts.tune.measure)
    assert callable(ts.tune.probe)
