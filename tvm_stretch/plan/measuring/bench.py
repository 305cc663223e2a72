"""Runs samples or networks on one processor, and times every kernel."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm

from tvm_stretch.base.errors import DeviceError
from tvm_stretch.make.lowering.executor_graph import Graph, Node, Tensor
from tvm_stretch.phone.device import Device
from tvm_stretch.plan.cost.generic_features import LaunchedRunFeatures, RunFeatures
from tvm_stretch.plan.measuring.dataset import Row
from tvm_stretch.plan.measuring.samples import Sample
from tvm_stretch.plan.measuring.timing import (
    GpuStopwatch,
    PacketCounter,
    QuickestCore,
    Stopwatch,
    Timing,
    busy_times,
    empty_caches,
)
from tvm_stretch.plan.measuring.workshop import Kernel, Prepared, Workshop
from tvm_stretch.run.benchmark import node_packets, node_times
from tvm_stretch.run.model import Model
from tvm_stretch.run.plans_of_model import Executor
from tvm_stretch.targets.kernels.features import Features
from tvm_stretch.targets.processor import Processor

_RUNS = 15
_SECONDS = 3.0


def by_packets(processor: Processor) -> str:
    """A text that says how kernels of an emulated processor are timed."""
    return f"packets counted, {processor.hardware.packet_ns:.2f} ns each, not timed"


@dataclass(frozen=True)
class NetworkTiming:
    """A network measured whole and kernel by kernel."""

    rows: list[Row]  # one for every different kernel in each context
    # features of the nodes in place, in the order they run; copies left out
    kernels: list[Features]
    total: Timing  # the time of a run as the caller sees it
    copied_ns: int  # of that, copies of inputs and outputs to and from the device
    traced: list[int]  # nanoseconds of each node in a traced run; see `busy_times`


class Bench:
    """Measures on one processor, on this machine or on a remote device.

    Args:
        workshop: compiles for it.
        device: where to run; None for this process.
    """

    def __init__(self, workshop: Workshop, device: Device | None = None) -> None:
        self._workshop = workshop
        self._packet_ns = workshop.processor.hardware.packet_ns
        self._is_gpu = workshop.processor.machine.gpu is not None
        self.device = device
        self._core = QuickestCore()
        self.stopwatch: Stopwatch | PacketCounter = PacketCounter()
        if self._packet_ns:
            return
        reference = workshop.reference
        module, count = self._open(reference), len(reference.graph.nodes)
        kind = GpuStopwatch if self._is_gpu else Stopwatch
        self.stopwatch = kind(lambda: sum(node_times(trace_of(module, count), count)))

    def describe(self) -> str:
        """The best time of the reference kernel, or the time of a packet."""
        if self._packet_ns:
            return by_packets(self._workshop.processor)
        return f"reference {self.stopwatch.fastest_ns / 1e3:.1f} µs"

    def require_device(self) -> None:
        """Run the reference kernel: an error of the driver if the device is lost."""
        self.stopwatch.slowdown  # noqa: B018

    def measure(self, prepared: Prepared, batch: int) -> list[Row]:
        """Measure samples: one row for every different kernel in each context."""
        return self._rows(prepared, batch=batch)[0]

    def measure_network(self, name: str, prepared: Prepared) -> NetworkTiming:
        """Measure every kernel of a network in its context, and the network as a whole."""
        rows, total, copied_ns, traced = self._rows(prepared, network=name)
        features = {kernel: kernel_of.features for kernel, kernel_of in prepared.kernels.items()}
        placed = in_place(prepared.model.graph, features, once=self._is_gpu)
        return NetworkTiming(
            rows, [kernel for kernel in placed if kernel is not None], total, copied_ns, traced
        )

    def timed(self, model: Model) -> Callable[[], int]:
        """A function that runs the model once on the bench's device, and returns nanoseconds."""
        module = self._open(model)
        return lambda: self._run_ns(module)

    def _run_ns(self, module: Executor) -> int:
        """Nanoseconds of a run, as a caller on the same machine sees it."""
        text = str(module["time_runs"](1))
        if not text.isdigit():
            raise _no_answer("the nanoseconds of a run", text)
        return int(text)

    def _rows(self, prepared: Prepared, **origin: Any) -> tuple[list[Row], Timing, int, list[int]]:
        """Rows of kernels and of the run's overhead; times of the run, its copies and its nodes.

        Samples run a second time with emptied caches, as a network's weights come from memory.
        """
        model, kernels = prepared.model, prepared.kernels
        module = self._open(model)
        nodes, packet_ns = model.graph.nodes, self._packet_ns
        launched_here = self._is_gpu and self.device is None

        def kernel_times() -> list[int]:
            return traced()[:-1]

        def traced() -> list[int]:
            trace = trace_of(module, len(nodes))
            if packet_ns:
                return [*(round(packet_ns * n) for n in node_packets(trace, len(nodes))), 0]
            times_of = busy_times if launched_here else node_times
            return [*times_of(trace, len(nodes)), copy_time(trace)]

        def kernels_and_whole() -> list[int]:  # alternating, as a machine's speed drifts
            times = traced()
            return [*times, sum(times) if packet_ns else self._run_ns(module)]

        core = self._core.held(lambda: sum(kernels_and_whole()), anew="network" in origin)
        with core if launched_here else contextlib.nullcontext():
            *timings, copies, total = self.stopwatch.watch(kernels_and_whole, _RUNS, _SECONDS)
        alone = [timing.nanoseconds for timing in timings]
        rows = self._kernel_rows(model, kernels, timings, origin)
        if "network" in origin or packet_ns:  # long runs: their overhead would be noise
            return rows, total, copies.nanoseconds, alone
        rows.append(self._run_row(prepared, alone, total, copies if self._is_gpu else None, origin))
        if self.device is None and not self._is_gpu:  # the caches are the CPU's
            cold = self.stopwatch.watch(kernel_times, _RUNS, _SECONDS, prepare=empty_caches)
            rows += self._kernel_rows(model, kernels, cold, origin, flushed=True)
        return rows, total, copies.nanoseconds, alone

    def _run_row(
        self,
        prepared: Prepared,
        alone: Sequence[int],
        total: Timing,
        copies: Timing | None,
        origin: dict[str, Any],
    ) -> Row:
        """What a run takes beside its kernels, or the run itself where launches hide in it."""
        nodes, run = prepared.model.graph.nodes, total.nanoseconds
        if copies is None:
            beside = replace(total, nanoseconds=max(1, run - sum(alone)))
            return self._row(None, RunFeatures.make(len(nodes)), [beside], origin)
        features = {name: kernel.features for name, kernel in prepared.kernels.items()}
        launched = LaunchedRunFeatures.make([features.get(n.kernel) for n in nodes], sum(alone))
        computed = replace(total, nanoseconds=max(1, run - copies.nanoseconds))
        return self._row(None, launched, [computed], origin)

    def _kernel_rows(
        self,
        model: Model,
        kernels: dict[str, Kernel],
        timings: Sequence[Timing],
        origin: dict[str, Any],
        flushed: bool = False,
    ) -> list[Row]:
        """One row for each kernel in each context, with the mean of equal nodes."""
        features = {name: kernel.features for name, kernel in kernels.items()}
        times_of: dict[tuple[str, Features], list[Timing]] = {}
        placed = in_place(model.graph, features, flushed, once=self._is_gpu)
        for node, kernel, timing in zip(model.graph.nodes, placed, timings, strict=True):
            if kernel is not None:
                times_of.setdefault((node.kernel, kernel), []).append(timing)
        return [
            self._row(kernels[name].sample, kernel, times, origin)
            for (name, kernel), times in times_of.items()
        ]

    @staticmethod
    def _row(
        sample: Sample | None, kernel: Features, times: list[Timing], origin: dict[str, Any]
    ) -> Row:
        return Row(
            features=kernel,
            nanoseconds=round(sum(t.nanoseconds for t in times) / len(times)),
            spread=round(max(t.spread for t in times), 4),
            runs=sum(t.runs for t in times),
            quiet=all(t.quiet for t in times),
            reference_ns=times[0].reference_ns,
            sample=None if sample is None else sample.to_json(),
            **origin,
        )

    def _open(self, model: Model) -> Executor:
        """The executor with random inputs set."""
        module = model.module if self.device is None else self.device.load(model).module
        set_inputs(module, model.graph)
        return module


def set_inputs(module: Executor, graph: Graph) -> None:
    """Set random inputs, for which the driver compiles or loads the kernels."""
    dice = np.random.default_rng(0)
    for port in graph.inputs:
        spec = graph.tensors[port.tensor]
        floats = "float" in spec.dtype
        value = dice.standard_normal(spec.shape) if floats else dice.integers(0, 99, spec.shape)
        module["set_input"](port.name, tvm.runtime.tensor(np.asarray(value, spec.dtype)))


def copy_time(trace: Mapping[str, Any]) -> int:
    """Nanoseconds in which a device copied tensors from and to the host."""
    spans = itertools.chain.from_iterable(trace["regions"])
    copies = (span for span in spans if span["kind"] in ("receive", "send"))
    return sum(span["end"] - span["start"] for span in copies)


def trace_of(module: Executor, count: int) -> dict[str, Any]:
    """A traced run of ``count`` nodes.

    Raises:
        DeviceError: the answer is not a trace, for example garbage through RPC.
    """
    text = module["trace"]()
    trace: dict[str, Any] = {}
    try:
        trace = json.loads(text)
        spans = itertools.chain.from_iterable(trace["regions"])
        is_one = all(_is_span(span, count) for span in spans)
    except (ValueError, TypeError, KeyError):
        is_one = False
    if not is_one:
        raise _no_answer(f"the spans of {count} kernels", text)
    return trace


def _no_answer(expected: str, got: object) -> DeviceError:
    return DeviceError(
        f"expected {expected} for the answer of the device, got {str(got)[:80]!r}; look at it, "
        "start its server anew, and connect again"
    )


def _is_span(span: dict[str, Any], count: int) -> bool:
    in_order = 0 <= int(span["start"]) <= int(span["end"])
    return in_order and (span["kind"] != "kernel" or 0 <= int(span["id"]) < count)


_FLUSHED_BYTES = 1 << 30
"""Bytes of a round after which all caches are empty."""

_WEIGHTS = ("constant", "prepared")


def in_place(
    graph: Graph,  # the nodes in the order in which they run
    kernels: Mapping[str, Features],  # features by name of kernel; nodes of other kernels get None
    flushed: bool = False,  # whether the caches are emptied before every run
    # whether bytes that several nodes touch count once in a round. The cache of a GPU keeps a
    # network of 25 MB whose nodes touch 130.
    once: bool = False,
) -> list[Features | None]:
    """The features of each node of a graph, with the bytes that are touched in between."""
    touched = _Touched(graph)
    reuse = [touched.node(node) for node in graph.nodes]
    total = _different_bytes(graph) if once else touched.now
    total = _FLUSHED_BYTES if flushed else total
    return [
        replace(kernels[node.kernel], round_bytes=total, reuse_bytes=distance)
        if node.kernel in kernels
        else None
        for node, distance in zip(graph.nodes, reuse, strict=True)
    ]


def _different_bytes(graph: Graph) -> int:
    """How many different bytes the nodes touch."""
    windows = defaultdict[tuple[str, int], list[tuple[int, int]]](list)
    for number in {i for node in graph.nodes for i in (*node.inputs, *node.outputs)}:
        tensor = graph.tensors[number]
        windows[tensor.kind, tensor.buffer].append((tensor.offset, tensor.offset + tensor.bytes))
    total = 0
    for own in windows.values():
        reached = 0
        for begin, end in sorted(own):
            total += max(0, end - max(begin, reached))
            reached = max(reached, end)
    return total


class _Touched:
    """When bytes were last read or written; the clock counts the bytes that kernels touch.

    Tensors are windows on memory, and several may share bytes.
    """

    def __init__(self, graph: Graph) -> None:
        self.tensors = graph.tensors
        self.now = 0
        self._log: list[tuple[tuple[str, int], int, int, int]] = []

    def node(self, node: Node) -> int:
        """Run a node; returns how long ago its inputs were touched, on average."""
        inputs = list(dict.fromkeys(node.inputs))
        read = [self.tensors[i] for i in inputs if self.tensors[i].kind not in _WEIGHTS]
        size = sum(tensor.bytes for tensor in read)
        distance = sum(self._distance(tensor) for tensor in read)
        written = [self.tensors[i] for i in dict.fromkeys(node.outputs)]
        self.now += sum(self.tensors[i].bytes for i in inputs) + sum(t.bytes for t in written)
        for tensor in (*read, *written):
            end = tensor.offset + tensor.bytes
            self._log.append(((tensor.kind, tensor.buffer), tensor.offset, end, self.now))
        return round(distance / size) if size else 0

    def _distance(self, tensor: Tensor) -> int:
        """Bytes of the tensor times how long ago they were touched; 0 for the caller's tensors."""
        memory, begin = (tensor.kind, tensor.buffer), tensor.offset
        end = begin + tensor.bytes
        left, total = tensor.bytes, 0
        for where, start, stop, when in reversed(self._log):
            if where == memory and (common := min(stop, end) - max(start, begin)) > 0:
                common = min(common, left)
                total += common * (self.now - when)
                left -= common
                if not left:
                    break
        return total
