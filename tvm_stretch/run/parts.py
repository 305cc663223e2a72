"""The parts of a model that was just compiled, and the artifact that they become.

    model.so  =  kernels' object files
              +  the executor with its graph, in the form that TVM's `load_module` understands
              +  weights, a read-only section: mapped, not copied, when the artifact is opened
              +  a fingerprint (seal.py)

TVM would pack the weights into an LLVM constant. That takes 20 s and 3 GB for the 550 MB of a
VGG-16, and every load copies them; the assembler's `.incbin` does neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import tvm
from tvm.runtime import _ffi_api

from tvm_stretch.base.errors import ArtifactError, TargetError
from tvm_stretch.make.lowering.executor_graph import Graph, PlanSpec, Span
from tvm_stretch.plan.considered import Considered
from tvm_stretch.run.artifact import written_beside
from tvm_stretch.run.autoload import load_native_library
from tvm_stretch.run.linking import linker_for
from tvm_stretch.run.seal import WEIGHTS_HEADER, WEIGHTS_SECTION, seal
from tvm_stretch.targets.cpu.code.object_code import ObjectCode, object_file

_WEIGHTS_MAGIC = b"TVMSTRW1"

# Read by whatever compiler links the artifact, as C or as C++; see `WeightsHeader` in program.cc.
_WEIGHTS_SOURCE = """\
#include <stdint.h>
__asm__(
    ".pushsection {section}, \\"a\\"\\n"
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
    """What an artifact is made of."""

    graph: Graph  # what to run
    code: ObjectCode  # the kernels of the CPU
    weights: tvm.runtime.Tensor  # the bytes that belong to the graph
    # code of the graph's other processors, in their order
    devices: tuple[tvm.runtime.Module, ...] = ()
    own_bytes: int = 0  # the size of the weights that every plan of the network has

    def create_executor(self, kernels: tvm.runtime.Module) -> tvm.runtime.Module:
        """An executor that calls these kernels."""
        load_native_library()
        create = tvm.get_global_func("tvm_stretch.create_executor")
        return create(self.graph.to_json(), self.weights, kernels, *self.devices)

    def explained(
        self,
        reason: str,  # in words
        # the candidates among which it was; by default those of its plan
        considered: Sequence[Considered] | None = None,
        number: int = 0,  # which of several plans
        network: str = "",  # what the network is called; by default as before
    ) -> Parts:
        """The parts, with a plan that says why it was chosen."""
        plans = [*self.graph.plans]
        plan = {**(plans[number].plan if plans else self.graph.plan), "reason": reason}
        if considered is not None:
            plan["considered"] = [asdict(one) for one in considered]
        if plans:
            plans[number] = replace(plans[number], plan=plan)
        first = self.graph.plan if number else plan
        network = network or self.graph.network
        graph = replace(self.graph, plan=first, plans=tuple(plans), network=network)
        return replace(self, graph=graph)

    def named(
        self,
        names: Sequence[str],  # of the plans
        expected: Sequence[float],  # seconds that a run of each should take
        # nanoseconds that each region of each plan should take, if they are known
        work: Sequence[tuple[int, ...]] | None = None,
        watts: Sequence[float] = (),  # of a run of each, if plans are chosen by energy
        within_ns: int = 0,  # how long a run may take then; 0: any time
    ) -> Parts:
        """The parts, whose plans have names."""
        only = (PlanSpec("", len(self.graph.regions), plan=self.graph.plan),)
        count = len(names)
        rows = zip(
            *(self.graph.plans or only, names, expected),
            *(work or [()] * count, watts or [0.0] * count),
            strict=True,
        )
        plans = tuple(
            replace(
                plan,
                name=name,
                expected_ns=round(seconds * 1e9),
                work_ns=regions,
                milliwatts=round(1e3 * power),
            )
            for plan, name, seconds, regions, power in rows
        )
        return replace(self, graph=replace(self.graph, plans=plans, within_ns=within_ns))

    def spanning(self, spans: Sequence[Span]) -> Parts:
        """The parts of a model that pads inputs to the next of its lengths."""
        return replace(self, graph=replace(self.graph, spans=tuple(spans)))

    @property
    def _triple(self) -> str:
        """The machine for which the kernels were compiled; empty for this machine."""
        return str(tvm.target.Target(self.code.target).attrs.get("mtriple", ""))

    def write(
        self,
        path: Path,  # the file to write; it appears complete or not at all
        # called with the output and the list of files to compile and link, as by TVM's
        # `export_library`; by default what `linker_for` finds
        fcompile: Callable[..., object] | None = None,
        # without them, they are to be given to the executor (`use_weights`)
        with_weights: bool = True,
    ) -> None:
        """Link the parts into the shared library `path`.

        Raises:
            ArtifactError: the folder does not exist, or linking failed.
            TargetError: nothing here links for the target.
        """
        link = fcompile or linker_for(self._triple)
        with written_beside(path) as folder:
            graph = folder / "graph.o"
            executor = self.create_executor(self.code.as_static_library())
            packed = _ffi_api.ModulePackImportsToLLVM(executor, False, self.code.target, "")
            graph.write_bytes(object_file(packed))
            files = [*self.code.write(folder), graph]
            if with_weights:
                files.append(_write_weights(folder, self.weights))
            try:
                link(str(folder / path.name), list(map(str, files)))
            except TargetError:
                raise
            except Exception as error:  # whatever the compiler or the caller's function raises
                raise ArtifactError(
                    f"expected a linked library for {path}, got {error}; check the compiler"
                ) from error
            seal(folder / path.name)

    def write_weights(self, folder: Path) -> list[Path]:
        """The weights in files: those of the network whatever its plan, and others, if any."""
        blob = np.from_dlpack(self.weights)
        paths = [_with_header(folder / "network.bin", blob[: self.own_bytes])]
        if blob.size > self.own_bytes:
            paths.append(folder / "plan.bin")
            paths[-1].write_bytes(blob[self.own_bytes :].data)
        return paths


def _with_header(path: Path, weights: np.ndarray) -> Path:
    """A file that begins with what the executor looks for."""
    with path.open("wb") as file:
        file.write(WEIGHTS_HEADER.pack(_WEIGHTS_MAGIC, weights.nbytes))
        file.write(weights.data)
    return path


def _write_weights(folder: Path, weights: tvm.runtime.Tensor) -> Path:
    """A source file that pulls the weights into the library."""
    source = folder / "weights.c"
    data = _with_header(folder / "weights.bin", np.from_dlpack(weights))
    escaped = str(data).replace("\\", "\\\\").replace('"', '\\"')
    source.write_text(_WEIGHTS_SOURCE.format(path=escaped, section=WEIGHTS_SECTION))
    return source
