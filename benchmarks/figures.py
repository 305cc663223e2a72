"""Figures of the compiler itself: compile time and memory, artifact, arena, overhead, load.

```
python -m benchmarks.figures [resnet50 ...] [--json figures.json]
```
Each network is compiled in a fresh process, so that time and peak memory are those of a cold start.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.commands import campaign, in_a_process, options
from benchmarks.models import model_of

DEFAULT = ("resnet18", "resnet50", "regnetx_4gf", "efficientnet_lite4", "nasnet_large")
FIGURES = (
    *("compile_s", "peak_gb", "artifact_over_weights", "arena_over_bound"),
    *("load_to_first_answer_s", "run_ms", "overhead"),
)


def measure_network(name: str, threads: int) -> dict[str, float]:
    """All figures of one network, measured in this process."""
    import tvm_stretch as ts

    model = model_of(name)
    (x,) = model.inputs.values()
    with tempfile.TemporaryDirectory() as folder:
        artifact = Path(folder) / "net.so"
        begin = time.perf_counter()
        compiled = ts.compile(model.onnx, targets=["llvm"], cpu_threads=threads)
        compile_seconds = time.perf_counter() - begin
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        compiled.export(artifact)
        expected = compiled(x)
        begin = time.perf_counter()
        loaded = ts.load(artifact)
        first = loaded(x)
        load_seconds = time.perf_counter() - begin
        if not np.array_equal(first, expected):
            raise SystemExit(f"{name}: the loaded artifact gives another answer")
        run = loaded.benchmark(repeat=30).median
        kernels = loaded.profile(repeat=30).total
        graph = loaded.graph
        sizes = artifact.stat().st_size / graph.weights_bytes, graph.arena_bytes / live_bytes(graph)
        figures = compile_seconds, peak, *sizes, load_seconds, run * 1e3, run / kernels - 1
        return dict(zip(FIGURES, figures, strict=True))


def live_bytes(graph: object) -> int:
    """The most bytes of the arena that are live at once, derived from the nodes alone."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for step, node in enumerate(graph.nodes):
        for tensor in (*node.inputs, *node.outputs):
            first.setdefault(tensor, step)
            last[tensor] = step
    for port in graph.outputs:
        last[port.tensor] = len(graph.nodes)
    arena = {i: t for i, t in enumerate(graph.tensors) if t.kind == "arena" and i in first}
    most = 0
    for step in range(len(graph.nodes)):
        spans = sorted(
            (t.offset, t.offset + t.bytes) for i, t in arena.items() if first[i] <= step <= last[i]
        )
        total, end = 0, 0
        for start, stop in spans:
            total += max(0, stop - max(start, end))
            end = max(end, stop)
        most = max(most, total)
    return most


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each network in its own process and print a table."""
    args = options(
        *(__doc__, arguments, ("models*", DEFAULT), ("--threads", 1), ("--json", Path)),
    )
    campaign(
        args.models,
        lambda name: in_a_process(measure_network, name, args.threads),
        ("network", *FIGURES),
        lambda row: (f"{row[name]:.3f}" for name in FIGURES),
        args.json,
    )


if __name__ == "__main__":
    main()
