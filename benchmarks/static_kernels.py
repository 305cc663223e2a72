"""llvm-mca's cycles of the hot loops of six networks, for cores that need not be here.

    python -m benchmarks.static_kernels [cores…]
    python -m benchmarks.static_kernels --tiles [cores…]

For every core and network: cycles for a multiply-add of a vector, each layer's hot loops weighted
by its multiply-adds; then the worst loop of a layer. With two multipliers, 0.5 is the peak.

With ``--tiles``: how far the tile that is chosen for each layer is from the best one, when the
model of `cycles.py` reckons with llvm-mca's cycles of every register tile instead of its own.
"""

from __future__ import annotations

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from tvm.target import Target

from benchmarks.commands import options
from benchmarks.hot_loops import cycles, hot_loops
from benchmarks.layers import SIX, build, config_of, form, forms, layers
from tvm_stretch.build.precision import processors_in
from tvm_stretch.targets.cpu import cpu_processor
from tvm_stretch.targets.kernels.conv import ConvConfig
from tvm_stretch.targets.kernels.cycles import register_tiles, streamed_cycles
from tvm_stretch.targets.kernels.layers import ConvShape, taken
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import configurations
from tvm_stretch.targets.kernels.window import WindowConfig

# LLVM has the A57's model for the A76, whose pipelines are the N1's; its models of Ice Lake and
# Sapphire Rapids have one multiplier for 512 bits, as in notebooks, where servers have two.
MODELS = {
    "cortex-a76": "neoverse-n1",
    "icelake-server": "skylake-avx512",
    "sapphirerapids": "skylake-avx512",
}
CORES = {
    "cortex-a76": "aarch64-linux-gnu",
    "cortex-a55": "aarch64-linux-gnu",
    "cortex-a76 float16": "aarch64-linux-gnu",
    "cortex-a55 float16": "aarch64-linux-gnu",
    "haswell": "x86_64-linux-gnu",
    "znver3": "x86_64-linux-gnu",
    "skylake-avx512": "x86_64-linux-gnu",
    "icelake-server": "x86_64-linux-gnu",
    "sapphirerapids": "x86_64-linux-gnu",
}


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


def tile_cycles(core: str, tool: str) -> dict[tuple[int, int], float]:
    """Cycles of one input channel of each register tile of a core, in a 1x1 convolution."""
    target, machine, arguments = described(core)
    channels = 16 * machine.lanes

    def measure(tile: tuple[int, int]) -> float:
        pixels, blocks = tile
        outputs = blocks * machine.lanes
        shape = ConvShape(1, channels, (1, pixels), outputs, (1, 1))
        config = taken(
            ConvConfig,
            shape,
            lanes=machine.lanes,
            data_block=machine.lanes,
            oc_blocks=blocks,
            pixels=pixels,
        )
        loop = hot_loops(str(build(config, machine, target).inspect_source("asm")))[0]
        return cycles(loop, tool, arguments) / loop.multiply_adds * pixels * blocks

    tiles = {
        (smaller, blocks)
        for pixels, blocks in register_tiles(machine)
        for smaller in range(1, pixels + 1)
    }
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(tiles, pool.map(measure, tiles), strict=True))


def print_tiles(core: str, tool: str) -> None:
    """How near to the best the choices for a core are."""
    _, machine, _ = described(core)
    known = tile_cycles(core, tool)

    def step(pixels: int, blocks: int, slab: int, machine: VectorMachine) -> float:
        return max(known[pixels, blocks], streamed_cycles(blocks, slab, machine))

    ratios = []
    for shape in {shape for name in SIX for shape in layers(name)}:
        chosen = config_of(shape, machine)
        if isinstance(chosen, WindowConfig):
            continue
        inner = replace(shape, in_size=chosen.in_size, stride=chosen.stride)
        block = getattr(chosen, "data_block", machine.lanes)
        every = configurations(inner, machine, block, 10_000)
        best = min(every, key=lambda config: config.cycles(machine, step))
        times = [config.cycles(machine, step) for config in (chosen, best)]
        ratios.append(times[0] / times[1])
        if ratios[-1] > 1.05:
            print(f"  {ratios[-1]:.2f} {form(chosen)} best {form(best)} {shape}", file=sys.stderr)
    near = sum(ratio <= 1.1 for ratio in ratios) / len(ratios)
    slow = [f"{p}x{o} {c / p / o:.2f}" for (p, o), c in sorted(known.items()) if c / p / o > 0.555]
    print(f"{core}: {near:.0%} of {len(ratios)} within 10 %, worst {max(ratios):.2f}")
    print(f"  tiles above 0.555 cycles: {', '.join(slow)}", file=sys.stderr)


def main() -> None:
    """Print the table."""
    args = options(__doc__, None, ("cores*", list(CORES)), ("--tiles", False))
    cores = args.cores
    tool = mca()
    if tool is None:
        sys.exit("expected llvm-mca on the path, found none; install llvm")
    if args.tiles:
        for core in cores:
            print_tiles(core, tool)
        return
    print(f"| core | {' | '.join(SIX)} |\n|{' --- |' * (len(SIX) + 1)}")
    for core in cores:
        print(f"| {core} | {' | '.join(row(core, tool))} |", flush=True)


if __name__ == "__main__":
    main()
