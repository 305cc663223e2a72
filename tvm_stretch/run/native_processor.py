"""A new kind of processor for the executor: a shared library that registers itself.

    npu.cc                                       load_processor(build_processor("npu.cc", "build"))
      #include "processor.h"              ->
      RegisterProcessor("npu", ...)              Processor(name="npu", kind="npu", ...) now runs

An artifact with regions of such a processor needs the same library where it is loaded.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import tvm_ffi
from tvm_ffi import libinfo

from tvm_stretch.base.errors import InstallError
from tvm_stretch.base.files import make_folder, why_not_trusted
from tvm_stretch.run.autoload import find_file, load_native_library

_HEADERS = ("processor.h", "graph.h", "bound_graph.h", "memory.h", "queue_processor.h", "spin.h")


def build_processor(
    source: str | os.PathLike[str],  # C++ that includes ``processor.h``; one file
    folder: str | os.PathLike[str],  # where the library goes; made if it is not there
) -> Path:
    """Compile a source that drives a kind of processor, unless the folder has it already.

    Returns:
        The library, whose name tells what it was made of.
    """
    source, folder = Path(source), Path(folder)
    command = [os.environ.get("CXX", "c++"), *compile_flags()]
    headers = [find_file(f"include/{name}").read_bytes() for name in _HEADERS]
    made_of = [" ".join(command).encode(), source.read_bytes(), *headers]
    name = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in made_of)).hexdigest()
    library = folder / f"lib{source.stem}-{name[:12]}.so"
    if reason := why_not_trusted(folder):
        raise InstallError(
            "expected a folder that only this user can write to for a library that is run, got "
            f"one that is not: {reason}; name another folder"
        )
    if library.is_file():
        return library
    make_folder(folder)
    with tempfile.TemporaryDirectory(dir=folder) as unfinished:
        made = Path(unfinished) / library.name
        _run([command[0], str(source), *command[1:], "-o", str(made)])
        made.replace(library)
    return library


def compile_flags() -> list[str]:
    """What a compiler has to be told for such a library; they follow the source."""
    runtime = find_file("lib/libtvm_stretch_runtime.so")
    folders = [str(find_file("include/processor.h").parent), *libinfo.include_paths()]
    return [
        *("-std=c++17", "-O2", "-shared", "-fPIC", "-fvisibility=hidden"),
        *(f"-I{folder}" for folder in folders),
        *(str(runtime), str(libinfo.find_libtvm_ffi())),
    ]


def load_processor(library: str | os.PathLike[str]) -> None:
    """Load a library of `build_processor`, or one that was built with `compile_flags`."""
    load_native_library()  # the library needs it, and finds the one that is loaded
    if kind := _refused_kind(os.fspath(library)):
        raise InstallError(
            f"expected one library for processors of kind {kind!r}, got {library} after another; "
            "load it in a process of its own"
        )


@functools.cache  # only the first load registers anything
def _refused_kind(library: str) -> str:
    """Load a library; the kind of its processors, if another library has that kind."""
    try:
        ctypes.CDLL(library, ctypes.RTLD_LOCAL)
    except OSError as error:
        raise InstallError(
            f"expected a library that drives a processor at {library}, got {error}; build it with "
            "tvm_stretch.run.native_processor.build_processor"
        ) from error
    return str(tvm_ffi.get_global_func("tvm_stretch.refused_processor")())


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise InstallError(
            f"expected a C++ compiler, got {error}; install g++, or name yours in CXX"
        ) from error
    if done.returncode:
        raise InstallError(
            f"expected {command[1]} to compile, got {done.stderr.strip()}; correct the source"
        )
