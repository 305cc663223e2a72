"""PyTorch's own samples of its modules (``module_db``), in eval and in training mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from benchmarks.conformance.torch_cases import Sample, Verdict, call, verdicts

_SEED = 20260


def groups() -> list[str]:
    """The modules by their names."""
    return sorted(_modules())


def judge(group: str, target: str, most: int, singly: bool, done: set[str]) -> Iterator[Verdict]:
    """The verdicts on the samples of a module, in both modes."""
    yield "", "scope", "in"
    for mode in ("eval", "train"):
        found = samples_of(group, mode)
        step = max(1, -(-len(found) // most)) if most else 1
        left = [sample for sample in found[::step] if sample.name not in done]
        yield from verdicts(left, target, singly)


def samples_of(group: str, mode: str) -> list[Sample]:
    """The samples of a module in one mode."""
    info = _modules()[group]
    torch.manual_seed(_SEED)
    training = mode == "train"
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=False, training=training
    )
    found = []
    for place, given in enumerate(inputs):
        if given.forward_input is None:
            continue
        made, forward = given.constructor_input, given.forward_input
        module = info.module_cls(*made.args, **made.kwargs).float().train(training)
        sample = call(f"{mode} {place}", _Forward(module), forward.args, forward.kwargs)
        sample.module.train(training)
        found.append(sample)
    return found


class _Forward(torch.nn.Module):
    """A module whose packed sequences are results, too."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return pytree.tree_map(
            lambda x: x.data if isinstance(x, torch.nn.utils.rnn.PackedSequence) else x,
            self.module(*args, **kwargs),
        )


def _modules() -> dict[str, Any]:
    from torch.testing._internal.common_modules import module_db

    return {info.name: info for info in module_db if torch.float32 in info.dtypes}
