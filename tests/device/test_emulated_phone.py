"""A phone that is not there: `tvm_stretch_rpc` for aarch64 under qemu, after `make phone`.

After `make phone-musl` the same tests run against a server with another C and C++ library. With
`make phone-opencl` it has an OpenCL driver as well, PoCL for arm64.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.hostile_clients import greet_badly, has_session, talk_nonsense
from helpers.musl_phones import served, server_of
from helpers.quantised_models import assert_as_onnx_runtime, optimised
from helpers.quantised_networks import IMAGES, grouped, residual
from helpers.rpc_processes import Phone

import tvm_stretch as ts
from tutorials import zoo
from tvm_stretch.plan.plan import Plan, PlannedRegion

SYSTEM = Path("/usr/aarch64-linux-gnu")
FOLDER = Path(__file__).resolve().parents[2] / "build/phone/aarch64"
SYSTEM_WITH_OPENCL = FOLDER.parent / "arm64-system"
NETWORKS = ["squeezenet1_1", "resnet18", "mobilenet_v3_small"]

pytestmark = pytest.mark.full


def command_of(system: Path, libraries: Sequence[Path], **environment: object) -> list[str]:
    """Of a server that has this system and its libraries."""
    if not shutil.which("qemu-aarch64") or not system.is_dir():
        pytest.skip(f"there is no qemu-user here, or no {system}")
    if not (FOLDER / "tvm_stretch_rpc").is_file():
        pytest.skip("`make phone` was not called")
    places = ":".join(map(str, [FOLDER, *libraries]))
    command = ["qemu-aarch64", "-L", str(system)]
    for name, value in {"LD_LIBRARY_PATH": places, **environment}.items():
        command += ["-E", f"{name}={value}"]
    command += [str(FOLDER / "tvm_stretch_rpc")]
    for name in ("libtvm_runtime.so", "libtvm_stretch_runtime.so"):
        command += ["--library", str(FOLDER / name)]
    return command


def test_what_an_app_carries() -> None:
    """At most 3.1 MB, stripped, of which 2.2 are tvm-ffi."""
    names = ("libtvm_stretch_runtime.so", "libtvm_ffi.so")
    if not (FOLDER / "app" / names[0]).is_file():
        pytest.skip("`make phone` was not called")
    assert sum((FOLDER / "app" / name).stat().st_size for name in names) <= 3_100_000


def server(system: str) -> list[str]:
    """The command of a server with glibc and libstdc++, or with musl and libc++."""
    return command_of(SYSTEM, []) if system == "gnu" else server_of("aarch64")


@pytest.fixture(scope="module", params=["gnu", "musl"])
def phone(request: pytest.FixtureRequest) -> Iterator[ts.Device]:
    """A phone with a CPU."""
    with served(server(request.param)) as device:
        yield device


@pytest.fixture(scope="module")
def phone_with_opencl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ts.Device]:
    """A phone with a CPU and PoCL."""
    libraries = SYSTEM_WITH_OPENCL / "usr/lib/aarch64-linux-gnu"
    folder = tmp_path_factory.mktemp("phone")
    # PoCL links kernels with what is called ld; they need none of the libraries that it names.
    linker = folder / "ld"
    linker.write_text(LINKER)
    linker.chmod(0o755)
    environment = {
        "TVM_STRETCH_OPENCL_LIB": libraries / "libpocl.so.2",
        "POCL_CACHE_DIR": folder,
        "PATH": f"{folder}:{os.environ['PATH']}",
    }
    places = [libraries, SYSTEM_WITH_OPENCL / "lib/aarch64-linux-gnu"]
    with served(command_of(SYSTEM_WITH_OPENCL, places, **environment)) as device:
        yield device


LINKER = """#!/bin/bash
left=()
for word; do case $word in -lm|-lgcc|-lgcc_s|-lc|*crt*.o) ;; *) left+=("$word");; esac; done
exec aarch64-linux-gnu-ld "${left[@]}"
"""


def check(phone: ts.Device, name: str, targets: list[str], plan: Plan | None = None) -> ts.Model:
    """A network there answers as ONNX Runtime does here."""
    network = zoo.build(name, size=64)
    session = onnxruntime.InferenceSession(network.SerializeToString())
    (port,) = session.get_inputs()
    x = np.random.default_rng(0).standard_normal(port.shape, dtype=np.float32)
    (expected,) = session.run(None, {port.name: x})
    there = phone.load(ts.compile(network, targets, device=phone, cpu_threads=1, plan=plan))
    np.testing.assert_allclose(there(x), expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
    return there


def test_it_says_what_it_is(phone: ts.Device) -> None:
    found = phone.describe()
    assert found.triple in ("aarch64-linux-gnu", "aarch64-linux-musl")
    assert "neon" in found.features
    assert len(found.cores) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_answer_as_onnx_runtime_does(phone: ts.Device, name: str) -> None:
    there = check(phone, name, ["llvm"])
    assert there.benchmark(2).median > 0 and there.timeline(repeat=1).duration > 0


@pytest.mark.parametrize("core", ["", "cortex-a53", "cortex-a76"])  # smmla, neither, sdot
@pytest.mark.parametrize("network", [residual, grouped])
def test_integers_there(
    phone: ts.Device, network: Callable[[], onnx.ModelProto], core: str
) -> None:
    """Quantised networks answer as ONNX Runtime does here, number by number."""
    model = ts.quantize(network(), IMAGES)
    named = {"kind": "llvm", "mtriple": phone.describe().triple, "mcpu": core}
    compiled = ts.compile(model, [named if core else "llvm"], device=phone, cpu_threads=1)
    assert "in float" not in compiled.plan.reason
    there = phone.load(compiled)
    np.testing.assert_array_equal(there(IMAGES[:1]), optimised(model, IMAGES[:1]))


def test_an_emulated_dsp_there(phone: ts.Device) -> None:
    """An emulator that an emulated phone starts."""
    if not phone.describe().dsp.emulator:
        pytest.skip("there is no qemu-hexagon here")
    model = ts.quantize(residual(), IMAGES)
    there = phone.load(ts.compile(model, ["hexagon"], device=phone))
    assert set(there.plan.processor_of().values()) == {"hexagon"}
    assert_as_onnx_runtime(model, {"x": IMAGES[:1]}, there(IMAGES[:1]))
    assert there.health()["hexagon"]["packets"] > 1000


@pytest.mark.parametrize("name", NETWORKS)
def test_opencl_there(phone_with_opencl: ts.Device, name: str) -> None:
    everything = Plan(("cpu", "opencl"), ())  # the first that takes it: of these, OpenCL
    there = check(phone_with_opencl, name, ["opencl"], everything)
    assert set(there.plan.processor_of().values()) == {"opencl"}


@pytest.mark.parametrize("name", NETWORKS)
def test_both_by_a_plan(phone_with_opencl: ts.Device, name: str) -> None:
    """Five operators here, five there, and so on."""
    first = ts.compile(zoo.build(name, size=64), ["llvm"], device=phone_with_opencl, cpu_threads=1)
    operators = list(first.plan.processor_of())
    groups = [operators[i : i + 5] for i in range(0, len(operators), 5)]
    regions = tuple(
        PlannedRegion(f"r{i}", ("cpu", "opencl")[i % 2], tuple(group))
        for i, group in enumerate(groups)
    )
    plan = Plan(("cpu", "opencl"), regions)
    there = check(phone_with_opencl, name, ["llvm", "opencl"], plan)
    assert set(there.plan.processor_of().values()) == {"cpu", "opencl"}
    assert {span.kind for region in there.timeline(repeat=1).regions for span in region.spans}


def test_an_error_of_ours_comes_back(phone: ts.Device) -> None:
    """It would end the session if the libraries had different C++ libraries below them."""
    for _ in range(2):
        with pytest.raises(ts.DeviceError, match="expected 64 digits"):
            phone.call("to find it", "tvm_stretch.store_path", "nothing")
    assert phone.session_number == 1


@pytest.mark.parametrize("system", ["gnu", "musl"])
def test_hostile_bytes_there(system: str) -> None:
    """They end no more than their own sessions."""
    running = Phone(command=server(system))
    try:
        greet_badly(running.port, random.Random(2))
        talk_nonsense(running.port, random.Random(3))
        assert has_session(running.port) and running.is_running
    finally:
        running.kill()
