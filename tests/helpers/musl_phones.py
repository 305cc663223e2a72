"""Phones whose C library is not glibc: what `make phone-musl` makes, with the loader of musl."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.rpc_processes import Phone, Tracker

import tvm_stretch as ts

BUILT = Path(__file__).resolve().parents[2] / "build/phone"


def program_of(machine: str, name: str) -> list[str]:
    """The command that runs a program of such a phone, under an emulator where that is needed."""
    folder = BUILT / f"{machine}-linux-musl"
    loader = folder / f"ld-musl-{machine}.so.1"
    if not loader.is_file():
        pytest.skip("`make phone-musl` was not called")
    emulator = [] if machine == platform.machine() else [f"qemu-{machine}"]
    if emulator and not shutil.which(emulator[0]):
        pytest.skip(f"there is no {emulator[0]} here")
    return [*emulator, str(loader), "--library-path", str(folder), str(folder / name)]


def server_of(machine: str) -> list[str]:
    """The command of the server."""
    return program_of(machine, "tvm_stretch_rpc")


@contextmanager
def served(command: list[str]) -> Iterator[ts.Device]:
    """A phone through a tracker of this machine."""
    pytest.importorskip("ziglang")
    tracker = Tracker()
    phone = Phone("--tracker", tracker.address, command=command)
    try:
        with ts.connect(tracker.address, "pixel", timeout=300, wait=60) as device:
            yield device
    finally:
        phone.kill()
        tracker.kill()
