"""CPU and OpenCL: each alone, and both together.

    python -m benchmarks.two_processors resnet18 resnet50 [--stretched] --json two.json
    python -m benchmarks.two_processors resnet18 --mcpu haswell

With ``--mcpu``, the CPU's kernels are for that core; OpenCL's stay what its driver makes for this
machine.

With ``--stretched``, beside exact branching stands the best design of `ts.stretch` that has no
fewer multiply-adds and parameters than the network has; its answers are compared with torch's.

With PoCL, OpenCL is the machine's second core: one core for each processor. Answers are compared
with ONNX Runtime first; then the models take turns, and the medians of a round's ratios are shown.
Beside the latency on both stands what the chosen plan was predicted to take, and how wrong that is.
Predictions are of a machine that does nothing else, and each meeting waits for the slower core, so
on a shared one two more errors are shown: "at this pace" leaves out how much slower than predicted
the CPU alone was in the same run; "quiet" is against the quickest twentieth of the runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx

import tvm_stretch as ts
from benchmarks.commands import Table, options
from benchmarks.engines import Target, own_cpu
from benchmarks.harness import check, model_of
from benchmarks.kernel_code import SIX
from tutorials import zoo
from tvm_stretch.lab.stretching.judge import Candidate
from tvm_stretch.lab.stretching.stretching import Stretching
from tvm_stretch.plan.search import search
from tvm_stretch.plan.search.contest import Outcome, compare
from tvm_stretch.plan.search.costs import planning_costs
from tvm_stretch.read import load_network
from tvm_stretch.targets.processors import make_processors

_QUIET_RUNS = 100
_CAPACITIES = (0.94, 0.96, 0.98, 1.0)


@dataclass(frozen=True)
class Timed(Outcome):
    """An outcome, the predicted latency, and the quickest twentieth of runs."""

    predicted_seconds: float | None
    quiet_seconds: float


def measure_network(
    name: str, size: int, rounds: int, stretched: bool, cpu: Target, table: Table
) -> dict[str, Timed]:
    """Latencies of one network on the CPU, on OpenCL and on both; and of its stretched form."""
    network = zoo.build(name, size=size)
    given = model_of(network)
    feed = given.inputs
    models = {}
    every = {"cpu": [cpu], "opencl": ["opencl"], "both": [cpu, "opencl"]}
    for key, targets in every.items():
        threads = 1 if key == "cpu" else None
        models[key] = ts.compile(network, targets, cpu_threads=threads)
        check(f"{name} on {key}", models[key](**feed), given.expected)
    if stretched:
        models["stretched"] = _stretched(network, feed, every["both"])
    pairs = [key for key in models if key not in ("cpu", "opencl")]
    planned = {key: models[key].plan.predicted_ns for key in pairs}
    predictions = _predicted_alone(network, every["both"]) | planned
    outcomes = {
        key: _timed(models[key], outcome, predictions.get(key))
        for key, outcome in zip(models, compare(list(models.values()), rounds), strict=True)
    }
    alone = outcomes["cpu"]
    pace = alone.seconds / (alone.predicted_seconds or float("nan"))
    singles = [outcomes[key] for key in ("cpu", "opencl")]
    gain = outcomes["opencl"].ratio
    for key in pairs:
        both = outcomes[key]
        predicted = both.predicted_seconds or float("nan")
        wrong = predicted / both.seconds, predicted * pace / both.seconds
        table.row(
            name + (" stretched" if key == "stretched" else ""),
            *(
                1e3 * seconds
                for seconds in (*(s.seconds for s in singles), both.seconds, predicted)
            ),
            *(f"{ratio - 1:.1%}" for ratio in (*wrong, predicted / both.quiet_seconds)),
            *(gain, min(1.0, gain) / both.ratio),
        )
    return outcomes


def _stretched(
    network: onnx.ModelProto, feed: Mapping[str, np.ndarray], targets: list[Target]
) -> ts.Model:
    """The fastest design that keeps the network's capacity, on both processors."""
    import torch

    st, best = _equal_capacity(network, targets)
    net = st.to_torch(best.design).eval()
    with torch.no_grad():
        expected = net(*map(torch.from_numpy, feed.values())).numpy()
    model = ts.compile(st.load_torch(net), targets)
    check("stretched", model(**feed), [expected])
    kept = (best.multiply_adds / st.original[0], best.parameters / st.original[1])
    told = f"{kept[0]:.2f} of the multiply-adds, {kept[1]:.2f} of the parameters"
    print(f"stretched: {best.design}; {told}; {best.ns / 1e6:.2f} ms predicted", flush=True)
    return model


def _equal_capacity(
    network: onnx.ModelProto, targets: list[Target]
) -> tuple[Stretching, Candidate]:
    """The fastest candidate with at least the original's multiply-adds and parameters in total."""
    found = []
    for capacity in _CAPACITIES:
        st = ts.stretch(network, targets, rules=ts.stretching.Rules(capacity=capacity))
        work, size = st.original
        enough = [c for c in st.candidates if c.multiply_adds >= work and c.parameters >= size]
        found += [(c.ns, capacity, st, c) for c in enough if c.kept]
    _, _, st, best = min(found, key=lambda each: each[:2])
    return st, best


def _timed(model: ts.Model, outcome: Outcome, ns: int | None) -> Timed:
    return Timed(
        **asdict(outcome),
        predicted_seconds=None if ns is None else ns / 1e9,
        quiet_seconds=float(np.quantile(model.benchmark(_QUIET_RUNS).samples, 0.05)),
    )


def _predicted_alone(network: object, targets: list[Target]) -> dict[str, int | None]:
    """Nanoseconds that each processor alone is predicted to take, by its name."""
    processors, _ = make_processors(targets, None)
    found = search(load_network(network), planning_costs(processors))
    return {single.plan.regions[0].processor: single.cost.ns for single in found.singles}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    args = options(
        __doc__,
        arguments,
        ("models*", SIX),
        ("--size", 224),
        ("--rounds", 25),
        ("--mcpu", "", "compile the CPU's kernels for this core"),
        ("--stretched", False, "a stretched design as well"),
        ("--json", Path),
    )
    times = "cpu ms", "opencl ms", "both ms", "predicted ms"
    table = Table("model", *times, "error", "at this pace", "quiet", "opencl/cpu", "speed-up")
    results: dict[str, Mapping[str, Outcome]] = {}
    cpu = own_cpu(args.mcpu)
    for name in args.models:
        outcomes = measure_network(name, args.size, args.rounds, args.stretched, cpu, table)
        results[name] = outcomes
        if args.json:
            data = {n: {k: asdict(o) for k, o in found.items()} for n, found in results.items()}
            args.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
