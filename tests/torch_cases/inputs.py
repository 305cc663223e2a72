"""Inputs of a case, written as `type:shape~lowest,highest,step`."""

from __future__ import annotations

import zlib
from typing import Any

import torch

Case = tuple[Any, ...]
"""A function or module, and the text of each input."""

_TYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "bool": torch.bool,
    "u8": torch.uint8,
    "i8": torch.int8,
    "i32": torch.int32,
    "i64": torch.int64,
}


class Called(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *x: torch.Tensor) -> Any:
        """What it gives."""
        return self.function(*x)


def module_of(case: Case) -> torch.nn.Module:
    """The module of a case."""
    return Called(case[0]).eval()


def inputs_of(name: str, case: Case) -> tuple[torch.Tensor, ...]:
    """The same numbers each time."""
    dice = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return tuple(_tensor(spec, dice) for spec in case[1:])


def _tensor(spec: str, dice: torch.Generator) -> torch.Tensor:
    kind, colon, rest = spec.partition(":")
    kind, rest = (kind, rest) if colon else ("f32", spec)
    dimensions, _, limits = rest.partition("~")
    shape = [] if dimensions == "()" else [int(size) for size in dimensions.split("x")]
    dtype = _TYPES[kind]
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=dice).bool()
    if not limits:
        return torch.randn(shape, generator=dice).to(dtype)
    low, high, *step = (float(number) for number in limits.split(","))
    if not step and dtype.is_floating_point:
        return (torch.rand(shape, generator=dice) * (high - low) + low).to(dtype)
    unit = step[0] if step else 1.0
    count = int((high - low) / unit)
    return (torch.randint(0, count + 1, shape, generator=dice) * unit + low).to(dtype)
