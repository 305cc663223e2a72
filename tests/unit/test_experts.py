"""Products of mixtures of experts: rows that are routed to a few, to one or to no expert."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.cpu_targets import TARGET
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.targets.kernels.experts import experts_call

ROUTED = {
    "in turn": (3, 6, 9, 12),
    "one": (0, 0, 12, 12),
    "none at last": (2, 2, 7, 9),
    "not rising": (9, 2, 40, -3),  # no router gives that, but a file may
}


def _network(rows: int, inner: int, columns: int, dtype: str, index: str) -> relax.Function:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((rows, inner), dtype))
    weights = relax.const(_random((4, inner, columns)).astype(dtype))
    ends = relax.Var("ends", relax.TensorType((4,), index))
    with bb.function("main", [x, ends]):
        with bb.dataflow():
            y = bb.emit_output(experts_call(bb, x, weights, ends))
        bb.emit_func_output(y)
    return bb.get()


def _random(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype("float32")


@pytest.mark.parametrize(
    ("target", "columns", "dtype", "index"),
    [
        (TARGET, 32, "float32", "int32"),
        (TARGET, 6, "float16", "int64"),
        ("opencl", 32, "float32", "int64"),
        ("opencl", 6, "float32", "int32"),
    ],
)
def test_each_row_meets_its_expert(target: Any, columns: int, dtype: str, index: str) -> None:
    """Small integers, so sums are exact in every order."""
    model = ts.compile(_network(12, 10, columns, dtype, index), targets=[target], cpu_threads=1)
    x, weights = _random((12, 10)), _random((4, 10, columns))
    for ends in ROUTED.values():
        want, first = np.zeros((12, columns), dtype), 0
        for expert, end in enumerate(np.clip(ends, 0, 12)):
            want[first:end] = x[first:end] @ weights[expert]
            first = end
        got = model(x.astype(dtype), np.array(ends, index))
        np.testing.assert_array_equal(got, want)


class _Routed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        weights = torch.from_numpy(_random((4, 16, 8))).bfloat16()
        self.weights = torch.nn.Parameter(weights)

    def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.grouped_mm(x, self.weights, offs=ends)


def test_torchs_own_operator() -> None:
    args = torch.from_numpy(_random((12, 16))).bfloat16(), torch.tensor([3, 3, 8, 12]).int()
    program = torch.export.export(_Routed().eval(), args)
    model = ts.compile(program, targets=[TARGET], cpu_threads=1)
    want = program.module()(*args).float().detach().numpy()
    got = model(args[0].float().numpy().astype("bfloat16"), args[1].numpy())
    np.testing.assert_array_equal(np.asarray(got).astype("float32"), want)


def test_matrices_instead_of_rows_are_refused() -> None:
    class Products(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.grouped_mm(x, y)

    args = torch.ones(2, 16, 16).bfloat16(), torch.ones(2, 16, 16).bfloat16()
    program = torch.export.export(Products(), args)
    with pytest.raises(ts.UnsupportedError, match="expected rows and a matrix for each expert"):
        ts.compile(program, targets=[TARGET], cpu_threads=1)


class _Split(torch.nn.Module):
    """What JetMoe does; `order` says which part meets which matrix."""

    def __init__(self, order: tuple[int, ...]) -> None:
        super().__init__()
        self.order, self.weights = order, torch.nn.Parameter(torch.from_numpy(_random((4, 8, 10))))

    def forward(self, x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        parts = x.split(sizes.tolist())
        pairs = zip(self.order, self.weights, strict=True)
        return torch.cat([torch.nn.functional.linear(parts[i], w) for i, w in pairs]).relu()


def test_rows_that_computed_sizes_split() -> None:
    x, sizes = torch.from_numpy(_random((12, 10))), torch.tensor([3, 0, 5, 4])
    program = torch.export.export(_Split((0, 1, 2, 3)).eval(), (x, sizes), strict=False)
    model = ts.compile(program, targets=[TARGET], cpu_threads=1)
    for given in (sizes, torch.tensor([0, 12, 0, 0])):
        want = program.module()(x, given).detach().numpy()
        np.testing.assert_array_equal(model(x.numpy(), given.numpy()), want)
    program = torch.export.export(_Split((1, 0, 2, 3)).eval(), (x, sizes), strict=False)
    with pytest.raises(ts.UnsupportedError, match="split_with_sizes"):
        ts.compile(program, targets=[TARGET], cpu_threads=1)
