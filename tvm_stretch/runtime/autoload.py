"""Loads the executor's library; `import tvm` calls it through the entry point `tvm.backends`."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import tvm_stretch

LIBRARY_NAME = "libtvm_stretch_runtime.so"


def find_native_library() -> Path:
    """Path of the executor's shared library.

    An editable install has two package folders, the sources and the one the library was installed
    to, so every folder of the package is looked at.
    """
    candidates = [Path(folder) / "lib" / LIBRARY_NAME for folder in tvm_stretch.__path__]
    for path in candidates:
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"expected {LIBRARY_NAME} in one of {[str(path.parent) for path in candidates]}, "
        "got none; install the package again (pip install .)"
    )


@cache
def load_native_library() -> None:
    """Load the library once; loading registers its functions with tvm-ffi."""
    ctypes.CDLL(str(find_native_library()), ctypes.RTLD_LOCAL)
