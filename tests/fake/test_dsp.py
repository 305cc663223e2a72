"""The session with a DSP, whose program is one of this machine: what goes well, what fails."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from helpers.dsp_protocol import ANSWER, COMMAND
from helpers.dsp_targets import answer, compiled, control_file, dsp_processor, picture
from helpers.fake_targets import fake_processor
from helpers.killed import killed_while_it_runs
from helpers.relax_helpers import answers, module
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.run.autoload import load_native_library

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


def check(model: ts.Model, seed: int) -> None:
    x = picture(seed)
    np.testing.assert_array_equal(model(x), answer(x))


def health(model: ts.Model) -> dict[str, Any]:
    return model.health()["dsp"]


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> float:
    """How long it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() < start + seconds
        time.sleep(0.001)
    return time.monotonic() - start


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_runs_and_says_how_it_is() -> None:
    model = compiled()
    for seed in range(5):
        check(model, seed)
    state = health(model)
    assert (state["state"], state["starts"], state["failures"]) == ("running", 1, 0)
    assert state["regions"] == 5 and is_alive(state["pid"])
    timeline = model.timeline()
    assert any(usage.processor == "dsp" and usage.kernels > 0 for usage in timeline.usage)
    assert str(timeline.execution).startswith("0 of ")
    pid = state["pid"]
    del model
    wait_until(lambda: not is_alive(pid))


def test_parts_of_a_tensor_begin_at_any_byte() -> None:
    """Copies put them together and take them apart."""

    def body(x: relax.Expr) -> relax.Expr:
        both = relax.op.concat([relax.op.nn.max_pool2d(x), relax.op.nn.relu(x)], axis=1)
        part = relax.op.strided_slice(both, axes=[1], begin=[1], end=[4])
        return relax.op.maximum(part, x)

    mod = module(body, (1, 3, 5, 5), dtype="uint8")
    x = np.random.default_rng(0).integers(0, 256, (1, 3, 5, 5)).astype("uint8")
    model = ts.compile(mod, [dsp_processor()], cpu_threads=1)
    np.testing.assert_array_equal(model(x), answers(mod, x)[0])
    assert health(model)["regions"] > 0


def test_futures_and_instances() -> None:
    model = compiled()
    other = model.create_instance()
    futures = [m.run_async(picture(seed)) for seed in range(6) for m in (model, other)]
    for number, future in enumerate(futures):
        np.testing.assert_array_equal(future.result(), answer(picture(number // 2)))
    assert health(model)["pid"] != health(other)["pid"]


def test_an_artifact_carries_the_program(tmp_path: Path) -> None:
    compiled().export(tmp_path / "net.so")
    check(ts.load(tmp_path / "net.so"), 0)


def test_a_killed_dsp_is_an_error_and_starts_again() -> None:
    model = compiled()
    check(model, 0)
    first = health(model)["pid"]
    future = killed_while_it_runs(model, "dsp", picture(1))
    with pytest.raises(ts.DeviceError, match=r"'dsp' \(a DSP for tests\).*killed by signal 9"):
        future.result()
    check(model, 2)
    state = health(model)
    assert (state["state"], state["starts"], state["failures"]) == ("running", 2, 1)
    assert state["pid"] != first


def test_death_is_seen_while_nothing_runs() -> None:
    model = compiled()
    check(model, 0)
    wait_until(lambda: health(model)["state"] == "running")
    os.kill(health(model)["pid"], signal.SIGKILL)
    wait_until(lambda: health(model)["state"] == "failed")


@pytest.mark.full
def test_a_dsp_that_freezes_while_nothing_runs() -> None:
    """It is asked now and then whether it is there; who needs it next finds one that is."""
    model = compiled()
    check(model, 0)
    pid = health(model)["pid"]
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: health(model)["state"] == "failed")
    assert health(model)["last_failure"] == "no answer within the deadline"
    assert not is_alive(pid)
    check(model, 1)
    assert health(model)["starts"] == 2


def test_its_cores_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the thread that talks to it, and so of its process; nothing else changes them."""
    core = max(os.sched_getaffinity(0))
    monkeypatch.setenv("TVM_STRETCH_DSP_CPUS", str(core))
    model = compiled()
    model.set_affinity([min(os.sched_getaffinity(0))])
    check(model, 0)
    assert os.sched_getaffinity(health(model)["pid"]) == {core}
    for wrong in ("the little ones", "1023"):
        monkeypatch.setenv("TVM_STRETCH_DSP_CPUS", wrong)
        with pytest.raises(ts.InputError, match=rf"for TVM_STRETCH_DSP_CPUS, got '{wrong}'"):
            compiled()(picture(0))


def test_a_stopped_dsp_fails_at_its_deadline() -> None:
    model = compiled(deadline_ms=200)
    check(model, 0)
    pid = health(model)["pid"]
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ts.DeviceError, match="no answer within the deadline"):
        model(picture(1))
    assert not is_alive(pid)
    check(model, 2)


def test_with_a_spare_the_cpu_computes_the_run_and_the_dsp_comes_back() -> None:
    model = compiled(spare=True)
    check(model, 0)
    with pytest.warns(RuntimeWarning, match=r"killed by signal 9.*the CPU runs everything now"):
        np.testing.assert_array_equal(
            killed_while_it_runs(model, "dsp", picture(1)).result(), answer(picture(1))
        )
    check(model, 2)
    assert model.lost is None
    assert health(model)["starts"] == 2


def test_it_comes_back_beside_a_processor_that_never_would() -> None:
    model = compiled(spare=True, more=(fake_processor(),))
    check(model, 0)
    with pytest.warns(RuntimeWarning, match=r"killed by signal 9"):
        killed_while_it_runs(model, "dsp", picture(1)).result()
    check(model, 2)
    assert model.lost is None


def test_who_spins_longer_than_the_deadline_keeps_to_it() -> None:
    model = compiled(deadline_ms=200, spin_us=30_000_000)
    check(model, 0)
    os.kill(health(model)["pid"], signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises(ts.DeviceError, match="no answer within the deadline"):
        model(picture(1))
    assert time.monotonic() - start < 20


def test_the_end_does_not_wait_for_a_dsp_that_starts() -> None:
    model = compiled(command=("/bin/sh", "-c", "exec sleep 60"))
    assert health(model)["state"] == "starting"
    start = time.monotonic()
    del model
    assert time.monotonic() - start < 15  # less than what a start may take


# What another writes into the mailbox while the DSP waits for the next command.
SCRIBBLES = {
    "answer": (ANSWER, struct.pack("<4I", 77, 0, 0, 1)),
    "number of the command": (COMMAND, struct.pack("<I", 99)),
    "dsp_sleeps": (256, b"\xff\xff"),
}


@pytest.mark.parametrize("kind", SCRIBBLES)
def test_what_is_written_over_the_mailbox_is_noticed(kind: str) -> None:
    model = compiled(spare=True)
    check(model, 0)
    place, value = SCRIBBLES[kind]
    if kind == "answer":  # else a quick DSP answers before the scribble is seen
        os.kill(health(model)["pid"], signal.SIGSTOP)
    with control_file() as memory:
        memory[place : place + len(value)] = value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(model, 1)
        check(model, 2)
    failures = health(model)["failures"]
    assert failures == 1 if kind == "answer" else failures <= 1  # it may be gone before it is read


def test_a_dsp_that_does_not_start() -> None:
    with pytest.raises(ts.DeviceError, match=r"no-such-emulator.*install it"):
        compiled(command=("no-such-emulator",))(picture(0))
    model = compiled(command=("/bin/sh", "-c", "echo out of order >&2; exit 3"), spare=True)
    with pytest.warns(RuntimeWarning, match="ended with code 3: out of order"):
        check(model, 0)
    for seed in range(8):
        check(model, seed)  # not started again each time
    state = health(model)
    assert state["starts"] == 0 and state["pause_ms"] > 0 and state["failures"] < 5


def code(program: bytes, **said: object) -> Any:
    """The executor's module of a program."""
    launch = {"kernels": [], "emulator": [], "runs_here": True, "device": "a DSP"}
    text = json.dumps({**launch, "spin_us": 50, "deadline_ms": 100, **said})
    load_native_library()
    return tvm.get_global_func("tvm_stretch.create_dsp_code")(text, program)


@pytest.mark.parametrize(
    ("program", "said", "message"),
    [
        (b"\x7fEL", {}, "expected an ELF file for the program"),
        (b"\x7fELF", {"kernels": ["a", "a"]}, "expected each name once for kernels"),
        (b"\x7fELF", {"spin_us": -1}, "expected an integer in .0, 86400000. for spin_us"),
        (b"\x7fELF", {"emulator": "qemu"}, "expected a list for emulator"),
    ],
)
def test_code_that_is_no_dsp_s(program: bytes, said: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        code(program, **said)


@pytest.mark.parametrize("damaged", [b"", b"TVMSTRD1", b"TVMSTRD1" + bytes(200), bytes(64)])
def test_a_damaged_program_is_refused(damaged: bytes) -> None:
    load_native_library()
    load = tvm.get_global_func("ffi.Module.load_from_bytes.tvm_stretch.dsp")
    with pytest.raises(ValueError, match="expected an undamaged program of the DSP"):
        load(damaged)


def test_a_program_that_cannot_run_is_a_clear_error() -> None:
    """It has the name of an ELF file and is none."""
    model = compiled(command=("/bin/cat",))  # prints its files instead of running one
    with pytest.raises(ts.DeviceError, match=r"'dsp' \(a DSP for tests\).*ended with code"):
        model(picture(0))
