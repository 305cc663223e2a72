"""Compile samples or networks for one processor, run them there, and time every kernel."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import rpc

from tvm_stretch.compiler import compile
from tvm_stretch.cost.dataset import Row
from tvm_stretch.cost.features import Features
from tvm_stretch.cost.record import Kernel, recording
from tvm_stretch.cost.samples import Sample, chain
from tvm_stretch.cost.timing import Stopwatch, Timing, node_times
from tvm_stretch.lowering.graph import COPY_KERNEL
from tvm_stretch.runtime.model import Model
from tvm_stretch.targets.processor import Processor

REFERENCE = Sample("conv", 64, (28, 28), 64, (1, 1), epilogue="relu")
"""The kernel that tells whether the machine is at rest; about a tenth of a millisecond."""

_RUNS = 15
_SECONDS = 5.0


@dataclass(frozen=True)
class NetworkTiming:
    """A network measured whole and kernel by kernel.

    Attributes:
        rows: one for every different kernel.
        kernels: features of the nodes, in the order they run; copies left out.
        total: of a run as the caller sees it.
    """

    rows: list[Row]
    kernels: list[Features]
    total: Timing


class Bench:
    """One processor, here or behind an RPC session.

    Args:
        processors: the one to measure; then the CPU, if that is another one.
        session: where to run; None for this process.
    """

    def __init__(
        self, processors: Sequence[Processor], session: rpc.RPCSession | None = None
    ) -> None:
        self.processor = processors[0]
        self.host = processors[-1]
        self.session = session
        self._uploads = itertools.count()
        reference = self._open(self._compile(chain([REFERENCE]), self.processor))
        count = len(json.loads(reference["graph"]())["nodes"])
        self.stopwatch = Stopwatch(lambda: sum(node_times(_trace(reference), count)))

    def describe(self) -> str:
        """How fast the reference kernel is at best."""
        return f"reference {self.stopwatch.fastest_ns / 1e3:.1f} µs"

    def measure_samples(self, samples: Sequence[Sample], batch: int) -> list[Row]:
        """One row for every different kernel of the chain of these samples."""
        processor, kernels = recording(_with_choices(self.processor, samples))
        model = self._compile(chain(samples), processor)
        rows, _ = self._rows(model, kernels, self._open(model), batch=batch)
        return rows

    def measure_network(self, name: str, network: object) -> NetworkTiming:
        """Every kernel of the network, in place, and the network as a whole."""
        processor, kernels = recording(self.processor)
        model = self._compile(network, processor)
        module = self._open(model)
        rows, total = self._rows(model, kernels, module, network=name)
        nodes = [node.kernel for node in model.graph.nodes if node.kernel != COPY_KERNEL]
        return NetworkTiming(rows, [kernels[kernel].features for kernel in nodes], total)

    def _rows(
        self, model: Model, kernels: dict[str, Kernel], module: tvm.runtime.Module, **origin: Any
    ) -> tuple[list[Row], Timing]:
        """The kernels, and the whole of the same runs."""
        nodes = model.graph.nodes

        def run() -> list[int]:
            trace = _trace(module)
            return [*node_times(trace, len(nodes)), trace["end"] - trace["start"]]

        *timings, total = self.stopwatch.watch(run, _RUNS, _SECONDS)
        rows: dict[str, list[Timing]] = {}
        for node, timing in zip(nodes, timings, strict=True):
            if node.kernel != COPY_KERNEL:
                rows.setdefault(node.kernel, []).append(timing)
        return [self._row(kernels[name], times, origin) for name, times in rows.items()], total

    def _row(self, kernel: Kernel, times: list[Timing], origin: dict[str, Any]) -> Row:
        """A kernel that several nodes call counts once, with their mean."""
        return Row(
            features=kernel.features,
            nanoseconds=round(sum(t.nanoseconds for t in times) / len(times)),
            spread=round(max(t.spread for t in times), 4),
            runs=sum(t.runs for t in times),
            quiet=all(t.quiet for t in times),
            sample=None if kernel.sample is None else kernel.sample.to_json(),
            **origin,
        )

    def _compile(self, network: object, processor: Processor) -> Model:
        others = () if self.host is self.processor else (self.host,)
        targets = [processor, *others]
        return compile(network, targets, cpu_threads=self.host.threads)

    def _open(self, model: Model) -> tvm.runtime.Module:
        """The executor with random inputs set."""
        module, device = model.module, tvm.cpu(0)
        if self.session is not None:
            with tempfile.TemporaryDirectory() as folder:
                # another name each time: overwriting a library that is loaded crashes the device
                path = Path(folder, f"kernels{next(self._uploads)}.so")
                model.export(path)
                self.session.upload(str(path))
            module, device = self.session.load_module(path.name), self.session.cpu(0)
        dice = np.random.default_rng(0)
        for port in model.graph.inputs:
            spec = model.graph.tensors[port.tensor]
            value = dice.standard_normal(spec.shape).astype(spec.dtype)
            module["set_input"](port.name, tvm.runtime.tensor(value, device))
        return module


def _trace(module: tvm.runtime.Module) -> dict[str, Any]:
    trace: dict[str, Any] = json.loads(module["trace"]())
    return trace


def _with_choices(processor: Processor, samples: Sequence[Sample]) -> Processor:
    """The processor with the configurations that the samples ask for."""
    choices = {_shape(sample): sample.choice for sample in samples if sample.choice}
    if not choices:
        return processor

    def rank(candidates: tuple[Any, ...], _machine: Any) -> Any:
        index = choices.get(_key(candidates[0]), 0)
        return candidates[min(index, len(candidates) - 1)]

    return replace(processor, machine=replace(processor.machine, rank=rank))


def _key(config: Any) -> tuple[Any, ...]:
    names = ("in_channels", "in_size", "out_channels", "padding", "groups")
    return tuple(getattr(config, name) for name in names)


def _shape(sample: Sample) -> tuple[Any, ...]:
    return _key(sample)
