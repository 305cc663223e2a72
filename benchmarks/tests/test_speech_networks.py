"""Networks of speech and language with small inputs: as ONNX Runtime answers.

`benchmarks/speech.py` has the list and says which packages it needs.
"""

from __future__ import annotations

import importlib.util

import pytest
from helpers.cpu_targets import TARGET

from benchmarks.harness import compiled
from benchmarks.real_networks import wrong_by

pytestmark = pytest.mark.full

NAMES = (
    *("minilm", "minilm dynamic", "minilm static", "whisper tiny encoder", "whisper tiny step"),
    *("wav2vec2", "crepe tiny", "crepe full", "qwen2 step", "bilstm"),
    *("mobilebert", "vit-b/16", "deit tiny", "sam2 tiny"),
)


def test_every_network_has_a_test() -> None:
    pytest.importorskip("torch")
    from benchmarks.speech import NETWORKS

    assert set(NAMES) == {*NETWORKS}


@pytest.mark.parametrize("name", NAMES)
def test_as_onnx(name: str) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch: pip install -e '.[networks]'")
    from benchmarks.speech import NETWORKS

    if missing := NETWORKS[name].missing:
        pytest.skip(f"{name} needs {missing}: pip install -e '.[networks]'")
    sample = NETWORKS[name].build(True)
    model = compiled(sample, [TARGET])
    assert wrong_by(model(**sample.inputs), sample) <= NETWORKS[name].tolerance
