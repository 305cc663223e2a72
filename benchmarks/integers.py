"""Networks in 8 bits beside ONNX Runtime's and beside our own float32, one thread.

    python -m benchmarks.integers [networks…] [--activations uint8] [--rounds 40] [--mcpu znver3]
        [--json out.json]

Networks of the zoo are quantised by `ts.quantize` with two random images. ONNX Runtime runs twice:
*exact*, with ``session.x64quantprecision`` (its sums of 8-bit products never saturate, and neither
do ours), and *fast*, as it comes. With VNNI both are the same kernels. The answer has to have the
exact session's top-1, and logits within four of its steps, before anything is timed; the table also
says how many steps the fast session is away. All four take turns in one process, run by run.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tvm_stretch as ts
from benchmarks.commands import campaign, options, turns
from benchmarks.harness import Model, load
from tutorials import zoo

FIVE = ("resnet18", "resnet50", "mobilenet_v2", "regnetx_1_6gf", "efficientnet_lite0")
MOST_STEPS = 4.0
EXACT, FAST, OURS, FLOAT = "exact", "fast", "ours", "float32"
PEERS = (EXACT, FAST, FLOAT)


def compare(name: str, size: int, activations: str, rounds: int, mcpu: str) -> dict[str, Any]:
    """One network: the differences of the answers, and the latencies."""
    network = zoo.build(name, size=size)
    images = np.random.default_rng(0).standard_normal((3, 3, size, size)).astype("float32")
    quantised = ts.quantize(network, images[:2], activations=activations)
    feed = {network.graph.input[0].name: images[2:]}
    floats, model = (Model(m.SerializeToString(), feed) for m in (network, quantised))
    runs = {EXACT: load("ort-exact", model), FAST: load("ort", model)}
    runs |= {OURS: load("ours", model, mcpu=mcpu), FLOAT: load("ours", floats, mcpu=mcpu)}
    want, quick, got = (runs[who]()[0] for who in (EXACT, FAST, OURS))
    step = np.diff(np.unique(want)).min()
    steps, saturated = (float(np.abs(want - other).max() / step) for other in (got, quick))
    if want.argmax() != got.argmax() or steps > MOST_STEPS + 0.01:
        raise SystemExit(f"{name}: answers differ by {steps:.2f} steps; nothing is timed")
    samples = turns(runs, rounds, warm_up=0)
    row: dict[str, Any] = {what: samples.median(what) for what in runs}
    row |= {f"ours/{other}": samples.ratio(OURS, other) for other in PEERS}
    return {"steps": steps, "fast_steps": saturated, **row}


def _cells(row: Mapping[str, Any]) -> Sequence[object]:
    times = row[EXACT], row[FAST], f"{row['fast_steps']:.1f}", row[OURS], row[FLOAT]
    return f"{row['steps']:.0f}", *times, *(row[f"ours/{other}"] for other in PEERS)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    args = options(
        *(__doc__, arguments, ("networks*", FIVE), ("--size", 224), ("--activations", "uint8")),
        ("--mcpu", "", "ours for another core; see `only_avx2.py` for the peer"),
        *(("--rounds", 40), ("--json", Path)),
    )
    heads = "network", "steps", "ONNX Runtime exact ms", "fast ms", "its steps", "ours ms"
    ratios = "ours float32 ms", "ours / exact", "/ fast", "/ float32"
    how = args.size, args.activations, args.rounds, args.mcpu
    rows = campaign(
        args.networks, lambda name: compare(name, *how), (*heads, *ratios), _cells, args.json
    )
    for other in PEERS:
        mean = statistics.geometric_mean(row[f"ours/{other}"] for row in rows.values())
        print(f"geometric mean of ours/{other}: {mean:.3f}")


if __name__ == "__main__":
    main()
