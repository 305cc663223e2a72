"""Networks that others made, with small inputs: as ONNX Runtime answers, or refused as stated.

`benchmarks/real_networks.py` has the list and says which packages it needs.
"""

from __future__ import annotations

import pytest
from cpu_targets import TARGET

import tvm_stretch as ts
from benchmarks.real_networks import (
    NETWORKS,
    TOLERANCE,
    Sample,
    compile_sample,
    errors_of,
    main,
)

pytestmark = pytest.mark.full


def _sample(name: str) -> Sample:
    if missing := NETWORKS[name].missing:
        pytest.skip(f"{name} needs {missing}: pip install -e '.[networks]'")
    return NETWORKS[name].build(True)


@pytest.mark.parametrize("name", NETWORKS)
def test_as_onnx(name: str) -> None:
    sample, refused = _sample(name), NETWORKS[name].refused
    if refused:
        with pytest.raises(ts.StretchError, match=refused):
            compile_sample(sample, [TARGET])
        return
    model = compile_sample(sample, [TARGET])
    assert max(errors_of(model(**sample.inputs), sample.expected())) <= TOLERANCE


@pytest.mark.parametrize(
    "name", [name for name, network in NETWORKS.items() if network.is_exported]
)
def test_as_exported_program(name: str) -> None:
    sample = _sample(name)
    model = ts.compile(sample.program, [TARGET], cpu_threads=1)
    got = model(*sample.inputs.values())
    assert max(errors_of(got, sample.expected())) <= TOLERANCE


def test_an_unknown_name_is_answered_with_the_known_ones(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        main(["yolov8"])
    assert "yolov8n, yolo11n, " in (said := capsys.readouterr().err)
    assert "got 'yolov8'; correct the name" in said
