"""The costs of a DSP: handing a region over, detecting its end, packets of convolutions.

    python -m benchmarks.dsp [--runs 300]
    python -m benchmarks.dsp --packets
    python -m benchmarks.dsp --loop 64 64 16 3
    TVM_STRETCH_CDSPRPC_LIB=... python -m benchmarks.dsp --fastrpc

The region adds two tensors of 32 numbers, so that next to nothing is computed. The DSP is emulated
(qemu-hexagon); `--native` runs the same server as a program of this machine instead.

    launch      `Start` of the region: the time of the caller's thread until it continues
    hand-over   from there until the session's thread has the answer, without the DSP's computing
    run         all that a caller of the executor waits for
    death seen  from SIGKILL until `Model.health` says so, while nothing runs

`--fastrpc`: hand-overs through libcdsprpc.so (the fake of `tests/fastrpc`, whose DSP is emulated
too) beside those through the emulator's mailbox, alternating.

`--packets`: executed packets (qemu counts them) of kernels of integers, with padding, rounding and
stores: of convolutions for each `vrmpy` that their multiply-adds need, 128 each, none of them by
zeros of other groups; of depthwise convolutions, poolings and dense layers of one pixel for each
load of 128 bytes that they need, of the pixels under each tap for 128 results, or of the weights.
`--loop`: the packets of the innermost loop of one of them (channels, filters, size, kernel), as
LLVM wrote them; tutorials/hvx_kernels.md reads them.
"""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import statistics
import tempfile
import time
from functools import partial
from math import prod
from typing import Any
from unittest import mock

import numpy as np
import tvm
from tvm import relax

import tvm_stretch as ts
from benchmarks.commands import Table, options, turns
from tvm_stretch.network.integer_kernels import integer_call
from tvm_stretch.network.integers import Integer, Rounding
from tvm_stretch.run.autoload import load_native_library
from tvm_stretch.targets.cpu.code import object_code
from tvm_stretch.targets.cpu.code.object_code import compile_kernels, llvm_module
from tvm_stretch.targets.cpu.cpu import cpu_processor
from tvm_stretch.targets.hexagon import hexagon
from tvm_stretch.targets.hexagon.code.dsp_code import Launch, Linker, dsp_code
from tvm_stretch.targets.processor import Kernels, Processor

TARGET = tvm.target.Target("llvm")


def native_dsp() -> Processor:
    """The server with kernels of this machine."""

    def build(kernels: Kernels, schedule: tvm.transform.Pass) -> tvm.runtime.Module:
        load_native_library()
        objects = compile_kernels(kernels, schedule, TARGET)
        return dsp_code(objects, Linker(("cc", "-w"), "host"), Launch("native"))

    host = cpu_processor(TARGET, 1)
    return dataclasses.replace(
        host, name="hexagon", kind="dsp", code=dataclasses.replace(host.code, build=build)
    )


def addition() -> tvm.IRModule:
    """One addition."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((32,), "int32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.add(x, x))
        builder.emit_func_output(out)
    return builder.get()


def handovers(model: ts.Model, runs: int, pause: float) -> dict[str, float]:
    """Medians in microseconds; between runs both sides have `pause` seconds to fall asleep."""
    run = model.random_run()
    found: dict[str, list[float]] = {"launch": [], "hand-over": [], "run": []}
    for _ in range(runs):
        for _ in range(1 if pause else 6):  # health takes longer than both sides spin
            time.sleep(pause)
            start = time.perf_counter_ns()
            run()
            taken = time.perf_counter_ns() - start
        state = health(model)
        for name, ns in zip(found, (state["launch_ns"], state["handover_ns"], taken), strict=True):
            found[name].append(ns / 1000)
    return {name: statistics.median(values) for name, values in found.items()}


def health(model: ts.Model) -> dict[str, Any]:
    """The health of the DSP."""
    return model.health()["hexagon"]


def death(model: ts.Model) -> float:
    """Milliseconds until a killed DSP is detected."""
    model(np.zeros(32, "int32"))
    time.sleep(0.01)
    os.kill(health(model)["pid"], signal.SIGKILL)
    start = time.perf_counter()
    while health(model)["state"] == "running":
        pass
    return 1000 * (time.perf_counter() - start)


# --- packets --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Layer:
    """A convolution, or another kernel whose loads decide."""

    kind: str
    channels: int
    size: int
    kernel: int = 1
    stride: int = 1
    groups: int = 1
    outs: int = 0  # as many as channels

    @property
    def vectors(self) -> float:
        """Vectors of 128 products of a convolution; else of pixels, none used for two taps."""
        outs, pixels = self.outs or self.channels, (-(-self.size // self.stride)) ** 2
        if self.kind == "conv":
            return self.channels // self.groups * outs * pixels * self.kernel**2 / 128
        if self.kind == "dense":
            return self.channels * outs / 128
        read = self.size**2 if self.kind == "mean" else pixels * self.kernel**2
        return self.channels * read / 128


LAYERS = (
    *(Layer("conv", channels, 16, 1) for channels in (64, 128, 256)),
    Layer("conv", 64, 16, 3),
    Layer("conv", 128, 14, 3),
    Layer("conv", 72, 28, 3, groups=3),
    Layer("conv", 168, 28, 3, groups=7),
    Layer("conv", 408, 14, 3, groups=17),
    Layer("depthwise", 64, 28, 3),
    Layer("depthwise", 64, 28, 3, 2),
    Layer("depthwise", 128, 14, 3),
    Layer("depthwise", 128, 14, 5),
    Layer("depthwise", 128, 7, 3),
    Layer("max pool", 64, 56, 3, 2),
    Layer("max pool", 64, 28, 3),
    Layer("max pool", 64, 28, 2, 2),
    Layer("mean", 512, 7),
    Layer("dense", 512, 1, outs=1000),
)
_NAMES = {"max pool": "max_pool", "mean": "mean", "depthwise": "depthwise"}


def network(layer: Layer) -> tvm.IRModule:
    """The layer; poolings follow a convolution of one tap, which writes blocked layout."""
    dice, builder, channels = np.random.default_rng(0), relax.BlockBuilder(), layer.channels
    outs, taps, rounding = (
        layer.outs or channels,
        (layer.kernel,) * 2,
        Rounding("uint8", 120, 0, 255),
    )
    around = {"strides": (layer.stride,) * 2, "padding": ((layer.kernel - 1) // 2,) * 4}
    x = relax.Var("x", relax.TensorType((1, channels, layer.size, layer.size), "uint8"))

    def product(value: relax.Expr, kind: str, shape: tuple[int, ...], **how: Any) -> relax.Var:
        count, summed = (shape[1], shape[0]) if kind == "matmul" else (shape[0], prod(shape[1:]))
        weight = dice.integers(-127, 128, shape).astype("int8")
        bias = dice.integers(-999, 999, count).astype("int32")
        factor = np.full(count, 60 / (255 * 37 * summed**0.5), "float32")
        integer = Integer(kind, rounding, (120,), **how)
        constants = map(relax.const, (weight, bias, factor))
        return builder.emit(integer_call(builder, integer, value, *constants))

    with builder.function("main", [x]):
        with builder.dataflow():
            if layer.kind == "dense":
                flat = builder.emit(relax.op.reshape(x, (1, channels)))
                value = product(flat, "matmul", (channels, outs))
            elif layer.kind in ("conv", "depthwise"):
                groups = layer.groups if layer.kind == "conv" else channels
                shape = (outs, channels // groups, *taps)
                value = product(x, "conv2d", shape, groups=groups, **around)
            else:
                blocked = product(x, "conv2d", (channels, 1, 1, 1), groups=channels)
                mean = Integer("mean", rounding, (120,), (1.5 / layer.size**2,))
                is_mean = layer.kind == "mean"
                value = builder.emit(
                    integer_call(builder, mean, blocked)
                    if is_mean
                    else relax.op.nn.max_pool2d(blocked, taps, **around)
                )
            out = builder.emit_output(value)
        builder.emit_func_output(out)
    return builder.get()


def packets(layer: Layer) -> int:
    """Packets of its kernel on the emulator; the answer is compared with the CPU's."""
    mod = network(layer)
    model = ts.compile(mod, ["hexagon"], cpu_threads=1)
    shape = (1, layer.channels, layer.size, layer.size)
    x = np.random.default_rng(1).integers(0, 256, shape).astype("uint8")
    want = ts.compile(mod, "llvm", cpu_threads=1)(x).astype(int)
    assert np.abs(model(x).astype(int) - want).max() <= 1
    name = _NAMES.get(layer.kind, "integer_conv2d")
    return sum(k.packets for k in model.profile(1).kernels if name in k.kernel)


def print_packets() -> None:
    """The table of `--packets`."""
    table = Table("kernel", "channels", "size", "window, stride, groups", "packets", "for a vector")
    for layer in LAYERS:
        window = f"{layer.kernel}, {layer.stride}, {layer.groups}"
        shape = f"{layer.channels} -> {layer.outs or layer.channels}", layer.size, window
        count = packets(layer)
        table.row(layer.kind, *shape, count, count / layer.vectors)


def hottest_loop(layer: Layer) -> str:
    """The assembly of the piece of a convolution that has the most products."""
    texts: list[str] = []

    def listened(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Module:
        code = llvm_module(mod, target)
        texts.append(str(code.inspect_source("asm")))
        return code

    with (
        tempfile.TemporaryDirectory() as empty,  # an empty cache, so that kernels are compiled
        mock.patch.dict(os.environ, TVM_STRETCH_CACHE_DIR=empty),
        mock.patch.object(object_code, "llvm_module", listened),
    ):
        ts.compile(network(layer), ["hexagon"], cpu_threads=1)
    pieces = [piece for text in texts for piece in re.split(r"^(?=\.LBB)", text, flags=re.M)]
    return max(pieces, key=lambda piece: piece.count("vrmpy"))


def print_loop(layer: Layer) -> None:
    """A loop, its packets and its products."""
    lines = hottest_loop(layer).splitlines()
    text = "\n".join(line for line in lines if not line.startswith("."))
    print(lines[0], text, sep="\n")
    packets, products = text.count("{"), text.count("vrmpy")
    print(f"{packets} packets, {products} vrmpy: {packets / products:.2f} packets for each")


def compare_ways(runs: int) -> None:
    """Hand-overs by FastRPC and through the mailbox, twelve times in turns."""
    chip = hexagon.this_chip()
    models = {"FastRPC": ts.compile(addition(), ["hexagon"], cpu_threads=1)}
    absent = dataclasses.replace(chip, why_no_library="not asked")
    with mock.patch.object(hexagon, "this_chip", lambda: absent):
        models["mailbox"] = ts.compile(addition(), ["hexagon"], cpu_threads=1)
    table = Table("us", *models, "ratio")
    for name, pause in (("spinning", 0.0), ("asleep", 0.003)):

        def handover(model: ts.Model, pause: float = pause) -> list[float]:
            return [handovers(model, runs // 12, pause)["hand-over"]]

        ways = {way: partial(handover, model) for way, model in models.items()}
        samples = turns(ways, 12, warm_up=0, clock=None)
        medians = [samples.median(way) for way in ways]
        table.row(name, *medians, medians[0] / medians[1])


def main() -> None:
    """Print the table."""
    args = options(
        *(__doc__, None, ("--runs", 300), ("--native", False), ("--packets", False)),
        ("--fastrpc", False),
        ("--loop+", int, "channels, filters, size and kernel of a convolution"),
    )
    if args.loop:
        channels, outs, size, kernel = args.loop
        print_loop(Layer("conv", channels, size, kernel, outs=outs))
        return
    if args.packets:
        print_packets()
        return
    if args.fastrpc:
        compare_ways(args.runs)
        return
    target: Any = native_dsp() if args.native else "hexagon"
    model = ts.compile(addition(), [target], cpu_threads=1)
    x = np.arange(32, dtype="int32")
    np.testing.assert_array_equal(model(x), 2 * x)
    table = Table("us", "launch", "hand-over", "run")
    for name, pause in (("spinning", 0.0), ("asleep", 0.003)):
        table.row(name, *handovers(model, args.runs, pause).values())
    deaths = [death(model) for _ in range(10)]
    print(f"death seen after {statistics.median(deaths):.1f} ms (at most {max(deaths):.1f})")


if __name__ == "__main__":
    main()
