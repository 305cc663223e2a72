"""The costs of a DSP: handing a region over, detecting its end, packets of convolutions.

    python -m benchmarks.dsp [--runs 300]
    python -m benchmarks.dsp --packets
    python -m benchmarks.dsp --loop 64 64 16 3

The region adds two tensors of 32 numbers, so that next to nothing is computed. The DSP is emulated
(qemu-hexagon); `--native` runs the same server as a program of this machine instead.

    launch      `Start` of the region: the time of the caller's thread until it continues
    hand-over   from there until the session's thread has the answer, without the DSP's computing
    run         all that a caller of the executor waits for
    death seen  from SIGKILL until `Model.health` says so, while nothing runs

`--packets`: executed packets (qemu counts them) of whole integer convolutions for each `vrmpy`
that their multiply-adds need, 128 each, none of them by zeros of other groups: with padding,
rounding and stores. The second number also has the conversions between plain and blocked layout at
the ends of a network. Then those of depthwise convolutions, poolings and dense layers of one pixel
for each load of 128 bytes that they need: of the pixels under each tap for 128 results, or of the
weights.
`--loop`: the packets of the innermost loop of one of them (channels, filters, size, kernel), as
LLVM wrote them; tutorials/hvx_kernels.md reads them.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import signal
import statistics
import tempfile
import time
from typing import Any
from unittest import mock

import numpy as np
import tvm
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.network.integer_kernels import integer_call
from tvm_stretch.network.integers import Integer, Rounding
from tvm_stretch.run.autoload import load_native_library
from tvm_stretch.targets.cpu.code import object_code
from tvm_stretch.targets.cpu.code.object_code import compile_kernels, llvm_module
from tvm_stretch.targets.cpu.cpu import cpu_processor
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
    return dataclasses.replace(host, name="hexagon", kind="dsp", build=build)


def network() -> tvm.IRModule:
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
        if pause:
            time.sleep(pause)
        start = time.perf_counter_ns()
        run()
        found["run"].append(time.perf_counter_ns() - start)
        if pause:  # health takes longer than both sides spin
            state = health(model)
            found["launch"].append(state["launch_ns"])
            found["hand-over"].append(state["handover_ns"])
    if not pause:
        for _ in range(runs):
            for _ in range(5):
                run()
            state = health(model)
            found["launch"].append(state["launch_ns"])
            found["hand-over"].append(state["handover_ns"])
    return {name: statistics.median(values) / 1000 for name, values in found.items()}


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


LAYERS = (  # channels, output channels, rows and columns, kernel, groups
    (64, 64, 16, 1, 1),
    (128, 128, 16, 1, 1),
    (256, 256, 16, 1, 1),
    (64, 64, 16, 3, 1),
    (128, 128, 14, 3, 1),
    (72, 72, 28, 3, 3),
    (168, 168, 28, 3, 7),
    (408, 408, 14, 3, 17),
)


def layer(
    channels: int, outs: int, size: int, kernel: int, groups: int = 1, *, times: int
) -> tvm.IRModule:
    """The same convolution `times` times in sequence, if shapes allow it."""
    dice = np.random.default_rng(0)
    read = channels // groups
    weight = dice.integers(-127, 128, (outs, read, kernel, kernel)).astype("int8")
    bias = dice.integers(-9999, 9999, outs).astype("int32")
    factor = np.full(outs, 60 / (255 * 37 * np.sqrt(read * kernel * kernel)), "float32")
    around = {"padding": (kernel // 2,) * 4, "groups": groups}
    integer = Integer("conv2d", Rounding("uint8", 120, 0, 255), (120,), **around)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, channels, size, size), "uint8"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value: relax.Expr = x
            for _ in range(times):
                constants = map(relax.const, (weight, bias, factor))
                value = builder.emit(integer_call(builder, integer, value, *constants))
            out = builder.emit_output(value)
        builder.emit_func_output(out)
    return builder.get()


def packets(shape: tuple[int, ...], times: int) -> int:
    """Packets of a run on the emulator; the answer is compared with the CPU's."""
    mod = layer(*shape, times=times)
    model = ts.compile(mod, ["hexagon"], cpu_threads=1)
    x = np.random.default_rng(1).integers(0, 256, (1, shape[0], shape[2], shape[2]))
    y = model(x.astype("uint8")).astype(int)
    want = ts.compile(mod, "llvm", cpu_threads=1)(x.astype("uint8")).astype(int)
    assert np.abs(y - want).max() <= times
    return int(health(model)["packets"])


def print_packets() -> None:
    """The table of `--packets`."""
    print("| channels | size | kernel | groups | packets for a vrmpy | with conversions |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for shape in LAYERS:
        channels, outs, size, kernel, groups = shape
        products = channels // groups * outs * size**2 * kernel**2 / 128
        once, thrice = packets(shape, 1), packets(shape, 3)
        inside = (thrice - once) / 2 / products
        whole = f"{inside:.2f} | {once / products:.2f}"
        print(f"| {channels} -> {outs} | {size} | {kernel} | {groups} | {whole} |", flush=True)


@dataclasses.dataclass(frozen=True)
class Window:
    """A depthwise convolution, or another kernel whose loads decide."""

    kind: str
    channels: int
    size: int
    kernel: int = 1
    stride: int = 1

    @property
    def loads(self) -> float:
        """Vectors of 128 bytes; of pixels, none of them used for two taps."""
        if self.kind == "dense":
            return self.channels * 1000 / 128
        if self.kind == "mean":
            return self.channels * self.size**2 / 128
        return self.channels * (-(-self.size // self.stride)) ** 2 * self.kernel**2 / 128


WINDOWS = (
    Window("depthwise", 64, 28, 3),
    Window("depthwise", 64, 28, 3, 2),
    Window("depthwise", 128, 14, 3),
    Window("depthwise", 128, 14, 5),
    Window("depthwise", 128, 7, 3),
    Window("max pool", 64, 56, 3, 2),
    Window("max pool", 64, 28, 3),
    Window("max pool", 64, 28, 2, 2),
    Window("mean", 512, 7),
    Window("dense", 512, 1),
)


def operator(window: Window) -> tvm.IRModule:
    """The operator after a 1x1 maximum, which writes blocked layout."""
    dice = np.random.default_rng(0)
    builder = relax.BlockBuilder()
    channels, side = window.channels, window.size
    x = relax.Var("x", relax.TensorType((1, channels, side, side), "uint8"))
    factor = 60 / (255 * 37 * np.sqrt(window.loads * 128 / channels / side**2))
    rounding = Rounding("uint8", 120, 0, 255)
    settings = {"strides": (window.stride,) * 2, "padding": ((window.kernel - 1) // 2,) * 4}

    def constants(*shape: int, outs: int) -> list[relax.Expr]:
        weight = dice.integers(-127, 128, shape).astype("int8")
        bias = dice.integers(-999, 999, outs).astype("int32")
        return [*map(relax.const, (weight, bias, np.full(outs, factor, "float32")))]

    with builder.function("main", [x]):
        with builder.dataflow():
            if window.kind == "max pool":
                size = (window.kernel,) * 2
                identity = Integer("conv2d", rounding, (120,), groups=channels)
                first = constants(channels, 1, 1, 1, outs=channels)
                blocked = builder.emit(integer_call(builder, identity, x, *first))
                value = builder.emit(relax.op.nn.max_pool2d(blocked, size, **settings))
            elif window.kind == "depthwise":
                integer = Integer("conv2d", rounding, (120,), groups=channels, **settings)
                weights = constants(channels, 1, *(window.kernel,) * 2, outs=channels)
                value = builder.emit(integer_call(builder, integer, x, *weights))
            elif window.kind == "mean":
                integer = Integer("conv2d", rounding, (120,), groups=channels)
                first = constants(channels, 1, 1, 1, outs=channels)
                blocked = builder.emit(integer_call(builder, integer, x, *first))
                mean = Integer("mean", rounding, (120,), (1.5 / side**2,))
                value = builder.emit(integer_call(builder, mean, blocked))
            else:
                flat = builder.emit(relax.op.reshape(x, (1, channels)))
                integer = Integer("matmul", rounding, (120,))
                weights = constants(channels, 1000, outs=1000)
                value = builder.emit(integer_call(builder, integer, flat, *weights))
            out = builder.emit_output(value)
        builder.emit_func_output(out)
    return builder.get()


def packets_of(window: Window) -> int:
    """Packets of its kernel; the answer is compared with the CPU's."""
    mod = operator(window)
    model = ts.compile(mod, ["hexagon"], cpu_threads=1)
    shape = (1, window.channels, window.size, window.size)
    x = np.random.default_rng(1).integers(0, 256, shape).astype("uint8")
    want = ts.compile(mod, "llvm", cpu_threads=1)(x).astype(int)
    assert np.abs(model(x).astype(int) - want).max() <= 1
    names = {"max pool": "max_pool", "dense": "integer_conv2d", "mean": "mean"}
    name = names.get(window.kind, "depthwise")
    kernels = model.profile(1).kernels
    return sum(kernel.packets for kernel in kernels if name in kernel.kernel)


def print_windows() -> None:
    """The second table of `--packets`."""
    print("\n| kernel | channels | size | window, stride | packets | packets for a load |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for window in WINDOWS:
        found = packets_of(window)
        shape = f"{window.channels} | {window.size} | {window.kernel}, {window.stride}"
        print(f"| {window.kind} | {shape} | {found} | {found / window.loads:.2f} |", flush=True)


def hottest_loop(shape: tuple[int, int, int, int]) -> str:
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
        ts.compile(layer(*shape, times=1), ["hexagon"], cpu_threads=1)
    pieces = [piece for text in texts for piece in re.split(r"^(?=\.LBB)", text, flags=re.M)]
    return max(pieces, key=lambda piece: piece.count("vrmpy"))


def print_loop(shape: tuple[int, int, int, int]) -> None:
    """A loop, its packets and its products."""
    lines = hottest_loop(shape).splitlines()
    text = "\n".join(line for line in lines if not line.startswith("."))
    print(lines[0], text, sep="\n")
    packets, products = text.count("{"), text.count("vrmpy")
    print(f"{packets} packets, {products} vrmpy: {packets / products:.2f} packets for each")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--native", action="store_true")
    parser.add_argument("--packets", action="store_true")
    parser.add_argument("--loop", nargs=4, type=int)
    options = parser.parse_args()
    if options.loop:
        print_loop(tuple(options.loop))
        return
    if options.packets:
        print_packets()
        print_windows()
        return
    target: Any = native_dsp() if options.native else "hexagon"
    model = ts.compile(network(), [target], cpu_threads=1)
    x = np.arange(32, dtype="int32")
    np.testing.assert_array_equal(model(x), 2 * x)
    print("| us | launch | hand-over | run |\n| --- | ---: | ---: | ---: |")
    for name, pause in (("spinning", 0.0), ("asleep", 0.003)):
        row = handovers(model, options.runs, pause)
        print(f"| {name} | " + " | ".join(f"{value:.1f}" for value in row.values()) + " |")
    deaths = [death(model) for _ in range(10)]
    print(f"death seen after {statistics.median(deaths):.1f} ms (at most {max(deaths):.1f})")


if __name__ == "__main__":
    main()
