"""Finds our shared libraries; loads the executor's, which `import tvm` asks for.

(The entry point `tvm.backends` names `load_native_library`.)
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import tvm_stretch
from tvm_stretch.errors import InstallError


def find_library(name: str) -> Path:
    """Path of a shared library of this package.

    An editable install has two package folders, the sources and the one the library was installed
    to, so every folder of the package is looked at.

    Raises:
        InstallError: there is none.
    """
    candidates = [Path(folder) / "lib" / name for folder in tvm_stretch.__path__]
    for path in candidates:
        if path.is_file():
            return path
    raise InstallError(
        f"expected {name} in one of {[str(path.parent) for path in candidates]}, "
        "got none; install the package again (pip install .)"
    )


@cache
def load_native_library() -> None:
    """Load the library once; loading registers its functions with tvm-ffi."""
    ctypes.CDLL(str(find_library("libtvm_stretch_runtime.so")), ctypes.RTLD_LOCAL)
