"""The code of a DSP as one ELF file: its server (hexagon/dsp) and the kernels of a network.

    kernels' objects + a table of the kernels + dispatch.c + kernel_support.c
        + server.c + emulator/*.c  --linker--> a program for the emulator (native/mailbox.h)
        + fastrpc/*.c              --linker--> a library for a phone's DSP (native/fastrpc.h)

`zig cc` knows Hexagon, so no SDK is needed. It would compile its C library for more than a minute,
so both need none but the compiler's runtime functions. With the host's compiler, server.c and
linux.c make a program for the host, which tests run without an emulator.
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

from tvm_stretch.base import progress
from tvm_stretch.base.errors import InstallError, TargetError
from tvm_stretch.base.files import writing
from tvm_stretch.make.code.kernel_cache import digest, kernel_cache

SOURCES = Path(__file__).resolve().parents[1] / "dsp"

_COMMON = ("dispatch.c", "kernel_support.c")
_NO_LIBRARY = ("-nostdlib", "-rtlib=compiler-rt", "-Os", "-Wl,--gc-sections")
"""The compiler's runtime functions and nothing else; the small ones compile in two thirds of the
time."""
_OLDEST = "hexagonv65"
ENTRY = "tvm_stretch_skel_handle_invoke"
"""The function of a library that FastRPC calls (native/fastrpc.cc names it too)."""

_NO_ZIG = (
    "expected zig, which links programs for Hexagon, got none; install it with "
    "`pip install ziglang`"
)


@dataclass(frozen=True)
class Linker:
    """Makes a program from C sources and objects, or a library."""

    command: tuple[str, ...]  # a C compiler and its options
    version: str  # anything else on which its results depend
    own: tuple[str, ...] = ("linux.c", "server.c")  # C files that the kernels need, beside _COMMON
    options: tuple[str, ...] = ("-lm",)  # for linking

    @property
    def sources(self) -> tuple[Path, ...]:
        """The C files that surround the kernels."""
        return tuple(SOURCES / name for name in (*_COMMON, *self.own))


def has_zig() -> bool:
    """Whether zig is installed, as a module of this Python."""
    return importlib.util.find_spec("ziglang") is not None


@functools.cache
def hexagon_linker() -> Linker:
    """Zig, for programs that an emulator runs."""
    return _zig(own=("emulator/linux.c", "server.c"), options=("-static", *_NO_LIBRARY))


@functools.cache
def fastrpc_linker() -> Linker:
    """Zig, for libraries that the DSP of a phone loads.

    The DSP's loader resolves symbols from its own system alone, so the compiler's runtime functions
    are linked in, and nothing else is: `dsp/fastrpc/qurt.h` declares all that is left open.
    """
    flags = (
        "-Bsymbolic",
        "--hash-style=sysv",
        "-z,norelro",
        "-z,max-page-size=4096",
    )
    return _zig(
        *("-fPIC", "-fvisibility=hidden", "-fno-stack-protector"),
        own=("fastrpc/qurt.c", "fastrpc/team.c", "fastrpc/skeleton.c"),
        options=("-shared", *_NO_LIBRARY, *(f"-Wl,{flag}" for flag in flags)),
    )


def _zig(*flags: str, own: tuple[str, ...], options: tuple[str, ...]) -> Linker:
    """Zig, for the oldest version of Hexagon: code for it runs on every version."""
    if not has_zig():
        raise InstallError(_NO_ZIG)
    command = (sys.executable, "-m", "ziglang")
    done = subprocess.run([*command, "version"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise InstallError(f"expected zig, got {done.stderr.strip()}; install ziglang again")
    cpu = ("cc", "-target", "hexagon-linux-musl", f"-mcpu={_OLDEST}", "-s", "-w")
    return Linker((*command, *cpu, *flags), done.stdout.strip(), own, options)


def link_program(objects: Mapping[str, bytes], linker: Linker) -> bytes:
    """The ELF file that contains these kernels, in the order of their names.

    Raises:
        TargetError: the kernels cannot be linked.
    """
    headers = (*SOURCES.glob("*.h"), *SOURCES.glob("fastrpc/*.h"))
    sources = [path.read_bytes() for path in (*linker.sources, *sorted(headers))]
    made_of = [part for name in sorted(objects) for part in (name.encode(), objects[name])]
    text = " ".join([*linker.command, linker.version, *linker.options]).encode()
    key = digest(b"dsp program", text, *sources, *made_of)
    program = kernel_cache().find(key)
    if program is None:
        program = _link(objects, linker, key)
        kernel_cache().store(key, program)
    return program


def _link(objects: Mapping[str, bytes], linker: Linker, key: bytes) -> bytes:
    with writing("the program of the DSP", TargetError), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        names = sorted(objects)
        (folder / "kernels.c").write_text(_table(names))
        for number, kernel in enumerate(names):
            (folder / f"kernel{number}.o").write_bytes(objects[kernel])
        sources = [str(folder / "kernels.c"), *map(str, linker.sources)]
        includes = [f"-I{path}" for path in (SOURCES, *libinfo.include_paths())]
        _run([*linker.command, "-O2", "-c", *includes, *sources], folder)
        parts = sorted(map(str, folder.glob("*.o")))
        # Libraries of one process on the DSP need names of their own, and share no symbol.
        (folder / "exports").write_text(f"{{ global: {ENTRY}; local: *; }};")
        soname = f"-Wl,-soname,libtvm_stretch_{key.hex()[:16]}_skel.so"
        named = [soname, "-Wl,--version-script=exports"] if "-shared" in linker.options else []
        program = folder / "program.elf"
        progress.say("linking for the DSP: zig compiles its runtime functions first, 15 s, once")
        _run([*linker.command, *parts, *linker.options, *named, "-o", str(program)], folder)
        return program.read_bytes()


def _run(command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise TargetError(f"expected a C compiler, got {error}; install one") from error
    if done.returncode:
        raise TargetError(
            f"expected a linked program for the DSP, got {done.stderr.strip()[-2000:]}; "
            "check the compiler"
        )


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
    fastrpc: bool = False  # whether the chip of a phone runs it, called by Qualcomm's driver
    runs_here: bool = True  # whether it is a processor of this machine
    spin_us: int = 50  # how long host and DSP spin for each other before they sleep
    deadline_ms: int = 30_000  # a DSP that takes longer for a region is given up


def dsp_code(objects: Mapping[str, bytes], linker: Linker, launch: Launch) -> tvm.runtime.Module:
    """The executor's module for a DSP's kernels, by their names."""
    description = {
        "kernels": sorted(objects),
        "emulator": list(launch.emulator),
        "fastrpc": launch.fastrpc,
        "runs_here": launch.runs_here,
        "device": launch.device,
        "spin_us": launch.spin_us,
        "deadline_ms": launch.deadline_ms,
    }
    create = tvm_ffi.get_global_func("tvm_stretch.create_dsp_code")
    return cast(tvm.runtime.Module, create(json.dumps(description), link_program(objects, linker)))
