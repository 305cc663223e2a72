"""The first minute: one network on two processors at once, against each of them alone.

```
python -m benchmarks.demo [resnet18] [--size 224] [--folder out/demo]
```

It compiles a network of the zoo (or an ONNX file) for the CPU and the OpenCL device, compares the
answer with ONNX Runtime's, lets one processor, the other and both take turns, draws the timeline
and writes the report. The weights of the zoo are random, so the answer is a number to compare and
no class. Then a small network of 8 bits runs on CPU, OpenCL device and DSP at once; the DSP is
emulated, so this shows how, and says nothing about speed.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import tvm

import tvm_stretch as ts
from benchmarks.commands import Samples, options, turns
from benchmarks.harness import check
from benchmarks.papers.busy import seconds_of
from tutorials import zoo
from tutorials.zoo.builder import Builder
from tvm_stretch.network.operators import Operators
from tvm_stretch.plan.considered import considered_lines
from tvm_stretch.plan.regions import form_regions
from tvm_stretch.plan.search import search
from tvm_stretch.plan.search.costs import planning_costs
from tvm_stretch.read import load_network
from tvm_stretch.run.timeline import chart
from tvm_stretch.targets.opencl.opencl import local_device
from tvm_stretch.targets.processors import make_processors

BOTH = "both"
ALL = ("cpu", "opencl", "hexagon")
SMALL = 64  # image height and width of the network for all three
ROUNDS = 20
ROWS = 10  # of the plan that are shown
PATIENCE = 30.0  # seconds in which runs are repeated until nothing disturbs them
DISTURBED = 0.25  # cores of other programs that make times scatter


def landscape(size: int) -> np.ndarray:
    """A sun over hills, (1, 3, size, size), scaled as networks for ImageNet want it."""
    y, x = np.mgrid[0:size, 0:size] / size
    sky = np.stack([0.35 + 0.4 * y, 0.55 + 0.3 * y, 0.95 - 0.1 * y])
    sun = (x - 0.7) ** 2 + (y - 0.25) ** 2 < 0.01
    far = y > 0.55 + 0.08 * np.sin(7 * x)
    near = y > 0.72 + 0.06 * np.sin(5 * x + 2)
    picture = sky
    for where, colour in ((sun, (1, 0.9, 0.3)), (far, (0.3, 0.5, 0.4)), (near, (0.2, 0.4, 0.15))):
        picture = np.where(where, np.reshape(colour, (3, 1, 1)), picture)
    mean, deviation = np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])[:, :, None, None]
    return ((picture - mean) / deviation).astype("float32")[None]


def models_of(path: Path, targets: list[str]) -> dict[str, ts.Model]:
    """The network on each processor alone, and on both."""
    models = {}
    for target in targets:
        begin = time.perf_counter()
        # one core for the CPU: PoCL makes an OpenCL device of the other half of the cores
        threads = 1 if target == "llvm" else None
        models[target] = ts.compile(path, [target], cpu_threads=threads)
        print(f"  {target:14} {time.perf_counter() - begin:5.1f} s")
    if len(targets) > 1:
        begin = time.perf_counter()
        models[BOTH] = ts.compile(path, targets)
        print(f"  {BOTH:14} {time.perf_counter() - begin:5.1f} s, plans tried and measured")
        print("\n" + "\n".join(considered_lines(models[BOTH].plan.considered)))
        if len(set(models[BOTH].plan.processor_of().values())) < 2:
            show_both_anyway(path, targets, models)
    return models


def show_both_anyway(path: Path, targets: list[str], models: dict[str, ts.Model]) -> None:
    """The plan for several processors that promised most, although one was measured as faster."""
    processors, _ = make_processors(targets, None)
    rivals = search(load_network(path), planning_costs(processors)).rivals
    if not rivals:
        print("\nthis network is too small to be shared: both would wait for each other")
        return
    print(
        "\nmeasured just now, one processor was as fast: is this machine busy? What follows is "
        "the plan that was predicted for both; compile would not have taken it."
    )
    models[BOTH] = ts.compile(path, targets, plan=rivals[0].plan)


def three_branches() -> onnx.ModelProto:
    """A convolution, three branches and what joins them, in 8 bits; the emulator's is thin."""
    b = Builder(seed=0)
    x = b.conv(b.input("x", (1, 3, SMALL, SMALL)), 32, 3, 2, act="relu")
    wide = [b.conv(b.conv(x, 128, 3, act="relu"), 128, 3, act="relu") for _ in ALL[:-1]]
    both = b.concat([*wide, b.conv(x, 32, 1, act="relu")])
    network = b.finish("three_branches", b.flatten(b.global_pool(b.conv(both, 10))))
    return ts.quantize(network, landscape(SMALL))


def a_branch_each(mod: tvm.IRModule) -> ts.Plan:
    """The plan with a branch on each processor, and all that is not in a branch on the CPU."""
    operators = Operators(mod["main"])
    readers = Counter(name for operator in operators for name in operator.inputs)
    branches: dict[str, set[int]] = {}
    for operator in operators:
        into = set().union(*(branches.get(name, ()) for name in operator.inputs))
        if not into and any(readers[name] == len(ALL) for name in operator.inputs):
            into = {sum(1 for name in branches if name.startswith("first "))}
            branches[f"first {operator.name}"] = into
        branches[operator.name] = into
    places = {
        operator.name: ALL[min(into)] if len(into := branches[operator.name]) == 1 else ALL[0]
        for operator in operators
    }
    return ts.Plan(ALL, form_regions(mod["main"], places))


def three_processors(folder: Path) -> None:
    """Run a network of three branches on three processors, and check its answer."""
    path = folder / "three_branches.onnx"
    onnx.save(three_branches(), path)
    targets = ["llvm", "opencl", "hexagon"]
    try:
        model = ts.compile(path, targets, plan=a_branch_each(load_network(path)))
    except ts.TargetError as error:
        print(f"\nno third processor: {error}")
        return
    x = landscape(SMALL)
    # as written: fused, ONNX Runtime's sums of 16 bits overflow on processors without VNNI
    plain = onnxruntime.SessionOptions()
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (expected,) = onnxruntime.InferenceSession(path, plain).run(None, {"x": x})
    wrong = np.abs(model(x) - expected).max() / np.abs(expected).max()
    if wrong > 0.02:  # a step of 8 bits or two, where roundings differ
        raise SystemExit(f"expected ONNX Runtime's answer of three processors, got {wrong:.1%} off")
    timeline = model.timeline(folder / "three.json")
    print(f"\n8 bits, a branch on each of {', '.join(targets)} (emulated: not for its speed)")
    print(f"{chart(timeline)}\n{timeline}")
    print(f"answer: {wrong:.0e} of the largest value from ONNX Runtime's")


def busy_seconds() -> float:
    """The CPU seconds of all programs but this one since the machine started."""
    return seconds_of()[0] - time.process_time()


def measured(runs: Mapping[str, Callable[[], object]]) -> tuple[Samples, float]:
    """The least disturbed rounds of runs in turns, and how many cores other programs took then."""
    end = time.monotonic() + PATIENCE
    tries: list[tuple[float, Samples]] = []
    while not tries or (min(others for others, _ in tries) > DISTURBED and time.monotonic() < end):
        if tries:
            print(
                f"  other programs took {tries[-1][0]:.1f} cores meanwhile: once more", flush=True
            )
        begin, busy = time.monotonic(), busy_seconds()
        samples = turns(runs, ROUNDS, warm_up=1)
        others = (busy_seconds() - busy) / (time.monotonic() - begin)
        tries.append((max(0.0, others), samples))
    others, samples = min(tries, key=lambda one: one[0])
    return samples, others


def disturbance(others: float) -> str:
    """What made the times scatter, in a line."""
    cores, device = len(os.sched_getaffinity(0)), local_device()
    found = []
    if others > DISTURBED:
        found.append(f"other programs took {others:.1f} of {cores} cores")
    if device is not None and device.type == "cpu" and device.compute_units >= cores:
        found.append(f"the OpenCL driver's threads ran on all {cores} cores, the CPU's among them")
    return "disturbed: " + "; ".join(found) if found else "no other program disturbed these times"


def main(arguments: list[str] | None = None) -> int:
    """Print the comparison; fail if an answer is wrong."""
    args = options(
        __doc__,
        arguments,
        ("model?", "resnet18", "zoo name or ONNX file"),
        ("--size", 224, "image height and width"),
        ("--folder", Path("out/demo"), "for what is written"),
    )

    device = local_device()
    targets = ["llvm"] if device is None else ["llvm", "opencl"]
    print(f"OpenCL device: {device.name if device else 'none'}")
    if device is None:
        print(
            "so this shows the CPU alone; install a driver (Debian: apt-get install "
            "pocl-opencl-icd makes a device of half of the CPU's cores)"
        )
    folder = args.folder
    folder.mkdir(parents=True, exist_ok=True)
    path = Path(args.model)
    if path.suffix != ".onnx":
        path = folder / f"{args.model}.onnx"
        onnx.save(zoo.build(args.model, size=args.size), path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x = landscape(args.size)
    (expected,) = session.run(None, {session.get_inputs()[0].name: x})

    print(f"\ncompiling {path} for")
    models = models_of(path, targets)
    best = models[list(models)[-1]]

    print("\nthe answer of")
    for name, model in models.items():
        error = check(name, model(x), [expected])
        print(f"  {name:14} largest difference from ONNX Runtime {error:.0e} of the largest value")

    print(f"\nmilliseconds per image, {ROUNDS} runs in turns")
    samples, others = measured({name: partial(model, x) for name, model in models.items()})
    times = {name: samples.median(name) for name in models}
    print(f"  {'':14}  median    least")
    for name, taken in times.items():
        print(f"  {name:14} {taken:7.2f}  {min(samples.of[name]):7.2f}")
    print(f"  {disturbance(others)}")
    table = best.plan.explain().partition("\n\n")[0].splitlines()
    more = [f".. and {len(table) - ROWS} more regions: the report has all"]
    print("\nthe plan", *table[:ROWS], *(more if len(table) > ROWS else []), sep="\n")
    timeline = best.timeline(folder / "trace.json")
    print(f"\n{chart(timeline)}\n{timeline}")
    best.report(folder / "report.html")
    print(
        f"\nreport: {folder / 'report.html'}   trace for ui.perfetto.dev: {folder / 'trace.json'}"
    )
    print(
        "\nthe same in Python:\n"
        "  import tvm_stretch as ts\n"
        f'  model = ts.compile("{path}", {targets})\n'
        "  y = model(x)"
    )
    if BOTH in times:
        three_processors(folder)
        alone = min(("llvm", "opencl"), key=lambda name: times[name])
        gain, least = times[alone] / times[BOTH], samples.least_ratio(alone, BOTH)
        print(
            f"\nboth processors: {times[BOTH]:.2f} ms, {gain:.2f} times as fast as the better one "
            f"alone ({times[alone]:.2f} ms); by the least times {least:.2f} times"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
