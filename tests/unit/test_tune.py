"""ts.tune.measure() tries configurations of a GPU's layers; compile() takes the fastest."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import tvm
from helpers.fake_targets import TARGET
from helpers.relax_helpers import module, random_const
from tvm import relax
from tvm.target import Target

from tvm_stretch.base.errors import CostModelError
from tvm_stretch.base.files import sealed
from tvm_stretch.plan.cost import verdicts
from tvm_stretch.plan.cost.tuned import Tuned, described, tuned_path
from tvm_stretch.plan.measuring import tune_gpu
from tvm_stretch.plan.measuring import workshop as workshop_of_bench
from tvm_stretch.plan.measuring.bench import Bench
from tvm_stretch.plan.measuring.samples import Sample
from tvm_stretch.plan.measuring.trial import tune
from tvm_stretch.plan.measuring.tune_gpu import Layers
from tvm_stretch.plan.measuring.workshop import Workshop
from tvm_stretch.targets.cpu.cpu import cpu_processor
from tvm_stretch.targets.cpu.kernels.conv import ConvConfig
from tvm_stretch.targets.cpu.kernels.window import WindowConfig
from tvm_stretch.targets.kernels.layers import ConvShape, taken
from tvm_stretch.targets.opencl.kernels.base import gpu_candidates
from tvm_stretch.targets.opencl.kernels.conv import choose_group_conv, group_conv_cycles
from tvm_stretch.targets.opencl.kernels.machine import GpuMachine, Winners, describe_gpu
from tvm_stretch.targets.opencl.opencl import OpenCLDevice, local_device, opencl_processor
from tvm_stretch.targets.processor import Hardware, Processor

GPU = OpenCLDevice("gpu", "NVIDIA of the test", max_group_size=512, local_bytes=48 * 1024)
H100 = describe_gpu("NVIDIA H100 80GB HBM3", 132, 1024, 48 * 1024, True)
MALI = replace(H100, local_on_chip=False)
needs_device = pytest.mark.skipif(local_device() is None, reason="no OpenCL device")


def processor(device: OpenCLDevice = GPU) -> Processor:
    return opencl_processor(Target("opencl"), cpu_processor(TARGET, 1), device)


def network() -> tvm.IRModule:
    """A convolution with relu, a depthwise one, and a dense layer."""
    first, second = random_const(8, 8, 3, 3), random_const(8, 1, 3, 3)
    dense = random_const(8, 12)

    def build(x: relax.Expr) -> relax.Expr:
        y = relax.op.nn.relu(relax.op.nn.conv2d(x, first, padding=1))
        y = relax.op.nn.conv2d(y, second, groups=8)
        y = relax.op.mean(y, [2, 3])
        return relax.op.matmul(y, dense)

    return module(build, (1, 8, 6, 5))


LAYER = taken(
    ConvConfig,
    ConvShape(1, 64, (14, 14), 96, (3, 3), (1, 1), (1, 1, 1, 1)),
    lanes=4,
    data_block=4,
    oc_blocks=1,
    pixels=1,
)
ROW = replace(LAYER, in_size=(1, 1), kernel=(1, 1), padding=(0, 0, 0, 0))
WINDOW = WindowConfig("depthwise", 1, 32, (14, 14), (3, 3), (1, 1), (1, 1, 1, 1), lanes=4)


@pytest.mark.parametrize("gpu", [H100, MALI], ids=["local", "no local"])
@pytest.mark.parametrize("layer", [LAYER, ROW, WINDOW], ids=["conv", "row", "window"])
def test_candidates_differ_and_are_possible(layer: Any, gpu: GpuMachine) -> None:
    found = gpu_candidates(layer, gpu, 8)
    assert 2 < len(set(found)) == len(found) <= 8
    for config in (*found, *gpu_candidates(layer, gpu.barest, 1)):
        assert config.is_possible(gpu)
        assert config.bare() == layer
    assert gpu_candidates(layer, gpu, 1)[0] == found[0]


def test_candidates_are_of_different_kinds() -> None:
    found = [config for config in gpu_candidates(LAYER, H100, 8)]
    assert len({(c.pixels, c.item_quads, c.slices, c.splits > 1) for c in found}) == 8
    assert found[0] == choose_group_conv(LAYER, H100)


@pytest.mark.parametrize("layer", [LAYER, WINDOW], ids=["conv", "window"])
def test_images_are_tried_where_there_are_some(layer: Any) -> None:
    gpu = replace(H100, has_images=True)
    found = gpu_candidates(layer, gpu, 8)
    assert [replace(c, images=0) for c in found[1:3]] == [found[0]] * 2
    assert {c.images for c in found[1:3]} == {1, 2}
    assert len(found) == 8
    assert all(config.is_possible(gpu) for config in found)
    assert not any(config.is_possible(H100) for config in found[1:3])


def test_winners_go_before_the_model() -> None:
    chosen, second = gpu_candidates(LAYER, H100, 2)
    assert choose_group_conv(LAYER, H100) == chosen
    tuned = replace(H100, winners=Winners({LAYER: second}))
    assert choose_group_conv(LAYER, tuned) == second
    assert choose_group_conv(replace(LAYER, in_channels=60), tuned) != second
    assert str(tuned) == str(H100)  # kernels in the cache stay good
    assert tuned != H100
    # otherwise the search would cut layers into parts that were not measured
    assert group_conv_cycles(second, tuned) == group_conv_cycles(chosen, H100)


def test_layers_of_a_network() -> None:
    networks, tuned = [network(), network()], Tuned({}, {}, {}, {})
    workshop = Workshop([processor(), cpu_processor(TARGET, 1)])
    (found,) = Layers.unmeasured(networks, workshop, tuned)
    assert [type(layer) for layer in found] == [ConvConfig, WindowConfig, ConvConfig]
    known = replace(tuned, winners={found[1]: found[1]})
    assert Layers.unmeasured(networks, workshop, known) == [[found[0], found[2]]]


def tuned_by(bank: Callable[[Any, Any, Any], Any], path: Path, budget: float = 60.0) -> Tuned:
    """The winners that tuning finds if ``bank`` measures."""
    one, host = processor(), cpu_processor(TARGET, 1)
    with (
        patch.object(Layers, "measure", bank),
        patch.object(Bench, "__init__") as new,
    ):
        new.return_value = None
        bench = Bench(Workshop([one, host]))
        with patch.object(Bench, "require_device"):
            end = time.monotonic() + budget
            tune((Layers,), Workshop([one, host]), bench, [network()], path, end)
    return Tuned.read(path, one)


def test_the_fastest_right_one_wins(tmp_path: Path) -> None:
    """A scripted driver times them: those of many items are fast, and the fastest one is wrong."""

    def measure(_bank: Any, trials: Any, _build: Any) -> list[int | str]:
        times = [
            10_000 - trial.config.pixels for trial in trials if hasattr(trial.config, "pixels")
        ]
        if len(times) < len(trials):
            return [100 if not hasattr(t.config, "pixels") else times.pop(0) for t in trials]
        return ["answer: 7 of 12 numbers are wrong" if t == min(times) else t for t in times]

    path = tmp_path / "opencl.tuned.json"
    found = tuned_by(measure, path)
    assert len(found.winners) == 3
    wrong = [text for text, reason in found.dropped.items() if "answer" in reason]
    assert all(described(config) not in wrong for config in found.winners.values())


def test_refused_configurations_are_not_tried_again(tmp_path: Path) -> None:
    tried: list[str] = []

    def measure(_bank: Any, trials: Any, _build: Any) -> list[int | str]:
        tried.extend(described(trial.config) for trial in trials)
        return ["expected success of OpenCL's launch, got CL_OUT_OF_RESOURCES" for _ in trials]

    path = tmp_path / "opencl.tuned.json"
    assert tuned_by(measure, path).winners == {}
    assert len({*tried}) == len(tried) > 10
    first, tried[:] = [*tried], []
    tuned_by(measure, path)
    assert not {*first} & {*tried}


def test_the_budget_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "opencl.tuned.json"
    tuned_by(lambda *_: pytest.fail("measured"), path, budget=-1.0)
    assert not path.exists()


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tuned_path(tmp_path, processor())
    second = gpu_candidates(LAYER, H100, 2)[1]
    own = Tuned.read(path, processor())
    replace(own, winners={LAYER: second}).write(path)
    return path


def test_files_are_read_again(written: Path) -> None:
    found = Tuned.read(written, processor())
    assert found.winners == {LAYER: gpu_candidates(LAYER, H100, 2)[1]}
    gpu = found.apply(processor()).machine.gpu
    assert gpu is not None
    assert choose_group_conv(LAYER, gpu) == found.winners[LAYER]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"items": [8, 1000]}, "configuration"),
        ({"splits": 1_000_000}, "configuration"),
        ({"oc_blocks": 0}, "configuration"),
        ({"items": "all"}, "configuration"),
        ({"lanes": 0}, "configuration"),
        ({"depth": 1.5}, "configuration"),
        ({"template": "exec"}, "configuration"),
        ({"more": 1}, "fields"),
    ],
)
def test_configurations_that_nobody_proposes(
    written: Path, change: dict[str, Any], expected: str
) -> None:
    data = json.loads(written.read_text())
    data.pop("fingerprint")
    data["winners"][0] |= change
    written.write_text(sealed(json.dumps(data)))
    with pytest.raises(CostModelError, match=f"expected .*{expected}"):
        Tuned.read(written, processor())


def test_files_of_other_drivers_and_damaged_ones(written: Path) -> None:
    other = replace(processor(), hardware=Hardware(driver="NVIDIA of the test 2"))
    with pytest.raises(CostModelError, match="driver"):
        Tuned.read(written, other)
    written.write_bytes(written.read_bytes().replace(b"12", b"13"))
    with pytest.raises(CostModelError, match="damaged"):
        Tuned.read(written, processor())


def test_compile_takes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: Path) -> None:
    monkeypatch.setattr(verdicts, "default_folder", lambda _host: written.parent)
    (found,), _ = verdicts.apply_verdicts([processor()], [])
    gpu = found.machine.gpu
    assert gpu is not None and choose_group_conv(LAYER, gpu) != choose_group_conv(LAYER, H100)


@needs_device
def test_answers_are_compared(tmp_path: Path) -> None:
    """One configuration of a layer is run; it wins unless its answer is wrong."""
    simple = replace(GPU, local_on_chip=False)  # PoCL takes long for kernels with barriers
    workshop = Workshop([processor(simple), cpu_processor(TARGET, 1)])
    weight = random_const(6, 4, 1, 1)
    networks = [module(lambda x: relax.op.nn.conv2d(x, weight), (1, 4, 3, 3))]
    with patch.object(workshop_of_bench, "REFERENCE", Sample("conv", 4, (2, 2), 4)):
        bench = Bench(workshop)

    def tuned(path: Path, ahead: int = 0) -> Tuned:
        with patch.object(tune_gpu, "_SECONDS", 0.0):
            end = time.monotonic() + 60
            tune((Layers,), workshop, bench, networks, path, end, 1, ahead)
        return Tuned.read(path, workshop.processor)

    found = tuned(tmp_path / "right.json", ahead=1)
    assert len(found.winners) == 1 and not found.dropped
    tune_gpu._operands.cache_clear()
    with patch.object(tune_gpu, "convolved", lambda *_: np.ones((1, 6, 3, 3))):
        found = tuned(tmp_path / "wrong.json")
        tune_gpu._operands.cache_clear()
    assert not found.winners
    assert all("numbers are wrong" in reason for reason in found.dropped.values())
