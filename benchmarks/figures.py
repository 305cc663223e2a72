"""Figures of the compiler itself: compile time and memory, artifact, arena, overhead, load.

```
python -m benchmarks.figures [resnet50 ...] [--json figures.json]
```
Each network is compiled in a fresh process, so that time and peak memory are those of a cold start.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.commands import options

DEFAULT = ("resnet18", "resnet50", "regnetx_4gf", "efficientnet_lite4", "nasnet_large")


def measure_network(name: str, threads: int) -> dict[str, float]:
    """All figures of one network, measured in this process."""
    import onnx

    import tvm_stretch as ts
    from tutorials import zoo

    with tempfile.TemporaryDirectory() as folder:
        source, artifact = Path(folder) / "net.onnx", Path(folder) / "net.so"
        model = zoo.build(name)
        onnx.save(model, source)
        shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
        del model
        begin = time.perf_counter()
        compiled = ts.compile(source, targets=["llvm"], cpu_threads=threads)
        compile_seconds = time.perf_counter() - begin
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        compiled.export(artifact)
        x = np.random.default_rng(0).standard_normal(shape, dtype="float32")
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
        return {
            "compile_s": compile_seconds,
            "peak_gb": peak,
            "artifact_over_weights": artifact.stat().st_size / graph.weights_bytes,
            "arena_over_bound": graph.arena_bytes / live_bytes(graph),
            "load_to_first_answer_s": load_seconds,
            "run_ms": run * 1e3,
            "overhead": run / kernels - 1,
        }


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure each network in its own process and print a table."""
    args = options(
        __doc__,
        arguments,
        ("models*", list(DEFAULT)),
        ("--threads", 1),
        ("--json", Path),
        ("--worker", False, "measure here"),
    )
    if args.worker:
        print(json.dumps(measure_network(args.models[0], args.threads)))
        return 0
    table = {}
    for name in args.models:
        command = [sys.executable, "-m", "benchmarks.figures", name, "--worker"]
        command += ["--threads", str(args.threads)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        table[name] = json.loads(done.stdout.splitlines()[-1])
        print(
            name, "  ".join(f"{key} {value:.3f}" for key, value in table[name].items()), flush=True
        )
    if args.json:
        args.json.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
