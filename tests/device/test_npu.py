"""Networks in 8 bits on the emulator of Qualcomm's tensor unit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from engine_targets import compiled, needs_npu, quantised
from quantised_networks import IMAGES

import tvm_stretch as ts

pytestmark = [needs_npu, pytest.mark.full]


@pytest.mark.parametrize("arch", ["68", "73", "75"])
def test_answers_of_the_emulator(arch: str, tmp_path: Path) -> None:
    source, x = quantised(), IMAGES[:1]
    model = compiled({"kind": "npu", "htp_arch": arch}, source, "npu")
    assert sum(owner == "npu" for owner in model.plan.processor_of().values()) == 9
    expected = ts.compile(source, "llvm", cpu_threads=1)(x)
    step = (expected.max() - expected.min()) / 255
    answer = model(x)
    assert np.abs(answer - expected).max() <= 2 * step
    assert answer.argmax() == expected.argmax()
    model.export(tmp_path / "net.so")
    np.testing.assert_array_equal(ts.load(tmp_path / "net.so")(x), answer)
