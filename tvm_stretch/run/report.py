"""A page to look at: the network, its plan, where the time went. One HTML file, nothing to load.

graph  ─┐
plan   ─┼─►  collect  ─►  plain dict  ─►  JSON in report.html, which draws it
runs   ─┘
"""

from __future__ import annotations

import json
import math
import platform
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_stretch.base.errors import ArtifactError, InputError
from tvm_stretch.base.files import as_path, is_finite, write_whole, writing
from tvm_stretch.base.words import counted
from tvm_stretch.make.lowering.executor_graph import Graph, Node, Tensor
from tvm_stretch.plan.considered import told_once
from tvm_stretch.plan.plan import Plan, refusal_rows
from tvm_stretch.plan.splits import splits_to_data
from tvm_stretch.run.advice import CoreSpeed, advise, flops_of, limit_of, measure_core
from tvm_stretch.run.timeline import Timeline

if TYPE_CHECKING:
    from tvm_stretch.run.model import Model

_NOBODY = -1
_Memory = tuple[str, int]


# The graph has no edges: its tensors are windows on memory, and several may look at the same bytes.
# So nodes are visited in an order in which they could run, and every byte remembers who wrote it.


def running_order(graph: Graph) -> list[int]:
    """All nodes, in the order in which one processor alone would run the regions."""
    return [node for region in graph.regions for node in region.nodes]


def find_edges(graph: Graph) -> dict[int, list[int]]:
    """For each node those whose results it reads, smallest first; inputs and weights have none."""
    sizes: dict[_Memory, int] = {}
    for tensor in graph.tensors:
        memory = (tensor.kind, tensor.buffer)
        sizes[memory] = max(sizes.get(memory, 0), tensor.offset + tensor.bytes)
    written = ("arena", "output")
    owners = {
        memory: np.full(size, _NOBODY, "int32")
        for memory, size in sizes.items()
        if memory[0] in written
    }
    edges = {}
    for node in running_order(graph):
        call = graph.nodes[node]
        sources: set[int] = set()
        for tensor in (graph.tensors[i] for i in call.inputs):
            if tensor.kind in written and 0 not in tensor.shape:
                sources.update(np.unique(_window(owners[tensor.kind, tensor.buffer], tensor)))
        for tensor in (graph.tensors[i] for i in call.outputs):
            if 0 not in tensor.shape:
                _window(owners[tensor.kind, tensor.buffer], tensor)[...] = node
        edges[node] = sorted(int(other) for other in sources - {_NOBODY, node})
    return edges


def _window(owner: np.ndarray, tensor: Tensor) -> np.ndarray:
    """The first byte of every element of the tensor, as a view on the memory's owners."""
    strides = _element_strides(tensor)
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, strides, strict=True))
    item = tensor.bytes // span
    steps = tuple(stride * item * owner.itemsize for stride in strides)
    return np.lib.stride_tricks.as_strided(owner[tensor.offset :], tensor.shape, steps)


def _element_strides(tensor: Tensor) -> tuple[int, ...]:
    """Elements from one to the next in each direction."""
    if tensor.strides:
        return tensor.strides
    return tuple(math.prod(tensor.shape[i + 1 :]) for i in range(len(tensor.shape)))


def arena_use(graph: Graph, edges: dict[int, list[int]]) -> list[int]:
    """Bytes of the arena that hold something still needed while each node runs, in running order.

    A result is needed from the node that writes it to the last one that reads it.
    """
    order = running_order(graph)
    last = {node: step for step, node in enumerate(order)}
    for step, node in enumerate(order):
        for source in edges[node]:
            last[source] = max(last[source], step)
    windows: list[list[tuple[int, int]]] = [[] for _ in order]
    for step, node in enumerate(order):
        for lived in windows[step : last[node] + 1]:
            lived.extend(_arena_windows(graph, node))
    return [_covered(lived) for lived in windows]


def _arena_windows(graph: Graph, node: int) -> Iterator[tuple[int, int]]:
    for tensor in (graph.tensors[i] for i in graph.nodes[node].outputs):
        if tensor.kind == "arena":
            yield tensor.offset, tensor.offset + tensor.bytes


def _covered(windows: list[tuple[int, int]]) -> int:
    total = reached = 0
    for start, end in sorted(windows):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


TEMPLATE = Path(__file__).with_name("report.html")
_PLACE = "@DATA@"
_HASH = re.compile(r"_[0-9a-f]{12}$")


def write_report(
    model: Model,
    path: str | Path,
    peak_gflops: float | None = None,
    repeat: int = 5,
    picture: str | None = None,
) -> None:
    """Run the model a few times and write the page; see `Model.report`."""
    if peak_gflops is not None and not (is_finite(peak_gflops) and peak_gflops > 0):
        raise InputError(
            f"expected a positive number for peak_gflops, got {peak_gflops!r}; leave it out"
        )
    if picture is not None and not (isinstance(picture, str) and "<svg" in picture):
        raise InputError(
            f"expected the text of an SVG for picture, got {picture!r:.60}; st.front().svg() is one"
        )
    path = as_path(path, "the report")
    if model.graph.plans:  # measurements are those of one plan
        name, model = model.in_use, model.create_instance()
        model.use(name)
    plan = model.plan if model.graph.plan else None
    timeline, seconds, core, problem = None, None, None, ""
    try:
        timeline = model.timeline(repeat=repeat)
        seconds = [kernel.seconds for kernel in model.profile(repeat).kernels]
        core = measure_core(model.running, peak_gflops)
    except ArtifactError as error:  # a model for another machine
        problem = str(error)
    data = collect(model.running, plan, timeline, seconds, core)
    data.update(title=model.graph.network or path.stem, problem=problem)
    data.update(model=repr(model), picture=picture, date=time.strftime("%Y-%m-%d %H:%M"))
    data.update(machine=_machine(model.running) if seconds is not None else "")
    with writing("the report", ArtifactError):
        for place, text in _files(path, data).items():
            write_whole(place, text)


def _files(path: Path, data: Mapping[str, Any]) -> dict[Path, str | bytes]:
    """The files to write and their content, by the suffix of the path."""
    from tvm_stretch.run import placed_graph  # imports onnx, which running does not need

    if path.suffix == ".onnx":
        return {path: placed_graph.netron_network(data).SerializeToString()}
    if path.suffix == ".json":
        times = path.with_suffix(".times.json")
        return {
            path: placed_graph.model_explorer_graph(data),
            times: placed_graph.model_explorer_times(data),
        }
    return {path: render(data)}


def collect(
    graph: Graph,  # what the executor runs
    plan: Plan | None = None,  # what was wanted
    timeline: Timeline | None = None,  # a run, if there was one
    seconds: list[float] | None = None,  # of each node, the median of several runs
    core: CoreSpeed | None = None,  # of the machine that ran it
) -> dict[str, Any]:
    """What the page shows, as JSON has it; times in nanoseconds."""
    edges = find_edges(graph)
    order = running_order(graph)
    step = {node: index for index, node in enumerate(order)}
    region_of = {node: i for i, region in enumerate(graph.regions) for node in region.nodes}
    nodes = []
    for index in order:
        is_of_cpu = graph.regions[region_of[index]].processor == 0
        data = _node_data(graph, graph.nodes[index], core if is_of_cpu else None)
        data["region"] = region_of[index]
        data["after"] = [step[source] for source in edges[index]]
        data["ns"] = None if seconds is None else round(seconds[index] * 1e9)
        nodes.append(data)
    advice = advise(graph, plan, timeline, seconds, core)
    for kernel in advice["kernels"]:
        kernel["node"] = step[kernel["node"]]
    return {
        "processors": [processor.name for processor in graph.processors],
        "nodes": nodes,
        "regions": _regions(graph, plan, timeline),
        "plan": None if plan is None else _plan_data(plan),
        "run": None if timeline is None else _run_data(graph, timeline),
        "memory": {"arena": graph.arena_bytes, "steps": arena_use(graph, edges)},
        "advice": advice,
        "core": None if core is None else asdict(core),
        "threads": graph.threads,
        "version": graph.package_version,
    }


def render(data: Mapping[str, Any]) -> str:
    """The page: nothing in the data can end the script or the line that it stands in."""
    text = json.dumps(data, separators=(",", ":"))  # only ASCII: U+2028 is an escape already
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    before, after = TEMPLATE.read_text(encoding="utf-8").split(_PLACE)
    return before + text + after


def _machine(graph: Graph) -> str:
    """The machine that ran it: its name, its CPU, and the cores that the model uses."""
    cpu = str(graph.target.get("mcpu", "")) or platform.machine()
    return f"{platform.node()} ({cpu}, {counted(graph.threads, 'core', ' for the CPU')})"


def _node_data(graph: Graph, node: Node, core: CoreSpeed | None) -> dict[str, Any]:
    kernel = _HASH.sub("", node.kernel)
    inputs = [graph.tensors[i] for i in node.inputs]
    outputs = [graph.tensors[i] for i in node.outputs]
    return {
        "name": node.name,
        "operators": list(node.provenance.operators) or [node.name],
        "kernel": node.kernel,
        "kind": kernel.removeprefix("fused_"),
        "inputs": [_shape(t) for t in inputs if t.kind not in ("constant", "prepared")],
        "weights": [_shape(t) for t in inputs if t.kind in ("constant", "prepared")],
        "outputs": [_shape(tensor) for tensor in outputs],
        "flops": flops_of(graph, node),
        "limit": None if core is None else limit_of(graph, node, core),
    }


def _shape(tensor: Tensor) -> str:
    return f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"


def _regions(graph: Graph, plan: Plan | None, timeline: Timeline | None) -> list[dict[str, Any]]:
    planned = {} if plan is None else {region.name: region for region in plan.regions}
    ran = {} if timeline is None else {region.name: region for region in timeline.regions}
    regions = []
    for region in graph.regions:
        wanted, run = planned.get(region.name), ran.get(region.name)
        regions.append(
            {
                "name": region.name,
                "processor": region.processor,
                "after": list(region.after),
                "operators": list(wanted.operators) if wanted else [],
                "why": wanted.why if wanted else "",
                "planned": list(wanted.predicted_ns) if wanted and wanted.predicted_ns else None,
                "millijoules": wanted.predicted_mj if wanted else None,
                "measured": [run.start, run.end] if run and run.work else None,
            }
        )
    return regions


def _plan_data(plan: Plan) -> dict[str, Any]:
    execution = plan.execution
    return {
        "reason": plan.reason,
        "candidates": [asdict(one) for one in told_once(plan.considered)],
        "costs": plan.costs,
        "predicted": plan.predicted_ns,
        "millijoules": plan.predicted_mj,
        "processors": list(plan.processors),
        "shares": {name: list(widths) for name, widths in plan.shares.items()},
        "splits": splits_to_data(plan.splits),
        "refusals": [list(row) for row in refusal_rows(plan.refusals)],
        "refused": len(plan.refusals),
        "execution": "" if execution is None else str(execution),
        "without_kernel": [] if execution is None else list(execution.without_kernel),
    }


def _run_data(graph: Graph, timeline: Timeline) -> dict[str, Any]:
    names = [region.name for region in graph.regions]
    lanes = {name: index for index, name in enumerate(timeline.processors)}
    return {
        "duration": timeline.duration,
        "overlap": timeline.overlap,
        "critical": [names.index(region.name) for region in timeline.critical_path],
        "usage": [[u.processor, u.kernels, u.transfers, u.waiting, u.idle] for u in timeline.usage],
        "spans": [
            [lanes[region.processor], names.index(region.name), s.kind, s.name, s.start, s.end]
            for region in timeline.regions
            for s in region.spans
        ],
    }
