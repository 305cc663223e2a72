"""Kernels one by one: their hot loops, and the tiles chosen for them.

    python -m benchmarks.kernels static [cores…]       llvm-mca's cycles, for cores not here
    python -m benchmarks.kernels tiles [networks…] [--mcpu haswell] [--seconds 300] [--json f]

`static`, for every core and each of six networks: cycles for a multiply-add of a vector, each
layer's hot loops weighted by its multiply-adds; then the worst loop of a layer. With two
multipliers, 0.5 is the peak.

`tiles`: how far it is from the best of all, measured here. The heaviest shapes of the networks come
first; `--skip` and `--every` leave some to others. Every template and every register tile that does
not come out the same, and that the model does not take for `--within` times as slow as the chosen
one, is compiled, its answer compared, and its CPU time taken in turns with the others. As in a
network, weights are in no cache: each pass takes other ones. The image is the last one's.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import te
from tvm.target import Target

from benchmarks.commands import Rows, Table, options, turns
from benchmarks.engines import own_cpu
from benchmarks.kernel_code import (
    SIX,
    Config,
    build,
    config_of,
    cycles,
    form,
    forms,
    hot_loops,
    layers,
)
from tvm_stretch.make.precision import processors_in
from tvm_stretch.targets.cpu.cpu import complete_target, cpu_processor, vector_machine
from tvm_stretch.targets.cpu.kernels.window import WindowConfig
from tvm_stretch.targets.cpu.kernels.winograd import WinogradConfig, WinogradWeight
from tvm_stretch.targets.kernels.layers import ConvShape, taken
from tvm_stretch.targets.kernels.loops import balanced
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import configurations

# LLVM has the A57's model for the A76, whose pipelines are the N1's; its models of Ice Lake and
# Sapphire Rapids have one multiplier for 512 bits, as in notebooks, where servers have two.
MODELS = {
    "cortex-a76": "neoverse-n1",
    "icelake-server": "skylake-avx512",
    "sapphirerapids": "skylake-avx512",
}
_ARM = ("cortex-a76", "cortex-a55", "cortex-a76 float16", "cortex-a55 float16")
_X86 = ("haswell", "znver3", "skylake-avx512", "icelake-server", "sapphirerapids")
CORES = dict.fromkeys(_ARM, "aarch64-linux-gnu") | dict.fromkeys(_X86, "x86_64-linux-gnu")


def mca() -> str | None:
    """The analyser, by whatever name Debian gives it."""
    names = (*(f"llvm-mca-{version}" for version in range(25, 17, -1)), "llvm-mca")
    return next(filter(None, map(shutil.which, names)), None)


def described(core: str) -> tuple[dict[str, str], VectorMachine, list[str]]:
    """Target and machine of a core, in float16 where its name says so, and what llvm-mca wants."""
    name, _, precision = core.partition(" ")
    processor = cpu_processor(Target({"kind": "llvm", "mtriple": CORES[core], "mcpu": name}), 1)
    (processor,), _ = processors_in(precision or "float32", [processor], [processor])
    target = {"kind": "llvm", "mtriple": CORES[core], "mcpu": name}
    return target, processor.machine, [f"-mtriple={CORES[core]}", f"-mcpu={MODELS.get(name, name)}"]


def loops_of_core(core: str, tool: str) -> dict[tuple[Any, ...], list[float]]:
    """Cycles for a multiply-add in each hot loop of each form that a core needs."""
    target, machine, arguments = described(core)
    every = forms({shape for name in SIX for shape in layers(name)}, machine)

    def measure(config: Any) -> list[float]:
        loops = hot_loops(str(build(config, machine, target).inspect_source("asm")))
        return [cycles(loop, tool, arguments) / loop.multiply_adds for loop in loops]

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(every, pool.map(measure, every.values()), strict=True))


def row(core: str, tool: str) -> list[str]:
    """The cells of a core, and the forms whose loops are slow."""
    _, machine, _ = described(core)
    loops = loops_of_core(core, tool)
    for key, found in sorted(loops.items(), key=lambda item: -max(item[1])):
        print(f"  {core} {key}: {' '.join(f'{c:.2f}' for c in sorted(found))}", file=sys.stderr)
    cells = []
    for name in SIX:
        mine = [
            (loops[form(config_of(shape, machine))], shape.multiply_adds * count)
            for shape, count in layers(name).items()
        ]
        work = sum(part for _, part in mine)
        mean = sum(sum(found) / len(found) * part for found, part in mine) / work
        cells.append(f"{mean:.2f} ({max(max(found) for found, _ in mine):.2f})")
    return cells


# --- tiles, measured ------------------------------------------------------------------------------

ROUNDS, LEAST_S = 9, 1e-3
POOL_BYTES = 128 << 20  # weights of all passes together; more than a core's share of the last cache
NEAR = 1.10


@dataclass
class Tried:
    """One configuration and the CPU time of its runs in microseconds."""

    config: Config
    run: Callable[[], Any]  # each with weights of its own
    answer: np.ndarray
    times: list[float] = field(default_factory=list)

    @property
    def time(self) -> float:
        """The least disturbed run."""
        return min(self.times)


def different(shape: ConvShape, machine: VectorMachine, within: float) -> list[Config]:
    """The configurations of a layer but those that cut its rows alike; the chosen one first."""
    chosen = config_of(shape, machine)
    if isinstance(chosen, WindowConfig):
        return [chosen]
    inner = taken(ConvShape, chosen)
    found: dict[Any, Config] = {}
    block = getattr(chosen, "data_block", machine.lanes)
    for config in (chosen, *configurations(inner, machine, block, 10_000)):
        height, width = config.out_size
        if isinstance(config, WinogradConfig):
            width = config.tiles[0] * config.tiles[1]
        elif config.pointwise:
            width *= height
        cut = tuple(sorted(set(balanced(width, config.pixels))))
        key = (form(config)[:2], config.oc_blocks, cut)
        if config.cycles(machine) <= within * chosen.cycles(machine):
            found.setdefault(key, config)
    return list(found.values())


class Pool:
    """The weights of timed passes: always the part that was read longest ago."""

    def __init__(self) -> None:
        """Random numbers."""
        self._fill(POOL_BYTES // 4)

    def _fill(self, count: int) -> None:
        """Fill with ``count`` random numbers, aligned like tensors of the runtime."""
        room = np.empty(count + 16, "float32")
        first = -room.ctypes.data % 64 // 4
        self._numbers = room[first : first + count]
        self._numbers[:] = np.random.default_rng(1).random(count, "float32") - 0.5
        self._next = 0

    def weights(self, shape: tuple[int, ...]) -> Callable[[], tvm.runtime.Tensor]:
        """A function that finds weights of a shape."""
        step = -(-prod(shape) // 16) * 16
        if step > self._numbers.size:  # those of VGG-16's first dense layer
            self._fill(step)
        starts = range(0, self._numbers.size - step + 1, step)
        every = [self._numbers[i : i + prod(shape)].reshape(shape) for i in starts]
        tensors = [tvm.runtime.from_dlpack(part) for part in every]

        def oldest() -> tvm.runtime.Tensor:
            index = -(-self._next // step)
            if index >= len(tensors):
                index = 0
            self._next = (index + 1) * step
            return tensors[index]

        return oldest


def tried(
    config: Config,
    machine: VectorMachine,
    target: Target,
    image: tvm.runtime.Tensor,
    w: np.ndarray,
    pool: Pool,
) -> Tried:
    """The compiled kernel with operands, run once."""
    function = build(config, machine, json.loads(str(target)))["kernel"]
    packed = _packed(config, w)
    out = tvm.runtime.empty(config.out_shape, "float32")
    weights = pool.weights(config.weight_shape)
    function(image, tvm.runtime.tensor(packed), out)
    answer = out.numpy().copy()
    return Tried(config, lambda: function(image, weights(), out), answer)


def _image(config: Config, x: np.ndarray) -> np.ndarray:
    if getattr(config, "data_block", config.lanes) == 1:
        return x
    n, c, h, w = x.shape
    padded = np.pad(x, ((0, 0), (0, -c % config.lanes), (0, 0), (0, 0)))
    split = padded.reshape(n, -1, config.lanes, h, w)
    return np.ascontiguousarray(split.transpose(0, 1, 3, 4, 2))


def _packed(config: Config, weight: np.ndarray) -> np.ndarray:
    """The weights as the template wants them, packed by the compiler's own expression."""
    source = te.placeholder(weight.shape, name="weight")
    assert not isinstance(config, WindowConfig)
    if isinstance(config, WinogradConfig):
        packed = taken(WinogradWeight, config).meaning(source)
    else:
        packed = config.pack(source)
    function = tvm.tirx.build(te.create_prim_func([source, packed]), target="llvm")
    out = tvm.runtime.empty(config.weight_shape, "float32")
    function(tvm.runtime.tensor(weight), out)
    return out.numpy()


def race(every: list[Tried]) -> None:
    """CPU time of each tile, in turns; a tile that is twice as slow in two turns is dropped."""
    left = every
    for rounds in (2, ROUNDS - 2):
        runs = {str(number): one.run for number, one in enumerate(left)}
        samples = turns(runs, rounds, warm_up=0, clock=time.thread_time, least=LEAST_S)
        for one, times in zip(left, samples.of.values(), strict=True):
            one.times += [1e3 * ms for ms in times]
        best = min(one.time for one in left)
        left = [one for one in left if one is every[0] or one.time <= 2 * best]


def measured(
    shape: ConvShape, configs: list[Config], machine: VectorMachine, target: Target, pool: Pool
) -> list[Tried]:
    """All configurations of a shape; their answers are alike."""
    rng = np.random.default_rng(0)
    first = configs[0]
    x = rng.random((first.batch, first.in_channels, *first.in_size), dtype="float32")
    inputs = shape.in_channels // shape.groups
    w = rng.random((shape.out_channels, inputs, *shape.kernel), dtype="float32") - 0.5
    image = tvm.runtime.tensor(_image(first, x))
    every = [tried(config, machine, target, image, w, pool) for config in configs]
    scale = np.abs(every[0].answer).max()
    for one in every:
        assert np.abs(one.answer - every[0].answer).max() < 1e-3 * scale, one.config
    race(every)
    return every


def measure_tiles(args: Namespace) -> None:
    """Print a line for each shape, then how often the choice was near the best."""
    target = complete_target(Target(own_cpu(args.mcpu)))
    machine = vector_machine(target, 1)
    counts: Counter[ConvShape] = Counter()
    for network in args.names or SIX:
        counts += layers(network)
    shapes = [s for s in counts if not isinstance(config_of(s, machine), WindowConfig)]
    shapes.sort(key=lambda shape: -counts[shape] * shape.multiply_adds)
    end = time.monotonic() + args.seconds
    ratios, kept, pool = [], Rows(args.json), Pool()
    for shape in shapes[args.skip :: args.every]:
        if time.monotonic() > end:
            break
        every = measured(shape, different(shape, machine, args.within), machine, target, pool)
        best = min(every, key=lambda one: one.time)
        ratios.append(every[0].time / best.time)
        chosen = f"{every[0].time:8.0f} us {form(every[0].config)}"
        print(f"{ratios[-1]:.2f} {chosen} best {best.time:8.0f} {form(best.config)}", end=" ")
        print(f"of {len(every)}  {shape}", flush=True)
        kept.record(str(shape), [[list(form(one.config)), one.time] for one in every])
    near = sum(ratio <= NEAR for ratio in ratios) / len(ratios)
    print(f"{len(ratios)} of {len(shapes)} shapes: {near:.0%} within 10 %, worst {max(ratios):.2f}")


def print_static(args: Namespace) -> None:
    """Print a row for each core."""
    tool = mca()
    if tool is None:
        sys.exit("expected llvm-mca on the path, found none; install llvm")
    table = Table("core", *SIX)
    for core in args.names or CORES:
        table.row(core, *row(core, tool))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what the kind says."""
    args = options(
        *(__doc__, arguments, ("kind", str), ("names*", ()), ("--mcpu", ""), ("--seconds", 300.0)),
        ("--skip", 0, "a number of the heaviest shapes"),
        ("--every", 1, "one shape of this number, to share them"),
        *(("--within", 2.0), ("--json", Path)),
        kind=KINDS,
    )
    KINDS[args.kind](args)


KINDS: dict[str, Callable[[Namespace], None]] = {
    "static": print_static,
    "tiles": measure_tiles,
}

if __name__ == "__main__":
    main()
