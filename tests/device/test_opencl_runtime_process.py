"""What the OpenCL runtime reads from its environment, in processes of their own."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import fresh_process

from tvm_stretch.targets.opencl.opencl import local_device

pytestmark = pytest.mark.skipif(local_device() is None, reason="no OpenCL device")

TESTS = Path(__file__).resolve().parents[1]

PREAMBLE = """
import json, os, sys
import numpy as np
import tvm
from helpers import opencl_graphs as graphs

def devices():
    return json.loads(tvm.get_global_func("tvm_stretch.opencl_devices")())

def run_chain(**changes):
    w, x = np.linspace(-1, 1, 640, dtype="float32"), np.arange(640, dtype="float32")
    executor = graphs.create_executor(graphs.CHAIN, w, graphs.opencl_code(640, **changes))
    for _ in range(5):
        y = executor["invoke"](tvm.runtime.tensor(x)).numpy()
        np.testing.assert_allclose(y, graphs.expected(graphs.CHAIN, x, w), rtol=1e-6)
"""


def run(code: str, **environment: str) -> str:
    return fresh_process.run(PREAMBLE + textwrap.dedent(code), **environment)


@pytest.mark.parametrize("memory", ["shared", "fine", "mapped", "mirror"])
def test_kinds_of_memory(memory: str) -> None:
    """Who names a kind that the device does not have gets wrong numbers: it overrides drivers."""
    if memory in ("shared", "fine") and run("print(devices()[0]['unified'])") != "True":
        pytest.skip("the device has memory of its own")
    assert run("run_chain(); print(devices()[0]['memory'])", TVM_STRETCH_OPENCL_MEMORY=memory) == (
        memory
    )


EXPECT_ERROR = """
import re

def expect_error(match):
    try:
        run_chain()
    except Exception as error:
        assert re.search(match, str(error)), error
        assert str(error).count("expected ") == 1, error
    else:
        raise SystemExit("no error, but expected: " + match)
"""


@pytest.mark.parametrize(
    ("library", "match"),
    [("libnothing.so", "expected an OpenCL driver.*libnothing.so"), ("libm.so.6", "no platform")],
)
def test_no_driver(library: str, match: str) -> None:
    code = f"""
        expect_error({match!r})
        expect_error({match!r})
        assert (tvm.runtime.tensor(np.ones(3, "float32")).numpy() == 1).all()
    """
    run(EXPECT_ERROR + textwrap.dedent(code), TVM_STRETCH_OPENCL_LIB=library)


@pytest.fixture(scope="module")
def mock_driver(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The library of a driver without a device, built with the given options."""
    native = TESTS.parent
    source = TESTS / "native" / "mock_opencl.cc"

    @functools.cache
    def build(*options: str) -> Path:
        library = tmp_path_factory.mktemp("mock") / "libmock.so"
        command = ["g++", "-std=c++17", "-O0", "-shared", "-fPIC", f"-I{native}", *options]
        subprocess.run([*command, source, "-o", library], check=True)
        return library

    return build


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
@pytest.mark.parametrize(
    ("device", "options", "match"),
    [
        ("no-platform", [], "expected an OpenCL driver.*no platform"),
        ("no-device", [], "expected an OpenCL device .*got none"),
        ("", ["-DMOCK_OPENCL_WITHOUT_FLUSH"], "expected an OpenCL driver.*no function clFlush"),
    ],
)
def test_drivers_that_cannot_be_used(
    mock_driver: Callable[..., Path], device: str, options: list[str], match: str
) -> None:
    library = mock_driver(*options)
    code = f"""
        expect_error({match!r})
        expect_error({match!r})
        x, y = (tvm.runtime.tensor(np.ones(640, "float32")) for _ in range(2))
        graphs.cpu_kernels(640)["add"](x, x, y)  # the CPU is unharmed
        assert (y.numpy() == 2).all()
    """
    environment = {"TVM_STRETCH_OPENCL_LIB": str(library), "MOCK_OPENCL": device}
    run(EXPECT_ERROR + textwrap.dedent(code), **environment)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
def test_a_gpu_refuses_kernels_of_a_cpu(mock_driver: Callable[..., Path]) -> None:
    """One work-item would compute what a core does: right, but after minutes."""
    code = """
        expect_error("expected a CPU's OpenCL device for kernels .* got .*; compile the network")
    """
    environment = {"TVM_STRETCH_OPENCL_LIB": str(mock_driver()), "MOCK_OPENCL": "gpu"}
    run(EXPECT_ERROR + textwrap.dedent(code), **environment)


def test_wrong_settings() -> None:
    code = """
        cases = [
            ("CPUS", "1-x", "expected a list of cores .*got '1-x'"),
            ("CPUS", "1000", "expected cores that this process may use .*'1000'"),
            ("MEMORY", "paper", "expected shared, fine, mapped or mirror .*got 'paper'"),
            ("DEVICE", "77", "expected one of the devices 0 .*got '77'"),
            ("DEVICE", "no such", "expected one of the devices 0 .*got 'no such'"),
        ]
        for name, value, match in cases:
            os.environ["TVM_STRETCH_OPENCL_" + name] = value
            expect_error(match)
            del os.environ["TVM_STRETCH_OPENCL_" + name]
        os.environ["TVM_STRETCH_OPENCL_DEVICE"] = "0"
        run_chain()
    """
    run(EXPECT_ERROR + textwrap.dedent(code))


def test_a_loader_that_knows_no_driver(tmp_path: Path) -> None:
    code = """
        try:
            assert devices()  # a vendor's library, found without the loader
        except (RuntimeError, ValueError) as error:
            assert "expected an OpenCL" in str(error)
    """
    run(code, OCL_ICD_VENDORS=str(tmp_path))


def test_a_driver_without_a_loader() -> None:
    code = """
        import ctypes.util
        try:
            print(len(devices()))
            run_chain()
        except (RuntimeError, ValueError) as error:
            print("none", error)
    """
    out = run(code, TVM_STRETCH_OPENCL_LIB="libpocl.so.2")
    if out.startswith("none"):
        pytest.skip("no PoCL")
    assert out == "1"


def test_host_driver_keeps_to_its_cores() -> None:
    code = """
        before = os.sched_getaffinity(0)
        if len(before) < 2 or devices()[0]["type"] != "cpu":
            print("skip")
        else:
            run_chain()
            assert os.sched_getaffinity(0) == before
            assert "POCL_MAX_PTHREAD_COUNT" not in os.environ
            tasks = [int(task) for task in os.listdir("/proc/self/task")]
            masks = [os.sched_getaffinity(task) for task in tasks if task != os.getpid()]
            assert {max(before)} in masks, masks
            assert devices()[0]["compute_units"] == 1
    """
    run(code, TVM_STRETCH_OPENCL_CPUS=str(max(os.sched_getaffinity(0))))


def test_killed_while_it_writes(tmp_path: Path) -> None:
    writes = """
        print("go", flush=True)
        for i in range(10_000):
            run_chain(source=graphs.SCALE_SOURCE + f"// {i}")
    """
    for delay in (0.1, 0.4):
        # PoCL has files of its own: nobody else shall find what is left of them.
        drivers = tmp_path / f"driver {delay}"
        environment = {"TVM_STRETCH_CACHE_DIR": str(tmp_path), "POCL_CACHE_DIR": str(drivers)}
        code = PREAMBLE + textwrap.dedent(writes)
        with fresh_process.start(code, **environment) as process:
            while "go" not in process.text():
                time.sleep(0.01)
            time.sleep(delay)
            process.kill()
            assert process.wait()[0] == -signal.SIGKILL, process.text()
    for path in (tmp_path / "opencl").glob("*.bin"):
        entry = path.read_bytes()
        keys, binary = (int.from_bytes(entry[i : i + 8], "little") for i in (8, 16))
        assert entry[:8] == b"TVMSTRB1"
        assert len(entry) == 32 + keys + binary


@pytest.mark.full
def test_what_a_loss_of_power_cut_short_is_compiled_again(tmp_path: Path) -> None:
    """PoCL's own files: it would end the process."""
    if "Portable Computing Language" not in run("print(devices()[0]['platform'])"):
        pytest.skip("this driver keeps nothing that is not ours")
    run("run_chain()", POCL_CACHE_DIR=str(tmp_path))
    kept = {
        path: path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.name == "program.bc" or path.suffix == ".so"
    }
    assert {path.suffix for path in kept} == {".bc", ".so"}
    for share in (0, 3):
        for path, whole in kept.items():
            path.write_bytes(whole[: len(whole) * share // 4])
        run("run_chain()", POCL_CACHE_DIR=str(tmp_path))
        assert all(path.stat().st_size == len(whole) for path, whole in kept.items())


def test_a_driver_without_its_folder_gets_another(tmp_path: Path) -> None:
    code = """
        import shutil
        run_chain()
        shutil.rmtree(os.environ["POCL_CACHE_DIR"], ignore_errors=True)
        run_chain(source=graphs.SCALE_SOURCE.replace("{", "{ ;", 1))
    """
    run(code, POCL_CACHE_DIR=str(tmp_path / "driver"))


def test_a_fork_is_refused_not_hung() -> None:
    code = """
        run_chain()
        child = os.fork()
        if child == 0:
            try:
                run_chain()
            except (RuntimeError, ValueError) as error:
                os._exit(0 if "fork" in str(error) else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
    """
    run(code)


def test_the_program_keeps_its_signal_handlers(tmp_path: Path) -> None:
    """The driver's compiler takes seventeen of them; faulthandler still says where it ends."""
    code = """
        import ctypes, faulthandler, signal
        def handlers():
            found, buffer = {}, ctypes.create_string_buffer(256)
            for number in range(1, 65):
                if ctypes.CDLL(None).sigaction(number, None, buffer) == 0:
                    found[number] = int.from_bytes(buffer.raw[:8], "little")
            return found
        faulthandler.enable(1)
        heard = []
        signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
        before = handlers()
        run_chain()
        assert handlers() == before
        os.kill(os.getpid(), signal.SIGUSR1)
        assert heard == [signal.SIGUSR1]
        print("now", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    """
    with fresh_process.start(PREAMBLE + textwrap.dedent(code), POCL_CACHE_DIR=str(tmp_path)) as it:
        status, text = it.wait()
    assert status == -signal.SIGSEGV
    assert text.startswith("now\nFatal Python error: Segmentation fault"), text
