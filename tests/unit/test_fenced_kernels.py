"""Chains around a product that is rounded before a sum stay vectors: LLVM makes none of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import tvm
from helpers.lowered import heap_buffers
from tvm import relax, te, tirx
from unit.test_generic_schedule import MACHINE, prim_funcs, random_arguments, run

from tvm_stretch.passes.expand_math import ExpandMath
from tvm_stretch.passes.round_products import RoundProducts
from tvm_stretch.targets.kernels.inlining import FENCE, chooses, intrinsics_of
from tvm_stretch.targets.kernels.schedule import schedule_kernel

op = relax.op


def emitted(expr: relax.Expr) -> relax.Expr:
    return relax.BlockBuilder.current().emit(expr)


def scaled(x: relax.Expr, w: relax.Expr, b: relax.Expr) -> relax.Expr:
    """A batch normalisation that no convolution takes, and its activation."""
    y = emitted(op.add(emitted(op.multiply(x, w)), b))
    return op.multiply(y, emitted(op.sigmoid(y)))


def gelu(x: relax.Expr) -> relax.Expr:
    """With the error function."""
    half = emitted(op.multiply(x, relax.const(0.5, "float32")))
    inner = emitted(op.erf(emitted(op.multiply(x, relax.const(0.7071, "float32")))))
    return op.multiply(half, emitted(op.add(inner, relax.const(1.0, "float32"))))


CHAINS: dict[str, tuple[Callable[..., relax.Expr], list[tuple[int, ...]]]] = {
    "normalised": (scaled, [(1, 6, 8, 8), (1, 6, 1, 1), (1, 6, 1, 1)]),
    "in blocks": (scaled, [(1, 3, 5, 7, 8), (1, 3, 1, 1, 8), (1, 3, 1, 1, 8)]),
    "odd": (scaled, [(3, 37), (1, 37), (1, 37)]),
    "transposed": (
        lambda x: op.permute_dims(emitted(gelu(x)), [0, 2, 3, 1]),
        [(1, 32, 8, 6)],
    ),
    "times a concatenation": (
        lambda x, a, b: op.multiply(emitted(gelu(x)), emitted(op.concat([a, b], -1))),
        [(1, 5, 5, 64), (1, 5, 5, 40), (1, 5, 5, 24)],
    ),
}


def fused(name: str) -> tirx.PrimFunc:
    (func,) = prim_funcs(*CHAINS[name])
    return prepared(func)


def prepared(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """With fences and polynomials."""
    mod = tvm.IRModule({"main": func})
    return ExpandMath(False)(RoundProducts()(mod))["main"]


@pytest.mark.variants(2)
@pytest.mark.parametrize(
    ("name", "lanes"),
    [(name, lanes) for name in CHAINS for lanes in (4, 8, 16) if lanes <= 8 or name != "in blocks"],
)
def test_chains_are_vectors(name: str, lanes: int) -> None:
    func = fused(name)
    assert FENCE in intrinsics_of(func.body)
    scheduled = schedule_kernel(func, replace(MACHINE, lanes=lanes))
    assert_costly_steps_are_vectors(scheduled)
    assert heap_buffers(scheduled) == 0
    arrays = random_arguments(func)
    for right, ours in zip(run(func, arrays), run(scheduled, arrays), strict=True):
        np.testing.assert_allclose(ours, right, rtol=2e-6, atol=1e-6)


def test_unblocked() -> None:
    """Lanes of a block are computed at once, and stored one by one."""
    x, w, b = (
        te.placeholder((1, 3, size, size, 8), name=name)
        for name, size in (("x", 6), ("w", 1), ("b", 1))
    )
    product = te.compute(x.shape, lambda n, c, h, v, k: x[n, c, h, v, k] * w[n, c, 0, 0, k])
    total = te.compute(x.shape, lambda n, c, h, v, k: product[n, c, h, v, k] + b[n, c, 0, 0, k])
    curved = te.compute(x.shape, lambda *at: total[at] * te.sigmoid(total[at]))
    plain = te.compute((1, 24, 6, 6), lambda n, c, h, v: curved[n, c // 8, h, v, c % 8])
    func = prepared(te.create_prim_func([x, w, b, plain]))
    scheduled = schedule_kernel(func, MACHINE)
    assert_costly_steps_are_vectors(scheduled)
    arrays = random_arguments(func)
    for right, ours in zip(run(func, arrays), run(scheduled, arrays), strict=True):
        np.testing.assert_allclose(ours, right, rtol=2e-6, atol=1e-6)


def assert_costly_steps_are_vectors(func: tirx.PrimFunc) -> None:
    """Each step with a polynomial lies in a loop of vectors."""
    seen = []

    def walk(node: object, is_vector: bool) -> None:
        if isinstance(node, tirx.For):
            walk(node.body, is_vector or node.kind == tirx.ForKind.VECTORIZED)
        elif isinstance(node, tirx.SeqStmt):
            for part in node.seq:
                walk(part, is_vector)
        elif isinstance(node, tvm.s_tir.SBlockRealize):
            walk(node.block, is_vector)
        elif isinstance(node, tvm.s_tir.SBlock):
            if isinstance(node.body, tirx.BufferStore):
                if "let" in intrinsics_of(node.body):
                    assert not chooses(node)
                    seen.append(is_vector)
            else:
                walk(node.body, is_vector)

    walk(func.body, False)
    assert seen and all(seen)


def test_steps_that_share_their_only_loop() -> None:
    """What the first step passes on is one number: a vector of the loop would need one a lane."""

    def body(x: relax.Expr, y: relax.Expr, z: relax.Expr) -> relax.Expr:
        apart = emitted(op.subtract(x, emitted(op.abs(y))))
        return op.divide(emitted(op.subtract(apart, emitted(op.multiply(z, y)))), apart)

    (func,) = prim_funcs(body, [(1024,)] * 3)
    func = prepared(func)
    scheduled = schedule_kernel(func, MACHINE)
    arrays = random_arguments(func)
    for right, ours in zip(run(func, arrays), run(scheduled, arrays), strict=True):
        np.testing.assert_array_equal(ours, right)
