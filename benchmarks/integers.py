"""Networks in 8 bits beside ONNX Runtime's and beside our own float32, one thread.

    python -m benchmarks.integers [networks…] [--activations uint8] [--rounds 40] [--mcpu znver3]
        [--json out.json]

Networks of the zoo are quantised by `ts.quantize` with two random images. ONNX Runtime runs twice:
*exact*, with ``session.x64quantprecision`` (its sums of 8-bit products never saturate, and neither
do ours), and *fast*, as it comes. With VNNI both are the same kernels. The answer has to have the
exact session's top-1, and logits within four of its steps, before anything is timed; the table also
says how many steps the fast session is away. All four take turns in one process, run by run; ratios
are medians of the ratios of neighbouring runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import tvm_stretch as ts
from tutorials import zoo

FIVE = ("resnet18", "resnet50", "mobilenet_v2", "regnetx_1_6gf", "efficientnet_lite0")
MOST_STEPS = 4.0


EXACT, FAST, OURS, FLOAT = "exact", "fast", "ours", "float32"


def session(model: onnx.ModelProto, exact: bool) -> onnxruntime.InferenceSession:
    """ONNX Runtime's optimised session on one thread."""
    options = onnxruntime.SessionOptions()
    if exact:
        options.add_session_config_entry("session.x64quantprecision", "1")
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def compare(
    name: str, size: int, activations: str, rounds: int, target: object = "llvm"
) -> dict[str, Any]:
    """One network: the differences of the answers, and the latencies."""
    network = zoo.build(name, size=size)
    images = np.random.default_rng(0).standard_normal((3, 3, size, size)).astype("float32")
    quantised = ts.quantize(network, images[:2], activations=activations)
    exact, fast, x = session(quantised, True), session(quantised, False), images[2:]
    ours, floats = (ts.compile(m, targets=[target], cpu_threads=1) for m in (quantised, network))
    feed = {exact.get_inputs()[0].name: x}
    runs: dict[str, Callable[[], Any]] = {
        EXACT: lambda: exact.run(None, feed)[0],
        FAST: lambda: fast.run(None, feed)[0],
        OURS: lambda: np.asarray(ours(x)),
        FLOAT: lambda: np.asarray(floats(x)),
    }
    want, got, quick = runs[EXACT](), runs[OURS](), runs[FAST]()
    step = np.diff(np.unique(want)).min()
    steps, saturated = (float(np.abs(want - other).max() / step) for other in (got, quick))
    if want.argmax() != got.argmax() or steps > MOST_STEPS + 0.01:
        raise SystemExit(f"{name}: answers differ by {steps:.2f} steps; nothing is timed")
    times: dict[str, list[float]] = {what: [] for what in runs}
    for _ in range(rounds):
        for what, run in runs.items():
            begin = time.perf_counter()
            run()
            times[what].append(1e3 * (time.perf_counter() - begin))
    row: dict[str, Any] = {what: statistics.median(taken) for what, taken in times.items()}
    for peer in (EXACT, FAST, FLOAT):
        pairs = zip(times[OURS], times[peer], strict=True)
        row[f"ours/{peer}"] = statistics.median(mine / theirs for mine, theirs in pairs)
    return {"network": name, "steps": steps, "fast_steps": saturated, **row}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=FIVE)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--activations", default="uint8")
    parser.add_argument("--mcpu", help="ours for another core; see `only_avx2.py` for the peer")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    rows = []
    target = {"kind": "llvm", "mcpu": arguments.mcpu} if arguments.mcpu else "llvm"
    print(
        "| network | steps | ONNX Runtime exact ms | fast ms | its steps | ours ms "
        "| ours float32 ms | ours / exact | / fast | / float32 |"
    )
    print("|" + " --- |" * 10)
    for name in arguments.networks:
        row = compare(name, arguments.size, arguments.activations, arguments.rounds, target)
        rows.append(row)
        print(
            f"| {name} | {row['steps']:.0f} | {row[EXACT]:.2f} | {row[FAST]:.2f} "
            f"| {row['fast_steps']:.1f} | {row[OURS]:.2f} | {row[FLOAT]:.2f} "
            f"| {row['ours/exact']:.2f} | {row['ours/fast']:.2f} | {row['ours/float32']:.2f} |",
            flush=True,
        )
    for peer in (EXACT, FAST, FLOAT):
        mean = statistics.geometric_mean(row[f"ours/{peer}"] for row in rows)
        print(f"geometric mean of ours/{peer}: {mean:.3f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
