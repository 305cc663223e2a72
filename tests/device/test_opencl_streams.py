"""Streams whose frames the CPU and an OpenCL device compute together; answers are the CPU's."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from helpers.cpu_targets import QUICK
from helpers.gpu_checks import described_gpu, needs_cpu_device
from helpers.stream_frames import (
    NETWORKS,
    SIDE,
    Body,
    frame,
    network,
    patched,
    plain,
    tiles,
    windows,
)

import tvm_stretch as ts
from tvm_stretch.base.errors import InputError
from tvm_stretch.run.model import Model

BOTH = [QUICK, "opencl"]


def together(body: Body, **how: object) -> Model:
    """The network for both processors."""
    return ts.compile(network(body), targets=BOTH, cpu_threads=1, streams=True, **how)


def alone(body: Body) -> Model:
    """The network for the CPU alone, whose kernels LLVM optimises as it likes."""
    return ts.compile(network(body), targets=["llvm"], cpu_threads=1, streams=True)


@pytest.fixture(scope="module")
def images() -> Model:
    return together(plain)


def clip(seed: int, count: int = 10) -> list[np.ndarray]:
    """Frames with squares of any size at any place, scattered pixels, and nothing new."""
    random = np.random.default_rng(seed)
    frames = [frame()]
    for number in range(count):
        size = int(random.integers(1, SIDE))
        top, left = random.integers(0, SIDE - size, 2)
        frames.append(patched(int(top), int(left), size, number + 1))
        if number % 3 == 0:
            rows, columns = random.integers(0, SIDE, (2, 9))
            frames[-1][0, :, rows, columns] += np.float32(1)
        if number % 4 == 0:
            frames.append(frames[-1])
    return frames


@needs_cpu_device
@pytest.mark.parametrize(
    "body", [tiles, *(pytest.param(b, marks=pytest.mark.full) for b in NETWORKS)]
)
def test_answers_are_those_of_the_cpu_bit_by_bit(body: Body) -> None:
    model, cpu = together(body), alone(body)
    stream = model.stream(measured=False)
    for number, each in enumerate(clip(0)):
        answer = stream(each)
        np.testing.assert_array_equal(answer, model(each), err_msg=f"frame {number}")
        np.testing.assert_array_equal(answer, cpu(each), err_msg=f"frame {number}")


@needs_cpu_device
@pytest.mark.parametrize("setting", [{"noise": 0.1}, {"bound": 0.05}, {"keyframes": 2, "cut": 0}])
def test_settings_mean_the_same(images: Model, setting: dict[str, float]) -> None:
    cpu = alone(plain).stream(measured=False, **setting)
    both = images.stream(measured=False, **setting)
    for each in clip(1):
        np.testing.assert_array_equal(both(each), cpu(each))
        assert both.last == cpu.last


@needs_cpu_device
def test_streams_of_several_threads_do_not_meet(images: Model) -> None:
    wrong: list[int] = []

    def run(seed: int) -> None:
        stream = images.create_instance().stream(measured=False)
        frames = clip(seed)
        answers = [stream(each) for each in frames]
        other = images.create_instance()
        wrong.extend(
            number
            for number, (each, answer) in enumerate(zip(frames, answers, strict=True))
            if not np.array_equal(answer, other(each))
        )

    threads = [threading.Thread(target=run, args=(seed,)) for seed in (2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@needs_cpu_device
def test_the_artifact_shares_areas_too(images: Model, tmp_path: Path) -> None:
    images.export(tmp_path / "images.so")
    loaded = ts.load(tmp_path / "images.so")
    assert [p.name for p in loaded.graph.processors] == ["cpu", "opencl"]
    assert loaded.plan.processors == images.plan.processors
    stream = loaded.stream(measured=False)
    for each in clip(5, 4):
        np.testing.assert_array_equal(stream(each), images(each))


@needs_cpu_device
def test_the_plan_is_the_cpus_and_says_what_others_do(images: Model) -> None:
    assert {region.processor for region in images.plan.regions} == {"cpu"}
    assert "opencl computes areas of frames beside the CPU" in images.plan.explain()
    shared = [r for r in images.graph.regions if r.processor == 1]
    assert [r.name.split()[0] for r in shared] == ["areas"] * 4
    assert len(images.running.regions) == 1, "runs of the model are the CPU's"


def test_a_gpu_has_no_part_in_streams() -> None:
    model = ts.compile(network(windows), targets=[QUICK, described_gpu()], streams=True)
    assert "has no part in streams" in model.plan.explain()
    stream = model.stream(measured=False)
    for each in clip(6, 2):
        np.testing.assert_array_equal(stream(each), model(each))


@needs_cpu_device
def test_what_streams_of_several_processors_need() -> None:
    with pytest.raises(InputError, match="the CPU among the targets"):
        ts.compile(network(plain), targets=["opencl"], streams=True)
    with pytest.raises(InputError, match="max_share"):
        ts.compile(network(plain), targets=BOTH, streams=True, max_share={"opencl": 0.5})
