"""KeepViews, MarkPatterns and ScheduleKernels on small modules."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from helpers.relax_helpers import (
    Body,
    assert_same_numerics,
    assert_unchanged,
    module,
    op_names,
    random_const,
    random_inputs,
    run,
)
from helpers.small_models import build_model
from tvm import relax, tirx

import tvm_stretch as ts
from tvm_stretch.passes.block_channels import BlockChannels
from tvm_stretch.passes.keep_views import KeepViews
from tvm_stretch.passes.mark_patterns import MarkPatterns
from tvm_stretch.passes.schedule_kernels import ScheduleKernels
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.phases import kernel_phases

nn, op = relax.op.nn, relax.op
MACHINE = VectorMachine(8, 16, False, 512 * 1024, 1)


def functions(mod: tvm.IRModule) -> dict[str, tirx.PrimFunc]:
    """The PrimFuncs of a module by name."""
    return {v.name_hint: f for v, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}


def test_views_stay_and_the_rest_is_legalised() -> None:
    before = module(lambda x: nn.relu(op.reshape(op.concat([x, x], axis=1), (1, 72))), (1, 4, 3, 3))
    after = KeepViews()(before)
    assert {"relax.concat", "relax.reshape"} <= set(op_names(after))
    assert list(functions(after)) == ["relu"]
    assert_same_numerics(before, after)


def test_a_concat_of_several_images_is_a_kernel() -> None:
    before = module(lambda x: op.concat([x, x], axis=1), (2, 4, 3, 3))
    after = KeepViews()(before)
    assert "relax.concat" not in op_names(after)
    assert_same_numerics(before, after)


def test_short_pieces_are_computed_where_they_are_read() -> None:
    """A rotary embedding is x * cos + concat(-second, first) * sin. Longer pieces stay views."""

    def rotary(x: relax.Var) -> relax.Expr:
        first, second = (op.strided_slice(x, [2], [at], [at + size]) for at in (0, size))
        turned = op.concat([op.negative(second), first], axis=2)
        return op.add(op.multiply(x, random_const(2 * size)), turned)

    for size, kernels in ((32, 1), (256, 2)):
        before = module(rotary, (1, 14, 2 * size))
        after = KeepViews()(before)
        assert ("relax.concat" in op_names(after)) == (kernels > 1)
        assert_same_numerics(before, after)
        model = ts.compile(before, ["llvm"], cpu_threads=1)
        names = [node.kernel for node in model.graph.nodes]
        assert len(names) - names.count("tvm_stretch.copy") == kernels


def test_a_module_of_views_is_left_alone() -> None:
    assert_unchanged(KeepViews(), module(lambda x: op.reshape(x, (12,)), (1, 3, 4)))


def blocked_conv() -> tvm.IRModule:
    """A Winograd convolution and a relu, legalised."""
    weight = random_const(16, 16, 3, 3)
    mod = module(lambda x: nn.relu(nn.conv2d(x, weight, padding=1)), (1, 16, 8, 8))
    legal = KeepViews()(BlockChannels({"cpu": MACHINE})(mod))
    return relax.transform.AnnotateTIROpPattern()(legal)


def test_templates_take_epilogues() -> None:
    before = blocked_conv()
    after = MarkPatterns()(before)
    patterns = {name: int(f.attrs["op_pattern"]) for name, f in functions(after).items()}
    assert patterns["winograd_conv2d"] == 4
    assert patterns["relu"] == int(functions(before)["relu"].attrs["op_pattern"])
    fused = relax.transform.FuseTIR()(relax.transform.FuseOps()(after))
    assert any("winograd_conv2d_relu" in name for name in functions(fused))


@pytest.mark.parametrize(
    ("move", "count"),
    [
        (lambda x: nn.pad(x, [0, 2, 0, 3]), 2),
        (lambda x: op.strided_slice(x, [0, 1], [0, 0], [5, 9]), 2),
        (lambda x: op.add(x, random_const(24)), 1),
    ],
    ids=["longer", "shorter", "equal"],
)
def test_what_ends_elsewhere_is_no_epilogue(move: Body, count: int) -> None:
    """A template writes what it computes: past the end of less, and not all of more."""

    def network(x: relax.Expr, y: relax.Expr) -> relax.Expr:
        return move(relax.BlockBuilder.current().emit(op.matmul(x, y)))

    before = module(network, (20, 4), (4, 24))
    phases = [BlockChannels({"cpu": MACHINE}), *kernel_phases(expand_math=False)]
    after = tvm.transform.Sequential(phases)(before)
    assert len(functions(after)) == count
    assert_same_numerics(before, ScheduleKernels(MACHINE)(after))


def test_functions_without_a_template_are_left_alone() -> None:
    mod = relax.transform.AnnotateTIROpPattern()(
        KeepViews()(module(lambda x: nn.relu(x), (1, 3, 4)))
    )
    assert_unchanged(MarkPatterns(), mod)


def test_scheduled_kernels_compute_the_same() -> None:
    mod = MarkPatterns()(blocked_conv())
    fused = tvm.transform.Sequential(
        [
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
            relax.transform.DeadCodeElimination(),
        ]
    )(mod)
    scheduled = ScheduleKernels(MACHINE)(fused)
    inputs = random_inputs(fused)
    (expected,) = run(fused, *inputs)
    target = tvm.target.Target({"kind": "llvm"})
    got = build_model(scheduled, target)(*inputs)
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)
    kernel = next(f for name, f in functions(scheduled).items() if "winograd_conv2d" in name)
    assert "T.vectorized" in kernel.script()
    assert "T.sblock" not in kernel.script()
