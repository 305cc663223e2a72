"""Winograd's input transform becomes an operator of its own where several convolutions read it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from helpers.relax_helpers import answers, binding_names, random_inputs
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from tvm_stretch.make.branching import branch
from tvm_stretch.network.emitting.weights import stage_of
from tvm_stretch.passes.block_channels import BlockChannels
from tvm_stretch.passes.share_winograd import ShareWinograd, share_winograd
from tvm_stretch.passes.split_outputs import split_outputs
from tvm_stretch.targets.cpu.cpu import cpu_processor
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.opencl.kernels.machine import GpuMachine

AVX2 = VectorMachine(8, 16, False, 512 * 1024, 1)
GPU = VectorMachine(8, 16, False, 512 * 1024, 1, gpu=GpuMachine(4))


def two_layers(
    channels: int = 64, size: int = 28, middle: int = 64, **attrs: object
) -> tvm.IRModule:
    """Conv -> relu -> conv, 3x3."""
    rng = np.random.default_rng(0)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, channels, size, size), "float32"))

    def weight(out: int, into: int) -> relax.Expr:
        return relax.const(rng.standard_normal((out, into, 3, 3), dtype="float32") / 16)

    with builder.function("main", [x]):
        with builder.dataflow():
            a = builder.emit(relax.op.nn.conv2d(x, weight(middle, channels), padding=1), "a")
            r = builder.emit(relax.op.nn.relu(a), "r")
            c = relax.op.nn.conv2d(r, weight(32, middle), **({"padding": 1} | attrs))
            out = builder.emit_output(c, "c")
        builder.emit_func_output(out)
    return builder.get()


def same_answers(before: tvm.IRModule, after: tvm.IRModule) -> None:
    inputs = random_inputs(before)
    for expected, got in zip(answers(before, *inputs), answers(after, *inputs), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def owned(mod: tvm.IRModule, machine: VectorMachine = AVX2) -> dict[str, VectorMachine]:
    """All operators as parts of processors of one kind."""
    return dict.fromkeys(binding_names(mod), machine)


def test_processors_without_a_part_are_not_asked() -> None:
    """A plan of two processors gives the same operators beside a third one, whose kernels differ.

    A convolution of which a GPU has a part stays, and so does a convolution that is no part.
    """
    host = cpu_processor(tvm.target.Target("llvm"), 1)
    processors = [replace(host, name=str(i), machine=m) for i, m in enumerate((AVX2, AVX2, GPU))]
    mod = two_layers()
    two = branch(mod, {"c": (16, 16)}, (), processors[:2])
    three = branch(mod, {"c": (16, 16, 0)}, (), processors)
    assert "r.tiles" in binding_names(two.mod)
    tvm.ir.assert_structural_equal(two.mod, three.mod)
    assert "r.tiles" not in binding_names(branch(mod, {"c": (16, 0, 16)}, (), processors).mod)
    split = split_outputs(mod, {"c": (16, 16)})
    tvm.ir.assert_structural_equal(share_winograd(split, {"c.p0": AVX2}), split)


def test_each_processor_transforms_what_it_wrote() -> None:
    split = split_outputs(two_layers(), {"a": (40, 24), "c": (16, 16)})
    shared = share_winograd(split, owned(split))
    assert binding_names(shared) == [
        *("x.tiles", "a.p0", "a.p1", "r.p0", "r.p1"),
        *("r.tiles.p0", "r.tiles.p1", "r.tiles", "c.p0", "c.p1", "c", "c.out"),
    ]
    same_answers(split, shared)


@pytest.mark.full
def test_blocked_stages_answer_the_same() -> None:
    split = split_outputs(two_layers(), {"a": (40, 24), "c": (16, 16)})
    shared = share_winograd(split, owned(split))
    blocked = BlockChannels({"cpu": AVX2})(shared)
    kernels = {var.name_hint for var, func in blocked.functions.items() if stage_of_any(func)}
    called = {
        b.value.args[0].name_hint
        for b in blocked["main"].body.blocks[0].bindings
        if isinstance(b.value, relax.Call) and b.value.op == tvm.ir.Op.get("relax.call_tir")
    }
    assert not kernels & called  # templates took the place of all plain kernels
    same_answers(split, blocked)


def stage_of_any(func: object) -> bool:
    return isinstance(func, tvm.tirx.PrimFunc) and stage_of(func) is not None


@pytest.mark.parametrize(
    ("mod", "machine"),
    [
        (split_outputs(two_layers(), {"c": (16, 16)}), GPU),  # computes it directly
        (split_outputs(two_layers(strides=2), {"c": (16, 16)}), AVX2),
        (split_outputs(two_layers(dilation=2), {"c": (16, 16)}), AVX2),
        (split_outputs(two_layers(channels=8, middle=8), {"c": (16, 16)}), AVX2),  # too narrow
        (two_layers(), AVX2),  # nobody shares
    ],
)
def test_stays_where_nothing_is_won(mod: tvm.IRModule, machine: VectorMachine) -> None:
    tvm.ir.assert_structural_equal(share_winograd(mod, owned(mod, machine)), mod)


def test_a_tensor_with_other_readers_stays() -> None:
    mod = two_layers()
    split = split_outputs(mod, {"a": (32, 32), "c": (16, 16)})
    main = split["main"]
    # The network also returns what the second layer reads.
    bindings = list(main.body.blocks[0].bindings)
    whole = next(b for b in bindings if b.var.name == "r")
    extra = relax.Var("kept", whole.var.ty)
    bindings.append(relax.VarBinding(extra, whole.var))
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], relax.Tuple([main.body.body, extra]))
    body = relax.BlockBuilder().normalize(body)
    split["main"] = relax.Function(main.params, body)
    assert "r" in binding_names(ShareWinograd(owned(split))(split))


@settings(max_examples=4)
@given(
    size=st.tuples(st.integers(6, 14), st.integers(6, 14)),
    cut=st.integers(1, 63),
    padding=st.tuples(*[st.integers(0, 2)] * 4),
    batch=st.integers(1, 2),
)
@pytest.mark.full
def test_any_split_answers_the_same(
    size: tuple[int, int], cut: int, padding: tuple[int, ...], batch: int
) -> None:
    rng = np.random.default_rng(0)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((batch, 32, *size), "float32"))
    weight = relax.const(rng.standard_normal((64, 32, 3, 3), dtype="float32") / 16)
    with builder.function("main", [x]):
        with builder.dataflow():
            r = builder.emit(relax.op.nn.relu(x), "r")
            out = builder.emit_output(relax.op.nn.conv2d(r, weight, padding=list(padding)), "c")
        builder.emit_func_output(out)
    split = split_outputs(builder.get(), {"c": (cut, 64 - cut)})
    shared = share_winograd(split, owned(split))
    same_answers(split, shared)
    same_answers(split, BlockChannels({"cpu": AVX2})(shared))
