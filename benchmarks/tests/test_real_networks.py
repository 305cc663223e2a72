"""Networks that others made, with small inputs: as ONNX Runtime answers, or refused as stated.

`benchmarks/real_networks.py` and `benchmarks/speech.py` have the lists, and say which packages they
need; `speech.py` itself needs torch.
"""

from __future__ import annotations

import pytest
from helpers.cpu_targets import TARGET

import tvm_stretch as ts
from benchmarks.harness import Model, compiled
from benchmarks.real_networks import NETWORKS, main, wrong_by

try:
    from benchmarks.speech import NETWORKS as SPOKEN
except ImportError:  # no torch
    SPOKEN = {}
EVERY = {**NETWORKS, **SPOKEN}

pytestmark = pytest.mark.full


def _sample(name: str) -> Model:
    if missing := EVERY[name].missing:
        pytest.skip(f"{name} needs {missing}: pip install -e '.[networks]'")
    return EVERY[name].build(True)


@pytest.mark.parametrize("name", EVERY)
def test_as_onnx(name: str) -> None:
    sample, refused = _sample(name), EVERY[name].refused
    if refused:
        with pytest.raises(ts.StretchError, match=refused):
            compiled(sample, [TARGET])
        return
    model = compiled(sample, [TARGET])
    assert wrong_by(model(**sample.inputs), sample) <= EVERY[name].tolerance


@pytest.mark.parametrize(
    "name", [name for name, network in NETWORKS.items() if network.is_exported]
)
def test_as_exported_program(name: str) -> None:
    sample = _sample(name)
    model = ts.compile(sample.program, [TARGET], cpu_threads=1)
    got = model(*sample.inputs.values())
    assert wrong_by(got, sample) <= EVERY[name].tolerance


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(SystemExit, match=r"yolov8n, yolo11n, .*got 'yolov8'; correct the name"):
        main(["yolov8"])
