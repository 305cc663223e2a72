"""The inputs of a network, as the command's arguments name them."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tvm_stretch.base.errors import InputError

Value = TypeVar("Value")


def by_name(pairs: Sequence[tuple[str, Value]], option: str) -> dict[str, Value]:
    """What an option that may be given several times says of each name."""
    by_name = dict(pairs)
    if len(by_name) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(
            f"expected each name once for {option}, got {twice!r} several times; leave one out"
        )
    return by_name


def arrays_of(name: str, path: Path) -> list[tuple[str, np.ndarray[Any, Any]]]:
    """What a file holds; the names in an archive are those of inputs."""
    try:
        loaded = np.load(path, allow_pickle=False)
        return [(name, loaded)] if isinstance(loaded, np.ndarray) else list(loaded.items())
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(
            f"expected an array that NumPy saved for --input, got {path}: {error}; "
            "write it with numpy.save or numpy.savez"
        ) from error
