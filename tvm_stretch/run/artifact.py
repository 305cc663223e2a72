"""Artifacts: reads, checks, opens and copies the libraries that `Parts.write` links (parts.py)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import platform
import re
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import tvm
import tvm_ffi

from tvm_stretch.base.elf import read_machine
from tvm_stretch.base.errors import ArtifactError, RunError
from tvm_stretch.base.files import (
    held,
    new_folder,
    open_regular,
    reason_of,
    remove_abandoned,
    replaceable,
    writing,
)
from tvm_stretch.make.lowering.executor_graph import Graph
from tvm_stretch.run.seal import check_seal, require_seal, seal

# A network as data: graph, plan and weights in a file that a library of kernels runs.
#
#     model.export("kernels.so", data="net.data")      # kernels ship with the app
#     ts.load("kernels.so", data="net.data")
#     finetuned.export_data("better.data")             # sent later: it has no code
#     ts.load("kernels.so", data="better.data")
#
# native/network_data.cc reads it, and refuses calls of kernels that the library's own graph does
# not
# make.


_MAGIC = b"TVMSTRD1"
_HEADER = struct.Struct("<8sQQ40x")
_ALIGNMENT = 64


def write_data(graph: Graph, weights: tvm.runtime.Tensor, path: Path) -> None:
    """Write the file; it appears complete or not at all."""
    if graph.streams:
        raise ArtifactError(
            "expected a network without streams for data beside its kernels, got one that was "
            "compiled with streams=True; export it without data="
        )
    blob = np.from_dlpack(weights)
    text = graph.to_json().encode()
    with written_beside(path) as folder:
        written = folder / path.name
        with written.open("wb") as file:
            file.write(_HEADER.pack(_MAGIC, len(text), blob.nbytes))
            file.write(text)
            file.write(bytes(-file.tell() % _ALIGNMENT))
            file.write(blob.data)
            file.write(bytes(-blob.nbytes % 8))
        seal(written)


def read_data(path: Path) -> PrivateCopy:
    """The bytes of such a file; the executor checks them.

    Raises:
        ArtifactError: the file is missing, no regular one, truncated or another one.
        RunError: there is no memory for it.
    """
    return PrivateCopy.of_file(path, _check)


def _check(file: BinaryIO, name: str) -> None:
    file.seek(0)
    if file.read(len(_MAGIC)) != _MAGIC:
        raise ArtifactError(
            f"expected the data of a network for {name}, got another file; write it with "
            "Model.export_data"
        )
    require_seal(file, name)


# The bytes of a file, in memory that no other process can change.
#
#     copy = PrivateCopy.of_file(path)
#     copy.path       # where the system's loader finds it, as long as the copy lives
#     copy.name       # what it is called in messages
#     copy.read()
#
# What a path leads to may be replaced, overwritten or cut off at any time, and a process ends
# (SIGBUS) when it runs code of a file that has become shorter. So an artifact is copied first, then
# checked, then opened; and these bytes are what a loaded model exports.


_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_NO_ROOM = (errno.ENOMEM, errno.ENOSPC, errno.EFBIG, errno.EMFILE, errno.ENFILE)


class PrivateCopy:
    """A file of memory, gone with its last owner.

    Attributes:
        name: the path that it was read from, or what else messages should call it.
        size: its bytes.
    """

    def __init__(self, name: str, write: Callable[[BinaryIO], object], size: int) -> None:
        """Make it of what `write` writes."""
        self.name = name
        self.size = size
        self._file = -1
        try:
            self._file = os.memfd_create("artifact", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            with open(self._file, "wb", closefd=False) as file:
                write(file)
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, _SEALS)
        except (OSError, MemoryError) as error:
            if isinstance(error, OSError) and error.errno not in _NO_ROOM:
                raise
            raise RunError(
                f"expected {size} bytes of free memory for {name}, got none ({error}); free some"
            ) from error

    @classmethod
    def of_bytes(cls, name: str, data: bytes) -> PrivateCopy:
        """A copy of bytes that are in memory already."""
        return cls(name, lambda file: file.write(data), len(data))

    @classmethod
    def of_file(cls, path: Path, check: Callable[[BinaryIO, str], object]) -> PrivateCopy:
        """A copy of a file, unless `check`, which sees it first, refuses it."""
        try:
            with open_regular(path) as file:
                check(file, str(path))
                size = file.seek(0, os.SEEK_END)
                return cls(str(path), lambda copy: _send(file, copy), size)
        except OSError as error:
            raise ArtifactError(
                f"expected a readable file for the artifact, got {reason_of(error)}; check the path"
            ) from error

    @property
    def path(self) -> Path:
        """Where this process can open it."""
        return Path(f"/proc/self/fd/{self._file}")

    def read(self) -> bytes:
        """The bytes of the file."""
        return self.path.read_bytes()

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)


def _send(source: BinaryIO, target: BinaryIO) -> None:
    """Copy a file in the kernel, which saves the copy through this process."""
    place = 0
    while sent := os.sendfile(target.fileno(), source.fileno(), place, 1 << 30):
        place += sent


EXECUTOR_KIND = "tvm_stretch.executor"


def copy_artifact(source: PrivateCopy, path: Path) -> None:
    """Write an artifact that was loaded; the copy appears complete or not at all."""
    with written_beside(path) as folder:
        shutil.copyfile(source.path, folder / path.name)


@contextlib.contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """A temporary folder; its file `path.name` replaces `path` once it is safe on disk.

    If `path` is a link, the file that it names is replaced.
    """
    if not path.parent.is_dir():
        raise ArtifactError(
            f"expected an existing folder for the artifact, got {path.parent}; create it first"
        )
    if path.is_dir():
        raise ArtifactError(
            f"expected a file for the artifact, got the folder {path}; name a file in it"
        )
    with writing("the artifact", ArtifactError):
        real = replaceable(path)
        _remove_leftovers(real)
        with held(lambda: new_folder(real.parent, f".{real.name}.")) as (folder, _):
            try:
                yield folder
                written = folder / path.name
                with written.open("rb+") as file:
                    os.fsync(file.fileno())
                written.replace(real)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        folder_handle = os.open(real.parent, os.O_RDONLY)
        try:
            os.fsync(folder_handle)
        finally:
            os.close(folder_handle)


def _remove_leftovers(path: Path) -> None:
    """Remove the temporary folders of processes that were killed while they wrote this file."""
    for folder in path.parent.glob(f".{glob.escape(path.name)}.*"):
        if folder.is_dir():
            remove_abandoned(folder)


def read_artifact(path: Path) -> PrivateCopy:
    """The bytes of an artifact, which are what `Model.export` wrote.

    Raises:
        ArtifactError: the file is missing, no regular one, truncated, damaged or no artifact.
        RunError: there is no memory for it.
    """
    copy = PrivateCopy.of_file(path, _check_frame)
    check_artifact(copy)
    return copy


def check_artifact(copy: PrivateCopy) -> None:
    """Refuse damage, which the system's loader would not survive."""
    with copy.path.open("rb") as file:
        _check_frame(file, copy.name)
    check_seal(copy.path, copy.name)


def _check_frame(file: BinaryIO, name: str) -> None:
    """The checks that read few bytes, before those that read all."""
    read_machine(file, name)
    require_seal(file, name)


def open_artifact(artifact: PrivateCopy, data: PrivateCopy | None = None) -> tvm.runtime.Module:
    """The executor of an artifact, or of a network as data for its kernels.

    Its weights are prepared when this returns.
    """
    machine = machine_of(artifact)
    if machine != platform.machine():
        raise ArtifactError(
            f"expected an artifact for {platform.machine()} for {artifact.name}, got one for "
            f"{machine}; compile for this machine"
        )
    try:
        module = _load_library(artifact.path)
    except RunError:  # no fault of the artifact
        raise
    except Exception as error:  # tvm-ffi maps C++ errors onto many Python types
        if _NO_MEMORY.search(str(error)):
            raise RunError(
                f"expected {artifact.size} bytes of free memory for {artifact.name}, got none; "
                "free some"
            ) from error
        raise ArtifactError(_explain(error)) from error
    if module.kind != EXECUTOR_KIND:
        raise ArtifactError(
            f"expected an artifact of tvm_stretch for {artifact.name}, got a library of kind "
            f"{module.kind}; open it with tvm.runtime.load_module"
        )
    if data is not None:
        module = _with_data(module, data)
    load_executor(module)
    return module


def _with_data(module: tvm.runtime.Module, data: PrivateCopy) -> tvm.runtime.Module:
    try:
        return tvm.get_global_func("tvm_stretch.with_data")(module, str(data.path))
    except RunError:
        raise
    except Exception as error:
        raise ArtifactError(_explain(error).replace(str(data.path), data.name)) from error


# as the system's loader and tvm-ffi say it
_NO_MEMORY = re.compile(
    r"Cannot allocate memory|failed to map segment from shared object$|std::bad_alloc$", re.M
)


def _load_library(path: Path) -> tvm.runtime.Module:
    """The module in a library, under a name of its own.

    The system's loader goes by names: it would answer with the library that stood there before.
    """
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder, "model.so")
        link.symlink_to(path)
        # TVM's load_module follows the link, and keeps every library until the process ends.
        return tvm_ffi.load_module(link, keep_module_alive=False)


def load_executor(module: tvm.runtime.Module) -> None:
    """Check and prepare the weights of an executor, unless that is done already."""
    try:
        module["load"]()
    except RunError:  # no fault of the artifact
        raise
    except Exception as error:
        raise ArtifactError(_explain(error)) from error


def _explain(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [repr(error)]
    ours = [number for number, line in enumerate(lines) if line.startswith("expected ")]
    if ours:
        return "\n".join(lines[ours[-1] :])  # of several lines, if a driver's log is part of it
    if "a loader of that name is not registered" in lines[-1]:
        return (
            f"expected the library of each processor of the artifact, got {lines[-1]!r}; load it "
            "before (tvm_stretch.run.native_processor.load_processor)"
        )
    return f"expected a loadable artifact, got {lines[-1]!r}; export the model again"


def machine_of(artifact: PrivateCopy) -> str:
    """The machine that an artifact is for, as `platform.machine` names them."""
    with artifact.path.open("rb") as file:
        return read_machine(file, artifact.name)
