"""Kernels whose steps need each other, on a GPU: right, and priced so that a CPU is preferred."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers.gpu_checks import described_gpu, needs_device
from helpers.relax_helpers import module
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.network.attributes import WRITES_PLACES
from tvm_stretch.passes.keep_views import KeepViews
from tvm_stretch.plan.cost.describe import describe
from tvm_stretch.plan.cost.generic_features import InOrderFeatures
from tvm_stretch.targets.kernels.top_k import Running, running_call
from tvm_stretch.targets.opencl.kernels.in_order import is_in_order, turns, write_in_order

NUMBERS = torch.Generator().manual_seed(5)
MATRICES = torch.randn(3, 5, 5, generator=NUMBERS)
PLACES = torch.randint(0, 9, (40, 7), generator=NUMBERS)
TIES = torch.randint(-3, 3, (70, 45), generator=NUMBERS).float()
TIES[::7, 3] = torch.nan


def _positive(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mT + torch.eye(5)


CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "more rows than a group has items": (lambda x: torch.cumsum(x, 1), (TIES[:, 4:],)),
    "running products of columns": (lambda x: torch.cumprod(x, 0), (torch.rand(6, 40),)),
    "vectors that overlap what they move": (
        lambda x: torch.argsort(x, dim=1, stable=True),
        (TIES,),
    ),
    "the best of long rows": (lambda x: torch.topk(x, 5, 0)[0], (torch.randn(700, 3),)),
    "factors": (lambda x: torch.linalg.cholesky(_positive(x)), (MATRICES,)),
    "rotations": (torch.linalg.svdvals, (MATRICES,)),
    "pivots": (torch.linalg.inv, (MATRICES,)),
    "sums at places": (
        lambda x, i, y: x.scatter_add(0, i, y),
        (torch.zeros(9, 7), PLACES, torch.randn(40, 7)),
    ),
    "rows at places, the last of equal ones wins": (
        lambda x, i, y: x.index_put((i,), y),
        (torch.zeros(9, 50), PLACES[:, 0], torch.arange(2000.0).reshape(40, 50)),
    ),
    "rows that add up": (
        lambda x, i, y: x.index_put((i,), y, accumulate=True),
        (torch.zeros(9, 50), PLACES[:, 0], torch.randn(40, 50)),
    ),
    "a recurrent layer": (
        lambda x: torch.lstm(
            x, [torch.zeros(1, 2, 3)] * 2, WEIGHTS, True, 1, 0.0, False, False, True
        )[0],
        (torch.randn(2, 4, 5),),
    ),
}
WEIGHTS = [torch.randn(*shape, generator=NUMBERS) for shape in ((12, 5), (12, 3), (12,), (12,))]


class Calls(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *x: torch.Tensor) -> Any:
        return self.function(*x)


@needs_device
@pytest.mark.parametrize("case", CASES)
def test_a_gpu_takes_steps_in_order(case: str) -> None:
    function, inputs = CASES[case]
    model = ts.compile(torch.export.export(Calls(function), inputs), [described_gpu()])
    result = model(*(x.numpy() for x in inputs))
    np.testing.assert_allclose(result, function(*inputs), rtol=2e-4, atol=1e-5)


def running(shape: tuple[int, int, int]) -> Any:
    bb = relax.BlockBuilder()
    with bb.function("main", [x := relax.Var("x", relax.TensorType(shape, "float32"))]):
        bb.emit_func_output(bb.emit(running_call(bb, x, Running())))
    return next(f for var, f in bb.get().functions.items() if var.name_hint != "main")


def test_independent_iterations_are_work_items() -> None:
    """Each of 60 rows has an item, in two groups; one row has one item, whatever its length."""
    kernel = running((60, 100, 1))
    assert is_in_order(kernel)
    written, one = (write_in_order(k, 32).script() for k in (kernel, running((1, 100, 1))))
    assert re.findall(r"thread_binding\(T.int64\((\d+)\)", written) == ["2", "32"]
    assert "< T.int64(60)" in written
    assert re.findall(r"thread_binding\(T.int64\((\d+)\)", one) == ["1", "1"]


def test_the_slowest_item_is_priced() -> None:
    machine = described_gpu().machine
    few, many = (describe(running(shape), machine) for shape in ((60, 100, 1), (1, 6000, 1)))
    assert isinstance(few, InOrderFeatures) and isinstance(many, InOrderFeatures)
    assert (few.turns, many.turns) == (turns(running((60, 100, 1))), 6000)
    assert few.turns == 100 and few.in_bytes == many.in_bytes
    assert many.model_cycles > 40 * few.model_cycles
    assert many.device_work().values > 40 * few.device_work().values


def test_a_cpu_beside_the_gpu_computes_steps() -> None:
    gpu = {"kind": "opencl", "device": "adreno"}
    mod = module(lambda x: relax.op.argsort(relax.op.nn.relu(x), 1), (2, 3000))
    both, alone = (ts.compile(mod, targets).plan for targets in (["llvm", gpu], [gpu]))
    assert {region.processor for region in both.regions} == {"cpu"}
    assert "ordering.top_k: its steps need each other" in alone.explain()


def test_a_tensor_is_copied_by_all_items_before_rows_are_written() -> None:
    """A cache of a language model: a step writes one row of each head."""
    bb = relax.BlockBuilder()
    shapes = {"cache": (3, 512, 64), "rows": (3, 1, 64)}
    cache, rows = (relax.Var(n, relax.TensorType(s, "float32")) for n, s in shapes.items())
    places = relax.Var("places", relax.TensorType((3, 1, 2), "int64"))
    with bb.function("main", [cache, places, rows]):
        bb.emit_func_output(bb.emit(relax.op.scatter_nd(cache, places, rows)))
    legal = KeepViews()(bb.get())
    kernel = next(f for f in legal.functions.values() if WRITES_PLACES in (f.attrs or {}))
    assert is_in_order(kernel)
    assert turns(kernel) == 1 + 1 + 3  # places, the copy, a column of three rows
