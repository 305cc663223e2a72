"""Find a linker for a triple: this machine's compiler, zig, or an Android NDK.

    linker_for("x86_64-linux-gnu")(output, files)          the C++ compiler of this machine
    linker_for("aarch64-linux-gnu")(output, files)         pip install ziglang
    linker_for("aarch64-linux-android")(output, files)     ANDROID_NDK_HOME's clang, or zig

Kernels call only functions that TVM's loader provides, and perhaps mathematical ones of the C
library. For Android no symbol may be missing (`-z defs`), because zig lacks its C library.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tvm.support import cc

from tvm_stretch.base.errors import TargetError

Linker = Callable[[str, Sequence[str]], object]

_ANDROID_API = 24
_OLDEST_GLIBC = "2.28"  # as in manylinux_2_28, which the wheels of TVM use


def linker_for(triple: str) -> Linker:
    """The linker for a triple; ``""`` is this machine's."""
    machine, _, system = triple.partition("-")
    is_android = "android" in system
    if machine in ("", platform.machine()) and not is_android:
        return lambda output, files: cc.create_shared(output, list(files))
    ndk = _clang_of_ndk(machine) if is_android else None
    if ndk is not None:
        clang = [str(ndk), "-O2", "-s", "-shared", "-fPIC"]
        return lambda output, files: _run(clang, output, files)
    if importlib.util.find_spec("ziglang") is None:
        raise TargetError(
            f"expected a compiler that links for {triple}, got none; pip install ziglang, set "
            "ANDROID_NDK_HOME to an Android NDK, or give export a function for fcompile"
        )
    bare = ["-nostdlib", "-nodefaultlibs", "-Wl,-z,defs"] if is_android else []
    libc = "gnu." + _OLDEST_GLIBC if "gnu" in system or not system else "musl"
    command = [*_zig(f"{machine}-linux-{libc}"), "-shared", "-fPIC", *bare]
    return lambda output, files: _run(command, output, files)


def _zig(target: str) -> list[str]:
    """Zig's compiler. Without -O it adds checks for undefined behaviour that double the size."""
    return [sys.executable, "-m", "ziglang", "cc", "-target", target, "-O2", "-s"]


def _clang_of_ndk(machine: str) -> Path | None:
    """The compiler in ``$ANDROID_NDK_HOME``; None if the variable is not set."""
    home = os.environ.get("ANDROID_NDK_HOME")
    if not home:
        return None
    name = f"toolchains/llvm/prebuilt/*/bin/{machine}-linux-android{_ANDROID_API}-clang"
    found = sorted(Path(home).glob(name))
    if not found:
        raise TargetError(
            f"expected an Android NDK for ANDROID_NDK_HOME, got {home!r} without {name}; correct "
            "the variable, or unset it and pip install ziglang"
        )
    return found[0]


def _run(command: Sequence[str], output: str, files: Sequence[str]) -> None:
    """Call a compiler."""
    done = subprocess.run(
        [*command, "-o", output, *files], capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"status {done.returncode}"]
        fault = next((line for line in lines if "error" in line), lines[-1])
        raise TargetError(
            f"expected {' '.join(command[:4])} to link the library, got {fault.strip()!r}; set "
            "ANDROID_NDK_HOME if kernels need Android's C library, or give export a function for "
            "fcompile"
        )
