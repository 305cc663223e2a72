"""Artifacts: one shared library with kernels, graph and weights.

    model.so  =  kernels' object files
              +  the executor with its graph, in the form that TVM's `load_module` understands
              +  weights, a read-only section: mapped, not copied, when the artifact is opened
              +  a fingerprint of all that (seal.py)

TVM would pack the weights into an LLVM constant. That takes 20 s and 3 GB for the 550 MB of a
VGG-16, and every load copies them; the assembler's `.incbin` does neither.
"""

from __future__ import annotations

import contextlib
import glob
import os
import platform
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import tvm
import tvm_ffi
from tvm.runtime import _ffi_api

from tvm_stretch.codegen.linking import linker_for
from tvm_stretch.codegen.object_code import ObjectCode, object_file
from tvm_stretch.errors import ArtifactError, RunError, TargetError
from tvm_stretch.files import held, new_folder, remove_abandoned, writing
from tvm_stretch.lowering.executor_graph import Graph, PlanSpec
from tvm_stretch.plan.considered import Considered
from tvm_stretch.runtime.autoload import load_native_library
from tvm_stretch.runtime.elf import read_machine
from tvm_stretch.runtime.private_copy import PrivateCopy
from tvm_stretch.runtime.seal import check_seal, require_seal, seal

EXECUTOR_KIND = "tvm_stretch.executor"

_WEIGHTS_MAGIC = b"TVMSTRW1"
_WEIGHTS_HEADER = struct.Struct("<8sQ48x")

# Read by whatever compiler links the artifact, as C or as C++; see `WeightsHeader` in program.cc.
_WEIGHTS_SOURCE = """\
#include <stdint.h>
__asm__(
    ".pushsection .tvm_stretch_weights, \\"a\\"\\n"
    ".balign 64\\n"
    ".hidden tvm_stretch_weights_section\\n"
    ".globl tvm_stretch_weights_section\\n"
    "tvm_stretch_weights_section:\\n"
    ".incbin \\"{path}\\"\\n"
    ".popsection\\n");
#ifdef __cplusplus
extern "C" {{
#endif
extern const char tvm_stretch_weights_section[] __attribute__((visibility("hidden")));
typedef struct {{ int32_t type_index; uint32_t padding; const void* pointer; }} Any;
/* A tvm-ffi function without arguments that returns a pointer (type index 4). */
__attribute__((visibility("default")))
int __tvm_ffi_tvm_stretch_weights(void* self, const Any* args, int32_t count, Any* result) {{
  (void)self; (void)args; (void)count;
  result->type_index = 4;
  result->padding = 0;
  result->pointer = tvm_stretch_weights_section;
  return 0;
}}
#ifdef __cplusplus
}}
#endif
"""


@dataclass(frozen=True, repr=False)
class Parts:
    """What an artifact is made of.

    Attributes:
        graph: what to run.
        code: the kernels of the CPU.
        weights: the bytes that belong to the graph.
        devices: code of the graph's other processors, in their order.
        own_bytes: so many of the weights are the network's, whatever its plan.
    """

    graph: Graph
    code: ObjectCode
    weights: tvm.runtime.Tensor
    devices: tuple[tvm.runtime.Module, ...] = ()
    own_bytes: int = 0

    def create_executor(self, kernels: tvm.runtime.Module) -> tvm.runtime.Module:
        """An executor that calls these kernels."""
        load_native_library()
        create = tvm.get_global_func("tvm_stretch.create_executor")
        return create(self.graph.to_json(), self.weights, kernels, *self.devices)

    def explained(self, reason: str, considered: Sequence[Considered] | None = None) -> Parts:
        """The parts, with a plan that says why it was chosen.

        Args:
            reason: for people.
            considered: the candidates among which it was; by default those of its plan.
        """
        plan, plans = {**self.graph.plan, "reason": reason}, self.graph.plans
        if considered is not None:
            plan["considered"] = [asdict(one) for one in considered]
        if plans:
            plans = (replace(plans[0], plan=plan), *plans[1:])
        return replace(self, graph=replace(self.graph, plan=plan, plans=plans))

    def named(self, names: Sequence[str], expected: Sequence[float]) -> Parts:
        """The parts, whose plans have names, and seconds that a run of each should take."""
        only = (PlanSpec("", len(self.graph.regions), plan=self.graph.plan),)
        plans = tuple(
            replace(plan, name=name, expected_ns=round(seconds * 1e9))
            for plan, name, seconds in zip(self.graph.plans or only, names, expected, strict=True)
        )
        return replace(self, graph=replace(self.graph, plans=plans))


def write_artifact(
    path: Path,
    parts: Parts,
    fcompile: Callable[..., object] | None = None,
    with_weights: bool = True,
) -> None:
    """Link the parts into the shared library `path`.

    Args:
        path: the file to write; it appears complete or not at all.
        parts: what to write.
        fcompile: called with the output and the list of files to compile and link, as by TVM's
            `export_library`; by default what `linker_for` finds.
        with_weights: without them, they are to be given to the executor (`use_weights`).

    Raises:
        ArtifactError: the folder does not exist, or linking failed.
        TargetError: nothing here links for the target.
    """
    link = fcompile or linker_for(_triple_of(parts))
    with _written_beside(path) as folder:
        graph = folder / "graph.o"
        executor = parts.create_executor(parts.code.as_static_library())
        packed = _ffi_api.ModulePackImportsToLLVM(executor, False, parts.code.target, "")
        graph.write_bytes(object_file(packed))
        files = [*parts.code.write(folder), graph]
        if with_weights:
            files.append(_write_weights(folder, parts.weights))
        try:
            link(str(folder / path.name), list(map(str, files)))
        except TargetError:
            raise
        except Exception as error:  # whatever the compiler or the caller's function raises
            raise ArtifactError(
                f"expected a linked library for {path}, got {error}; check the compiler"
            ) from error
        seal(folder / path.name)


def _triple_of(parts: Parts) -> str:
    """Of what the kernels were compiled for; empty for this machine."""
    return str(tvm.target.Target(parts.code.target).attrs.get("mtriple", ""))


def write_weights(folder: Path, parts: Parts) -> list[Path]:
    """The weights in files: those that the network has whatever its plan, and others, if any."""
    blob = np.from_dlpack(parts.weights)
    paths = [_with_header(folder / "network.bin", blob[: parts.own_bytes])]
    if blob.size > parts.own_bytes:
        paths.append(folder / "plan.bin")
        paths[-1].write_bytes(blob[parts.own_bytes :].data)
    return paths


def _with_header(path: Path, weights: np.ndarray) -> Path:
    """A file that begins with what the executor looks for."""
    with path.open("wb") as file:
        file.write(_WEIGHTS_HEADER.pack(_WEIGHTS_MAGIC, weights.nbytes))
        file.write(weights.data)
    return path


def _write_weights(folder: Path, weights: tvm.runtime.Tensor) -> Path:
    """A source file that pulls the weights into the library."""
    source = folder / "weights.c"
    data = _with_header(folder / "weights.bin", np.from_dlpack(weights))
    escaped = str(data).replace("\\", "\\\\").replace('"', '\\"')
    source.write_text(_WEIGHTS_SOURCE.format(path=escaped))
    return source


def copy_artifact(source: PrivateCopy, path: Path) -> None:
    """Write an artifact that was loaded; the copy appears complete or not at all."""
    with _written_beside(path) as folder:
        shutil.copyfile(source.path, folder / path.name)


@contextlib.contextmanager
def _written_beside(path: Path) -> Iterator[Path]:
    """A temporary folder; its file `path.name` replaces `path` once it is safe on disk."""
    if not path.parent.is_dir():
        raise ArtifactError(
            f"expected an existing folder for the artifact, got {path.parent}; create it first"
        )
    if path.is_dir():
        raise ArtifactError(
            f"expected a file for the artifact, got the folder {path}; name a file in it"
        )
    _remove_leftovers(path)
    with writing("the artifact", ArtifactError):
        with held(lambda: new_folder(path.parent, f".{path.name}.")) as (folder, _):
            try:
                yield folder
                written = folder / path.name
                with written.open("rb+") as file:
                    os.fsync(file.fileno())
                written.replace(path)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        folder_handle = os.open(path.parent, os.O_RDONLY)
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
    """What is quickly looked at, before many bytes are."""
    read_machine(file, name)
    require_seal(file, name)


def open_artifact(artifact: PrivateCopy) -> tvm.runtime.Module:
    """The executor of an artifact; its weights are prepared when this returns.

    Raises:
        ArtifactError: it was made for another version or processor, or is none.
        RunError: memory is missing.
    """
    machine = machine_of(artifact)
    if machine != platform.machine():
        raise ArtifactError(
            f"expected an artifact for {platform.machine()} for {artifact.name}, got one for "
            f"{machine}; compile for this machine"
        )
    try:
        module = _load_library(artifact.path)
    except Exception as error:  # tvm-ffi maps C++ errors onto many Python types
        if _NO_MEMORY in str(error):
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
    load_executor(module)
    return module


_NO_MEMORY = "Cannot allocate memory"  # as the system's loader says it


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
    return f"expected a loadable artifact, got {lines[-1]!r}; export the model again"


def machine_of(artifact: PrivateCopy) -> str:
    """The machine that an artifact is for, as `platform.machine` names them."""
    with artifact.path.open("rb") as file:
        return read_machine(file, artifact.name)
