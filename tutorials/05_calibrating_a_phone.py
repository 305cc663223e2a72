"""A profile of your own phone: from latencies of a few networks to plans for it.

Run it: `python tutorials/05_calibrating_a_phone.py [folder]`.  It needs no phone: an imaginary one,
whose true numbers stand below, "measures" eight small networks, each run 5 % off.  With a real one,
any program that runs a network on one processor will do; that of TFLite is
`benchmark_model --graph=… --use_gpu=true`.  Only the first table is another one then.

Where our own kernels run on the phone (tutorial 09), they are timed one by one instead, and the
folder takes the place of the table:

    phone = ts.connect("192.0.2.7:9190", "my-phone")
    ts.tune.measure(device=phone, cache="costs", budget=480)
    ts.tune.calibrate("costs", name="my-phone")

What comes with tvm_stretch, targets/profiles/snapdragon-855.toml, was made as here: `python -m
benchmarks.twin calibrate`, its residuals in benchmarks/twin.md.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import tvm
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.plan.cost import ProcessorProfile, load_profile
from tvm_stretch.plan.measuring import works_of_networks


def section(title: str) -> None:
    """Print a heading."""
    print(f"\n{'=' * 8} {title}")


# --- networks of different layers -----------------------------------------------------------------


def network(kind: str, channels: int, size: int, depth: int) -> tvm.IRModule:
    """A stem, then layers of one kind: dense, pointwise, grouped (by 16) or depthwise."""
    builder = relax.BlockBuilder()
    dice = np.random.default_rng(0)

    def layer(data: relax.Expr, out: int, kernel: int = 1, groups: int = 1) -> relax.Var:
        shape = (out, int(data.ty.shape.values[1]) // groups, kernel, kernel)
        weight = relax.const(dice.standard_normal(shape).astype("float32") / 10)
        call = relax.op.nn.conv2d(data, weight, padding=kernel // 2, groups=groups)
        return builder.emit(relax.op.nn.relu(builder.emit(call)))

    x = relax.Var("x", relax.TensorType((1, 3, size, size), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = layer(x, channels, 3)
            for _ in range(depth):
                if kind == "depthwise":
                    value = layer(value, channels, 3, channels)
                groups = channels // 16 if kind == "grouped" else 1
                value = layer(
                    value, channels, 1 if kind in ("pointwise", "depthwise") else 3, groups
                )
            out = builder.emit_output(value)
        builder.emit_func_output(out)
    return builder.get()


NETWORKS = {
    "plain-64": network("dense", 64, 56, 3),
    "plain-256": network("dense", 256, 14, 3),
    "points-64": network("pointwise", 64, 56, 4),
    "points-256": network("pointwise", 256, 14, 6),
    "groups-64": network("grouped", 64, 28, 3),
    "groups-128": network("grouped", 128, 14, 4),
    "mobile-64": network("depthwise", 64, 56, 3),
    "mobile-192": network("depthwise", 192, 14, 4),
}


# --- the imaginary phone --------------------------------------------------------------------------


def true_processor(like: ProcessorProfile, times: float) -> ProcessorProfile:
    """Faster than that of a Snapdragon 855, with kernels of its own for grouped convolutions."""
    speeds = {family: times * speed for family, speed in like.multiply_adds_per_ns.items()}
    return replace(like, multiply_adds_per_ns=speeds, group_us=like.group_us / 8)


def measure(path: Path) -> dict[str, ProcessorProfile]:
    """Write the table that a program on the phone would write; returns the true profile."""
    known = load_profile("snapdragon-855")
    truth = {
        "cpu": true_processor(known.processor("cpu"), 1.6),
        "gpu": true_processor(known.processor("opencl"), 3.0),
    }
    works = works_of_networks(NETWORKS, known, list(NETWORKS))
    dice = np.random.default_rng(1)
    lines = ["model,processor,latency_ms"]
    for processor, found in truth.items():
        for name, own in works.items():
            exact = sum(found.nanoseconds(work) for work in own) / 1e6
            lines.append(f"{name},{processor},{exact * dice.normal(1.0, 0.05):.4f}")
    path.write_text("\n".join(lines) + "\n")
    return truth


# --- the tutorial --------------------------------------------------------------------------------


def main(folder: Path) -> None:
    """Every step prints its result and fails if an assertion does not hold."""
    section("1. What was measured")
    table = folder / "phone.csv"
    truth = measure(table)
    print(table.read_text().strip())

    section("2. The profile, and how well it fits")
    # `left out` is what the profile of all other networks says: how far to trust it for new ones.
    found = ts.tune.calibrate(table, NETWORKS, name="my-phone")
    print(found)
    assert max(abs(residual.error) for residual in found.residuals) < 0.2
    assert sum(found.left_out_errors) / len(found.left_out_errors) < 0.15

    section("3. The file")
    # What cannot be told from one processor alone (targets, precisions, what handing over takes)
    # comes from the profile `like`, a Snapdragon 855 by default: look at it, and correct it.
    profile = folder / "my-phone.toml"
    found.write(profile)
    print(profile.read_text().strip())

    section("4. Beside the truth, which only an imaginary phone tells")
    for name, ours in (("cpu", "cpu"), ("gpu", "opencl")):
        fitted = found.profile.processor(ours).multiply_adds_per_ns
        for family, real in truth[name].multiply_adds_per_ns.items():
            print(
                f"{name} {family:10}{real:7.1f} multiply-adds/ns, calibrated {fitted[family]:7.1f}"
            )
    # Few networks say little of each number alone; together they say what networks take.

    section("5. Plans for it")
    new = network("dense", 192, 56, 4)
    for targets in (["llvm"], ["opencl"], ["llvm", "opencl"]):
        plan = ts.plan_for(new, targets, device=profile)
        assert plan.predicted_ns is not None
        print(f"{' + '.join(targets):16}{plan.predicted_ns / 1e6:6.2f} ms  {plan.reason}")
    print(plan.explain())

    section("6. A file that is wrong is refused")
    text = profile.read_text().replace("threads = 4", "threads = 4\ncores = 8")
    (folder / "wrong.toml").write_text(text)
    try:
        ts.plan_for(new, device=folder / "wrong.toml")
    except ts.CostModelError as error:
        print(error)
    else:
        raise AssertionError("a profile has no field `cores`")


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="tvm_stretch_"))
    place.mkdir(parents=True, exist_ok=True)
    main(place)
