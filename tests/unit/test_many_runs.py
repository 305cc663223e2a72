"""As many runs as a service makes in a day, on several threads: each is right, memory stays."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from small_models import random_input, scaled_model, scaled_reference

from tvm_stretch.runtime.model import Model

THREADS = 4
MEBI = 1 << 20


def resident_bytes() -> int:
    """What this process holds in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


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
    gc.collect()


@pytest.mark.parametrize("runs", [4_000, pytest.param(1_000_000, marks=pytest.mark.full)])
@pytest.mark.parametrize("shared", [False, True], ids=["instances", "one model"])
def test_threads_without_end(runs: int, shared: bool) -> None:
    model = scaled_model()
    models = [model if shared else model.create_instance() for _ in range(THREADS)]
    on_threads(models, runs // 4)
    before = resident_bytes()
    on_threads(models, runs)
    assert resident_bytes() - before < MEBI
