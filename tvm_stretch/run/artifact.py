"""Artifacts: reads, checks, opens and copies the libraries that `Parts.write` links (parts.py)."""

from __future__ import annotations

import contextlib
import glob
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import tvm
import tvm_ffi

from tvm_stretch.base.elf import read_machine
from tvm_stretch.base.errors import ArtifactError, RunError
from tvm_stretch.base.files import held, new_folder, remove_abandoned, replaceable, writing
from tvm_stretch.run.private_copy import PrivateCopy
from tvm_stretch.run.seal import check_seal, require_seal

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
