"""What is known of the cores that targets name."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest
from tvm.target import Target, codegen

from tvm_stretch.targets.cpu.cpu import cpu_processor, own_caches, vector_machine
from tvm_stretch.targets.cpu.kernels.winograd import WinogradConfig
from tvm_stretch.targets.kernels.cycles import step_cycles
from tvm_stretch.targets.kernels.layers import ConvShape, dense_shape
from tvm_stretch.targets.kernels.machine import CORES, KIB, VectorMachine
from tvm_stretch.targets.kernels.template import choose

X86, ARM = "x86_64-linux-gnu", "aarch64-linux-gnu"


def machine_of(triple: str, core: str) -> VectorMachine:
    return vector_machine(Target({"kind": "llvm", "mtriple": triple, "mcpu": core}), 1)


@pytest.mark.parametrize("core", CORES)
def test_every_core_is_one_that_llvm_knows(core: str) -> None:
    arm = core.startswith(("cortex", "neoverse", "apple"))
    target = Target({"kind": "llvm", "mtriple": ARM if arm else X86, "mcpu": core})
    machine = cpu_processor(target, 1).machine
    assert machine is not None
    assert machine.lanes in ((4,) if arm else (8, 16))
    assert machine.broadcast_operand == arm


@pytest.mark.parametrize(
    ("triple", "core", "lanes", "l2", "multiply_adds"),
    [
        (X86, "haswell", 8, 256, 2),
        (X86, "znver4", 16, 1024, 1),
        (X86, "x86-64-v3", 8, 512, 2),
        (X86, "x86-64", 4, 256, 2),
        (ARM, "cortex-a55", 4, 128, 1),
        (ARM, "cortex-x1", 4, 1024, 4),
        (ARM, "generic", 4, 512, 2),
    ],
)
def test_facts_of_cores(triple: str, core: str, lanes: int, l2: int, multiply_adds: int) -> None:
    if core == codegen.llvm_get_system_cpu():
        pytest.skip("of this machine's own core the system tells the caches")
    machine = machine_of(triple, core)
    assert (machine.lanes, machine.l2_bytes) == (lanes, l2 * KIB)
    assert machine.multiply_adds == multiply_adds


def test_caches_of_this_machine_are_read(tmp_path: Path) -> None:
    rows = [("Data", "1", "48K"), ("Instruction", "1", "32K"), ("Unified", "2", "2048K")]
    for index, row in enumerate(rows):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, value in zip(("type", "level", "size"), row, strict=True):
            (folder / name).write_text(value + "\n")
    assert own_caches(str(tmp_path)) == (48 * KIB, 2048 * KIB)
    (tmp_path / "index2" / "size").unlink()
    own_caches.cache_clear()
    assert own_caches(str(tmp_path)) is None
    assert own_caches(str(tmp_path / "none")) is None


def test_short_tiles_wait_for_sums_and_tall_ones_for_loads() -> None:
    haswell, a76 = machine_of(X86, "haswell"), machine_of(ARM, "cortex-a76")
    each = [step_cycles(pixels, 2, 0, haswell) for pixels in (1, 2, 6, 12)]
    # each sum waits for the previous addition, so more sums take no longer until that is hidden
    assert haswell.latency <= each[0] < 1.1 * haswell.latency and each[1] < 1.1 * each[0]
    assert each[2] / 6 < 0.7 * each[1] / 2 and each[3] > 1.8 * each[2]
    # a vector for every pixel and channel, or for four channels of a pixel
    assert step_cycles(12, 1, 0, haswell) > 1.3 * step_cycles(12, 1, 0, a76)


def test_a_core_that_runs_in_order_prefers_tiles_with_few_loads() -> None:
    a55, a76 = machine_of(ARM, "cortex-a55"), machine_of(ARM, "cortex-a76")
    tall, wide = ((p, o) for p, o in ((7, 3), (4, 6)))
    each = {m: [step_cycles(*tile, 0, m) / prod(tile) for tile in (tall, wide)] for m in (a55, a76)}
    assert each[a55][0] < 0.95 * each[a55][1]
    assert each[a76][0] > each[a76][1]


def test_weights_of_winograd_come_while_it_multiplies() -> None:
    machine = machine_of(X86, "icelake-server")

    def tile(channels: int, size: int) -> int:
        shape = ConvShape(1, channels, (size, size), channels, (3, 3), (1, 1), (1, 1, 1, 1))
        chosen = choose(shape, machine, machine.lanes)
        assert isinstance(chosen, WinogradConfig)
        return chosen.tile

    # 9 MB of weights come in the time of the products; 38 MB take longer than a larger tile saves
    assert tile(256, 14) == 4
    assert tile(512, 7) == 2


@pytest.mark.parametrize(
    ("core", "shape", "tile"),
    [
        ("haswell", ConvShape(1, 240, (1, 1), 960, (1, 1)), (1, 4)),
        ("haswell", ConvShape(1, 192, (12, 12), 192, (1, 7), padding=(0, 3, 0, 3)), (3, 4)),
        ("znver5", ConvShape(1, 128, (28, 28), 128, (3, 3), padding=(1, 1, 1, 1)), (9, 2)),
        ("znver5", ConvShape(1, 408, (14, 14), 408, (1, 1)), (6, 3)),
        ("emeraldrapids", dense_shape((1500, 384), 384), (6, 4)),
        ("znver4", dense_shape((1500, 384), 384), (4, 4)),
    ],
)
def test_tiles_that_were_measured_best(core: str, shape: ConvShape, tile: tuple[int, int]) -> None:
    """Few vectors of one row; of equal ones fewer pixels; registers left free on AVX-512.

    Dense layers of rows fill them on Intel's cores.
    """
    machine = machine_of(X86, core)
    config = choose(shape, machine, machine.lanes)
    assert (config.pixels, config.oc_blocks) == tile
