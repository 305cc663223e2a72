"""Devices behind RPC whose answers are garbage, late or never come: one clear error, in time.

Between us and TVM's server stands somebody who damages what it answers. TVM's client believes much
of it: lengths that no memory holds, unknown types and addresses end the process. Nothing in this
process can keep it from that, so such an end is allowed, in a call of that client and where it is
rare; waiting is not, nor any other end or error.
"""

from __future__ import annotations

import contextlib
import random
import re
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
from helpers import fresh_process
from helpers.rpc_processes import RpcProcess
from tvm.rpc.base import RPC_MAGIC

from tvm_stretch.base.progress import ctrl_c_waits
from tvm_stretch.phone import link
from tvm_stretch.phone.link import Link
from tvm_stretch.phone.wire import Deadline

pytest.importorskip("cloudpickle")

ROOT = Path(__file__).resolve().parents[2]
EACH = 5
MOST_ENDS = 2
PIECES = [pytest.param(piece, marks=pytest.mark.full) for piece in range(20)]

Damage = Callable[[bytes], bytes | None]

CODE = """
import faulthandler, resource, sys, tempfile
faulthandler.enable(2)  # says where the process ends
resource.setrlimit(resource.RLIMIT_AS, (32 << 30, 32 << 30))  # lengths of gigabytes are believed
sys.path[:0] = {paths}
import test_measure_faults as tests
import tvm_stretch.plan.measuring.bench, tvm_stretch.plan.measuring.campaign
import tvm_stretch.plan.measuring.timing
import tvm_stretch
from tvm import rpc
tvm_stretch.plan.measuring.campaign.load_prior = lambda: list(tests.SMALL)
tvm_stretch.plan.measuring.bench._SECONDS = 0.02
tvm_stretch.plan.measuring.timing._TOLERANCE = 1e9
session = rpc.connect("127.0.0.1", {port})
with tempfile.TemporaryDirectory() as folder:
    try:
        device = tvm_stretch.connect(session, "phone", timeout=3)
        tests.measured(folder, device=device)
        print("it went well")
    except (tests.DeviceError, tvm_stretch.base.errors.ArtifactError) as error:
        print(error)
"""


class Middleman:
    """Passes on what two sides say, but damages answers from some byte on."""

    def __init__(self, port: int, first: int, damage: Damage) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._to, self._first, self._damage = port, first, damage
        self._sides: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self) -> Middleman:
        return self

    def __exit__(self, *_error: object) -> None:
        self._socket.close()
        self._hang_up()

    def _hang_up(self) -> None:
        for side in self._sides:
            with contextlib.suppress(OSError):  # it is gone
                side.shutdown(socket.SHUT_RDWR)  # closing wakes nobody who reads
            side.close()

    def _serve(self) -> None:
        client, _ = self._socket.accept()
        server = socket.create_connection(("127.0.0.1", self._to))
        self._sides = [client, server]
        threading.Thread(target=self._pass, args=(client, server), daemon=True).start()
        self._pass(server, client, self._first)

    def _pass(self, source: socket.socket, sink: socket.socket, left: int = 1 << 60) -> None:
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data[:left])
                rest, left = data[left:], max(0, left - len(data))
                if rest:
                    damaged = self._damage(rest)
                    if damaged is None:
                        return  # the connection stays
                    sink.sendall(damaged)
            sink.shutdown(socket.SHUT_WR)
        except OSError:  # one of them is gone
            self._hang_up()


def damage_of(dice: random.Random) -> Damage:
    """Something else from here on, something more or less once, or silence."""
    once = [True]

    def first_only(change: Callable[[bytes], bytes]) -> Damage:
        return lambda data: change(data) if once and once.pop() else data

    def gone(_data: bytes) -> bytes:
        raise OSError("the connection is closed")

    return dice.choice(
        [
            lambda data: dice.randbytes(len(data)),
            lambda data: bytes(len(data)),
            lambda _data: None,
            gone,
            first_only(lambda data: bytes([data[0] ^ 1 << dice.randrange(8)]) + data[1:]),
            first_only(lambda data: dice.randbytes(dice.choice([1, 8, 64])) + data),
            first_only(lambda data: data[dice.choice([1, 8]) :]),
        ]
    )


class Servers:
    """TVM's server, and another one when it has not survived a session: they take long to start."""

    def __init__(self) -> None:
        self._running: RpcProcess | None = None

    def port(self) -> int:
        if self._running is None or not self._answers(self._running.port):
            self.close()
            self._running = RpcProcess("tvm.exec.rpc_server")
        return self._running.port

    def close(self) -> None:
        if self._running is not None:
            self._running.kill()

    @staticmethod
    def _answers(port: int) -> bool:
        """Whether it refuses a wrong key, as one does that waits for sessions."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), timeout=3) as asking,
        ):
            asking.sendall(struct.pack("<ii", RPC_MAGIC, 1) + b"?")
            return len(asking.recv(4)) == 4
        return False


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    found = Servers()
    yield found
    found.close()


def measured_through(servers: Servers, first: int, damage: Damage) -> str:
    """What a process says that measures through such a connection; TVM's own end is "ended"."""
    paths = [str(ROOT / "tests" / "unit"), str(ROOT / "tests")]
    with (
        Middleman(servers.port(), first, damage) as middleman,
        fresh_process.start(CODE.format(paths=paths, port=middleman.port)) as process,
    ):
        status, text = process.wait()
    is_tvm = "Exception caught during TVMFFI" in text
    if is_tvm or status in (-signal.SIGABRT, -signal.SIGSEGV):
        _, told, stack = text.partition("Current thread")
        assert not told or "phone/link.py" in stack.partition("\n\n")[0], text
        return "ended"
    assert status == 0, text
    return text


LOST = (
    r"expected (cpu to be there .*; its \d+ kernels are kept in |.* phone says|phone to "
    r"|a model for what phone has)"  # what it says may be valid, of a lesser phone
)
CONNECTED = 200  # bytes of answers; before, `rpc.connect` is still at work


@pytest.mark.full
def test_a_device_that_falls_silent(servers: Servers) -> None:
    """TVM would wait for ever."""
    said = measured_through(servers, 6_000, lambda _data: None)
    assert re.search(LOST, said) and "nothing for 3 s" in said, said


def test_ctrl_c_while_a_device_is_silent() -> None:
    """It is answered at once, and who waits is woken."""
    ours, theirs = socket.socketpair()
    heard: list[bytes] = []

    def ask() -> None:
        signal.raise_signal(signal.SIGINT)
        heard.append(ours.recv(1))

    with ours, theirs, pytest.raises(KeyboardInterrupt), ctrl_c_waits():
        Link(None, ours, "phone").ask("to answer", ask, 60)  # type: ignore[arg-type]
    assert heard == [b""]


def test_a_session_that_does_not_begin() -> None:
    """TVM's client leaves its socket open where its greeting gets no answer."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        ours, theirs = socket.socketpair()
        broken = mock.patch.object(link, "receive", side_effect=ConnectionError("an end"))
        with ours, theirs, broken, pytest.raises(ConnectionError, match="an end"):
            link._introduce(ours, "server:phone", Deadline(20))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_what_tvms_client_says_of_a_session_that_does_not_begin() -> None:
    """The error is of a type of TVM's."""
    kept = []

    def connect(_host: str, port: int) -> None:
        kept.append(client := socket.create_connection(("127.0.0.1", port)))
        client.sendall(struct.pack("<ii", RPC_MAGIC, 0))
        client.recv(64)
        raise RuntimeError("SockChannel::Recv: Connection reset by peer")

    ours, theirs = socket.socketpair()
    scripted = mock.patch.object(link.rpc, "connect", connect)
    with ours, theirs, scripted, pytest.raises(ConnectionError, match="reset by peer"):
        link._introduce(ours, "server:phone", Deadline(20))
    with contextlib.suppress(OSError):
        kept[0].close()


@pytest.mark.full
def test_an_answer_that_is_no_answer(servers: Servers) -> None:
    """Zeros: packets without content, after which nothing comes."""
    said = measured_through(servers, 9_000, lambda data: bytes(len(data)))
    assert re.search(LOST, said), said


@pytest.mark.parametrize("piece", PIECES)
def test_garbage_from_any_byte_on(servers: Servers, piece: int) -> None:
    """What is damaged may be a number, which is then measured.

    Of the first 40 pieces, one ended TVM's client: three of five are too many to be that.
    """
    ends = 0
    for seed in range(piece * EACH, (piece + 1) * EACH):
        dice = random.Random(seed)
        first = CONNECTED + round(2 ** dice.uniform(0, 15.5))
        said = measured_through(servers, first, damage_of(dice))
        ends += said == "ended"
        assert said.strip() in ("ended", "it went well") or re.search(LOST, said), (seed, said)
    assert ends <= MOST_ENDS
