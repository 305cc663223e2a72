"""Keeps exported programs as they were read: torch takes five seconds for what loads in a tenth.

the file's bytes, sizes, versions of torch and of our readers   ->   the canonical module
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import tvm
from tvm_ffi.serialization import from_json_graph_str, to_json_graph_str

from tvm_stretch.base.files import read_whole
from tvm_stretch.base.progress import say
from tvm_stretch.make.code.generate import source_files, versions
from tvm_stretch.make.code.kernel_cache import cache_of, digest
from tvm_stretch.passes.carry_states import States
from tvm_stretch.read.load import Shapes, load_network

_FOLDER = "networks"
_MOST_BYTES = 2**27
"""Larger networks are read anew: the cache holds 512 MiB, and reading is a small part of theirs."""
_READERS = source_files(load_network.__module__)  # now, as in `generate.py`


def read_once(source: Any, shapes: Shapes, states: States | None, *given: Any) -> tvm.IRModule:
    """`load_network`, or what it returned for the same exported program before."""
    key = _key(source, (shapes, *given)) if states is None else None
    cache = cache_of(_FOLDER)
    if key is None or cache.folder is None:
        return load_network(source, shapes, states, *given)
    if entry := cache.find(key):
        say("read before")
        return from_json_graph_str(entry.decode())
    mod = load_network(source, shapes, states, *given)
    text = to_json_graph_str(mod)
    if len(text) <= _MOST_BYTES:
        cache.store(key, text.encode())
    return mod


def _key(source: object, given: tuple[object, ...]) -> bytes | None:
    """Everything on which the module depends; None for networks that are not kept."""
    if not isinstance(source, str | Path) or Path(source).suffix != ".pt2":
        return None
    try:
        content, readers = read_whole(Path(source), _MOST_BYTES), versions(_READERS, "torch")
    except (OSError, ValueError, PackageNotFoundError):  # its reader says so, if it is an error
        return None
    return digest(content, repr(given).encode(), readers.encode())
