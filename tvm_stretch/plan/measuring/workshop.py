"""Compiles samples and networks for one processor, to be measured there."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import tvm
from tvm import tirx

from tvm_stretch.base.compiling import compiling
from tvm_stretch.base.progress import quiet
from tvm_stretch.make.branching import branch
from tvm_stretch.make.code.generate import named_kernel
from tvm_stretch.make.pipeline import Job, build_parts
from tvm_stretch.network.operators import Calls
from tvm_stretch.plan.cost.describe import describe
from tvm_stretch.plan.measuring.sample_networks import chain
from tvm_stretch.plan.measuring.samples import Sample, sample_of
from tvm_stretch.read import load_network
from tvm_stretch.run.model import Model
from tvm_stretch.targets.kernels.features import Features
from tvm_stretch.targets.processor import Processor

REFERENCE = Sample("conv", 64, (28, 28), 64, (1, 1), epilogue="relu")
"""The kernel that shows whether the machine is idle; about a tenth of a millisecond."""

_HALVED = 32  # channels


@dataclass(frozen=True)
class Prepared:
    """A compiled model to measure."""

    model: Model  # the model
    kernels: dict[str, Kernel]  # its kernels by name


class Workshop:
    """Compiles for one processor.

    Args:
        processors: the processor, then the CPU if that is another one.
    """

    def __init__(self, processors: Sequence[Processor]) -> None:
        self.processor = processors[0]
        self.host = processors[-1]

    def on(self, processor: Processor) -> Workshop:
        """One that compiles for another form of its processor."""
        return Workshop([processor, *([] if self.host is self.processor else [self.host])])

    @functools.cached_property
    def reference(self) -> Model:
        """The reference kernel as a model, compiled once for all devices."""
        return self.samples([REFERENCE]).model

    def samples(self, samples: Sequence[Sample], apart: bool = False) -> Prepared:
        """A chain of samples; see `chain` for ``apart``."""
        with compiling():
            return self.network(chain(samples, apart, self.processor.machine.gpu is not None))

    def halves(self, network: object) -> Prepared:
        """A network with its larger layers in two halves, both on this processor."""
        with compiling():
            return self.network(in_halves(load_network(network)))

    @quiet()
    def network(self, network: object) -> Prepared:
        """A network on this processor; operators that it refuses run on the CPU."""
        processor, kernels = recording(self.processor)
        alone = self.host is self.processor
        every = [processor] if alone else [self.host, processor]
        willing = [processor] if alone else [processor, self.host]
        with compiling():
            job = Job(load_network(network), every, willing)
            return Prepared(Model.from_parts(build_parts(job)), kernels)


def half_shares(mod: tvm.IRModule) -> dict[str, tuple[int, ...]]:
    """Larger convolutions, each as two halves of its output channels."""
    shares: dict[str, tuple[int, ...]] = {}
    for name, call in Calls(mod["main"]).calls.items():
        if isinstance(call.op, tvm.ir.Op) and call.op.name == "relax.nn.conv2d":
            channels = int(call.ty.shape.values[1])
            if channels >= _HALVED and int(call.attrs.groups) == 1:
                half = channels // 16 * 8
                shares[name] = (half, channels - half)
    return shares


def in_halves(mod: tvm.IRModule) -> tvm.IRModule:
    """The network with its larger convolutions in halves, both computed by one processor."""
    shares = half_shares(mod)
    return branch(mod, shares, ()).mod if shares else mod


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

    def __init__(self, processor: Processor, kernels: dict[str, Kernel]) -> None:
        self.processor = processor
        self.kernels = kernels

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Fill the table."""
        for var, function in mod.functions.items():
            if isinstance(function, tirx.PrimFunc):
                named = named_kernel(var.name_hint, function, self.processor.code.schedule)
                features = describe(function, self.processor.machine)
                self.kernels[str(named.attrs["global_symbol"])] = Kernel(
                    features, sample_of(var.name_hint, function)
                )
        return mod


def recording(processor: Processor) -> tuple[Processor, dict[str, Kernel]]:
    """A copy of the processor, and a table that its compilations fill."""
    kernels: dict[str, Kernel] = {}
    phases = (*processor.code.phases, RecordKernels(processor, kernels))
    return replace(processor, code=replace(processor.code, phases=phases)), kernels
