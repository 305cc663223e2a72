"""From a float network to integers: how a quantised network is compiled, and why it is exact.

Run it: `python tutorials/08_integers.py [folder]`.  Every step prints its result and fails if an
assertion does not hold.  It needs ONNX Runtime, whose quantiser it uses (`pip install
tvm-stretch[quantize]`). The last step needs an OpenCL driver, qemu-hexagon and zig; `--without-dsp`
leaves it out. It draws its run into the folder, by default a temporary one: three_processors.svg,
as beside this file.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from zoo.builder import Builder
from zoo.picture import draw

import tvm_stretch as ts
from tvm_stretch.network.integers import integer_of, operands_of
from tvm_stretch.network.operators import Operators, kind_of
from tvm_stretch.read import load_network
from tvm_stretch.run.timeline import chart


def section(title: str) -> None:
    """Print a heading."""
    print(f"\n{'=' * 8} {title}")


def small_network() -> onnx.ModelProto:
    """A residual block, a depthwise layer, pooling and a dense layer; yours goes here instead."""
    builder = Builder(seed=0)
    x = builder.conv_bn(builder.input("x", (1, 3, 32, 32)), 32, 3, 2, act="relu")
    y = builder.conv_bn(builder.conv_bn(x, 32, 3, act="relu"), 32, 3)
    x = builder.add(x, y, act="relu")
    x = builder.conv_bn(x, 32, 3, 2, groups=32, act="relu6")
    x = builder.conv_bn(x, 128, 3, act="relu")
    return builder.finish("small", builder.classifier(x, 100))


section("1. Quantise")
network = small_network()
# Images decide which range of numbers every tensor gets: take some hundred that are typical.
images = np.random.default_rng(0).standard_normal((4, 3, 32, 32)).astype("float32")
quantised = ts.quantize(network, images)
nodes = [node.op_type for node in quantised.graph.node]
print({op: nodes.count(op) for op in sorted(set(nodes))})
# The activations are gone: where no number of a tensor is below 0, its 8 bits begin there.
assert "Relu" not in nodes and "Clip" not in nodes

# Networks that others quantised go the same way from here on: ONNX files with QuantizeLinear nodes
# or QLinear operators, and what torchao makes (PT2E), exported by torch.export. Scales have to be
# known now, one for each tensor or channel, of 8 bits: torch's other schemes are refused by name.

section("2. Integer operators")
# The operators between DequantizeLinear and QuantizeLinear become one integer operator before
# constants are folded, because folding would turn the weights into floats.
main = load_network(quantised)["main"]
calls = [binding.value for block in main.body.blocks for binding in block.bindings]
integers = [call for call in calls if integer_of(call) is not None]
print(len(integers), "of", len(calls), "operators are integer operators:")
for call in integers[:3]:
    integer = integer_of(call)
    assert integer is not None
    weight = operands_of(call)[1]
    print("   ", kind_of(call), weight.ty, "->", call.ty)
    print("        zero point of the inputs", integer.zeros[0], "and", integer.rounding)
assert {kind_of(call) for call in integers} == {
    "integer.conv2d", "integer.add", "integer.mean", "integer.matmul",
}  # fmt: skip

section("3. The arithmetic")
# The result of a layer is round(sum * factor) + zero point, kept within 8 bits. The sum is an exact
# integer; the factor is scale(x) * scale(w) / scale(y), a float32 for each channel.
sums = np.arange(-60, 61, 20, dtype="int32")
factor, zero = np.float32(0.025), 3
rounded = np.clip(np.rint(sums.astype("float32") * factor) + zero, 0, 255)
print("sums   ", sums)
print("results", rounded.astype("uint8"), "(halves go to the even neighbour)")
assert rounded[:3].tolist() == [1, 2, 3]  # -1.5 -> -2, -1.0 -> -1, -0.5 -> 0

section("4. Compile, and compare")
model = ts.compile(quantised, targets=["llvm"], cpu_threads=1)
# How many operators; and what stayed in float, if anything did: images resized linearly would, not
# softmax, transposed convolutions or any pooling.
print(model.plan.reason)
assert model.plan.reason == f"{len(integers)} integer operators"
options = onnxruntime.SessionOptions()
options.log_severity_level = 3
# On x86 without VNNI, ONNX Runtime's fast kernels add products of bytes in 16 bits, which saturate.
# Ours never do, so the comparison asks for the exact ones.
options.add_session_config_entry("session.x64quantprecision", "1")
session = onnxruntime.InferenceSession(
    quantised.SerializeToString(), options, providers=["CPUExecutionProvider"]
)
x = images[:1]
ours, theirs = np.asarray(model(x)), session.run(None, {"x": x})[0]
step = np.diff(np.unique(theirs)).min()
print("largest difference from ONNX Runtime:", np.abs(ours - theirs).max() / step, "steps")
assert ours.argmax() == theirs.argmax()
assert np.abs(ours - theirs).max() <= 4.01 * step

section("5. What 8 bits cost")
# Random weights say nothing about accuracy; of a trained network, count right answers instead.
floats = onnxruntime.InferenceSession(
    network.SerializeToString(), options, providers=["CPUExecutionProvider"]
).run(None, {"x": x})[0]
correlation = np.corrcoef(ours.ravel(), floats.ravel())[0, 1]
print(f"correlation with the answer in float32: {correlation:.3f}")
assert correlation > 0.9


def three_processors(folder: Path) -> None:
    """Run three processors at once, with a given plan."""
    section("6. Three processors")
    # A plan gives every processor a share of the output channels of the widest layer. In integers
    # the parts are exact: the CPU multiplies 8-bit numbers, OpenCL whole numbers in float32, the
    # DSP with its own instructions. (It is emulated here, so a search would leave it out: this says
    # nothing about speed. Its halves are rounded up and not to even, one step now and then.)
    widest = max(
        (op for op in Operators(load_network(quantised)["main"]) if op.kind == "integer.conv2d"),
        key=lambda op: op.shape[1],
    )
    plan = ts.Plan(("cpu", "opencl", "hexagon"), (), shares={widest.name: (64, 32, 32)})
    print(widest.name, "of", widest.shape[1], "channels:", plan.shares[widest.name])
    three = ts.compile(quantised, targets=["llvm", "opencl", "hexagon"], plan=plan)
    together = np.asarray(three(x))
    print("largest difference from the CPU alone:", np.abs(together - ours).max() / step, "steps")
    assert together.argmax() == ours.argmax()
    assert np.abs(together - ours).max() <= 2.01 * step
    # Each row is a processor, time runs to the right; the picture has every kernel, and an arrow
    # from what each region waited for. Nearly all of the time is the emulator's.
    timeline = three.timeline()
    print(chart(timeline))
    picture = folder / "three_processors.svg"
    picture.write_text(draw(timeline), encoding="utf-8")
    print("written:", picture)
    print("packets that the DSP executed:", three.health()["hexagon"]["packets"])


if "--without-dsp" not in sys.argv:
    place = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="tvm_stretch_"))
    place.mkdir(parents=True, exist_ok=True)
    three_processors(place)
