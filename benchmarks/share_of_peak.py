"""The share of a core's peak that networks, unusual layers and dense layers reach.

    python -m benchmarks.share_of_peak networks [networks…] [--mcpu haswell] [--rounds 30]
    python -m benchmarks.share_of_peak layers [words…] [--kernels]
    python -m benchmarks.share_of_peak products [rows,inputs,outputs …]

All on one pinned core, in turns with a loop that does nothing but multiply-adds (`peak.py`).
Operations are those of the direct sums, so those that Winograd saves count, and whatever else a
network does counts against it. The median of all turns is shown, and for networks what a tenth of
them exceed: on a shared machine one is about its neighbours, the other about a quiet core.

`layers`: networks of one layer each, narrow or unusual; words choose them by their names. The
conversions of input and output into the blocked layout and back do not count: in a network they are
not there. Conversions that a layer makes of its own, as transposed convolutions do, count.

`products`: dense layers of any number of rows beside ONNX Runtime, as a share of the peak and of a
loop that only reads the weights. Layers with different weights stand side by side until these have
200 MB, so that weights come from memory if there are few rows. The shortest times of two loops come
from different moments of a busy machine: shown are medians of the ratios of each turn.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tvm.target import Target

from benchmarks import harness, one_node
from benchmarks.commands import Rows, Table, options
from benchmarks.harness import Model, check, compiled, cpu
from benchmarks.kernel_code import SIX, layers
from benchmarks.peak import Peak, Reader
from tvm_stretch.targets.cpu.cpu import complete_target, vector_machine

SIZES = ("1500,384,1536", "197,768,768", "64,512,512", "7,768,3072", "1,896,4864", "1,384,51864")
_WEIGHTS = 200_000_000
_FEW_ROWS = 8


# --- whole networks -------------------------------------------------------------------------------


def network_cells(shares: Sequence[dict[str, float]], work: int) -> list[str]:
    """G multiply-adds, ms, GFLOP/s, peak, share, what a tenth of the turns exceed."""
    took, peak = (np.median([turn[key] for turn in shares]) for key in ("seconds", "peak"))
    parts = [work / turn["seconds"] / turn["peak"] for turn in shares]
    cells = [f"{work / 1e9:.2f}", f"{took * 1e3:.2f}", f"{2 * work / took / 1e9:.0f}"]
    return [*cells, f"{2 * peak / 1e9:.0f}", *(f"{np.quantile(parts, q):.2f}" for q in (0.5, 0.9))]


def networks(names: Sequence[str], mcpu: str, peak: Peak, given: Any) -> None:
    """Networks of the zoo, their answers compared with ONNX Runtime's first."""
    table = Table("network", "G multiply-adds", "ms", "GFLOP/s", "peak", "share", "a tenth above")
    rows = Rows(given.json)
    for name in names or SIX:
        network = harness.model_of(name, 224)  # as `layers` counts
        model = compiled(network, [cpu(mcpu)])
        check(name, model(**network.inputs), network.expected)
        work = sum(shape.multiply_adds * count for shape, count in layers(name).items())
        shares = []
        for _ in range(given.rounds):
            before = peak.measure()
            seconds = _seconds(lambda: model(**network.inputs), 1)  # noqa: B023
            shares.append({"seconds": seconds, "peak": max(before, peak.measure())})
        table.row(name, *network_cells(shares, work))
        rows.record(name, {"multiply_adds": work, "turns": shares})


# --- unusual layers -------------------------------------------------------------------------------

LAYERS = """
3x3 128->128 28x28 groups of 16 | Conv 1x128x28x28 =128x16x3x3 pads=[1,1,1,1] group=8
3x3 168->168 28x28 groups of 24 | Conv 1x168x28x28 =168x24x3x3 pads=[1,1,1,1] group=7
3x3 408->408 14x14 groups of 24 | Conv 1x408x14x14 =408x24x3x3 pads=[1,1,1,1] group=17
3x3 240->240 28x28 groups of 40 | Conv 1x240x28x28 =240x40x3x3 pads=[1,1,1,1] group=6
3x3 560->560 14x14 groups of 40 | Conv 1x560x14x14 =560x40x3x3 pads=[1,1,1,1] group=14
transposed 2x2 by 2 24->24 160x160 | ConvTranspose 1x24x160x160 =24x24x2x2 strides=[2,2]
transposed 2x2 by 2 24->1 320x320 | ConvTranspose 1x24x320x320 =24x1x2x2 strides=[2,2]
transposed 2x2 by 2 64->64 80x80 | ConvTranspose 1x64x80x80 =64x64x2x2 strides=[2,2]
transposed 4x4 by 2 64->32 28x28 | ConvTranspose 1x64x28x28 =64x32x4x4 strides=[2,2] pads=[1,1,1,1]
transposed 3x3 by 2 64->32 28x28 | ConvTranspose 1x64x28x28 =64x32x3x3 strides=[2,2] pads=[1,1,1,1]
1x7 192->192 17x17 | Conv 1x192x17x17 =192x192x1x7 pads=[0,3,0,3]
7x1 192->192 17x17 | Conv 1x192x17x17 =192x192x7x1 pads=[3,0,3,0]
1x3 384->384 8x8 | Conv 1x384x8x8 =384x384x1x3 pads=[0,1,0,1]
3x1 384->384 8x8 | Conv 1x384x8x8 =384x384x3x1 pads=[1,0,1,0]
5x5 48->64 35x35 | Conv 1x48x35x35 =64x48x5x5 pads=[2,2,2,2]
3x3 128->128 28x28 dilated 2 | Conv 1x128x28x28 =128x128x3x3 pads=[2,2,2,2] dilations=[2,2]
3x3 256->256 28x28 dilated 4 | Conv 1x256x28x28 =256x256x3x3 pads=[4,4,4,4] dilations=[4,4]
3x3 20->20 28x28 | Conv 1x20x28x28 =20x20x3x3 pads=[1,1,1,1]
1x1 20->20 28x28 | Conv 1x20x28x28 =20x20x1x1
3x3 36->36 28x28 | Conv 1x36x28x28 =36x36x3x3 pads=[1,1,1,1]
1x1 36->36 28x28 | Conv 1x36x28x28 =36x36x1x1
3x3 50->50 28x28 | Conv 1x50x28x28 =50x50x3x3 pads=[1,1,1,1]
1x1 50->50 28x28 | Conv 1x50x28x28 =50x50x1x1
3x3 100->100 28x28 | Conv 1x100x28x28 =100x100x3x3 pads=[1,1,1,1]
1x1 100->100 28x28 | Conv 1x100x28x28 =100x100x1x1
dense 1 x 2048->1000 | MatMul 1x2048 =2048x1000
dense 64 x 1024->1024 | MatMul 64x1024 =1024x1024
dense 197 x 768->3072 | MatMul 197x768 =768x3072
matmul 12x197x64 by 12x64x197 | MatMul 12x197x64 12x64x197
matmul 12x197x197 by 12x197x64 | MatMul 12x197x197 12x197x64
matmul 192x49x32 by 192x32x49 | MatMul 192x49x32 192x32x49
softmax 12x197x197 | Softmax 12x197x197 axis=-1
softmax 192x49x49 | Softmax 192x49x49 axis=-1
"""
"""Layers of RegNetX, PP-OCR, Inception, DeepLab, vision transformers, and some odd ones."""


def chosen(words: Sequence[str]) -> Iterator[tuple[str, Model, int]]:
    """Layers whose name has one of the words: name, network, multiply-adds of the plain sum."""
    for line in LAYERS.strip().splitlines():
        name, _, text = line.partition(" | ")
        if any(word in name for word in words or ("",)):
            (operator,) = one_node.operators(text)
            network = one_node.model_of(operator)
            yield name, network, multiply_adds(network)


def multiply_adds(network: Model) -> int:
    """Multiply-adds of a network of one node."""
    graph = onnx.load_from_string(network.onnx).graph
    kind, x = graph.node[0].op_type, next(iter(network.inputs.values())).shape
    out, taps = prod(network.expected[0].shape), [prod(w.dims[1:]) for w in graph.initializer]
    of_input = {"MatMul": out * x[-1], "ConvTranspose": prod(x) * sum(taps)}
    return of_input.get(kind, out * (sum(taps) or 1))


def unusual(words: Sequence[str], mcpu: str, peak: Peak, given: Any) -> None:
    """The layers of the words."""
    table = Table("layer", "µs", "GFLOP/s", "share of the peak")
    every = [(*layer, compiled(layer[1], [cpu(mcpu)])) for layer in chosen(words)]
    for name, network, _, model in every:
        check(name, model(**network.inputs), network.expected, 1e-4)
    turns: list[list[tuple[float, float]]] = [[] for _ in every]
    for _ in range(given.rounds):
        for own, (*_, model) in zip(turns, every, strict=True):
            before, took = peak.measure(), _inside(model.profile(repeat=3).kernels)
            own.append((took, max(before, peak.measure())))
    for own, (name, _, work, model) in zip(turns, every, strict=True):
        seconds = statistics.median(took for took, _ in own)
        share = statistics.median(work / took / now for took, now in own)
        speed = f"{2 * work / seconds / 1e9:.0f}", f"{share:.0%}"
        if name.startswith("softmax"):
            speed = f"{seconds / work * 1e9:.2f} ns an element", ""
        table.row(name, f"{seconds * 1e6:.0f}", *speed)
        if given.kernels:
            print(model.profile(), file=sys.stderr)


def _inside(kernels: Sequence[Any]) -> float:
    """Seconds of kernels but those that make blocks of the input, or plain results of the last."""
    last, names = len(kernels) - 1, [kernel.kernel for kernel in kernels]
    first_counts = not names[0].startswith("block_channels")
    last_counts = not names[last].startswith("unblock_channels")
    counted = kernels[0 if first_counts else 1 : last + 1 if last_counts else last]
    return sum(kernel.seconds for kernel in counted)


# --- dense layers ---------------------------------------------------------------------------------


def dense(rows: int, inputs: int, outputs: int) -> tuple[Model, int]:
    """A network of dense layers of the same input, and their number."""
    count = max(1, _WEIGHTS // (4 * inputs * outputs)) if rows <= _FEW_ROWS else 1
    rng, names = np.random.default_rng(0), [f"y{i}" for i in range(count)]
    weights = [
        numpy_helper.from_array(rng.standard_normal((inputs, outputs), "float32"), f"w{i}")
        for i in range(count)
    ]
    nodes = [helper.make_node("MatMul", ["x", f"w{i}"], [f"y{i}"]) for i in range(count)]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, size])
        for name, size in [("x", inputs), *((name, outputs) for name in names)]
    ]
    graph = helper.make_graph(nodes, "layers", values[:1], values[1:], weights)
    opsets = [helper.make_opsetid("", 17)]
    return harness.model_of(helper.make_model(graph, opset_imports=opsets, ir_version=8)), count


def products(sizes: Sequence[str], mcpu: str, peak: Peak, given: Any) -> None:
    """Layers of these sizes."""
    heads = "rows x inputs x outputs", "ours / ONNX Runtime", "of the peak", "of a plain read"
    table = Table(*heads)
    for text in sizes or SIZES:
        rows, inputs, outputs = size = [int(n) for n in text.split(",")]
        network, count = dense(*size)
        ours = harness.ours(cpu(mcpu))(network)
        check(text, ours(), network.expected)
        work = rows * inputs * outputs * count
        reader, theirs = Reader(4 * count * inputs * outputs), harness.onnx_runtime()(network)
        turns = [
            [_seconds(call, max(1, int(2e8 // work))) for call in (ours, theirs, reader.run)]
            + [work / peak.measure(1_000_000)]
            for _ in range(given.rounds)
        ]
        of_peer, of_read, of_peak = (
            statistics.median(turn[a] / turn[b] for turn in turns)
            for a, b in ((0, 1), (2, 0), (3, 0))
        )
        table.row(" x ".join(map(str, size)), of_peer, f"{of_peak:.0%}", f"{of_read:.0%}")


def _seconds(call: Callable[[], object], times: int) -> float:
    call()
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times


KINDS = {"networks": (networks, 30), "layers": (unusual, 15), "products": (products, 15)}
"""Measurements, and their rounds."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table."""
    args = options(
        *(__doc__, arguments, ("kind", "networks"), ("names*", ())),
        ("--mcpu", "", "of another core whose code this one can run"),
        *(
            ("--rounds", int),
            ("--json", Path),
            ("--kernels", False, "show those of layers"),
        ),
        kind=KINDS,
    )
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    machine = vector_machine(complete_target(Target(cpu(args.mcpu))), 1)
    peak = Peak(machine.lanes)
    print(f"{args.mcpu or 'this machine'}, {machine.lanes} lanes, one core\n")
    measure, rounds = KINDS[args.kind]
    args.rounds = args.rounds or rounds
    measure(args.names, args.mcpu, peak, args)
    best = statistics.median(peak.measure() for _ in range(15))
    print(f"\npeak of this core with {machine.lanes} lanes: {2 * best / 1e9:.0f} GFLOP/s")


if __name__ == "__main__":
    main()
