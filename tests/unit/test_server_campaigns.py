"""Campaigns against `tvm_stretch_rpc`: damaged sessions, and those with right and wrong secrets."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from helpers.hostile_clients import recorded_session, say
from helpers.mutations import campaign, damaged_bytes, dice_of
from helpers.rpc_processes import Phone, Tracker, native_server

import tvm_stretch as ts
from tvm_stretch.phone import wire

pytest.importorskip("tornado")

# Lengths that are garbage are memory for TVM's server; no machine should have to give it.
LIMITED = ["sh", "-c", 'ulimit -v 4000000; exec "$@"', "sh"]
SECRET = "correct horse"


@pytest.fixture(scope="module")
def phone() -> Iterator[Phone]:
    made = Phone("--session-limit", "5", command=[*LIMITED, *native_server()[0]])
    yield made
    made.kill()


@pytest.fixture(scope="module")
def honest(phone: Phone) -> bytes:
    return recorded_session(phone.port)


def ended(phone: Phone, seconds: float = 20) -> bool:
    """Whether its session ends, by itself or by its limit."""
    end = time.monotonic() + seconds
    while phone.session() is not None:
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


@campaign(2000)
def test_damaged_sessions(phone: Phone, honest: bytes, piece: int) -> None:
    """They may end themselves, and nothing else; the next client is served."""
    answered = 0
    for dice in dice_of(piece):
        answered += say(phone.port, damaged_bytes(dice, honest))
        assert phone.is_running and ended(phone)
    print(f"{answered} were answered")
    assert ended(phone)
    assert say(phone.port, honest) and ended(phone)


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracker]:
    """One that lends a phone with a secret."""
    tracker = Tracker()
    path = tmp_path_factory.mktemp("secret") / "word"
    path.write_text(SECRET)
    phone = Phone("--tracker", tracker.address, "--secret-file", str(path))
    yield tracker
    phone.kill()
    tracker.kill()


def begins(seat: wire.Seat, secret: str, key: str = "") -> bool:
    """Whether a session begins, with the key that the tracker gave or another; it ends at once."""
    with socket.create_connection(seat.address, timeout=20) as client:
        try:
            wire.greet(client, key or seat.matchkey, wire.Deadline(20), secret)
        except ts.DeviceError:
            return False
        return True


@campaign(500)
def test_right_and_wrong_secrets(tracker: Tracker, piece: int) -> None:
    """Who knows key and word has a session, and nobody else."""
    ends: Counter[str] = Counter()
    for dice in dice_of(piece):
        way = dice.choice(["right", "device", "wrong secret", "no secret", "wrong key"])
        ends[way] += 1
        if way == "device":
            with ts.connect(tracker.address, "pixel", secret=SECRET, timeout=20.0) as device:
                assert device.describe().cores
            continue
        seat = wire.request(("127.0.0.1", tracker.port), "pixel", wire.Deadline(20))
        if way == "wrong secret":
            wrong = damaged_bytes(dice, SECRET.encode()).decode(errors="replace") + "?"
            assert not begins(seat, wrong)
        elif way == "no secret":
            assert not begins(seat, "")
        else:  # who does not know the key does not take it away from who does
            assert way == "right" or not begins(seat, SECRET, f"pixel:{dice.getrandbits(128):032x}")
            assert begins(seat, SECRET)
    print(dict(ends))
