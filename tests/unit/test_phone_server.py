"""`tvm_stretch_rpc`, the phone's side without Python: sessions, faults, hostile clients."""

from __future__ import annotations

import functools
import itertools
import os
import random
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from helpers.hostile_clients import greet_badly, has_session, talk_nonsense
from helpers.rpc_processes import Phone, Tracker, native_server
from helpers.small_models import build, random_input, scaled_model
from tvm import relax, rpc, te, tirx
from tvm.rpc.base import RPC_MAGIC

import tvm_stretch as ts
from tvm_stretch.base.errors import DeviceError
from tvm_stretch.phone import uploads
from tvm_stretch.phone.device import RemoteModule
from tvm_stretch.run.model import Model

pytest.importorskip("tornado")

X = random_input()
TIMEOUT = 2.0

Start = Callable[..., Phone]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def tracker(stack: ExitStack) -> Tracker:
    made = Tracker()
    stack.callback(lambda: made.kill())
    return made


@pytest.fixture
def start(stack: ExitStack, tracker: Tracker) -> Start:
    """Starts phones at the tracker; they are killed in the end."""

    def started(*options: str) -> Phone:
        phone = Phone("--tracker", tracker.address, *options)
        stack.callback(phone.kill)
        return phone

    return started


def connect(tracker: Tracker, stack: ExitStack, **settings: object) -> ts.Device:
    options = {"timeout": TIMEOUT, "wait": 5.0, **settings}
    return stack.enter_context(ts.connect(tracker.address, "pixel", **options))  # type: ignore[arg-type]


def within(seconds: float, action: Callable[[], object], match: str) -> None:
    """The action ends in one DeviceError in time."""
    began = time.monotonic()
    with pytest.raises(DeviceError, match=match):
        action()
    assert time.monotonic() - began < seconds


# --- as it should be ------------------------------------------------------------------------------


def test_sessions_one_after_the_other(tracker: Tracker, start: Start, stack: ExitStack) -> None:
    start()
    model = scaled_model()
    device = connect(tracker, stack)
    assert device.describe().cores
    there = device.load(model)
    np.testing.assert_array_equal(there(X), model(X))
    device.close()
    again = connect(tracker, stack)
    np.testing.assert_array_equal(again.load(model)(X), model(X))
    again.close()
    np.testing.assert_array_equal(there(X), model(X))  # in a session of its own accord


def test_a_wall_clock_that_jumps(
    tracker: Tracker, start: Start, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody sets it, years forth and back: nothing waits for it, and no run took so long."""
    now, jumps = time.time, itertools.cycle((0.0, -1e8, 1e8))
    monkeypatch.setattr(time, "time", lambda: now() + next(jumps))
    start()
    model = scaled_model()
    device = connect(tracker, stack)
    there = device.load(model)
    np.testing.assert_array_equal(there.run_async(X).result(), model(X))
    assert all(0 < seconds < TIMEOUT for seconds in there.benchmark(5).samples)
    assert 0 < there.timeline(repeat=1).duration < 1e9 * TIMEOUT
    nobody = functools.partial(ts.connect, tracker.address, "nobody", wait=0.5)
    within(5.0, nobody, match="none of that key")


def endless_model() -> Model:
    """A hundred kernels of about 50 ms."""
    terms = te.reduce_axis((0, 400_000), "terms")

    def emit_sums(x: te.Tensor) -> te.Tensor:
        return te.compute(
            (16,), lambda i: te.sum(tirx.sin(x[i] * terms.astype("float32")), axis=terms)
        )

    def emit(builder: relax.BlockBuilder, params: list[relax.Var]) -> list[relax.Expr]:
        value = params[0]
        for _ in range(100):
            value = builder.emit_te(emit_sums, value)
        return [value]

    return build(emit, {"x": ((16,), "float32")})


def test_a_run_is_cancelled(tracker: Tracker, start: Start, stack: ExitStack) -> None:
    """While a network runs, its session hears nothing; it goes on afterwards."""
    start()
    device = connect(tracker, stack, timeout=60.0)
    there = device.load(endless_model())
    futures = [there.run_async(np.zeros(16, "float32")) for _ in range(2)]
    while not futures[0].running():
        time.sleep(0.001)
    futures[0].cancel()
    assert futures[1].cancel()
    with pytest.raises(CancelledError):
        futures[0].result(timeout=50)
    model = scaled_model()
    np.testing.assert_array_equal(device.load(model)(X), model(X))
    assert device.session_number == 1


def test_affinity_holds_in_later_sessions(tracker: Tracker, start: Start, stack: ExitStack) -> None:
    start()
    device = connect(tracker, stack)
    there = device.load(scaled_model())
    with pytest.raises(DeviceError, match="cores that this process may use"):
        there.set_affinity([1000])
    there.set_affinity([core := max(os.sched_getaffinity(0))])
    device.close()
    asked: list[tuple[object, ...]] = []
    answered = RemoteModule.__getitem__

    def noted(module: RemoteModule, method: str) -> Callable[..., object]:
        def called(*given: object) -> object:
            asked.append((module.session, method, *given))
            return answered(module, method)(*given)

        return called

    stack.enter_context(mock.patch.object(RemoteModule, "__getitem__", noted))
    assert there(X).shape == X.shape
    assert (2, "set_affinity", str(core)) in asked


def test_a_store_outlives_sessions(
    tracker: Tracker, start: Start, stack: ExitStack, tmp_path: Path
) -> None:
    start("--store", str(tmp_path))
    model = scaled_model()
    for sent in (True, False):
        device = connect(tracker, stack)
        device.load(model)
        assert (device.sent_bytes > 0) == sent
        device.close()


def test_relative_folders(
    tracker: Tracker,
    start: Start,
    stack: ExitStack,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sessions work elsewhere; a store that is not there is made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", ".")
    start("--store", "phone/store")
    device = connect(tracker, stack)
    assert device.load(scaled_model())(X).shape == X.shape
    assert len(list(tmp_path.glob("phone/store/*.so"))) == 1
    assert list(tmp_path.glob("tvm_stretch_rpc.*"))


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--store", "file/store", "folder that we may write to for --store"),
        ("--store", "file", "folder that we may write to for --store"),
        ("--store-limit", "0", "more than 0 for --store-limit"),
        ("--secret-file", ".", "at least 8 characters for --secret-file"),
    ],
)
def test_options_that_cannot_be(option: str, value: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command, environment = native_server()
    words = [*command, "--key", "pixel", "--tracker", "127.0.0.1:1", option, value]
    done = subprocess.run(
        words, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 2 and said in done.stderr


def test_several_threads_connect(tracker: Tracker, start: Start, stack: ExitStack) -> None:
    """Each session has a socket of its own, whatever the others look through meanwhile."""
    phones = [start() for _ in range(4)]
    for _ in range(3):
        with ThreadPoolExecutor(len(phones)) as pool:
            devices = list(pool.map(lambda _: connect(tracker, stack), phones))
            assert all(pool.map(lambda device: device.describe().cores, devices))
            list(pool.map(lambda device: device.close(), devices))


def test_a_secret(tracker: Tracker, start: Start, stack: ExitStack, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("correct horse\n")
    start("--secret-file", str(tmp_path / "secret"))
    for wrong in ("", "battery staple"):
        within(3, lambda wrong=wrong: connect(tracker, stack, secret=wrong), "secret")  # type: ignore[misc]
    # a refused client has used up the key that the tracker gave it: another one is offered
    assert connect(tracker, stack, secret="correct horse\n", wait=30.0).describe().cores


# --- faults ---------------------------------------------------------------------------------------


def test_a_phone_that_is_killed_and_another_that_comes(
    tracker: Tracker, start: Start, stack: ExitStack
) -> None:
    phone = start()
    model = scaled_model()
    there = connect(tracker, stack).load(model)
    threading.Timer(0.3, lambda: phone.signal(signal.SIGKILL)).start()
    within(
        TIMEOUT + 5,
        lambda: there.benchmark(10**6),
        "^expected pixel (to answer time_runs|from the tracker)",
    )
    start()
    np.testing.assert_array_equal(there(X), model(X))


def test_a_phone_that_is_killed_in_mid_upload(
    tracker: Tracker, start: Start, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    phone = start()
    device = connect(tracker, stack, wait=1.0)
    monkeypatch.setattr(uploads, "PIECE", 1000)  # several of them for one file
    send, offsets = uploads._send, []

    def sent(asks: Any, name: str, offset: int, piece: bytes, *given: Any) -> int:
        offsets.append(offset)
        if offset:
            phone.signal(signal.SIGKILL)
        return send(asks, name, offset, piece, *given)

    monkeypatch.setattr(uploads, "_send", sent)
    within(TIMEOUT + 5, lambda: device.load(scaled_model()), "^expected pixel ")
    assert max(offsets) > 0


@pytest.mark.full
def test_a_phone_that_freezes(tracker: Tracker, start: Start, stack: ExitStack) -> None:
    phone = start()
    there = connect(tracker, stack).load(scaled_model())
    phone.signal(signal.SIGSTOP)
    within(TIMEOUT + 5, lambda: there(X), "^expected pixel to run the model, got 'nothing for 2 s'")
    within(7, lambda: connect(tracker, stack, wait=1.0), "none free of 1|begin a session")


def test_a_session_that_dies_leaves_the_server(
    tracker: Tracker, start: Start, stack: ExitStack
) -> None:
    phone = start()
    there = connect(tracker, stack).load(scaled_model())
    session = phone.session()
    assert session is not None
    os.kill(session, signal.SIGSEGV)
    time.sleep(0.1)
    assert there(X).shape == X.shape, "in another session"


@pytest.mark.full
def test_a_tracker_that_dies_meanwhile(tracker: Tracker, start: Start, stack: ExitStack) -> None:
    """Open sessions go on; the phone comes back to the tracker when it does."""
    start()
    device = connect(tracker, stack)
    there = device.load(scaled_model())
    tracker.kill()
    assert there(X).shape == X.shape
    device.close()
    within(5, lambda: there(X), r"pixel from the tracker .*refused")
    back = Tracker(tracker.port)
    stack.callback(back.kill)
    device = connect(back, stack, wait=20.0)
    assert device.load(scaled_model())(X).shape == X.shape


def test_a_tracker_whose_name_nobody_looks_up(tmp_path: Path) -> None:
    """The server goes on: it refuses clients, because no tracker has lent it."""
    (tmp_path / "names.c").write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <netdb.h>\n#include <unistd.h>\n"
        "int getaddrinfo(const char* name, const char* b, const struct addrinfo* c,\n"
        "                struct addrinfo** d) {\n"
        "  int (*real)(const char*, const char*, const void*, void*) =\n"
        "      dlsym(RTLD_NEXT, __func__);\n"
        "  const int asks = name && name[0] == 't' && !(c->ai_flags & AI_NUMERICHOST);\n"
        "  return asks ? sleep(1000), 1 : real(name, b, c, d);\n}\n"
    )
    hanging = tmp_path / "names.so"
    make = ["g++", "-x", "c", "-shared", "-fPIC", "-w", "-o", hanging, tmp_path / "names.c", "-ldl"]
    subprocess.run(make, check=True)
    command = ["env", f"LD_PRELOAD={hanging}", *native_server()[0]]
    began = time.monotonic()
    phone = Phone("--tracker", "tracker.example:9190", command=command, offered=False)
    try:
        with socket.create_connection(("127.0.0.1", phone.port), timeout=20) as client:
            client.sendall(struct.pack("<ii", RPC_MAGIC, 5) + b"hello")
            assert client.recv(4)
        assert time.monotonic() - began < 4
    finally:
        phone.kill()


@pytest.mark.full
def test_a_tracker_that_freezes(tracker: Tracker, stack: ExitStack) -> None:
    os.kill(tracker.pid, signal.SIGSTOP)
    within(10, lambda: connect(tracker, stack, wait=0.5), "within 0.5 s, got no answer")


def test_two_clients_of_one_phone(tracker: Tracker, start: Start, stack: ExitStack) -> None:
    start()
    first = connect(tracker, stack)
    within(5, lambda: connect(tracker, stack, wait=0.5), "none free of 1")
    within(5, lambda: ts.connect(tracker.address, "mi", wait=0.5), "of that key; it knows pixel")
    threading.Timer(0.2, first.close).start()
    assert connect(tracker, stack).describe().cores


def test_a_disk_that_is_full(tracker: Tracker, start: Start, stack: ExitStack) -> None:
    """As its limits say; files beyond `--upload-limit` fail in whatever way they are written."""
    start("--upload-limit", "0.001")
    device = connect(tracker, stack)
    within(TIMEOUT + 5, lambda: device.load(scaled_model()), "room for an upload .* too large")
    assert device.describe().cores, "the session lives"
    device.close()


@pytest.mark.full
def test_a_session_has_its_time(tracker: Tracker, start: Start, stack: ExitStack) -> None:
    start("--session-limit", "3")
    there = connect(tracker, stack, timeout=10.0).load(scaled_model())
    within(
        8,
        lambda: there.benchmark(10**8),
        "session has expired|no session|end of the session|reset|pipe",
    )


# --- hostile clients ------------------------------------------------------------------------------


def test_hostile_bytes_on_the_port(tracker: Tracker, start: Start, stack: ExitStack) -> None:
    phone = start()
    greet_badly(phone.port, random.Random(0))
    with socket.create_connection(("127.0.0.1", phone.port)):  # says nothing, and stays
        assert connect(tracker, stack, wait=20.0).describe().cores
    assert phone.is_running


@pytest.mark.parametrize("said", [b"", struct.pack("<ii", RPC_MAGIC, 20) + b"client:"])
def test_strangers_who_do_not_go_on(
    said: bytes, tracker: Tracker, start: Start, stack: ExitStack
) -> None:
    """However many there are, nobody waits for them."""
    phone = start()
    for _ in range(200):
        stranger = socket.create_connection(("127.0.0.1", phone.port))
        stack.callback(stranger.close)
        stranger.sendall(said)
    began = time.monotonic()
    device = connect(tracker, stack, wait=60.0)
    assert time.monotonic() - began < 2
    there = device.load(endless_model())
    future = there.run_async(np.zeros(16, "float32"))
    while not future.running():
        time.sleep(0.001)
    future.cancel()  # which is a connection, too
    with pytest.raises(CancelledError):
        future.result(timeout=50)


def test_a_tracker_that_says_nothing_keeps_nobody_waiting(stack: ExitStack) -> None:
    silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    phone = Phone("--tracker", f"127.0.0.1:{silent.getsockname()[1]}", offered=False)
    stack.callback(phone.kill)
    asking, _ = silent.accept()
    stack.callback(asking.close)
    for _ in range(5):
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", phone.port), timeout=20) as client:
            client.sendall(struct.pack("<ii", RPC_MAGIC, 5) + b"hello")
            assert client.recv(4) == struct.pack("<i", RPC_MAGIC + 2)
        assert time.monotonic() - began < 2


def test_a_session_keeps_no_connection_of_others(stack: ExitStack) -> None:
    """Who was refused hears the end at once, not with the session that began meanwhile."""
    phone = Phone()
    stack.callback(phone.kill)
    waiting = stack.enter_context(socket.create_connection(("127.0.0.1", phone.port), timeout=20))
    session = rpc.connect("127.0.0.1", phone.port, "pixel")
    assert session.cpu(0).exist
    waiting.sendall(struct.pack("<ii", RPC_MAGIC, 5) + b"hello")
    assert waiting.recv(4) == struct.pack("<i", RPC_MAGIC + 1)
    assert waiting.recv(4) == b""


def test_hostile_bytes_in_a_session(stack: ExitStack) -> None:
    """They may end that session, and nothing else."""
    phone = Phone()
    stack.callback(phone.kill)
    talk_nonsense(phone.port, random.Random(1))
    assert has_session(phone.port)
    assert phone.is_running


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "a name for --key"),
        (["--key"], "a value for --key"),
        (["--key", "a b"], "a name for --key"),
        (["--key", 'a"'], "a name for --key"),
        (["--key", "a", "--tracker", "nowhere"], "HOST:PORT for --tracker"),
        (["--key", "a", "--port", "99999"], "a number up to 65535 for --port"),
        (["--key", "a", "--upload-limit", "many"], "a number up to 1000000 for --upload-limit"),
        (["--key", "a", "--secret-file", "/dev/null"], "at least 8 characters"),
        (["--key", "a", "--what", "b"], "one of ours for an option"),
        (["--key", "a", "--library", "/none.so"], "a library of this device"),
        (["--key", "a", "--host", "203.0.113.1"], "a free address"),
    ],
)
def test_wrong_options(words: list[str], problem: str) -> None:
    command, environment = native_server()
    program, libraries = command[:1], command[1:]
    libraries = [] if "--library" in words else libraries
    done = subprocess.run(
        [*program, *libraries, *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    assert done.returncode == 2 and problem in done.stderr, done.stderr
