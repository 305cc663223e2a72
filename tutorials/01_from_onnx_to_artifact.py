"""From an ONNX file to an artifact, and what the network looks like after each phase.

Run it: `python tutorials/01_from_onnx_to_artifact.py`.  Every step prints its result and fails if
an assertion does not hold.  It needs ONNX Runtime for the comparison (`pip install
tvm-stretch[test]`).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import tvm
import zoo
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

import tvm_stretch as ts
from tvm_stretch import passes
from tvm_stretch.run.testing import fake_processor
from tvm_stretch.targets import make_processors


def section(title: str) -> None:
    """Print a heading."""
    print(f"\n{'=' * 8} {title}")


def show(path: Path, *needles: str, lines: int = 6) -> None:
    """Print the first lines of a dumped IR that hold one of the needles."""
    found = [
        line.strip() for line in path.read_text().splitlines() if any(n in line for n in needles)
    ]
    print(f"{path.name}: {len(found)} lines with {' or '.join(needles)}")
    for line in found[:lines]:
        print("   ", line if len(line) < 150 else line[:147] + "...")


folder = Path(tempfile.mkdtemp(prefix="tvm_stretch_tutorial_"))

section("1. A trained network")
# Your own ONNX file goes here.  The zoo builds well-known architectures with seeded random weights.
network = zoo.build("resnet18", size=64)
onnx_file = folder / "resnet18.onnx"
onnx.save(network, onnx_file)
print(onnx_file.name, f"{onnx_file.stat().st_size / 1e6:.1f} MB")

section("2. Compile, and keep the IR of every phase")
model = ts.compile(onnx_file, targets=["llvm"], cpu_threads=1, dump_dir=folder / "ir")
print(model)
phases = sorted((folder / "ir").iterdir())
print("\n".join(path.name for path in phases))
by_name = {path.stem[3:]: path for path in phases}

section("3. Canonical Relax: batch norm is gone, constants are folded")
show(by_name["canonical"], "R.nn.", "R.add", lines=5)
assert "batch_norm" not in by_name["canonical"].read_text()

section("4. BlockChannels: feature maps become NCHW[c], convolutions become templates")
# (1, 64, 16, 16) is now (1, 64/c, 16, 16, c) with c lanes of a vector register, so that one vector
# holds c channels of one pixel.  Weights are packed by kernels whose operands are constants: they
# run once, when the artifact is loaded, and the artifact holds the original weights only.
show(by_name["BlockChannels"], "winograd", "pack_weight", lines=5)

section("5. FuseTIR: bias, residual and relu went into the kernels")
show(by_name["cpu-FuseTIR"], "R.call_tir", lines=4)

section("6. ScheduleKernels: explicit loop nests")
# Each PrimFunc said what it computes; now it says how.  Look for the `T.vectorized` accumulators: a
# tile of pixels times vectors of output channels that stays in registers over the whole reduction.
show(by_name["scheduled"], "T.vectorized", lines=3)

section("7. Run it and compare with ONNX Runtime")
x = np.random.default_rng(0).standard_normal((1, 3, 64, 64), dtype="float32")
y = model(x)
(expected,) = onnxruntime.InferenceSession(onnx_file).run(None, {"x": x})
error = np.abs(y - expected).max() / np.abs(expected).max()
print(f"largest difference: {error:.1e} of the largest logit")
assert error < 1e-3 and y.argmax() == expected.argmax()

section("8. Where the time goes")
print(model.benchmark(repeat=10))
print("\n".join(str(model.profile()).splitlines()[:6]))

section("9. One shared library")
artifact = folder / "resnet18.so"
model.export(artifact)
print(f"{artifact.name}: {artifact.stat().st_size / 1e6:.1f} MB")
again = ts.load(artifact)
assert np.array_equal(again(x), y)
# Any TVM program with tvm_stretch installed can open it, Python or C++:
print("stock TVM sees a module of kind", tvm.runtime.load_module(str(artifact)).kind)

section("10. Our passes among TVM's, without a compile")
# `help(tvm_stretch.passes)` lists all passes with a line each.  PartitionBySupport cuts a network
# into a function for each region that a processor supports, without a plan; TVM's passes follow,
# and its own virtual machine runs the result.
(cpu,), _ = make_processors(["llvm"], cpu_threads=1)
second = fake_processor("second", refuse=lambda c: "no pools" if "pool" in c.op.name else None)
parts = [passes.Canonicalise(), passes.PartitionBySupport([second, cpu])]
stock = [relax.transform.LegalizeOps(), relax.transform.FuseOps(), relax.transform.FuseTIR()]
mod = from_onnx(network)
cut = tvm.transform.Sequential(parts)(mod)
for var, function in cut.functions.items():
    if "processor" in (function.attrs or {}):
        calls = [binding for block in function.body.blocks for binding in block.bindings]
        print(f"{var.name_hint} on {function.attrs['processor']}: {len(calls)} operators")
built = tvm.compile(tvm.transform.Sequential(stock)(cut), "llvm")
z = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x))
assert np.abs(z.numpy() - expected).max() / np.abs(expected).max() < 1e-3
