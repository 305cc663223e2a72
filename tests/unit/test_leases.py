"""Leases of processors: processes take turns, and one that dies leaves nothing behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import fresh_process

from tvm_stretch.base.errors import InputError
from tvm_stretch.run.group import Leases

HOLDER = """
import time
from tvm_stretch.run.group import Leases
with Leases({folder!r}, ["gpu"]).held(["gpu"]):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[fresh_process.Fork]:
    """Another process, which holds a lease."""
    with fresh_process.start(HOLDER.format(folder=str(tmp_path))) as process:
        while process.text() != "held\n":
            time.sleep(0.01)
        yield process


def taken(leases: Leases, *processors: str) -> tuple[threading.Thread, threading.Event]:
    """A thread that takes a lease, and whether it has it."""
    event = threading.Event()

    def take() -> None:
        with leases.held(processors):
            event.set()

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    return thread, event


def test_a_lease_waits_for_the_other_process_until_that_dies(
    tmp_path: Path, holder: fresh_process.Fork
) -> None:
    leases = Leases(tmp_path, ["cpu", "gpu"])
    with leases.held(["cpu"]):  # another processor is free
        pass
    thread, has_it = taken(leases, "gpu", "cpu")
    assert not has_it.wait(0.2)
    holder.kill()
    assert has_it.wait(30)
    thread.join()
    leases.close()


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="expected a folder for leases"):
        Leases(tmp_path / "file" / "below", ["gpu"])
    (tmp_path / "gpu.lock").symlink_to(tmp_path / "file")
    with pytest.raises(InputError, match="expected a folder for leases"):
        Leases(tmp_path, ["gpu"])
