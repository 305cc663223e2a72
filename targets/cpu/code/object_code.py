"""Machine code of the kernels, generated once for running and for exporting.

TVM generates code twice, in the JIT for running and again for `export_library`; for ResNet-50 that
takes five seconds each time. Each kernel is an object file of its own, so that the cache can keep
it (`generate.py`); linking 60 of them takes a twentieth of a second.
"""

from __future__ import annotations

import functools
import os
import platform
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import tvm
import tvm_ffi
from tvm import tirx
from tvm.support import cc

from tvm_stretch.base.elf import MACHINES
from tvm_stretch.base.errors import TargetError
from tvm_stretch.base.files import writing
from tvm_stretch.make.code.generate import generate
from tvm_stretch.targets.cpu.code.llvm_code import llvm_module

_MACHINE_OFFSET = 18
_C_ALONE = ("-nostdlib", "-lm", "-lc", "-lgcc")
"""Kernels need nothing of C++, and g++ takes three times as long to link its library."""


@dataclass(frozen=True, repr=False)
class ObjectCode:
    """Object files with kernels that are not linked yet."""

    objects: tuple[bytes, ...]  # the bytes of each file; at least one
    functions: tuple[str, ...]  # names of the kernels
    target: str  # JSON of the target for which they were generated

    @property
    def runs_here(self) -> bool:
        """Whether the code is for this kind of machine."""
        (machine,) = struct.unpack_from("<H", self.objects[0], _MACHINE_OFFSET)
        return MACHINES.get(machine) == platform.machine()

    def load(self) -> tvm.runtime.Module:
        """Link and load the kernels into this process, once for all models of this code.

        Raises:
            TargetError: there is no compiler to link with, or no space for the library.
        """
        return self._loaded

    @functools.cached_property
    def _loaded(self) -> tvm.runtime.Module:
        with writing("the kernels", TargetError), tempfile.TemporaryDirectory() as folder:
            library = Path(folder, "kernels.so")
            sources = self.write(Path(folder))
            try:
                cc.create_shared(str(library), list(map(str, sources)), _C_ALONE)
            except Exception as error:  # there is no compiler, or it does not work
                raise TargetError(
                    f"expected a C++ compiler that links the kernels, got {error}; "
                    "install g++ or clang++"
                ) from error
            # TVM's own load_module keeps every library loaded until the process ends.
            return tvm_ffi.load_module(library, keep_module_alive=False)

    def write(self, folder: Path) -> list[Path]:
        """Write the object files into a folder; returns their paths."""
        paths = [folder / f"kernel{index}.o" for index in range(len(self.objects))]
        for path, data in zip(paths, self.objects, strict=True):
            path.write_bytes(data)
        return paths

    def as_static_library(self) -> tvm.runtime.Module:
        """A module that only names the kernels, for an executor that will be exported."""
        with writing("the kernels", TargetError), tempfile.TemporaryDirectory() as folder:
            return tvm.runtime.load_static_library(
                str(self.write(Path(folder))[0]), list(self.functions)
            )


def link(kernels: Mapping[str, bytes], target: tvm.target.Target) -> ObjectCode:
    """The kernels' object files, in an order that depends only on their names."""
    names = sorted(kernels)
    objects = [kernels[name] for name in names] or [_object_code(tvm.IRModule(), target)]
    return ObjectCode(tuple(objects), tuple(names), str(target))


def compile_kernels(
    kernels: Mapping[str, tirx.PrimFunc],
    schedule: tvm.transform.Pass | None,
    target: tvm.target.Target,
) -> dict[str, bytes]:
    """The object file of each kernel."""

    def object_code(kernel: tirx.PrimFunc) -> bytes:
        return _object_code(tvm.IRModule({str(kernel.attrs["global_symbol"]): kernel}), target)

    return generate(kernels, schedule, target, object_code)


def _object_code(mod: tvm.IRModule, target: tvm.target.Target) -> bytes:
    """The bytes of an object file."""
    return object_file(llvm_module(mod, target))


def object_file(library: tvm.runtime.Module) -> bytes:
    """The object file of an LLVM module.

    It is written to memory, because LLVM ends the process if a disk is full.
    """
    with os.fdopen(os.memfd_create("kernels.o"), "rb") as file:
        library.write_to_file(f"/proc/self/fd/{file.fileno()}", "o")
        return file.read()
