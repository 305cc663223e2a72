"""The program of a DSP as one ELF file: its server (hexagon/dsp) and the kernels of a network.

    kernels' objects + dispatch.c + kernel_support.c + server.c + a table of the kernels
        --linker--> ELF, which the executor starts and talks to (native/dsp/session.h)

`zig cc` contains a C library for Hexagon, so no SDK is needed. With the host's compiler the same
sources make a program for the host, which tests run without an emulator.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import tvm
import tvm_ffi
from tvm_ffi import libinfo

from tvm_stretch.base.errors import InstallError, TargetError
from tvm_stretch.base.files import writing
from tvm_stretch.make.code.kernel_cache import digest, kernel_cache

SOURCES = Path(__file__).resolve().parents[1] / "dsp"

_OLDEST = "hexagonv65"
_NO_ZIG = (
    "expected zig, which links programs for Hexagon, got none; install it with "
    "`pip install ziglang`"
)


@dataclass(frozen=True)
class Linker:
    """Makes a program from C sources and objects."""

    command: tuple[str, ...]  # a C compiler and its options
    version: str  # anything else on which its results depend


def has_zig() -> bool:
    """Whether zig is installed, as a module of this Python."""
    return importlib.util.find_spec("ziglang") is not None


@functools.cache
def hexagon_linker() -> Linker:
    """Zig, for programs that run on every version of Hexagon.

    The server is built for the oldest version, so that one C library serves all; zig builds it at
    the first link, which takes a minute.
    """
    if not has_zig():
        raise InstallError(_NO_ZIG)
    command = (sys.executable, "-m", "ziglang")
    done = subprocess.run([*command, "version"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise InstallError(f"expected zig, got {done.stderr.strip()}; install ziglang again")
    options = ("cc", "-target", "hexagon-linux-musl", f"-mcpu={_OLDEST}", "-static", "-s", "-w")
    return Linker((*command, *options, "-DDSP_COUNTS_PACKETS"), done.stdout.strip())


def link_program(objects: Mapping[str, bytes], linker: Linker) -> bytes:
    """The ELF program that contains these kernels, in the order of their names.

    Raises:
        TargetError: the kernels cannot be linked.
    """
    sources = [path.read_bytes() for path in sorted(SOURCES.iterdir()) if path.suffix in _C_FILES]
    made_of = [part for name in sorted(objects) for part in (name.encode(), objects[name])]
    text = " ".join([*linker.command, linker.version]).encode()
    key = digest(b"dsp program", text, *sources, *made_of)
    known = kernel_cache().find(key)
    if known is None:
        known = _link(objects, linker)
        kernel_cache().store(key, known)
    return known


_C_FILES = (".c", ".h")


def _link(objects: Mapping[str, bytes], linker: Linker) -> bytes:
    with writing("the program of the DSP", TargetError), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        names = sorted(objects)
        (folder / "kernels.c").write_text(_table(names))
        parts = [str(folder / "kernels.c"), *map(str, sorted(SOURCES.glob("*.c")))]
        for number, kernel in enumerate(names):
            path = folder / f"kernel{number}.o"
            path.write_bytes(objects[kernel])
            parts.append(str(path))
        includes = [f"-I{folder}" for folder in (SOURCES, *libinfo.include_paths())]
        program = folder / "program.elf"
        command = [*linker.command, "-O2", *includes, *parts, "-lm", "-o", str(program)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise TargetError(f"expected a C compiler, got {error}; install one") from error
        if done.returncode:
            raise TargetError(
                f"expected a linked program for the DSP, got {done.stderr.strip()[-2000:]}; "
                "check the compiler"
            )
        return program.read_bytes()


def _table(names: Sequence[str]) -> str:
    """C source of the table of kernels, in the order that the host uses too."""
    functions = [f"__tvm_ffi_{name}" for name in names]
    declared = "".join(
        f"int {name}(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);\n" for name in functions
    )
    listed = "".join(f"  {name},\n" for name in (*functions, "0"))
    return (
        f'#include "dispatch.h"\n{declared}const DspCall dsp_kernels[] = {{\n{listed}}};\n'
        f"const uint32_t dsp_num_kernels = {len(functions)};\n"
    )


@dataclass(frozen=True)
class Launch:
    """How the executor starts a program, and what it expects of the DSP."""

    device: str  # description for messages
    emulator: tuple[str, ...] = ()  # the command that runs the program; empty if it runs by itself
    runs_here: bool = True  # whether it is a processor of this machine
    spin_us: int = 50  # how long host and DSP spin for each other before they sleep
    deadline_ms: int = 30_000  # a DSP that takes longer for a region is given up


def dsp_code(objects: Mapping[str, bytes], linker: Linker, launch: Launch) -> tvm.runtime.Module:
    """The executor's module for a DSP's kernels, by their names."""
    description = {
        "kernels": sorted(objects),
        "emulator": list(launch.emulator),
        "runs_here": launch.runs_here,
        "device": launch.device,
        "spin_us": launch.spin_us,
        "deadline_ms": launch.deadline_ms,
    }
    create = tvm_ffi.get_global_func("tvm_stretch.create_dsp_code")
    return cast(tvm.runtime.Module, create(json.dumps(description), link_program(objects, linker)))


if __name__ == "__main__":  # `make setup` lets zig build its C library now
    link_program({}, hexagon_linker())
