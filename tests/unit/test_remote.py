"""Devices behind RPC: what they say of themselves, models on them, uploads, who is refused."""

from __future__ import annotations

import fcntl
import json
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.cpu_targets import TARGET
from helpers.described_phone import BIG, DSP, PHONE, described
from helpers.relax_helpers import module
from helpers.small_models import random_input, scaled_model, scaled_reference
from tvm import relax, rpc
from tvm.rpc.base import RPC_TRACKER_MAGIC

import tvm_stretch as ts
from tvm_stretch.base.errors import (
    ArtifactError,
    CostModelError,
    DeviceError,
    InputError,
    TargetError,
)
from tvm_stretch.phone.description import Description
from tvm_stretch.phone.device_processors import processors_of
from tvm_stretch.phone.link import Link, _descriptor
from tvm_stretch.phone.wire import Deadline, Seat, parse_address, readable, receive
from tvm_stretch.plan.cost.fingerprint import default_folder
from tvm_stretch.targets.cpu.cpu import checked_features, cpu_processor
from tvm_stretch.targets.registry import tvm_target

X = random_input()


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ts.Device:
    """This process as a device, with a cache of its own."""
    monkeypatch.setenv("TVM_STRETCH_STORE", str(tmp_path))
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", str(tmp_path / "cache"))
    return ts.connect(rpc.LocalSession(), "pixel")


# --- what a device says of itself -----------------------------------------------------------------


def test_a_phone_becomes_processors() -> None:
    """Its big cores, by LLVM's name; its GPU with the driver's limits, by the GPU's family."""
    (cpu, opencl), placeable = processors_of(described(), None, None)
    assert placeable == [cpu, opencl]
    assert (cpu.threads, cpu.machine.lanes, str(cpu.target.attrs["mcpu"])) == (4, 4, "cortex-a76")
    assert str(opencl.target.attrs["device"]) == "adreno"
    assert opencl.machine.gpu.max_group_items == 1024
    assert {p.hardware.device for p in placeable} == {"pixel"}
    assert not any(p.hardware.runs_here for p in placeable)
    (host,), _ = processors_of(described(), "llvm", 2)
    assert host.threads == 2
    both, (gpu,) = processors_of(described(), ["opencl"], None)
    assert [p.name for p in both] == ["cpu", "opencl"] and gpu.name == "opencl"


def test_a_kind_alone_is_the_device_s_own_however_it_is_written() -> None:
    (cpu, opencl), _ = processors_of(described(), [{"kind": "llvm"}, {"kind": "opencl"}], None)
    assert str(cpu.target.attrs["mcpu"]) == "cortex-a76"
    assert opencl.machine.gpu.max_group_items == 1024
    (_, little), _ = processors_of(described(), ["llvm", {"kind": "little-cores"}], None)
    assert little.hardware.cores == (0, 1, 2, 3)


def test_features_that_the_system_hides_are_not_used() -> None:
    """LLVM believes that every Cortex-A76 has `dotprod`; this one's system does not let us."""
    found = described(features=["crc", "neon"])
    assert found.target()["mattr"] == ["+crc", "+neon"]
    unknown = described(cores=[{"number": 0, **BIG, "part": "0x99:0x1"}])
    assert "mcpu" not in unknown.target() and "+dotprod" in unknown.target()["mattr"]


def test_what_llvm_takes_for_granted_is_not_used_where_it_is_hidden() -> None:
    """LLVM believes that whoever has `avx2` has `ssse3`: its kernels would be refused there."""
    core = {"number": 0, **BIG, "part": ""}
    found = described(triple="x86_64-linux-gnu", features=["avx2", "sse3"], cores=[core])
    (host,), _ = processors_of(found, "llvm", 1)
    assert found.lacks(checked_features(host.target)) == ()


def test_a_description_is_a_table() -> None:
    text = str(described())
    parts = ("cores 4,5,6,7: cortex-a76, big, 2840 MHz", "little", "Adreno", "6.0 GiB", "v66 of SM")
    assert all(part in text for part in parts)
    assert "none (no driver)" in str(described(opencl=[], why_no_opencl="no driver"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        *(
            json.dumps({**PHONE, **wrong})
            for wrong in (
                {"version": 1},
                {"cores": []},
                {"cores": [{"number": 0, **BIG, "part": {}}]},
                {"memory": "much"},
                {"features": [1]},
                {"features": 3},
                {"features": ["neon", "dotprot"]},
                {"triple": "aarch65-linux-gnu"},
                {"opencl": 5},
                {"opencl": [5]},
                {"dsp": 5},
                {"dsp": {**DSP, "soc": "339"}},
                {"dsp": {**DSP, "node": None}},
            )
        ),
    ],
)
def test_what_is_no_description(text: str) -> None:
    with pytest.raises(DeviceError, match="what pixel says of itself"):
        Description.read(text, "pixel")


def test_a_phone_without_opencl_says_why() -> None:
    found = described(opencl=[], why_no_opencl="expected a driver, got none")
    with pytest.raises(TargetError, match=r"OpenCL device on pixel, got none: expected a driver"):
        processors_of(found, ["llvm", "opencl"], None)


# --- models there ---------------------------------------------------------------------------------


def test_a_model_there_is_a_model(device: ts.Device) -> None:
    model = scaled_model()
    there = device.load(model)
    np.testing.assert_array_equal(there(X), model(X))
    np.testing.assert_array_equal(there.run_async(x=X).result(), model(X))
    np.testing.assert_array_equal(there.create_instance()(2 * X), model(2 * X))
    assert len(there.benchmark(7).samples) == 7 and min(there.benchmark(2).samples) > 0
    with pytest.raises(InputError, match="at least 1 for repeat, got 0"):
        there.benchmark(0)
    assert len(there.profile(2).kernels) == len(model.graph.nodes)
    assert there.timeline(repeat=1).duration > 0
    there.set_affinity(None)
    with pytest.raises(DeviceError, match=r"cores that this process may use .* \(pixel was to ans"):
        there.set_affinity([1023])
    with pytest.raises(InputError, match="expected the inputs"):
        there()


def test_what_is_there_is_not_sent_again(device: ts.Device) -> None:
    model = scaled_model()
    device.load(model)
    sent = device.sent_bytes
    assert sent > model.graph.weights_bytes
    device.load(model)
    assert device.sent_bytes == sent
    other = ts.Model(model.module, parts=model.parts.explained("another plan"))
    device.load(other)
    assert 0 < device.sent_bytes - sent < sent - model.graph.weights_bytes + 4096, "no weights"


def test_an_artifact_there(device: ts.Device, tmp_path: Path) -> None:
    scaled_model().export(tmp_path / "model.so")
    for source in (tmp_path / "model.so", ts.load(tmp_path / "model.so")):
        np.testing.assert_allclose(device.load(source)(X), scaled_reference(X), rtol=1e-5)


def test_an_artifact_that_is_removed_while_it_is_loaded(
    device: ts.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.so"
    scaled_model().export(path)
    monkeypatch.setattr("tvm_stretch.phone.remote_model._require_machine", lambda *_: path.unlink())
    np.testing.assert_allclose(device.load(path)(X), scaled_reference(X), rtol=1e-5)
    assert not path.exists()  # the bytes that were checked are the bytes that are sent


def test_a_disk_that_is_full_here(device: ts.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tvm_stretch.run.parts.Parts.write_weights", full)
    with pytest.raises(ArtifactError, match=r"a place to write what is sent .*no space left"):
        device.load(scaled_model())


def test_uploads_are_limited(device: ts.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_STRETCH_STORE_BYTES", "1000")
    with pytest.raises(DeviceError, match=r"room for an upload .* limit of 1000"):
        device.load(scaled_model())


def test_what_is_too_large_replaces_nothing(
    device: ts.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_STRETCH_STORE_BYTES", "1000")
    old, new = "0" * 64 + ".bin", "1" * 64 + ".bin"
    device.call("to take it", "tvm_stretch.store_put", old, 0, bytearray(900))
    for offset, size in ((0, 1001), (600, 500), (1 << 62, 1)):
        with pytest.raises(DeviceError, match="beyond the limit of 1000"):
            device.call("to take it", "tvm_stretch.store_put", new, offset, bytearray(size))
    assert [path.name[:68] for path in tmp_path.glob("*.part")] == [old]


@pytest.mark.parametrize("name", ["../../etc/passwd", "0" * 64, "0" * 64 + ".so/../x", "x.so"])
def test_uploads_stay_in_their_folder(device: ts.Device, name: str) -> None:
    for function, rest in (("has", ()), ("put", (0, bytearray(1))), ("path", ())):
        with pytest.raises(DeviceError, match="expected 64 digits"):
            device.call("to take it", f"tvm_stretch.store_{function}", name, *rest)


def test_a_damaged_upload_is_not_kept(device: ts.Device) -> None:
    name = "0" * 64 + ".bin"
    device.call("to take it", "tvm_stretch.store_put", name, 0, bytearray(b"abc"))
    with pytest.raises(DeviceError, match="3 bytes as they were sent"):
        device.call("to take it", "tvm_stretch.store_finish", name, 3, 12345)
    assert not device.call("to have it", "tvm_stretch.store_has", name)


def test_models_that_do_not_fit_are_not_sent(
    device: ts.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device would die of SIGILL; a model for another machine is refused likewise."""
    real = device.describe()
    poor = Description(**{**vars(real), "features": ()})
    monkeypatch.setattr(device, "describe", lambda: poor)
    network = module(lambda x: relax.op.nn.relu(x), (1, 16))
    with pytest.raises(ArtifactError, match="one that needs "):
        device.load(ts.compile(network, TARGET, cpu_threads=1))
    foreign = Description(**{**vars(real), "triple": "riscv64-linux-gnu"})
    monkeypatch.setattr(device, "describe", lambda: foreign)
    with pytest.raises(ArtifactError, match="pixel, which is riscv64, got one for"):
        device.load(ts.compile(network, {"kind": "llvm", "mtriple": real.triple}, cpu_threads=1))
    assert device.sent_bytes == 0


# --- compiling for it -----------------------------------------------------------------------------


def test_a_network_is_compiled_for_a_device(device: ts.Device) -> None:
    network = module(lambda x: relax.op.nn.relu(x), (1, 16))
    model = ts.compile(network, ["llvm"], device=device, cpu_threads=1)
    x = np.linspace(-1, 1, 16, dtype="float32").reshape(1, 16)
    np.testing.assert_array_equal(device.load(model)(x), np.maximum(x, 0))
    # without it, by what it said: the same kernels
    offline = ts.compile(network, ["llvm"], device="pixel", cpu_threads=1)
    assert offline.graph == model.graph
    with pytest.raises(CostModelError, match="expected a known device"):
        ts.compile(network, device="never-seen")


def test_models_of_a_device_are_its_own(device: ts.Device) -> None:
    """Its measurements lie in a folder of its own, which nobody else's compile reads."""
    (cpu,), _ = processors_of(device, ["llvm"], 1)
    here = cpu_processor(tvm_target(device.describe().target()), 1)
    other = ts.connect(rpc.LocalSession(), "mi")
    (its,), _ = processors_of(other, ["llvm"], 1)
    assert len({default_folder(p) for p in (cpu, here, its)}) == 3


# --- a tracker, or none ---------------------------------------------------------------------------

Talk = Callable[[socket.socket], None]


@pytest.fixture
def listening() -> Iterator[Callable[[Talk], str]]:
    """Starts who answers each connection as scripted; gives the address."""
    opened: list[socket.socket] = []

    def start(talk: Talk) -> str:
        server = socket.create_server(("127.0.0.1", 0))
        opened.append(server)

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                    opened.append(client)
                    talk(client)
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        return f"127.0.0.1:{server.getsockname()[1]}"

    yield start
    for one in opened:
        one.close()


def silent(_client: socket.socket) -> None:
    """A frozen process: the system still takes connections for it."""


def number(value: int) -> bytes:
    return value.to_bytes(4, "little", signed=True)


def tracker(*answers: bytes) -> Talk:
    """Greets as TVM's tracker does, then answers each message."""

    def talk(client: socket.socket) -> None:
        client.recv(4)
        client.sendall(number(RPC_TRACKER_MAGIC))
        for answer in answers:
            size = int.from_bytes(client.recv(4), "little")
            client.recv(size)
            client.sendall(answer)

    return talk


def message(value: object) -> bytes:
    text = json.dumps(value).encode()
    return number(len(text)) + text


@pytest.mark.parametrize(
    ("talk", "got"),
    [
        (silent, "no answer"),
        (tracker(), "no answer"),
        (lambda c: c.sendall(b"HTTP/1.1 400\r\n"), "what is no tracker"),
        (lambda c: c.close(), "connection|Connection|end"),
        (tracker(number(1 << 30)), "a message of 1073741824 bytes"),
        (tracker(number(-1)), "a message of -1 bytes"),
        (tracker(message([0])), "from the tracker"),
        (tracker(message([0, ["127.0.0.1", "x", "k"]])), "'x', 'k'. from the tracker"),
        (tracker(message([0, ["127.0.0.1", float("inf"), "k"]])), "inf.* from the tracker"),
        (tracker(message([-1, "no"])), "'no' from the tracker"),
        (tracker(number(200_000) + b"[" * 200_000), r"\[\[\[.* from the tracker"),
        (tracker(number(3) + b"\xff{["), "got"),
    ],
)
def test_whatever_a_tracker_does_ends_in_time(
    talk: Talk, got: str, listening: Callable[[Talk], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tvm_stretch.phone.device._SUMMARY_SECONDS", 0.2)
    began = time.monotonic()
    with pytest.raises(DeviceError, match=rf"^expected pixel from the tracker .*({got}).*; "):
        ts.connect(listening(talk), "pixel", wait=0.3)
    assert time.monotonic() - began < 5


def test_connections_that_leave_from_one_port() -> None:
    """Linux gives one port to connections with several servers, and only one is TVM's own."""
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        clients = [stack.enter_context(socket.socket()) for _ in servers]
        for client, server in zip(clients, servers, strict=True):
            client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            client.bind(clients[0].getsockname() if client is clients[1] else ("127.0.0.1", 0))
            client.connect(server.getsockname())
        for client, server in zip(clients, servers, strict=True):
            inner = stack.enter_context(server.accept()[0])
            assert _descriptor(inner) == client.fileno()


def test_any_number_of_descriptors() -> None:
    """`select` knows 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1200:
        pytest.skip("this system allows too few")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    try:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            high = fcntl.fcntl(ours.fileno(), fcntl.F_DUPFD_CLOEXEC, 1100)
            with socket.socket(fileno=high) as same:
                assert not readable([same], 0.0)
                theirs.sendall(b"abc")
                assert readable([same, theirs], 0.0) == [same]
                assert receive(same, 3, Deadline(5)) == b"abc"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.full
def test_a_name_that_nobody_looks_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system waits for its name servers as long as it likes."""
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(60))
    try:
        with pytest.raises(DeviceError, match=r"the tracker farm\.invalid:9190"):
            ts.connect("farm.invalid:9190", "pixel", wait=0.3, timeout=0.3)
    finally:
        over.set()


def test_no_tracker_at_all() -> None:
    with pytest.raises(DeviceError, match=r"pixel from the tracker .*refused.*; start it with"):
        ts.connect("127.0.0.1:1", "pixel")


@pytest.mark.parametrize(
    ("talk", "got"),
    [
        (silent, "nothing for"),
        (lambda c: c.sendall(number(0xFF271 + 2)), "its secret is needed"),
        (lambda c: c.sendall(b"hostile bytes"), "code "),
        (lambda c: c.sendall(number(0xFF271) + number(1 << 30)), "a message of"),
        (lambda c: c.sendall(number(0xFF271) + number(2) + b"me"), "nothing for"),
        (lambda c: c.close(), "connection|Connection|end"),
    ],
)
def test_whatever_a_device_does_ends_in_time(
    talk: Talk, got: str, listening: Callable[[Talk], str]
) -> None:
    """Frozen at the first word, of another key, hostile, frozen once it was greeted."""
    address = parse_address(listening(talk))
    assert address is not None
    began = time.monotonic()
    seat = message([0, [*address, "pixel:0.5"]])
    with pytest.raises(DeviceError, match=rf"^expected pixel to begin a session.*({got}).*; "):
        ts.connect(listening(tracker(seat)), "pixel", wait=0.4)
    assert time.monotonic() - began < 5


def test_a_frozen_call_ends_in_time() -> None:
    ours, theirs = socket.socketpair()
    link = Link(None, ours, "pixel")  # type: ignore[arg-type]
    began = time.monotonic()
    with ours, theirs, pytest.raises(DeviceError, match=r"pixel to run, got 'nothing for 0.2 s'"):
        link.ask("to run", lambda: ours.recv(1) or None, 0.2)
    assert time.monotonic() - began < 3 and not link.alive


def test_an_answer_that_came_too_late_is_nobodys() -> None:
    ours, theirs = socket.socketpair()
    link = Link(None, ours, "pixel")  # type: ignore[arg-type]
    with ours, theirs:
        theirs.sendall(b"late")
        with pytest.raises(DeviceError, match="no session any more"):
            link.ask("to run", lambda: 1, 1)


def test_a_session_that_cannot_be_begun_anew(device: ts.Device) -> None:
    device.describe()
    assert "in a session" in repr(device)
    device.close()
    assert "closed" in repr(device)
    with pytest.raises(DeviceError, match="the end of its session; open another"):
        device.call("to run", "tvm_stretch.describe_machine")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("somewhere", "pixel"), "HOST:PORT of a tracker"),
        (("127.0.0.1:0", "pixel"), "HOST:PORT of a tracker"),
        ((9190, "pixel"), "HOST:PORT of a tracker"),
        (("127.0.0.1:9190",), "name of a device for key"),
        (("127.0.0.1:9190", "a b"), "name of a device for key"),
        (("127.0.0.1:9190", "a:b"), "name of a device for key"),
    ],
)
def test_wrong_arguments(arguments: tuple[Any, ...], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        ts.connect(*arguments)
    with pytest.raises(InputError, match="seconds for wait"):
        ts.connect("127.0.0.1:9190", "pixel", wait=0)


def test_addresses() -> None:
    assert parse_address("[::1]:9190") == ("::1", 9190)
    assert parse_address("phone.local:80") == ("phone.local", 80)
    assert parse_address("::") is None and parse_address(":80") is None
    with pytest.raises(TimeoutError):
        Deadline(-1).left()
    assert Seat(("a", 1), "k").matchkey == "k"
