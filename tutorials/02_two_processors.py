"""Two processors at once: a plan by hand, how the executor overlaps regions, reading a timeline.

Run it: `python tutorials/02_two_processors.py [folder]`.  It needs an OpenCL device beside the CPU;
PoCL (Debian: `pocl-opencl-icd`) makes one of half of the cores, so two cores are enough to see
regions overlap.  Everything is written to the folder, by default a temporary one: the plan, the IR
of every phase, the trace, and a picture of it, as timeline.svg beside this file. (The README shows
the same run in characters: a page of a package has no files beside it.)
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import tvm
from tvm import relax
from zoo.picture import draw

import tvm_stretch as ts
from tvm_stretch.make.lowering.executor_graph import Graph
from tvm_stretch.run.timeline import chart
from tvm_stretch.targets.opencl.opencl import local_device

CHANNELS, SIZE = 64, 56


def section(title: str) -> None:
    """Print a heading."""
    print(f"\n{'=' * 8} {title}")


def fork_and_join() -> tvm.IRModule:
    """A layer, two branches of two layers that do not need each other, and their sum."""
    builder = relax.BlockBuilder()
    generator = np.random.default_rng(0)

    def layer(data: relax.Expr, name: str) -> relax.Var:
        shape = (CHANNELS, CHANNELS, 3, 3)
        weight = generator.standard_normal(shape, dtype="float32") / CHANNELS
        call = relax.op.nn.conv2d(data, relax.const(weight.astype("float32")), padding=1)
        data = builder.emit(call, name_hint=f"{name}_conv")
        return builder.emit(relax.op.nn.relu(data), name_hint=f"{name}_relu")

    x = relax.Var("x", relax.TensorType((1, CHANNELS, SIZE, SIZE), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            stem = layer(x, "stem")
            left = layer(layer(stem, "left1"), "left2")
            right = layer(layer(stem, "right1"), "right2")
            y = builder.emit_output(relax.op.add(left, right), name_hint="sum")
        builder.emit_func_output(y)
    return builder.get()


def layers(*names: str) -> list[str]:
    """The operators of these layers, as the plan names them: by their variables in `main`."""
    return [f"{name}_{kind}" for name in names for kind in ("conv", "relu")]


PLAN = {
    "format": "tvm_stretch.plan",
    "version": 1,
    "processors": ["cpu", "opencl"],
    "regions": [
        {"name": "stem", "processor": "cpu", "operators": layers("stem")},
        {"name": "right", "processor": "opencl", "operators": layers("right1", "right2")},
        {"name": "left", "processor": "cpu", "operators": layers("left1", "left2")},
        {"name": "join", "processor": "cpu", "operators": ["sum"]},
    ],
}


def show_regions(graph: Graph) -> None:
    """Print the regions that each region waits for, and the tensors that cross processors."""
    names = [region.name for region in graph.regions]
    print(f"{'region':8}{'processor':11}{'kernels':9}{'after':10}{'receives':12}sends")
    for region in graph.regions:
        after = ", ".join(names[other] for other in region.after) or "-"
        print(
            f"{region.name:8}{graph.processors[region.processor].name:11}{len(region.nodes):<9}"
            f"{after:10}{region.receives!s:12}{list(region.sends)}"
        )


# --- the tutorial --------------------------------------------------------------------------------


def main(folder: Path) -> None:
    """Every step prints its result and fails if an assertion does not hold."""
    section("1. A network with two branches, and a plan for it")
    # Operators are named by their variables in canonical `main`; those of an ONNX file by its nodes
    # (conv1, conv1.add for its bias); `model.plan` lists them. Regions are listed in a topological
    # order; regions of one processor run in this order.
    network = fork_and_join()
    plan = ts.Plan.read(PLAN)
    plan.write(folder / "plan.json")
    targets = ["llvm", "opencl"]
    model = ts.compile(network, targets, plan=folder / "plan.json", dump_dir=folder / "ir")
    print(model.plan.explain())

    section("2. The same numbers as on one processor")
    x = np.random.default_rng(1).standard_normal((1, CHANNELS, SIZE, SIZE), dtype="float32")
    alone = ts.compile(network, "llvm")
    expected, y = alone(x), model(x)
    error = np.abs(y - expected).max() / np.abs(expected).max()
    print(f"largest difference: {error:.1e} of the largest value")
    assert error < 1e-4

    section("3. The executor's graph")
    # after     regions of other processors that must be complete before this one begins; its own
    #           processor's earlier regions always are
    # receives  tensors (by their numbers) that another processor or the caller wrote last; each is
    #           received once, however many regions read it
    # sends     tensors that another processor or the caller reads
    # If processors share memory, nothing is copied. A device with separate memory mirrors the
    # arena, and receives and sends become copies at equal offsets.
    show_regions(model.graph)
    region_of = {region.name: region for region in model.graph.regions}
    assert region_of["right"].after and not region_of["left"].after

    section("4. How regions overlap")
    # The calling thread first starts every region of the device. `right` waits for `stem`, but
    # no thread blocks for that: as soon as `stem` is complete, it is handed to the device's
    # queue, while the calling thread goes on with `left`. Only `join` has to wait.
    timeline = model.timeline(folder / "trace.json")
    print(timeline)
    print(chart(timeline))
    assert {use.processor for use in timeline.usage} == {"cpu", "opencl"}

    section("5. The trace")
    # Drop trace.json onto https://ui.perfetto.dev. One track for each processor: the regions, and
    # their kernels, transfers (yellow) and waits (grey) inside; arrows come from what a region
    # waited for. The queue's track shows how long a command lay there before the device began:
    # long bars are good, the device always had something to do next.
    #   a wait on the CPU        the device's share is too large, or it started too late
    #   a gap on the device      it waits for the CPU: look where the arrow comes from
    #   receives and sends       transfers; fewer and larger regions need fewer of them
    #   critical path            the only regions that are worth making faster
    (folder / "timeline.svg").write_text(draw(timeline), encoding="utf-8")
    print("written:", ", ".join(path.name for path in sorted(folder.glob("*.*"))), "in", folder)

    section("6. In the background")
    # Runs of one model follow each other. For runs at the same time, give each thread its own
    # `model.create_instance()`: they share weights and programs.
    futures = [model.run_async(x) for _ in range(3)]
    answers = [future.result() for future in futures]
    assert all(np.array_equal(answer, y) for answer in answers)
    print(f"{len(answers)} answers, all the same")

    section("7. When something else needs a processor")
    # The same plan, and those without each of the processors, in one model: they share weights and
    # memory. While runs take much longer than they did here, other plans are tried, and the fastest
    # is kept; the first one is tried again from time to time.
    several = ts.compile(network, targets, plan=model.plan, plans=True)
    for name in several.plans:
        several.use(name)
        assert np.abs(several(x) - y).max() / np.abs(y).max() < 1e-4
        print(f"{name}: {several.benchmark(repeat=5)}")
    several.adapt()
    print("the next run takes", several.in_use)
    both = several.graph.prepared_bytes, model.graph.prepared_bytes
    print("packed weights: {} bytes, {} of the first plan alone".format(*both))

    section("8. Is it worth it?")
    # Two equal branches on two processors save at best the time of one branch. Without
    # `plan`, compile() builds what may be fastest, measures it, and keeps the winner.
    print("cpu alone      ", alone.benchmark(repeat=20))
    print("by the plan    ", model.benchmark(repeat=20))


if __name__ == "__main__":
    if local_device() is None:
        print(
            "expected an OpenCL device, got none; install a driver (Debian: pocl-opencl-icd), or "
            "name its library in TVM_STRETCH_OPENCL_LIB"
        )
        sys.exit(0)
    place = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="tvm_stretch_"))
    place.mkdir(parents=True, exist_ok=True)
    main(place)
