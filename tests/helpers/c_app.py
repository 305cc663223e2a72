"""The app in C of the tests, built as the README says: with the package's header and library."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

from tvm_stretch.run.autoload import find_file


def built_app(folder: Path) -> Path:
    """native/app.c as a program."""
    header, library = find_file("include/tvm_stretch.h"), find_file("lib/libtvm_stretch_runtime.so")
    ffi = Path(sysconfig.get_path("purelib"), "tvm_ffi/lib")
    source = Path(__file__).parents[1] / "native/app.c"
    flags = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-pthread"]
    places = [f"-I{header.parent}", f"-Wl,-rpath,{library.parent}:{ffi}", f"-Wl,-rpath-link,{ffi}"]
    path = folder / "app"
    subprocess.run(["gcc", *flags, *places, source, library, "-o", path], check=True)
    return path
