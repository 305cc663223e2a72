"""What goes wrong between a model and its DSP, called by FastRPC; test_fastrpc.py runs this file.

A failed call costs one run, which raises one `DeviceError`, or the CPU computes it. The next works.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from device.test_hexagon import network, picture, wanted
from helpers import fake_cdsp

import tvm_stretch as ts

OFFSET = 0x80000400 - 2**32
"""What DSPs add to their error codes, as an int of 32 bits."""

CODES = {
    "AEE_EUNSUPPORTED": OFFSET + 0x14,
    "AEE_ENOSUCH": 0x27,
    "AEE_ENOMEMORY": OFFSET + 0x02,
    "AEE_ECONNRESET": 104,
    "AEE_EUNSIGNEDMOD": OFFSET + 0x81,
    "AEE_ECONNREFUSED": 0x72,
    "AEE_EBADELF": OFFSET + 0x52,
    "AEE_ERPC": OFFSET + 0x200,
    "AEE_EINTERRUPTED": 0x2E,
    "AEE_ENORPCMEMORY": OFFSET + 0x68,
    "AEE_ENOSESSION": OFFSET + 0x8A,
}
NEEDED = ("unsigned", "remote_handle64_open", "fastrpc_mmap", "remote_handle64_invoke")
"""Calls without which there is no DSP; the last one loads, pings and runs."""
OTHERS = ("remote_handle64_control", "remote_handle64_close", "session_close", "kill")
BESIDE = {
    "the process dies": fake_cdsp.DIES,
    "the process dies inside": fake_cdsp.DIES_INSIDE,
    "the call hangs": fake_cdsp.HANGS,
    "the answer is damaged": fake_cdsp.DAMAGES,
}
DEADLINE_MS = 2000


@functools.cache
def compiled(*, spare: bool = False) -> ts.Model:
    target = {"kind": "hexagon", "deadline_ms": DEADLINE_MS}
    return ts.compile(network(), [target], cpu_threads=1, spare=spare)


pytestmark = pytest.mark.filterwarnings(
    "ignore:expected .*the CPU runs everything"
)  # `spare` says so


@pytest.fixture
def model() -> ts.Model:
    """A model whose DSP runs; no failure is planned."""
    fake_cdsp.forget()
    until_it_works(compiled())
    return compiled()


ERRORS: list[str] = []
"""What runs raised, for messages of failed tests."""


def works(model: ts.Model) -> bool:
    """Whether a run gives the right answer; else it raises a `DeviceError`, and nothing else."""
    try:
        got = model(picture())
    except ts.DeviceError as error:
        assert "expected a DSP that runs, got " in str(error), error
        ERRORS.append(str(error))
        return False
    np.testing.assert_array_equal(got, wanted())
    return True


def until_it_works(model: ts.Model, most: int = 9) -> int:
    """Runs it until it works; how often it failed."""
    for failures in range(most):
        if works(model):
            return failures
        wait(model)
    raise AssertionError(model.health())


def wait(model: ts.Model) -> None:
    """Until the DSP may be started again."""
    time.sleep(model.health()["hexagon"]["pause_ms"] / 1000 + 0.001)


def restart(model: ts.Model) -> None:
    """Let the next but one run start the process again."""
    fake_cdsp.fail("remote_handle64_invoke", CODES["AEE_ECONNRESET"])
    assert not works(model)


@pytest.mark.parametrize("name", CODES)
def test_an_error_of_a_run(model: ts.Model, name: str) -> None:
    """The message names the call and the code, and says what to do."""
    fake_cdsp.fail("remote_handle64_invoke", CODES[name])
    with pytest.raises(ts.DeviceError, match=rf"remote_handle64_invoke: {name} \(0x\w+\), .{{20}}"):
        model(picture())
    assert works(model), ERRORS[-1]


@pytest.mark.parametrize("call", NEEDED)
def test_an_error_of_a_start(model: ts.Model, call: str) -> None:
    handles = fake_cdsp.counts()["handles"]
    restart(model)
    fake_cdsp.fail(call, CODES["AEE_EUNSUPPORTED"])
    with pytest.raises(ts.DeviceError, match="AEE_EUNSUPPORTED"):
        model(picture())
    assert fake_cdsp.counts()["handles"] < handles, "what was opened is closed again"
    wait(model)
    assert works(model)


@pytest.mark.parametrize("call", OTHERS)
def test_what_may_fail(model: ts.Model, call: str) -> None:
    """Old firmware lacks some calls, and a close that fails has nothing left to close."""
    fake_cdsp.fail(call, CODES["AEE_EUNSUPPORTED"])
    restart(model)
    assert until_it_works(model) <= 1


@pytest.mark.parametrize("what", BESIDE)
def test_what_else_happens_in_a_run(model: ts.Model, what: str) -> None:
    fake_cdsp.fail("remote_handle64_invoke", BESIDE[what])
    begin = time.monotonic()
    assert not works(model)
    assert time.monotonic() - begin < 15
    assert works(model)


def test_a_call_that_never_returns(model: ts.Model) -> None:
    """Not even when the process on the DSP was killed, which old firmware cannot do either."""
    fake_cdsp.fail("remote_handle64_invoke", fake_cdsp.HANGS_FOREVER)
    fake_cdsp.fail("kill", CODES["AEE_EUNSUPPORTED"])
    with pytest.raises(ts.DeviceError, match="no answer within the deadline"):
        model(picture())
    assert until_it_works(model) <= 1
    fake_cdsp.forget()


def test_killed_while_nothing_runs(model: ts.Model) -> None:
    os.kill(fake_cdsp.pid(), signal.SIGKILL)
    time.sleep(0.05)
    assert not works(model)
    assert works(model)


def test_models_share_the_process(model: ts.Model) -> None:
    """The first one finds it dead; each fails once, and handles of the new process stay open."""
    other = ts.compile(network(), ["hexagon"], cpu_threads=1)
    assert works(other)
    assert fake_cdsp.counts()["handles"] >= 2
    os.kill(fake_cdsp.pid(), signal.SIGKILL)
    assert not works(model) and works(model)
    assert not works(other) and works(other)
    assert works(model)


def test_scratch_of_kernels_is_in_vtcm(model: ts.Model) -> None:
    """It is borrowed for each run after the first, and the fake refuses every third time."""
    assert works(model)
    before = fake_cdsp.on_chip()
    assert all(works(model) for _ in range(6))
    after = fake_cdsp.on_chip()
    assert after["lent"] - before["lent"] == 4
    assert after["returned"] == after["lent"]
    assert after["written"]


def test_kernels_run_on_threads(model: ts.Model) -> None:
    """On two beside the call's own: of four vector units, and a third thread is refused."""
    assert works(model)
    seen = fake_cdsp.on_chip()
    assert seen["threads"] == 2
    assert 2 <= seen["most_locks"] <= 3


def test_threads_end_with_the_last_handle(model: ts.Model) -> None:
    restart(model)
    assert fake_cdsp.on_chip()["threads"] == 0
    assert works(model)
    assert fake_cdsp.on_chip()["threads"] == 2


def test_instances_on_threads(model: ts.Model) -> None:
    """They share weights, and the library on the DSP."""

    def run() -> None:
        done.extend(works(model) for _ in range(5))

    done: list[bool] = []
    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [True] * 15


def test_without_memory_that_both_share() -> None:
    """A model that loads then says so; with `spare` the CPU computes."""
    for call in ("rpcmem_alloc", "rpcmem_to_fd"):
        for spare in (False, True):
            fake_cdsp.forget()
            own = ts.compile(network(), ["hexagon"], cpu_threads=1, spare=spare)
            for _ in range(4):
                fake_cdsp.fail(call, 1)
            if spare:
                np.testing.assert_array_equal(own(picture()), wanted())
            else:
                with pytest.raises(ts.RunError, match="got none from rpcmem; run fewer"):
                    own(picture())
    fake_cdsp.forget()


def test_its_library_is_a_file_that_the_dsp_finds(model: ts.Model) -> None:
    getenv = ctypes.CDLL(None).getenv  # Python's copy is older
    getenv.restype = ctypes.c_char_p
    paths = [getenv(name).decode() for name in (b"DSP_LIBRARY_PATH", b"ADSP_LIBRARY_PATH")]
    assert paths[0] == paths[1]
    folder = Path(paths[0].split(";")[0])
    (library,) = folder.glob("libtvm_stretch_*_skel.so")
    library.unlink()
    fake_cdsp.fail("remote_handle64_invoke", fake_cdsp.DIES)
    assert until_it_works(model) == 1, "it is written again"


def injections(dice: np.random.Generator) -> list[tuple[str, int, int]]:
    """Up to three calls that fail: which, how, and after how many that do not."""
    failures = []
    for _ in range(int(dice.integers(1, 4))):
        needed = dice.random() < 0.8
        call = str(dice.choice(NEEDED if needed else OTHERS))
        ways = [*CODES.values(), *(BESIDE.values() if call == NEEDED[-1] else ())]
        failures.append((call, int(dice.choice(ways)), int(dice.integers(0, 3))))
    return failures


COUNT = int(os.environ.get("TVM_STRETCH_TEST_INJECTED", "40"))


def test_injected_errors(model: ts.Model) -> None:
    """Right answers by `spare`, or one `DeviceError` for each failure; then it works; no leak."""
    dice = np.random.default_rng(0)
    spare = compiled(spare=True)
    assert works(spare)
    before, injected = resources_after_a_restart(model, spare), 0
    while injected < COUNT:
        planned = injections(dice)
        injected += len(planned)
        chosen = spare if dice.random() < 0.5 else model
        for call, code, skip in planned:
            fake_cdsp.fail(call, code, skip)
        failed = 0
        for _ in range(4):
            failed += not works(chosen)
        assert failed == 0 if chosen is spare else failed <= 4
        fake_cdsp.forget()
        wait(chosen)
        assert until_it_works(chosen) <= 1, (planned, ERRORS[-9:])
    after = resources_after_a_restart(model, spare)
    assert after["descriptors"] <= before["descriptors"] + 2, (before, after)
    assert after["threads"] <= before["threads"] + 1, (before, after)
    for name in ("buffers", "registered", "handles", "mapped"):
        assert after[name] == before[name], (before, after)


def resources_after_a_restart(*models: ts.Model) -> dict[str, int]:
    """What models keep; a close that was let fail leaves its handle to the end of the process."""
    os.kill(fake_cdsp.pid(), signal.SIGKILL)
    for _ in range(3):
        for model in models:
            until_it_works(model)
    return resources()


def resources() -> dict[str, int]:
    """What a leak would add to."""
    own = Path("/proc/self")
    folders = {"descriptors": own / "fd", "threads": own / "task"}
    return {name: len([*path.iterdir()]) for name, path in folders.items()} | fake_cdsp.counts()
