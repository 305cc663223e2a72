"""As many runs as a service makes in a day: each is right, and nothing grows.

On several threads; and of one, two and three processors, some calls refused or cancelled.
"""

from __future__ import annotations

import dataclasses
import gc
import random
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tvm
from helpers import dsp_targets
from helpers.cpu_targets import TARGET
from helpers.fake_targets import fake_processor
from helpers.memory_growth import MEBI, keeps_growing
from helpers.small_models import random_input, scaled_model, scaled_reference
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.plan.plan import Plan
from tvm_stretch.run.model import Model
from tvm_stretch.targets.cpu.cpu import cpu_processor
from tvm_stretch.targets.opencl.opencl import local_device, opencl_processor
from tvm_stretch.targets.processor import Operators, Processor

THREADS = 4


def run_often(model: Model, seed: int, runs: int, wrong: list[object]) -> None:
    """Each answer is compared, since a wrong one may be rare."""
    x = random_input(seed)
    right = model(x)
    np.testing.assert_allclose(right, scaled_reference(x), rtol=1e-5)
    expected = right.tobytes()
    try:
        for number in range(runs):
            if model(x).tobytes() != expected:
                wrong.append((seed, number))
    except Exception as error:
        wrong.append(error)


def on_threads(models: list[Model], runs: int) -> None:
    wrong: list[object] = []
    threads = [
        threading.Thread(target=run_often, args=(model, seed, runs // len(models), wrong))
        for seed, model in enumerate(models)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("runs", [4_000, pytest.param(1_000_000, marks=pytest.mark.full)])
@pytest.mark.parametrize("shared", [False, True], ids=["instances", "one model"])
def test_threads_without_end(runs: int, shared: bool) -> None:
    model = scaled_model()
    models = [model if shared else model.create_instance() for _ in range(THREADS)]
    on_threads(models, runs // 4)
    assert not keeps_growing(lambda: on_threads(models, runs))


# --- one, two and three processors ----------------------------------------------------------------

RUNS = [pytest.param(400, id="some"), pytest.param(20_000, marks=pytest.mark.full, id="20000")]
PROCESSORS = ["cpu", "cpu+fake", "cpu+opencl", "cpu+dsp", "cpu+dsp+fake", "cpu+dsp+opencl"]


def model_on(processors: str) -> Model:
    """The integer network of `dsp_targets`, one part of it on each of them."""
    others: list[Processor] = []
    if "fake" in processors:
        others.append(fake_processor())
    if "opencl" in processors:
        if (device := local_device()) is None:
            pytest.skip("no OpenCL device")
        host = cpu_processor(TARGET, 1)
        others.append(opencl_processor(tvm.target.Target("opencl"), host, device))
    if "dsp" in processors:
        return dsp_targets.compiled(more=tuple(others))
    plan = Plan((*(each.name for each in others), "cpu"), ())
    others = [
        dataclasses.replace(each, operators=Operators(refuse=_only_right_branch)) for each in others
    ]
    return ts.compile(dsp_targets.network(), [*others, TARGET], plan=plan, cpu_threads=1)


def _only_right_branch(call: relax.Call) -> str | None:
    return None if call.op.name in dsp_targets.ON_DSP else "for the test"


def held() -> tuple[int, int]:
    """Descriptors and threads of this process."""
    return tuple(len(list(Path(f"/proc/self/{kind}").iterdir())) for kind in ("fd", "task"))  # type: ignore[return-value]


def mixed_runs(model: Model, runs: int, dice: random.Random) -> Counter[str]:
    """How many were right, refused and cancelled; nothing else happens."""
    pictures = [dsp_targets.picture(seed) for seed in range(8)]
    answers = [dsp_targets.answer(each).tobytes() for each in pictures]
    ends: Counter[str] = Counter()
    for _ in range(runs):
        number, way = dice.randrange(len(pictures)), dice.random()
        x = pictures[number]
        try:
            if way < 0.02:
                model(x[:, :-1])
            elif way < 0.1:
                future = model.run_async(x)
                if way < 0.05:
                    time.sleep(dice.random() / 10_000)
                    future.cancel()
                right = future.result(60).tobytes() == answers[number]
            else:
                right = model(x).tobytes() == answers[number]
            assert right
            ends["right"] += 1
        except ts.StretchError as error:
            assert str(error).startswith("expected "), error
            ends[type(error).__name__] += 1
    return ends


@pytest.mark.parametrize("processors", PROCESSORS)
@pytest.mark.parametrize("runs", RUNS)
def test_of_processors_nothing_grows(processors: str, runs: int) -> None:
    model, dice = model_on(processors), random.Random(1)
    assert len(model.graph.processors) == 1 + processors.count("+")
    mixed_runs(model, 400 if runs < 1000 else 4000, dice)
    gc.collect()
    before = held()

    def again() -> None:
        ends = mixed_runs(model, runs, dice)
        print(f"{processors}: {dict(ends)}")
        assert sum(ends.values()) == runs
        assert set(ends) <= {"right", "InputError", "RunCancelledError"}
        assert ends["right"] > 0.9 * runs and ends["InputError"] > 0
        assert held() == before

    log = 100 * runs if "fake" in processors else 0  # which the scripted device keeps
    assert not keeps_growing(again, MEBI + log)
