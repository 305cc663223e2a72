"""Kernel-level Relax -> a model that runs."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
from collections.abc import Sequence

import tvm
from tvm import tirx

from tvm_stretch.errors import TargetError
from tvm_stretch.lowering.lower import lower
from tvm_stretch.runtime.artifact import Parts
from tvm_stretch.runtime.kernels import compile_kernels
from tvm_stretch.runtime.model import Model

_X86_FEATURES = ("sse4.2", "avx", "avx2", "fma")
_AVX512_FEATURES = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni")
_ARM_FEATURES = ("neon", "fullfp16", "dotprod", "sve")
CHECKED_CPU_FEATURES = frozenset((*_X86_FEATURES, *_AVX512_FEATURES, *_ARM_FEATURES))
"""What an artifact asks of the processor it is loaded on; cpu_features.cc knows the same names."""


def build_model(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    threads: int = 1,
    output_names: Sequence[str] | None = None,
) -> Model:
    """Compile the kernels of kernel-level Relax and bind them to an executor.

    Args:
        mod: `main` and the scheduled kernels that it calls; see `lower` for what `main` may hold.
        target: an LLVM target.
        threads: how many threads the kernels were scheduled for; with 1 they must be serial.
        output_names: names of the outputs; by default the attribute `output_names` of `main`.

    Returns:
        A model for this machine; for another one it can only be exported.
    """
    if target.kind.name != "llvm":
        raise TargetError(f"expected an llvm target for build_model, got {target}; pass one")
    lowered = lower(mod, threads=threads, output_names=output_names)
    features = tvm.get_global_func("target.llvm_get_cpu_features")(target)
    graph = dataclasses.replace(
        lowered.graph,
        package_version=importlib.metadata.version("tvm-stretch"),
        target=json.loads(str(target)),
        cpu_features=tuple(sorted(CHECKED_CPU_FEATURES.intersection(map(str, features)))),
    )
    used = {node.kernel for node in (*graph.prepare, *graph.nodes)}
    kernels = {
        var.name_hint: function.with_attr("global_symbol", var.name_hint)
        for var, function in mod.functions.items()
        if isinstance(function, tirx.PrimFunc) and var.name_hint in used
    }
    code = compile_kernels(tvm.IRModule(kernels), target)
    return Model.from_parts(Parts(graph, code, lowered.weights))
