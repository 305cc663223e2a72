"""Who links an artifact for which machine.

    this machine             its C++ compiler, as TVM's `export_library`
    aarch64-linux-gnu        zig, against the oldest glibc that TVM's wheels run on
    aarch64-linux-android    the clang of ``$ANDROID_NDK_HOME``, or else zig, against stubs

Android's loader requires more of a library than glibc's: segments aligned to 16 KB (Android 15),
no text relocations, no executable stack, and only symbols that its C library exports. zig has no
C library for Android, but linking needs only its symbols' names, and these are a table here. So a
kernel that calls anything else is refused when it is linked, and not by the phone.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tvm.support import cc

from tvm_stretch.base.errors import TargetError

Linker = Callable[[str, Sequence[str]], object]

ANDROID_API = 26  # Android 8.0: the oldest that artifacts run on
BIONIC = Path(__file__).with_name(f"bionic_{ANDROID_API}.txt")
"""The symbols of Android's C library."""

_OLDEST_GLIBC = "2.28"  # as in manylinux_2_28, which the wheels of TVM use
_PAGE = "max-page-size=16384"


def linker_for(triple: str) -> Linker:
    """The linker for a triple; ``""`` is this machine's."""
    machine, _, system = triple.partition("-")
    is_android = "android" in system
    if machine in ("", platform.machine()) and not is_android and "musl" not in system:
        return lambda output, files: cc.create_shared(output, list(files))
    ndk = clang_of_ndk(machine) if is_android else None
    if ndk is not None:
        clang = [str(ndk), "-O2", "-s", "-shared", "-fPIC", "-Wl,-z,defs", f"-Wl,-z,{_PAGE}"]
        return lambda output, files: _run([*clang, "-o", output, *files], triple)
    if importlib.util.find_spec("ziglang") is None:
        raise TargetError(
            f"expected a compiler that links for {triple}, got none; pip install ziglang, set "
            "ANDROID_NDK_HOME to an Android NDK, or give export a function for fcompile"
        )
    if is_android:
        return functools.partial(_link_for_android, triple)
    libc = "gnu." + _OLDEST_GLIBC if "gnu" in system or not system else "musl"
    # Without -O zig adds checks for undefined behaviour that double the size.
    command = [*_ZIG, "cc", "-target", f"{machine}-linux-{libc}", "-O2", "-s", "-shared", "-fPIC"]
    return lambda output, files: _run([*command, "-o", output, *files], triple)


_ZIG = [sys.executable, "-m", "ziglang"]


def symbols_of_android() -> dict[str, list[str]]:
    """What Android's C library exports, by the library that has it."""
    libraries: dict[str, list[str]] = {}
    names: list[str] = []
    for line in BIONIC.read_text().splitlines():
        if line.startswith(" "):
            names += line.split()
        elif line and not line.startswith("#"):
            names = libraries[line] = []
    return libraries


def _link_for_android(triple: str, output: str, files: Sequence[str]) -> None:
    """Link with zig; what its compiler runtime has (halves on old cores) is linked statically."""
    target = f"{triple.partition('-')[0]}-linux-android"
    command = [*_ZIG, "build-lib", "-dynamic", "-target", target, "-O", "ReleaseFast", "-fPIC"]
    command += ["-fstrip", "-fno-soname", "-fcompiler-rt", "-z", "defs", "-z", _PAGE]
    stubs = sorted(Path(_stubs(target).name).glob("*.so"))
    _run([*command, f"-femit-bin={output}", *files, *map(str, stubs)], triple)


@functools.cache
def _stubs(target: str) -> tempfile.TemporaryDirectory[str]:
    """A folder with libraries that only have names, made once in a process."""
    folder = tempfile.TemporaryDirectory(prefix="tvm_stretch_android_")
    for library, names in symbols_of_android().items():
        source = Path(folder.name, library + ".s")
        source.write_text("".join(f".globl {name}\n{name}:\n" for name in names))
        command = [*_ZIG, "build-lib", "-dynamic", "-target", target, "-O", "ReleaseFast"]
        command += [
            "-fno-compiler-rt",
            f"-fsoname={library}",
            f"-femit-bin={source.with_suffix('')}",
            str(source),
        ]
        _run(command, target)
    return folder


def clang_of_ndk(machine: str) -> Path | None:
    """The compiler in ``$ANDROID_NDK_HOME``; None if the variable is not set."""
    home = os.environ.get("ANDROID_NDK_HOME")
    if not home:
        return None
    name = f"toolchains/llvm/prebuilt/*/bin/{machine}-linux-android{ANDROID_API}-clang"
    compilers = sorted(Path(home).glob(name))
    if not compilers:
        raise TargetError(
            f"expected an Android NDK for ANDROID_NDK_HOME, got {home!r} without {name}; correct "
            "the variable, or unset it and pip install ziglang"
        )
    return compilers[0]


def _run(command: Sequence[str], triple: str) -> None:
    """Call a compiler."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.returncode:
        return
    output = (done.stderr or done.stdout).strip()
    lacking = sorted(set(re.findall(r"undefined symbol: (\S+)", output)))
    if lacking and "android" in triple:
        raise TargetError(
            f"expected symbols that Android's C library has at API {ANDROID_API} for {triple}, got "
            f"{', '.join(lacking)}; plan the operators that need them for another processor, or "
            "give export a function for fcompile that links a library with them"
        )
    lines = output.splitlines() or [f"status {done.returncode}"]
    fault = next((line for line in lines if "error" in line), lines[-1])
    raise TargetError(
        f"expected {' '.join(command[:4])} to link the library, got {fault.strip()!r}; give export "
        "a function for fcompile"
    )
