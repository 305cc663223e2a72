"""Loop nests as machine code: what a compilation spends its time on, and what kernels leave out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tvm
import tvm_ffi
from helpers.cpu_targets import ALL_LANES, built, cpu_of
from helpers.lowered import winograd_of_tile
from helpers.relax_helpers import module, random_const
from tvm import relax, te, tirx

from benchmarks.kernel_code import build, kernel
from tvm_stretch.network.attributes import ONCE
from tvm_stretch.passes.block_channels import BlockChannels
from tvm_stretch.targets.cpu.code import object_code as llvm_code
from tvm_stretch.targets.cpu.cpu import vector_machine
from tvm_stretch.targets.cpu.kernels import conv_nest
from tvm_stretch.targets.hexagon.hexagon import VERSIONS, llvm_target
from tvm_stretch.targets.kernels.accumulators import Accumulators
from tvm_stretch.targets.kernels.layers import ConvShape
from tvm_stretch.targets.kernels.loops import f32, neighbours, store, within
from tvm_stretch.targets.kernels.template import choose


def doubled() -> tirx.PrimFunc:
    data = te.placeholder((64,), name="data")
    return te.create_prim_func([data, te.compute((64,), lambda i: data[i] * 2.0, name="out")])


def test_kernels_do_not_check_their_arguments() -> None:
    assert "Mismatched" not in built(doubled()).inspect_source("ll")
    assert "Mismatched" in tvm.tirx.build(doubled(), "llvm").inspect_source("ll")


def test_scatters_cause_no_warning_of_tvm(capfd: pytest.CaptureFixture[str]) -> None:
    mod = module(relax.op.scatter_nd, (9, 4), (2, 1), (2, 4), dtype=("float32", "int64", "float32"))
    scatter = relax.transform.LegalizeOps()(mod)["scatter_nd"]
    assert "pragma_scope" in scatter.script()
    built(scatter)
    assert "pragma" not in capfd.readouterr().err


@pytest.mark.parametrize("core", ["cortex-a55", "cortex-a76"])
def test_cores_in_order_load_vectors_one_by_one(core: str) -> None:
    """LLVM makes pairs of loads after it has put them where they are needed later."""
    target = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": core})
    machine = vector_machine(target, 1)
    config = choose(ConvShape(1, 64, (14, 14), 64, (1, 1)), machine, machine.lanes)
    text = built(kernel(config, machine), target, "kernel").inspect_source("asm")
    assert ("\tldp\tq" in text) is (core == "cortex-a76")


def test_code_for_hexagon_has_no_fences() -> None:
    """LLVM 22's scheduler for Hexagon never ends a function with a fence."""
    config = choose(ConvShape(1, 8, (6, 6), 8, (3, 3)), vector_machine(cpu_of(8), 1), 8)
    nest = kernel(config, vector_machine(cpu_of(8), 1))
    texts = [
        built(nest, target, "kernel").inspect_source("ll")
        for target in (cpu_of(8), llvm_target(VERSIONS["hexagonv68"]))
    ]
    assert ["arithmetic.fence" in text for text in texts] == [True, False]


def stores(function: tirx.PrimFunc) -> int:
    found: list[Any] = []
    tvm_ffi.structural_walk(function.body, (tirx.BufferStore, found.append))
    return len(found)


@pytest.mark.parametrize("wide", ALL_LANES)
def test_tiles_are_loops_until_they_are_unrolled(wide: int) -> None:
    """Each pass before looks at each statement."""
    machine = vector_machine(cpu_of(wide), 1)
    config = choose(ConvShape(1, 256, (14, 14), 192, (1, 1)), machine, wide)
    assert config.pixels * config.oc_blocks >= 8
    assert stores(kernel(config, machine)) < config.pixels * config.oc_blocks


@pytest.mark.parametrize("shape", [(3, 20), (20, 3), (1, 1)])
def test_each_sum_of_a_tile_is_one_of_its_own(shape: tuple[int, int]) -> None:
    """A tile of more sums than a buffer on the stack holds; a pixel in the middle is left out."""
    pixels, blocks = shape
    acc = Accumulators(pixels, blocks, 8)
    out = tirx.decl_buffer((pixels, blocks, 8), "float32", "out")
    some = [p for p in range(pixels) if p != 1]
    body = within(
        acc.buffers,
        *acc.start(lambda p, o, v: (p * 100 + o).astype("float32")),
        *acc.add(lambda *_: f32(0.5), some, range(1, blocks)),
        *acc.for_each(lambda p, o, v, value: store(out, value, p, o, v)),
    )
    result = tvm.runtime.empty((pixels, blocks, 8), "float32")
    built(tirx.PrimFunc([out], body))["kernel"](result)
    for p in range(pixels):
        for o in range(blocks):
            more = 0.5 if p in some and o > 0 else 0.0
            assert (result.numpy()[p, o] == p * 100 + o + more).all()


def test_neighbours_are_ranges() -> None:
    assert neighbours([]) == []
    assert neighbours([4]) == [range(4, 5)]
    assert neighbours([0, 1, 3, 4, 6]) == [range(2), range(3, 5), range(6, 7)]


def test_only_what_runs_at_every_run_gets_all_of_llvm() -> None:
    network = module(
        lambda x: relax.op.nn.conv2d(x, random_const(8, 8, 1, 1)),
        (1, 8, 8, 8),
    )
    machine = vector_machine(cpu_of(8), 1)
    blocked = BlockChannels({"cpu": machine})(network)
    functions = {var.name_hint: function for var, function in blocked.functions.items()}
    once = {name for name, f in functions.items() if ONCE in (f.attrs or {})}
    assert once == {"pack_weight"}
    target = tvm.target.Target("llvm")

    def level(name: str) -> Any:
        mod = tvm.IRModule({"main": functions[name]})
        return llvm_code._with_level(mod, target).attrs.get("opt-level")

    assert level("pack_weight") == 1
    assert level("conv2d") is None


@pytest.mark.parametrize("wide", ALL_LANES)
def test_transforms_and_windows_are_loops_until_they_are_unrolled(wide: int) -> None:
    machine = vector_machine(cpu_of(wide), 1)
    shape = ConvShape(1, 64, (28, 28), 64, (3, 3), padding=(1, 1, 1, 1))
    assert stores(kernel(winograd_of_tile(shape, machine, 4), machine)) < 150
    depthwise = choose(replace(shape, groups=64), machine, wide)
    most = 450 if wide == 4 else 275  # on NEON the rows at borders, too
    assert stores(kernel(depthwise, machine)) < most


@pytest.mark.parametrize(("core", "level"), [("znver5", 3), ("sapphirerapids", 2)])
def test_weights_that_several_tiles_read_are_asked_for_ahead(core: str, level: int) -> None:
    """Into the nearest cache of AMD's cores, into the second one of others; never by one tile."""
    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": core}
    machine = vector_machine(tvm.target.Target(target), 1)

    def asks(size: int) -> set[int]:
        shape = ConvShape(1, 256, (size, size), 64, (1, 1))
        found: set[int] = set()

        def visit(call: tvm.ir.Call) -> None:
            if getattr(call.op, "name", "") == "tirx.call_llvm_intrin":
                found.add(int(call.args[3]))

        function = kernel(choose(shape, machine, 16), machine)
        tvm_ffi.structural_walk(function.body, (tvm.ir.Call, visit))
        return found

    assert asks(7) == {level}
    assert not asks(1)


LINE = 16
"""Numbers of a cache's line."""


@pytest.mark.parametrize(("size", "stride"), [((5, 5), 1), ((7, 14), 1), ((7, 14), 2)])
def test_rows_at_borders_leave_no_weight_unasked(size: tuple[int, int], stride: int) -> None:
    """They pass over taps, so that their shares of these are asked for by other rows."""
    machine = vector_machine(cpu_of(8), 1)
    strides, padding = (stride, stride), (1, 1, 1, 1)
    shape = ConvShape(1, 16, size, 32, (3, 3), strides, padding, exact=True)
    config = choose(shape, machine, 8)

    def mark(
        buffer: tirx.Buffer, place: Sequence[Any], count: int, turn: Any, **_: bool
    ) -> list[tirx.Stmt]:
        """Zeros where a share would be of the tile's own weights."""
        (number, turns), zero = turn, f32(0.0)
        each = -(-count // (LINE * turns))
        lines = [(number * each + j) * LINE for j in range(each)]
        marks = [(at < count, store(buffer, zero, *place[:-1], at)) for at in lines]
        return [tirx.IfThenElse(inside, marked, None) for inside, marked in marks]

    with mock.patch.object(conv_nest, "ask_ahead", mark):
        function = build(config, machine, {"kind": "llvm"})["kernel"]
    weight = tvm.runtime.tensor(np.ones(config.weight_shape, "float32"))
    data = tvm.runtime.tensor(np.ones((1, 2, *size, 8), "float32"))
    function(data, weight, tvm.runtime.empty((1, 4, *config.out_size, 8), "float32"))
    taps = weight.numpy().reshape(-1, int(np.prod(config.weight_shape[4:])))
    assert not taps[:, ::LINE].any()
