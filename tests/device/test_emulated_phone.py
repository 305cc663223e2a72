"""A phone that is not there: `tvm_stretch_rpc` for aarch64 under qemu, after `make phone`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from rpc_processes import Phone, Tracker

import tvm_stretch as ts
from tvm_stretch import zoo

SYSTEM = "/usr/aarch64-linux-gnu"
FOLDER = Path(__file__).resolve().parents[2] / "build/phone/aarch64"

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def phone() -> Iterator[ts.Device]:
    """Through a tracker of this machine."""
    if not shutil.which("qemu-aarch64") or not Path(SYSTEM).is_dir():
        pytest.skip("there is no qemu-user here, or no aarch64 system")
    if not (FOLDER / "tvm_stretch_rpc").is_file():
        pytest.skip("`make phone` was not called")
    pytest.importorskip("ziglang")
    tracker = Tracker()
    command = ["qemu-aarch64", "-L", SYSTEM, "-E", f"LD_LIBRARY_PATH={FOLDER}"]
    command += [str(FOLDER / "tvm_stretch_rpc")]
    for name in ("libtvm_runtime.so", "libtvm_stretch_runtime.so"):
        command += ["--library", str(FOLDER / name)]
    served = Phone("--tracker", tracker.address, command=command)
    try:
        with ts.connect(tracker.address, "pixel", timeout=300, wait=60) as device:
            yield device
    finally:
        served.kill()
        tracker.kill()


def test_it_says_what_it_is(phone: ts.Device) -> None:
    found = phone.describe()
    assert found.triple == "aarch64-linux-gnu" and "neon" in found.features
    assert len(found.cores) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("name", ["squeezenet1_1", "resnet18", "mobilenet_v3_small"])
def test_networks_answer_as_onnx_runtime_does(phone: ts.Device, name: str) -> None:
    network = zoo.build(name, size=64)
    session = onnxruntime.InferenceSession(network.SerializeToString())
    (port,) = session.get_inputs()
    x = np.random.default_rng(0).standard_normal(port.shape, dtype=np.float32)
    (expected,) = session.run(None, {port.name: x})
    model = ts.compile(network, ["llvm"], device=phone, cpu_threads=1)
    there = phone.load(model)
    np.testing.assert_allclose(there(x), expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
    assert there.benchmark(2).median > 0 and there.timeline(repeat=1).duration > 0


def test_an_error_of_ours_comes_back(phone: ts.Device) -> None:
    """It would end the session if the libraries had different C++ libraries below them."""
    for _ in range(2):
        with pytest.raises(ts.DeviceError, match="expected 64 digits"):
            phone.call("to find it", "tvm_stretch.store_path", "nothing")
    assert phone.session_number == 1
