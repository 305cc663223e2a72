"""What llvm-mca says of the hot loops of six networks on cores that need not be here.

    python -m benchmarks.static_kernels [cores…]

For every core and network: cycles for a multiply-add of a vector, each layer's hot loops weighted
by its multiply-adds; behind it the worst loop of a layer. With two multipliers, 0.5 is the peak.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tvm.target import Target
from tvm_stretch.targets.cpu import vector_machine

from benchmarks.hot_loops import cycles, hot_loops
from benchmarks.layers import SIX, build, config_of, form, forms, layers, multiply_adds

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


def loops_of_core(core: str, tool: str) -> dict[tuple[Any, ...], list[float]]:
    """Cycles for a multiply-add in each hot loop of each form that a core needs."""
    target = {"kind": "llvm", "mtriple": CORES[core], "mcpu": core}
    machine = vector_machine(Target(target), 1)
    arguments = [f"-mtriple={CORES[core]}", f"-mcpu={MODELS.get(core, core)}"]
    every = forms({shape for name in SIX for shape in layers(name)}, machine)

    def measure(config: Any) -> list[float]:
        loops = hot_loops(str(build(config, machine, target).inspect_source("asm")))
        return [cycles(loop, tool, arguments) / loop.multiply_adds for loop in loops]

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(every, pool.map(measure, every.values()), strict=True))


def row(core: str, tool: str) -> list[str]:
    """The cells of a core, and the forms whose loops are slow."""
    target = {"kind": "llvm", "mtriple": CORES[core], "mcpu": core}
    machine = vector_machine(Target(target), 1)
    loops = loops_of_core(core, tool)
    for key, found in sorted(loops.items(), key=lambda item: -max(item[1])):
        print(f"  {core} {key}: {' '.join(f'{c:.2f}' for c in sorted(found))}", file=sys.stderr)
    cells = []
    for name in SIX:
        mine = [
            (loops[form(config_of(shape, machine))], multiply_adds(shape) * count)
            for shape, count in layers(name).items()
        ]
        work = sum(part for _, part in mine)
        mean = sum(sum(found) / len(found) * part for found, part in mine) / work
        cells.append(f"{mean:.2f} ({max(max(found) for found, _ in mine):.2f})")
    return cells


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.static_kernels", description=__doc__)
    parser.add_argument("cores", nargs="*", default=list(CORES), metavar="core")
    cores = parser.parse_args().cores
    tool = mca()
    if tool is None:
        sys.exit("expected llvm-mca on the path, found none; install llvm")
    print(f"| core | {' | '.join(SIX)} |\n|{' --- |' * (len(SIX) + 1)}")
    for core in cores:
        print(f"| {core} | {' | '.join(row(core, tool))} |", flush=True)


if __name__ == "__main__":
    main()
