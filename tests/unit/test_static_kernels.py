"""What LLVM makes of the tiles that are chosen, on machines that need not be here."""

from __future__ import annotations

import pytest
import tvm
from tvm import te
from tvm.target import Target
from tvm_stretch.targets.cpu import vector_machine
from tvm_stretch.targets.kernels.blocks import annotation
from tvm_stretch.targets.kernels.choose import ConvShape, conv_candidates
from tvm_stretch.targets.kernels.conv import ConvConfig, conv_compute
from tvm_stretch.targets.kernels.templates import schedule_kernel

from tests.assembly import hot_loops

TARGETS = {
    "avx2": {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"},
    "avx512": {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "icelake-server"},
    "neon": {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"},
}
LAYERS = {
    "1x1": ConvShape(1, 256, (14, 14), 256, (1, 1)),
    "3x3 of a whole row": ConvShape(1, 128, (7, 7), 128, (3, 3), padding=(1, 1, 1, 1)),
    "strided 3x3": ConvShape(1, 128, (28, 28), 128, (3, 3), (2, 2), (1, 1, 1, 1)),
    "first layer": ConvShape(1, 3, (56, 56), 32, (3, 3), (2, 2), (1, 1, 1, 1)),
}


def assembly(shape: ConvShape, target: dict[str, str]) -> str:
    """The code of a direct convolution with the tile that is chosen for it."""
    machine = vector_machine(Target(target), 1)
    block = machine.lanes if shape.in_channels >= machine.lanes else 1
    candidates = conv_candidates(shape, machine, block, 1000)
    config = next(c for c in candidates if isinstance(c, ConvConfig))
    image = (1, config.in_blocks, *shape.in_size)
    data = te.placeholder(image + ((block,) if block > 1 else ()), name="data")
    weight = te.placeholder(config.weight_shape, name="weight")
    out = conv_compute(config, data, weight, annotation("conv", config))
    kernel = schedule_kernel(te.create_prim_func([data, weight, out]), machine)
    options = {"tirx.disable_assert": True, "tirx.disable_cse_tir": True}
    with tvm.transform.PassContext(config=options):
        library = tvm.tirx.build(kernel.with_attr("global_symbol", "kernel"), target=target)
    return str(library.inspect_source("asm"))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("layer", LAYERS)
def test_hot_loops_keep_their_sums_in_registers(layer: str, target: str) -> None:
    text = assembly(LAYERS[layer], TARGETS[target])
    assert "TVMBackendAllocWorkspace" not in text
    loops = hot_loops(text)
    assert loops
    for loop in loops:
        assert loop.spills <= 0.1 * loop.multiply_adds
        assert loop.stores <= 0.05 * loop.multiply_adds
        assert loop.share >= 0.45
