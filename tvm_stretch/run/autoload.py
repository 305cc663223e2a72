"""Finds our shared libraries; loads the executor's, which `import tvm` asks for.

(The entry point `tvm.backends` names `load_native_library`.)
"""

from __future__ import annotations

import atexit
import ctypes
from functools import cache
from pathlib import Path

import tvm_stretch
from tvm_stretch.base.errors import InstallError, tell_tvm


def find_file(name: str) -> Path:
    """Path of what the build installs beside this package's modules: ``lib/…``, ``include/…``.

    An editable install has two package folders, the sources and the one that the build installs
    to, so every folder of the package is looked at.
    """
    candidates = [Path(folder) / name for folder in tvm_stretch.__path__]
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
    tell_tvm()
    ctypes.CDLL(str(find_file("lib/libtvm_stretch_runtime.so")), ctypes.RTLD_LOCAL)
    _outlive_daemon_threads()


def _outlive_daemon_threads() -> None:
    """Keep threads that are in a run when Python ends from coming back to it; see calls.h."""
    import tvm_ffi

    end_calls = tvm_ffi.get_global_func("tvm_stretch.end_calls")
    if end_calls.release_gil:  # else no other thread is in a run then, and would keep the lock
        atexit.register(end_calls)
