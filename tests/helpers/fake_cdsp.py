"""A fake libcdsprpc.so for this process, whose DSP is emulated: tests/fastrpc has its sources.

With TVM_STRETCH_TEST_FASTRPC=1 all tests of a session reach their Hexagon through it.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import subprocess
from pathlib import Path

from tvm_stretch.targets.hexagon.code.dsp_code import SOURCES as DSP
from tvm_stretch.targets.hexagon.code.dsp_code import hexagon_linker

_ROOT = Path(__file__).resolve().parents[2]
SOURCES = _ROOT / "tests" / "fastrpc"
_FOLDER = _ROOT / "build" / "fastrpc"
_CC = ("cc", "-O2", "-Wall", "-shared", "-fPIC")


@functools.cache
def library() -> Path:
    """The library, built if its sources are newer."""
    host, emulated = DSP / "linux.c", DSP / "emulator" / "linux.c"
    zig, objects = hexagon_linker(), [str(_FOLDER / f"{name}.o") for name in ("shell", "linux")]
    made = {
        _FOLDER / "libcdsprpc.so": (*_CC, "cdsprpc.c", str(host)),
        _FOLDER / "shell.o": (*zig.command, "-O2", "-c", "shell.c"),
        _FOLDER / "linux.o": (*zig.command, "-O2", "-c", str(emulated)),
        _FOLDER / "shell": (*zig.command, *objects, *zig.options),
    }
    sources = (*SOURCES.iterdir(), *DSP.glob("*.h"), host, emulated)
    newest = max(path.stat().st_mtime for path in sources)
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with (_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for path, command in made.items():
            if path.exists() and path.stat().st_mtime > newest:
                continue
            words = (*command, "-o", str(path))
            done = subprocess.run(words, cwd=SOURCES, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
    return _FOLDER / "libcdsprpc.so"


def install() -> None:
    """Let this process find the library, before it looks for one."""
    os.environ["TVM_STRETCH_CDSPRPC_LIB"] = str(library())
    said = subprocess.run(
        ("qemu-hexagon", "-cpu", "help"), capture_output=True, text=True, check=False
    )
    cpu = "v73" if "v73" in said.stdout else "v67"  # of qemu 10, and of 7.2, which prints nothing
    os.environ["FAKE_CDSP_SHELL"] = f"qemu-hexagon -cpu {cpu} {_FOLDER / 'shell'}"


DIES, DIES_INSIDE, HANGS, HANGS_FOREVER, DAMAGES = -2, -3, -4, -5, -6
"""What may happen in a call, beside the error codes that it may return."""


def fail(call: str, code: int, skip: int = 0) -> None:
    """Let a call fail once, after ``skip`` of its next ones."""
    _fake().fake_cdsp_fail(call.encode(), skip, code)


def forget() -> None:
    """Plan no more failures, and let calls return that hang."""
    _fake().fake_cdsp_forget()


def counts() -> dict[str, int]:
    """Count handles, buffers and registered buffers that are open, and bytes that the DSP maps."""
    names = ("handles", "buffers", "registered", "mapped")
    return {name: _fake().fake_cdsp_count(number) for number, name in enumerate(names)}


def on_chip() -> dict[str, int]:
    """How often the DSP lent VTCM and got it back, whether it was written; threads, most locks."""
    names = ("lent", "returned", "written", "threads", "most_locks")
    return {name: _fake().fake_cdsp_count(5 + i) for i, name in enumerate(names)}


def pid() -> int:
    """The process on the DSP; 0 if none runs."""
    return int(_fake().fake_cdsp_count(4))


@functools.cache
def _fake() -> ctypes.CDLL:
    return ctypes.CDLL(str(library()))
