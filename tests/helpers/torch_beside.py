"""Calls of torch, compiled for this machine's CPU and compared with torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import tvm_stretch as ts
from tvm_stretch.read.torch.operators import decomposed

_TARGET = {"kind": "llvm", "opt-level": 0}


class Net(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *x: torch.Tensor) -> Any:
        """The function's results."""
        return self.function(*x)


def check(function: Callable[..., Any], *x: torch.Tensor, error: float = 4e-6) -> None:
    """Ours are torch's results; complex numbers are pairs."""
    program = torch.export.export(Net(function), x, strict=False)
    found = ts.compile(program, [_TARGET], cpu_threads=1)(*map(_pairs, x))
    _compare(found, program, x, error)


def _compare(found: Any, program: Any, x: Any, error: float) -> None:
    leaves = torch.utils._pytree.tree_leaves
    for result, given in zip(leaves(found), leaves(program.module()(*x)), strict=True):
        want, got = _pairs(given), np.asarray(result)
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=error, atol=error)


def check_written(function: Callable[..., Any], *x: torch.Tensor) -> None:
    """The operators that it is written in compute the same, without a compile."""
    program = torch.export.export(Net(function), x, strict=False)
    _compare(decomposed(program).module()(*map(torch.as_tensor, map(_pairs, x))), program, x, 4e-6)


def _pairs(x: torch.Tensor) -> np.ndarray:
    x = x.resolve_conj().resolve_neg()
    return np.asarray(torch.view_as_real(x) if x.is_complex() else x)
