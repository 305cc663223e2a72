"""The share of a core's peak that narrow and unusual layers reach.

    python -m benchmarks.strange_layers [words…] [--mcpu haswell] [--rounds 15] [--kernels]

Networks of one layer each, on one pinned core, in turns with a loop that does nothing but
multiply-adds (`peak.py`); words choose layers by their names.  The conversions of input and output
into the blocked layout and back do not count: in a network they are not there.  Those that a layer
makes of its own, as transposed convolutions do, count.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper, shape_inference
from tvm.target import Target

import tvm_stretch as ts
from benchmarks.peak import Peak
from tvm_stretch.targets.cpu import complete_target, vector_machine


@dataclass(frozen=True)
class Layer:
    """A network of one operator and the multiply-adds of its plain sum."""

    name: str
    model: onnx.ModelProto
    multiply_adds: int


def _layer(
    name: str, kind: str, inputs: Sequence[tuple], weight: tuple = (), **attributes: object
) -> Layer:
    values = [
        helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, shape)
        for i, shape in enumerate(inputs)
    ]
    weights = []
    if weight:
        data = np.random.default_rng(0).standard_normal(weight, dtype=np.float32) / 8
        weights = [numpy_helper.from_array(data, "w")]
    operands = [v.name for v in values] + [w.name for w in weights]
    node = helper.make_node(kind, operands, ["y"], **attributes)
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], name, values, [out], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = shape_inference.infer_shapes(model)
    shape = [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim]
    return Layer(name, model, _multiply_adds(kind, inputs, weight, shape))


def _multiply_adds(kind: str, inputs: Sequence[tuple], weight: tuple, out: Sequence[int]) -> int:
    if kind == "Conv":
        return prod(out) * prod(weight[1:])
    if kind == "ConvTranspose":
        return prod(inputs[0]) * prod(weight[1:])
    return prod(out) * (inputs[0][-1] if kind == "MatMul" else 1)


def _conv(
    channels: int,
    size: int,
    kernel: tuple[int, int] = (3, 3),
    out: int = 0,
    groups: int = 1,
    dilation: int = 1,
    note: str = "",
) -> Layer:
    out = out or channels
    pads = [dilation * (k // 2) for k in kernel] * 2
    words = [f"{kernel[0]}x{kernel[1]}", f"{channels}->{out}", f"{size}x{size}"]
    words += [f"groups of {channels // groups}"] * (groups > 1)
    words += [f"dilated {dilation}"] * (dilation > 1)
    return _layer(
        " ".join(words),
        "Conv",
        [(1, channels, size, size)],
        (out, channels // groups, *kernel),
        pads=pads,
        group=groups,
        dilations=[dilation] * 2,
    )


def _transposed(channels: int, size: int, kernel: int, out: int, pad: int = 0) -> Layer:
    return _layer(
        f"transposed {kernel}x{kernel} by 2 {channels}->{out} {size}x{size}",
        "ConvTranspose",
        [(1, channels, size, size)],
        (channels, out, kernel, kernel),
        strides=[2, 2],
        pads=[pad] * 4,
    )


def _dense(rows: int, inputs: int, outputs: int) -> Layer:
    return _layer(
        f"dense {rows} x {inputs}->{outputs}", "MatMul", [(rows, inputs)], (inputs, outputs)
    )


def _matmul(a: tuple[int, ...], b: tuple[int, ...]) -> Layer:
    shapes = " by ".join("x".join(map(str, shape)) for shape in (a, b))
    return _layer(f"matmul {shapes}", "MatMul", [a, b])


def _softmax(*shape: int) -> Layer:
    return _layer(f"softmax {'x'.join(map(str, shape))}", "Softmax", [shape], axis=-1)


def layers() -> list[Layer]:
    """Shapes of RegNetX, PP-OCR, Inception, DeepLab, vision transformers, and some odd ones."""
    return [
        _conv(128, 28, groups=8),
        _conv(168, 28, groups=7),
        _conv(408, 14, groups=17),
        _conv(240, 28, groups=6),
        _conv(560, 14, groups=14),
        _transposed(24, 160, 2, 24),
        _transposed(24, 320, 2, 1),
        _transposed(64, 80, 2, 64),
        _transposed(64, 28, 4, 32, pad=1),
        _transposed(64, 28, 3, 32, pad=1),
        _conv(192, 17, (1, 7)),
        _conv(192, 17, (7, 1)),
        _conv(384, 8, (1, 3)),
        _conv(384, 8, (3, 1)),
        _conv(48, 35, (5, 5), out=64),
        _conv(128, 28, dilation=2),
        _conv(256, 28, dilation=4),
        *[_conv(c, 28, kernel) for c in (20, 36, 50, 100) for kernel in ((3, 3), (1, 1))],
        _dense(1, 2048, 1000),
        _dense(64, 1024, 1024),
        _dense(197, 768, 3072),
        _matmul((12, 197, 64), (12, 64, 197)),
        _matmul((12, 197, 197), (12, 197, 64)),
        _matmul((192, 49, 32), (192, 32, 49)),
        _softmax(12, 197, 197),
        _softmax(192, 49, 49),
    ]


@dataclass
class Measured:
    """A compiled layer and its measurements, round by round."""

    layer: Layer
    model: ts.Model
    seconds: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)

    def look(self, peak: Peak) -> None:
        """One turn."""
        now = peak.measure()
        found = self.model.profile(repeat=3).kernels
        took = sum(k.seconds for i, k in enumerate(found) if not _converts(k.kernel, i, len(found)))
        now = max(now, peak.measure())
        self.seconds.append(took)
        self.shares.append(self.layer.multiply_adds / took / now)

    def row(self) -> str:
        """A line of the table."""
        seconds, share = statistics.median(self.seconds), statistics.median(self.shares)
        gflops = 2 * self.layer.multiply_adds / seconds / 1e9
        if self.layer.name.startswith("softmax"):
            each = f"{seconds / self.layer.multiply_adds * 1e9:.2f} ns an element"
            return f"| {self.layer.name} | {seconds * 1e6:.0f} | {each} | |"
        return f"| {self.layer.name} | {seconds * 1e6:.0f} | {gflops:.0f} | {share:.0%} |"


def _converts(kernel: str, index: int, count: int) -> bool:
    """Whether a kernel only makes blocks of the input, or the result of the last blocks."""
    first = kernel.startswith("block_channels") and index == 0
    return first or (kernel.startswith("unblock_channels") and index == count - 1)


def _compiled(layer: Layer, target: dict) -> Measured:
    model = ts.compile(layer.model, [target], cpu_threads=1)
    rng = np.random.default_rng(1)
    shapes = [[d.dim_value for d in i.type.tensor_type.shape.dim] for i in layer.model.graph.input]
    inputs = {f"x{i}": rng.standard_normal(s, dtype=np.float32) for i, s in enumerate(shapes)}
    session = onnxruntime.InferenceSession(layer.model.SerializeToString())
    (expected,) = session.run(None, inputs)
    error = np.abs(model(inputs) - expected).max() / np.abs(expected).max()
    if error > 1e-4:
        raise RuntimeError(f"{layer.name}: wrong answer, relative error {error:.1e}")
    return Measured(layer, model)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.strange_layers", description=__doc__)
    parser.add_argument("words", nargs="*", help="layers whose name contains one of these")
    parser.add_argument("--mcpu", default="", help="of another core that this one can run")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--kernels", action="store_true", help="show the kernels of each layer")
    options = parser.parse_args(arguments)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    target = {"kind": "llvm"} | ({"mcpu": options.mcpu} if options.mcpu else {})
    machine = vector_machine(complete_target(Target(target)), 1)
    peak = Peak(machine.lanes)
    wanted = [x for x in layers() if any(w in x.name for w in options.words or ("",))]
    every = [_compiled(layer, target) for layer in wanted]
    for _ in range(options.rounds):
        for one in every:
            one.look(peak)
    print("| layer | µs | GFLOP/s | share of the peak |\n| --- | --- | --- | --- |")
    for one in every:
        print(one.row())
        if options.kernels:
            print(one.model.profile(), file=sys.stderr)
    best = statistics.median(peak.measure() for _ in range(15))
    print(f"\npeak of this core with {machine.lanes} lanes: {2 * best / 1e9:.0f} GFLOP/s")


if __name__ == "__main__":
    main()
