"""What would make a model faster: kernels far from the machine's limits, waits, refused operators.

    conv2d_3   on cpu      1.20 ms, 62 % of what arithmetic allows: 0.46 ms could be saved
    cpu        waits       0.90 ms for r1 of opencl
    opencl     refuses     resize1, resize2: 0.40 ms on cpu

A kernel of the CPU takes at least its multiply-adds over the cores' peak, and at least its bytes
over the speed at which a core reads as much memory as the model uses. The larger of the two is its
limit. The limits of GPUs and DSPs are not known here, nor those of integers.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm

from tvm_stretch.make.lowering.executor_graph import Graph, Node
from tvm_stretch.plan.plan import Plan, by_reason
from tvm_stretch.run.timeline import Timeline

_CPU = 0
_LAST_LEVEL = 1 << 26  # what no cache of a core holds: more bytes tell nothing new


@dataclass(frozen=True)
class CoreSpeed:
    """What one core can do at best; 0 if unknown."""

    gflops: float
    gbytes: float


def measure_core(graph: Graph, peak_gflops: float | None = None) -> CoreSpeed:
    """The speed of the calling thread's core, measured in some milliseconds."""
    used = graph.arena_bytes + graph.weights_bytes + graph.prepared_bytes
    speeds = json.loads(tvm.get_global_func("tvm_stretch.core_speed")(min(used, _LAST_LEVEL)))
    return CoreSpeed(peak_gflops or speeds["gflops"], speeds["gbytes"])


def flops_of(graph: Graph, node: Node) -> int | None:
    """Twice the multiply-adds of a convolution or dense layer, None where it cannot be told.

    They are those of a direct one, which uses every weight once for each place of the output.
    Weights are packed as (channel blocks, …, channels of a block); channels that only fill up the
    last block count too. Winograd's are 4x4 or 6x6 for each 3x3 filter.
    """
    inputs = [graph.tensors[i] for i in node.inputs]
    outputs = [graph.tensors[i] for i in node.outputs]
    kernel = node.kernel
    weights = [t.shape for t in inputs if t.kind in ("constant", "prepared") and len(t.shape) == 6]
    is_product = ("conv2d" in kernel or "dense" in kernel) and "transpose" not in kernel
    if not is_product or len(weights) != 1 or len(outputs) != 1 or len(outputs[0].shape) != 5:
        return None
    batch, _, height, width, _ = outputs[0].shape
    uses = batch * height * width * math.prod(weights[0])
    return 2 * uses * 9 // weights[0][1] if "winograd" in kernel else 2 * uses


def _computed(graph: Graph, node: Node) -> float | None:
    """The operations that a kernel really needs: Winograd's tiles have one product per weight."""
    flops = flops_of(graph, node)
    if flops is None or "winograd" not in node.kernel:
        return flops
    shapes = [graph.tensors[i].shape for i in node.inputs]
    points = next(shape[1] for shape in shapes if len(shape) == 6)
    return flops * points / 9 / (math.isqrt(points) - 2) ** 2


def limit_of(graph: Graph, node: Node, core: CoreSpeed) -> tuple[str, float] | None:
    """What limits a kernel of the CPU, ``arithmetic`` or ``memory``, and its least nanoseconds."""
    flops = _computed(graph, node)
    tensors = [graph.tensors[i] for i in (*node.inputs, *node.outputs)]
    types, read = {tensor.dtype for tensor in tensors}, sum(tensor.bytes for tensor in tensors)
    if not core.gbytes or not types <= {"float32", "bool", "int64", "int32"}:
        return None
    moving = read / core.gbytes / graph.threads
    if flops is None:
        return "memory", moving
    if not core.gflops:
        return None
    computing = flops / core.gflops / graph.threads
    return ("arithmetic", computing) if computing >= moving else ("memory", moving)


def advise(
    graph: Graph,
    plan: Plan | None,
    timeline: Timeline | None,
    seconds: Sequence[float] | None,  # of each node
    core: CoreSpeed | None,
) -> dict[str, Any]:
    """The three lists of the module docstring, as JSON has them, the most nanoseconds first."""
    return {
        "kernels": [] if seconds is None or core is None else _slow_kernels(graph, seconds, core),
        "waits": [] if timeline is None else _waits(timeline),
        "refused": [] if plan is None or seconds is None else _refused(graph, plan, seconds),
    }


def _slow_kernels(graph: Graph, seconds: Sequence[float], core: CoreSpeed) -> list[dict[str, Any]]:
    slow: list[dict[str, Any]] = []
    for region in (region for region in graph.regions if region.processor == _CPU):
        for index in region.nodes:
            node, ns = graph.nodes[index], seconds[index] * 1e9
            limit = limit_of(graph, node, core)
            if limit is not None and ns > limit[1]:
                kernel = {"node": index, "name": node.name, "ns": round(ns), "by": limit[0]}
                slow.append({**kernel, "share": limit[1] / ns, "saves": round(ns - limit[1])})
    return sorted(slow, key=lambda kernel: -kernel["saves"])[:10]


def _waits(timeline: Timeline) -> list[dict[str, Any]]:
    """For whom each processor's regions waited, and how long."""
    places = {region.name: region.processor for region in timeline.regions}
    total: dict[tuple[str, str], int] = defaultdict(int)
    for region in timeline.regions:
        for span in region.spans:
            if span.kind == "wait":
                total[region.processor, span.name.removeprefix("wait for ")] += (
                    span.end - span.start
                )
    return [
        {"processor": who, "region": name, "of": places.get(name, ""), "ns": ns}
        for (who, name), ns in sorted(total.items(), key=lambda item: -item[1])
        if ns > 0
    ]


def _refused(graph: Graph, plan: Plan, seconds: Sequence[float]) -> list[dict[str, Any]]:
    """Refused operators by processor and reason, and what their kernels take where they run."""
    took: dict[str, float] = defaultdict(float)
    for node, each in zip(graph.nodes, seconds, strict=True):
        operators = node.provenance.operators or (node.name,)
        for operator in operators:  # a kernel of several is told in equal parts
            took[operator] += each * 1e9 / len(operators)
    rows: list[dict[str, Any]] = [
        {
            "processor": processor,
            "reason": reason,
            "operators": list(operators),
            "ns": round(sum(took.get(operator, 0.0) for operator in operators)),
        }
        for (processor, reason), operators in by_reason(plan.refusals).items()
    ]
    return sorted(rows, key=lambda row: -row["ns"])
