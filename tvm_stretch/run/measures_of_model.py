"""What a model measures of itself: latencies, kernels, timelines, on inputs of noise."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tvm_stretch.base.errors import InputError
from tvm_stretch.base.progress import step
from tvm_stretch.make.lowering.executor_graph import Graph, Tensor
from tvm_stretch.run.benchmark import BenchmarkResult, ProfileResult, summarize_profile
from tvm_stretch.run.meters import Meters, measure_energy, read_meters
from tvm_stretch.run.plans_of_model import Executor, PlansOfModel
from tvm_stretch.run.timeline import Timeline, read_timeline
from tvm_stretch.run.values import taking_memory


class MetersOfModel:
    """What a model measures, on inputs of noise."""

    def __init__(
        self,
        module: Executor,
        graph: Graph,
        plans: PlansOfModel,
        load: Callable[[], None],
        lost: Callable[[], str | None],
    ) -> None:
        """For `Model.meters`; ``load`` prepares the weights, ``lost`` says why the CPU runs all."""
        self._module = module
        self._graph = graph
        self._plans = plans
        self._load = load
        self._lost = lost

    def timed_run(self) -> Callable[[], float]:
        """Set every input to noise; returns what runs the network and tells the seconds."""
        run = self.random_run()

        def timed() -> float:
            start = time.perf_counter()
            run()
            return time.perf_counter() - start

        return timed

    def benchmark(self, repeat: int = 20, energy: bool | Meters = False) -> BenchmarkResult:
        """Measure the latency of a run on random inputs, after some runs to warm up.

        Args:
            repeat: the number of runs.
            energy: whether the energy of a run is measured afterwards, for a second or more, by the
                meters of this machine (True) or by others.

        Raises:
            MeterError: there is no meter, or it fails, jumps or stands still.
        """
        require_runs(repeat)
        meters = read_meters(energy) if energy is not False else ()
        timed = self.timed_run()
        for _ in range(max(2, repeat // 10)):
            timed()
        samples = tuple(timed() for _ in range(repeat))
        return BenchmarkResult(samples, measure_energy(timed, meters) if meters else None)

    def profile(self, repeat: int = 10) -> ProfileResult:
        """Measure every kernel on random inputs; the median of several runs."""
        number, traces = self._traces(repeat)
        return summarize_profile(self._graph.of_plan(number), traces)

    def timeline(self, path: str | Path | None = None, repeat: int = 5) -> Timeline:
        """Trace runs on random inputs; the one of median length.

        Args:
            path: where to write the trace, in the format of Chrome and Perfetto.
            repeat: how many runs to trace.
        """
        number, traces = self._traces(repeat)
        traces.sort(key=lambda trace: trace["end"] - trace["start"])
        graph = self._graph.of_plan(number)
        plan = self._plans.numbered(number) if graph.plan else None
        graph = graph if self._lost() is None else _on_cpu(graph)
        timeline = read_timeline(graph, traces[len(traces) // 2], plan)
        if path is not None:
            timeline.write(path)
        return timeline

    def _traces(self, repeat: int) -> tuple[int, list[dict[str, Any]]]:
        """Traced runs on random inputs, after one that is not, and the number of their plan.

        If the plan changes meanwhile, because a processor fails, only those after that.
        """
        require_runs(repeat)
        self.random_run()()
        traces = []
        for _ in range(repeat):
            step()
            traces.append(json.loads(self._module["trace"]()))
        number = traces[-1]["plan"]
        return number, [self._of_plan(number, t) for t in traces if t["plan"] == number]

    def _of_plan(self, number: int, trace: dict[str, Any]) -> dict[str, Any]:
        """A trace with the numbers that regions and nodes have in the graph of one plan."""
        region = self._graph.first_region(number)
        node = self._graph.first_node(number)
        for span in (span for spans in trace["regions"] for span in spans):
            if span["kind"] == "kernel":
                span["id"] -= node
            elif span["kind"] == "wait" and span["id"] >= 0:
                span["id"] -= region
        return trace

    def random_run(self) -> Callable[[], None]:
        """Set every input to noise; returns the function that runs the network."""
        self._load()
        generator = np.random.default_rng(0)
        graph = self._graph.of_plan(self._plans.number)
        for port in graph.inputs:
            self._module["set_input"](port.name, _noise(generator, graph.tensors[port.tensor]))
        run = self._module["run"]
        if graph.states:  # noise does not belong into them
            run = functools.partial(run, False)
        return functools.partial(_run_anyway, run) if graph.guards else run

    def answer_to_noise(self) -> np.ndarray[Any, Any]:
        """All float outputs of a `random_run`, in a row; none if it may not mean anything."""
        self.random_run()()
        graph = self._graph.of_plan(self._plans.number)
        outputs = [self._module["get_output"](i).numpy() for i in range(len(graph.outputs))]
        floats = [y.astype("float64").ravel() for y in outputs if y.dtype.kind == "f"]
        return np.concatenate(floats) if floats and not graph.guards else np.zeros(0)


def _noise(generator: np.random.Generator, spec: Tensor) -> tvm.runtime.Tensor:
    """A tensor of normal numbers; integers are all zero."""
    with taking_memory(8 * math.prod(spec.shape)):
        tensor = tvm.runtime.empty(spec.shape, spec.dtype)
        is_float = "float" in spec.dtype
        values = generator.standard_normal(spec.shape) if is_float else np.zeros(spec.shape)
        return tensor.copyfrom(values.astype(tensor.numpy().dtype))


def _run_anyway(run: Callable[[], None]) -> None:
    """A run on noise, which may be no index: it takes as long."""
    with contextlib.suppress(InputError):
        run()


def require_runs(repeat: int) -> None:
    """Refuse to measure no runs at all."""
    if not isinstance(repeat, int) or repeat < 1:
        raise InputError(f"expected at least 1 for repeat, got {repeat!r}; measure at least once")


def _on_cpu(graph: Graph) -> Graph:
    """The graph as it runs when another processor is lost."""
    regions = tuple(dataclasses.replace(region, processor=0) for region in graph.regions)
    return dataclasses.replace(graph, regions=regions)
