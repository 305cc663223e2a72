"""What TVM's rules make of kernels that no template schedules, on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from helpers.gpu_checks import described_gpu, needs_device

import tvm_stretch as ts

CASES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[int, ...]]] = {
    "a sum over everything that reads another one": (torch.var, (5, 6)),
    "a norm whose items loop": (lambda x: torch.nn.functional.layer_norm(x + 1, (9,)), (1, 9)),
    "windows whose size differs": (
        lambda x: torch.nn.functional.adaptive_avg_pool2d(x, (3, 5)),
        (1, 2, 7, 8),
    ),
    "a fence whose product was simplified": (torch.special.i0, (7,)),
    "bfloat16, which OpenCL does not have": (torch.Tensor.bfloat16, (70,)),
}


class Calls(torch.nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@needs_device
@pytest.mark.parametrize("case", CASES)
def test_kernels_that_no_template_schedules_are_right(case: str) -> None:
    function, shape = CASES[case]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    network = torch.export.export(Calls(function), (x,))
    result = ts.compile(network, [described_gpu()])(x.numpy())
    got = np.asarray(result).astype("float32")
    np.testing.assert_allclose(got, function(x).float(), rtol=1e-5, atol=1e-6)
