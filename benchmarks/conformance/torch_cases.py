"""Judge calls of torch: exported, compiled and compared with the exported program.

Many samples of one operator are compiled as one network, which costs little more than a single one.
Where that network is refused or wrong, its halves are tried, down to single samples.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from tvm_stretch.base.errors import StretchError

TOGETHER = 16
"""Samples of one network."""
_ROUNDINGS = 4e-6, 1e-5, 1e-5
"""Errors allowed in float32: of the largest number, of the number itself, and beside zero."""

Verdict = tuple[str, str, str]
"""Case, verdict, detail."""


@dataclass
class Sample:
    """A call: a module, and the tensors that are the network's inputs."""

    name: str
    module: torch.nn.Module
    inputs: list[torch.Tensor]


class Call(torch.nn.Module):
    """A function whose tensor arguments are inputs; all other arguments are fixed."""

    def __init__(self, function: Callable[..., Any], leaves: list[Any], tree: Any) -> None:
        super().__init__()
        self.function, self.leaves, self.tree = function, leaves, tree
        self.places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]

    def forward(self, *x: torch.Tensor) -> list[Any]:
        """The tensors among the results."""
        leaves = [*self.leaves]
        for place, value in zip(self.places, x, strict=True):
            leaves[place] = value
        args, kwargs = pytree.tree_unflatten(leaves, self.tree)
        return tensors(self.function(*args, **kwargs))


class _Together(torch.nn.Module):
    def __init__(self, samples: Sequence[Sample]) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(sample.module for sample in samples)
        self.counts = [len(sample.inputs) for sample in samples]

    def forward(self, *x: torch.Tensor) -> list[Any]:
        ends = np.cumsum(self.counts)
        inputs = [x[end - n : end] for end, n in zip(ends, self.counts, strict=True)]
        return [tensors(part(*own)) for part, own in zip(self.parts, inputs, strict=True)]


def call(name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Sample:
    """A sample of a function."""
    leaves, tree = pytree.tree_flatten((tuple(args), dict(kwargs)))
    module = Call(function, leaves, tree)
    return Sample(name, module.eval(), [leaves[i].detach() for i in module.places])


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors within a result."""
    return [x for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]


def verdicts(samples: Sequence[Sample], target: str, singly: bool) -> Iterator[Verdict]:
    """The verdicts on samples of one operator."""
    step = 1 if singly else TOGETHER
    for begin in range(0, len(samples), step):
        if singly:
            yield samples[begin].name, "begins", ""
        yield from _judged(samples[begin : begin + step], target)


def _judged(samples: Sequence[Sample], target: str) -> Iterator[Verdict]:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = _tried(samples, target)
    if isinstance(found, list):
        yield from found
        return
    if len(samples) == 1:
        yield (samples[0].name, *found)
        return
    middle = len(samples) // 2
    yield from _judged(samples[:middle], target)
    yield from _judged(samples[middle:], target)


def _tried(samples: Sequence[Sample], target: str) -> list[Verdict] | tuple[str, str]:
    """The verdict on each sample if all of them are right, else one that holds for a single one."""
    import tvm_stretch as ts

    inputs = [x for sample in samples for x in sample.inputs]
    try:
        program = torch.export.export(_Together(samples), tuple(copies(inputs)), strict=False)
        want = program.module()(*copies(inputs))
    except Exception as error:
        return "unsupported by export", told(error)
    place = {"kind": "llvm", "opt-level": 0} if target == "llvm" else target
    try:
        model = ts.compile(program, targets=[place], cpu_threads=1)
        result = model(*map(in_pairs, inputs))
    except StretchError as error:
        return "refused", told(error)
    except Exception as error:
        return "raw", f"{type(error).__name__}: {told(error)}"
    results = iter(result if isinstance(result, tuple) else (result,))
    found: list[Verdict] = []
    for sample, expected in zip(samples, want, strict=True):
        far = difference([next(results, None) for _ in expected], expected)
        if far:
            return "wrong", far + _unlike_eager(sample, expected)
        found.append((sample.name, "right", _unlike_eager(sample, expected).lstrip("; ")))
    return found


def _unlike_eager(sample: Sample, expected: Sequence[torch.Tensor]) -> str:
    """A note where the exported program itself is not what torch computes at once."""
    try:
        far = difference(tensors(sample.module(*copies(sample.inputs))), expected)
    except Exception as error:
        far = told(error)
    return f"; eager differs from the exported program: {far}" if far else ""


def copies(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Inputs that a call may change."""
    return [x.clone() for x in inputs]


def in_pairs(x: torch.Tensor) -> torch.Tensor:
    """A complex tensor as compiled networks take and give it: docs/differences.md."""
    return torch.view_as_real(x.resolve_conj()).clone() if x.is_complex() else x


def told(error: BaseException) -> str:
    """An error in one line."""
    return " ".join(str(error).split())[:400]


def difference(results: Sequence[Any], expected: Sequence[torch.Tensor]) -> str:
    """How results differ; nothing if they are the same within some roundings."""
    for place, (result, given) in enumerate(zip(results, expected, strict=True)):
        want = in_pairs(given) if not getattr(result, "is_complex", bool)() else given
        if result is None:
            return f"result {place} is missing"
        got = result if isinstance(result, torch.Tensor) else torch.as_tensor(np.asarray(result))
        empty = got.numel() == want.numel() == 0  # torch itself is not sure of such shapes
        if got.dtype != want.dtype or (got.shape != want.shape and not empty):
            return f"result {place} is {got.dtype}{[*got.shape]}, not {want.dtype}{[*want.shape]}"
        if not empty and (far := _far(got, want)):
            return f"result {place}: {far}"
    return ""


def _far(got: torch.Tensor, want: torch.Tensor) -> str:
    if not (want.is_floating_point() or want.is_complex()):
        bad = int((got != want).sum())
        return f"{bad} of {want.numel()} elements differ" if bad else ""
    scale = torch.finfo(want.dtype).eps / torch.finfo(torch.float32).eps
    wide = torch.complex128 if want.is_complex() else torch.float64
    got, want = got.to(wide), want.to(wide)
    finite = want[torch.isfinite(want)].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    of_largest, of_number, least = (scale * part for part in _ROUNDINGS)
    near = torch.isclose(got, want, of_number, max(of_largest * largest, least), equal_nan=True)
    if near.all():
        return ""
    place = int((~near).flatten().nonzero()[0])
    pair = complex(got.flatten()[place]), complex(want.flatten()[place])
    values = (f"{z.real:.8g}" if z.imag == 0 else f"{z:.8g}" for z in pair)
    bad = int((~near).sum())
    return "{} instead of {}".format(*values) + f" ({bad} of {near.numel()} elements differ)"
