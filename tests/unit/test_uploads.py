"""What crosses to a device: deflated where that is shorter, and undone there by code of our own."""

from __future__ import annotations

import hashlib
import os
import random
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import tvm
from tvm import rpc

import tvm_stretch as ts
from tvm_stretch.phone import uploads
from tvm_stretch.run.autoload import load_native_library

DICE = random.Random(0)
WORDS = [b"vfmadd", b"ret\n", bytes(40), b"conv2d", bytes(range(256))]
KINDS = {
    "nothing": b"",
    "one byte": b"x",
    "alike": b"ab" * 40_000,
    "code": b"".join(DICE.choice(WORDS) for _ in range(4000)),
    "noise": DICE.randbytes(70_000),
    "far away": DICE.randbytes(32_000) * 3,
}


Put = Callable[[bytes, int], bytes]


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Deflated bytes, inflated into a file; what is in it."""
    load_native_library()
    monkeypatch.setenv("TVM_STRETCH_STORE", str(tmp_path))
    function = tvm.get_global_func("tvm_stretch.store_put_deflated")
    name = "0" * 64 + ".bin"

    def put(packed: bytes, size: int) -> bytes:
        function(name, 0, size, bytearray(packed))
        (part,) = tmp_path.glob(f"{name}.*.part")
        return part.read_bytes()

    return put


def test_uploads_follow_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever may write to the folder chooses what an upload overwrites."""
    load_native_library()
    monkeypatch.setenv("TVM_STRETCH_STORE", str(tmp_path))
    name, other = "0" * 64 + ".bin", tmp_path / "mine"
    other.write_bytes(b"abc")
    (tmp_path / f"{name}.{os.getpid()}.part").symlink_to(other)
    with pytest.raises(ValueError, match=r"symbolic links"):
        tvm.get_global_func("tvm_stretch.store_put")(name, 3, bytearray(b"defg"))
    assert other.read_bytes() == b"abc"


@pytest.mark.parametrize("kind", KINDS)
def test_what_zlib_does_is_undone(kind: str, put: Put) -> None:
    data = KINDS[kind]
    for level in (0, 1, 9):
        assert put(zlib.compress(data, level), len(data)) == data


def test_damaged_bytes_are_refused(put: Put) -> None:
    data, refused = KINDS["code"], 0
    for seed in range(100):
        dice = random.Random(seed)
        packed = bytearray(zlib.compress(data))
        packed[dice.randrange(len(packed))] ^= 1 << dice.randrange(8)
        if dice.random() < 0.3:
            del packed[dice.randrange(len(packed)) :]
        try:
            assert put(bytes(packed), len(data)) == data  # the last byte has spare bits
        except ValueError as error:
            assert "deflated bytes for an upload" in str(error)
            refused += 1
    assert refused > 95


@pytest.mark.parametrize("size", [len(KINDS["alike"]) - 1, len(KINDS["alike"]) + 1])
def test_sizes_are_kept(size: int, put: Put) -> None:
    with pytest.raises(ValueError, match="got other or damaged ones"):
        put(zlib.compress(KINDS["alike"]), size)


@pytest.mark.parametrize("size", [-1, 1 << 40])
def test_sizes_that_cannot_be(size: int, put: object) -> None:
    with pytest.raises(ts.DeviceError, match="got: a piece of"):
        put(b"\3\0", size)


def test_code_is_deflated_and_weights_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "PIECE", 30_000)
    monkeypatch.setenv("TVM_STRETCH_STORE", str(tmp_path / "store"))
    (tmp_path / "store").mkdir()
    device = ts.connect(rpc.LocalSession(), "pixel")
    for kind, most in (("code", 0.1), ("noise", 1.0)):
        path = tmp_path / kind
        path.write_bytes(KINDS[kind])
        before = device.sent_bytes
        name = device.upload(path, ".bin")
        kept = (tmp_path / "store" / name).read_bytes()
        assert kept == KINDS[kind] and name == f"{hashlib.sha256(kept).hexdigest()}.bin"
        assert device.sent_bytes - before <= most * len(kept)
