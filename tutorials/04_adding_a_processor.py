"""Adding a processor in one file, and watching it get work: a neural processing unit, faked.

Run it: `python tutorials/04_adding_a_processor.py [folder]`.  It needs no device: the processor of
`tvm_stretch.run.testing` runs the CPU's kernels on a thread of its own, with memory of its own, so
that plans, transfers and timelines look as they would with a real one.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import tvm
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.plan.search import planning_costs, search
from tvm_stretch.read import load_network
from tvm_stretch.run.testing import fake_code
from tvm_stretch.targets import (
    Attributes,
    Hardware,
    Operators,
    OpRule,
    Processor,
    ProcessorKind,
    Speed,
    make_processors,
    register,
)

CHANNELS, SIZE = 64, 56


def section(title: str) -> None:
    """Print a heading."""
    print(f"\n{'=' * 8} {title}")


# --- the processor: everything that the compiler knows about it -----------------------------------


def rules(largest: int) -> tuple[OpRule, ...]:
    """One row for each operator that the NPU knows.

    Operators without a row are refused with a reason: nothing falls back silently.
    """

    def check(call: relax.Call) -> str | None:
        """None, or why the NPU refuses a convolution."""
        kernel = [int(size) for size in call.args[1].ty.shape.values[2:]]
        if max(kernel) > largest:
            taken = f"kernels up to {largest}x{largest}"
            return f"the systolic array takes {taken}, not {kernel[0]}x{kernel[1]}"
        return None

    return (
        OpRule("relax.nn.conv2d", dtypes=("float32",), check=check, note="systolic array"),
        OpRule("relax.nn.relu", dtypes=("float32",)),
        OpRule("relax.add", dtypes=("float32",)),
        OpRule("relax.concat", note="a view"),
        OpRule("relax.strided_slice", note="a view of channels"),
        OpRule("relax.call_tir", note="transforms of Winograd convolutions"),
    )


def refuse(call: relax.Call) -> str:
    """The reason for everything else."""
    return f"the NPU has no {call.op.name.removeprefix('relax.')}"


# Assumptions about an NPU, from its data sheet; ts.tune.measure() would replace
# them.
SPEED = Speed(cycles_per_ns=10.0, bytes_per_ns=10.0, start_ns=2_000.0, handover_ns=5_000.0)


def npu_processor(target: Attributes, host: Processor) -> Processor:
    """A neural processing unit.

    A real one would bring a target, phases and kernel schedules of its own, and `build` would make
    its binary; `kind` names the part of the executor that drives it.  The fake one runs
    kernels that are linked with the CPU's, and `mirrored` gives it memory of its own.
    """
    return dataclasses.replace(
        host,
        name="systolic",
        kind="fake",
        operators=Operators(rules(target.get("largest_kernel", 3)), refuse),
        code=dataclasses.replace(host.code, build=build, runs_host_code=True),
        speed=SPEED,
        hardware=Hardware(),
    )


def build(_kernels: object, _schedule: object) -> tvm.runtime.Module:
    """Code for the executor's new part, a shared library that registers itself.

    Yours is made of a C++ file that includes `processor.h`, as `tvm_stretch/run/testing/` has one:
    `tvm_stretch.run.native_processor` builds and loads it.
    """
    return fake_code(mirrored=True)


# From here on it is a target like others.
register(ProcessorKind("systolic", npu_processor))


# --- the tutorial --------------------------------------------------------------------------------


def network() -> tvm.IRModule:
    """A 5x5 layer, three 3x3 layers, a sigmoid."""
    builder = relax.BlockBuilder()
    dice = np.random.default_rng(0)

    def layer(data: relax.Expr, kernel: int, name: str) -> relax.Var:
        shape = (CHANNELS, int(data.ty.shape.values[1]), kernel, kernel)
        weight = dice.standard_normal(shape, dtype="float32") / (kernel * CHANNELS)
        padding = kernel // 2
        call = relax.op.nn.conv2d(data, relax.const(weight.astype("float32")), padding=padding)
        data = builder.emit(call, name_hint=f"{name}_conv")
        return builder.emit(relax.op.nn.relu(data), name_hint=f"{name}_relu")

    x = relax.Var("x", relax.TensorType((1, 16, SIZE, SIZE), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = layer(x, 5, "stem")
            for number in range(3):
                value = layer(value, 3, f"body{number}")
            out = builder.emit_output(relax.op.sigmoid(value), name_hint="gate")
        builder.emit_func_output(out)
    return builder.get()


def main(folder: Path) -> None:
    """Every step prints its result and fails if an assertion does not hold."""
    mod = network()

    section("1. What it takes, and why it refuses the rest")
    canonical = load_network(mod)
    alone = ts.compile(mod, "llvm", cpu_threads=1)
    # A plan without regions: each operator goes to the first of the targets that takes it.
    eager = ts.Plan(("cpu", "systolic"), ())
    print(ts.compile(mod, ["systolic", "llvm"], plan=eager, cpu_threads=1).plan.explain())

    section("2. A plan that it cannot carry out is refused")
    wrong = json.loads(alone.plan.to_json().replace('"cpu"', '"systolic"'))
    try:
        ts.compile(mod, ["llvm", "systolic"], plan=wrong, cpu_threads=1)
    except ts.UnsupportedError as error:
        print(error)
    else:
        raise AssertionError("the 5x5 layer and the sigmoid should be refused")

    section("3. Is the table true?")
    # Every kind of operator that the network needs, whole or in parts, is compiled and run alone,
    # and compared with TVM's virtual machine.  Without `cache`, verdicts go to the user's cache,
    # where compile() finds them: what failed is then refused with the reason "probe: ...".
    verdicts = ts.tune.probe(mod, "systolic", cache=folder / "systolic.probe.json", cpu_threads=1)
    refused = sorted({reason for reason in verdicts.refused.values()})
    print(f"{len(verdicts.reasons)} classes of operators tried; refused:", *refused, sep="\n  ")
    assert all(reason.startswith(("the NPU has no", "the systolic")) for reason in refused)

    section("4. The search gives it work")
    # Layers that both take are shared; the stem and the gate stay on the CPU.
    processors, _ = make_processors(["llvm", "systolic"], 1)
    found = search(canonical, planning_costs(processors))
    plan = found.rivals[0].plan
    print(plan.explain())
    assert not any(single.plan.regions[0].processor == "systolic" for single in found.singles)
    assert plan.processor_of()["stem_conv"] == plan.processor_of()["gate"] == "cpu"
    assert any(region.processor == "systolic" for region in plan.regions)

    section("5. The same numbers")
    plan.write(folder / "plan.json")
    model = ts.compile(mod, ["llvm", "systolic"], plan=folder / "plan.json", cpu_threads=1)
    x = np.random.default_rng(1).standard_normal((1, 16, SIZE, SIZE), dtype="float32")
    expected, y = alone(x), model(x)
    error = np.abs(y - expected).max() / np.abs(expected).max()
    print(f"largest difference: {error:.1e} of the largest value")
    assert error < 1e-4

    section("6. What it did")
    timeline = model.timeline(folder / "trace.json")
    print(timeline)
    (usage,) = (usage for usage in timeline.usage if usage.processor == "systolic")
    assert usage.kernels > 0, "the NPU computed nothing"
    assert timeline.execution is not None and not timeline.execution.strays, "some fell back"
    print(f"predicted {plan.predicted_ns / 1e6:.3f} ms, this run {timeline.duration / 1e6:.3f} ms")
    print(f"drop {folder / 'trace.json'} onto https://ui.perfetto.dev: planned beside actual")

    section("7. Left alone, compile() measures before it believes")
    # The plan ships only if it is faster here than the CPU alone beyond doubt; both ran, in turns.
    decided = ts.compile(mod, ["llvm", "systolic"], cpu_threads=1)
    print(decided.plan.explain())
    assert "chosen: " in decided.plan.reason


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="tvm_stretch_"))
    place.mkdir(parents=True, exist_ok=True)
    main(place)
