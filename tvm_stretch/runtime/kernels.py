"""Machine code of the kernels, generated once: to run it here and to export it.

TVM's own way generates it twice, in the JIT for running and again for `export_library`; for
ResNet-50 that is five seconds each time.
"""

from __future__ import annotations

import platform
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path

import tvm
from tvm import tirx
from tvm.support import cc

from tvm_stretch.errors import TargetError

MACHINES = {62: "x86_64", 183: "aarch64", 164: "hexagon", 243: "riscv64"}
"""Names, as `platform.machine` gives them, of the machine numbers in ELF files."""

_MACHINE_OFFSET = 18


@dataclass(frozen=True, repr=False)
class ObjectCode:
    """An object file with kernels, not linked yet.

    Attributes:
        data: the bytes of the file.
        functions: names of the kernels.
        target: JSON of the target that they were generated for.
    """

    data: bytes
    functions: tuple[str, ...]
    target: str

    @property
    def runs_here(self) -> bool:
        """Whether the code is for this kind of machine."""
        (machine,) = struct.unpack_from("<H", self.data, _MACHINE_OFFSET)
        return MACHINES.get(machine) == platform.machine()

    def load(self) -> tvm.runtime.Module:
        """Link and load the kernels into this process.

        Raises:
            TargetError: there is no compiler to link with.
        """
        with tempfile.TemporaryDirectory() as folder:
            source, library = Path(folder, "kernels.o"), Path(folder, "kernels.so")
            source.write_bytes(self.data)
            try:
                cc.create_shared(str(library), [str(source)])
            except Exception as error:  # none found, or none that works
                raise TargetError(
                    f"expected a C++ compiler that links the kernels, got {error}; "
                    "install g++ or clang++"
                ) from error
            return tvm.runtime.load_module(str(library))

    def as_static_library(self) -> tvm.runtime.Module:
        """A module that can only be written out again."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "kernels.o")
            source.write_bytes(self.data)
            return tvm.runtime.load_static_library(str(source), list(self.functions))


def compile_kernels(kernels: tvm.IRModule, target: tvm.target.Target) -> ObjectCode:
    """Generate code for every function of the module."""
    library = tirx.build(kernels, target=target)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernels.o")
        library.write_to_file(str(path), "o")
        names = sorted(var.name_hint for var in kernels.functions)
        return ObjectCode(path.read_bytes(), tuple(names), str(target))
