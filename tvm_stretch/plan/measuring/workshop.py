"""Compiles samples and networks for one processor, to be measured there."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import tvm

from tvm_stretch.base.compiling import compiling
from tvm_stretch.base.progress import quiet
from tvm_stretch.make.branching import branch
from tvm_stretch.make.pipeline import build_parts
from tvm_stretch.network.calls import Calls
from tvm_stretch.plan.measuring.record import Kernel, recording
from tvm_stretch.plan.measuring.sample_networks import chain
from tvm_stretch.plan.measuring.samples import Sample
from tvm_stretch.read import load_network
from tvm_stretch.run.model import Model
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
            return self.network(in_halves(load_network(network), [self.host, self.processor]))

    @quiet()
    def network(self, network: object) -> Prepared:
        """A network on this processor; operators that it refuses run on the CPU."""
        processor, kernels = recording(self.processor)
        alone = self.host is self.processor
        every = [processor] if alone else [self.host, processor]
        willing = [processor] if alone else [processor, self.host]
        with compiling():
            return Prepared(
                Model.from_parts(build_parts(load_network(network), None, every, willing)), kernels
            )


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


def in_halves(mod: tvm.IRModule, processors: Sequence[Processor]) -> tvm.IRModule:
    """The network with its larger convolutions in halves, both computed by one processor."""
    shares = half_shares(mod)
    pair = [processors[0], replace(processors[-1], name="other half")]
    return branch(mod, shares, (), pair).mod if shares else mod
