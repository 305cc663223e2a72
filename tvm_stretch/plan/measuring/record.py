"""Records the features of each kernel of a compilation, by name.

processor, kernels = recording(processor)
model = compile(network, [processor])
kernels["fused_conv2d_add_relu"].features
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import tvm
from tvm import tirx

from tvm_stretch.make.code.generate import named_kernel
from tvm_stretch.plan.cost.describe import describe
from tvm_stretch.plan.measuring.samples import Sample, sample_of
from tvm_stretch.targets.kernels.features import Features
from tvm_stretch.targets.processor import Processor


@dataclass(frozen=True)
class Kernel:
    """A kernel of a network; ``sample`` measures the same kernel, if it has a template."""

    features: Features
    sample: Sample | None


@tvm.transform.module_pass(opt_level=0, name="RecordKernels")
class RecordKernels:
    """Describe kernels after fusion and before scheduling; the module does not change.

    It is the last of a processor's phases, not a part of the schedule, because the schedule does
    not run for kernels that the cache knows.
    """

    def __init__(self, processor: Processor, found: dict[str, Kernel]) -> None:
        self.processor = processor
        self.found = found

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Fill the table."""
        for var, function in mod.functions.items():
            if isinstance(function, tirx.PrimFunc):
                named = named_kernel(var.name_hint, function, self.processor.schedule)
                features = describe(function, self.processor.machine)
                self.found[str(named.attrs["global_symbol"])] = Kernel(
                    features, sample_of(var.name_hint, function)
                )
        return mod


def recording(processor: Processor) -> tuple[Processor, dict[str, Kernel]]:
    """A copy of the processor, and a table that its compilations fill."""
    found: dict[str, Kernel] = {}
    phases = (*processor.phases, RecordKernels(processor, found))
    return replace(processor, phases=phases), found
