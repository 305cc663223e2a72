"""PyTorch's own samples of its operators (``op_db``), of float32.

Which operators a forward pass without randomness and sparse tensors can use is decided by a rule
and not by a list: `scope` says it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any
from unittest import mock

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode

from benchmarks.conformance.torch_cases import Sample, Verdict, call, copies, tensors, verdicts

_SEED = 20260
_OF_TRAINING = re.compile(r"_backward$|\.grad$|subgradients|_chunked$")
_NOT_DEFINED = "results are not defined"
_UNDEFINED = re.compile(r"(^|\.|_)empty(_|$)|^resize")


def groups() -> list[str]:
    """The operators that take float32, by their full names."""
    return sorted(_operators())


def judge(group: str, target: str, most: int, singly: bool, done: set[str]) -> Iterator[Verdict]:
    """The verdicts on the samples of an operator with defined results; the first says its scope."""
    samples = samples_of(group, most)
    why = scope(group, samples)
    yield "", "scope", why
    if why == _NOT_DEFINED:
        return
    yield from verdicts([s for s in samples if s.name not in done], target, singly)


def samples_of(group: str, most: int) -> list[Sample]:
    """The samples of an operator on a CPU; of more than `most`, evenly chosen ones."""
    op = _operators()[group]
    torch.manual_seed(_SEED)
    found = []
    try:
        for place, given in enumerate(islice(_given(op), 2000)):
            if _asks_for_gpu(given):
                continue
            function = _compared(op.op, given.output_process_fn_grad)
            found.append(call(str(place), function, (given.input, *given.args), given.kwargs))
    except Exception:  # the samples of some operators need a GPU or another package
        pass
    step = max(1, -(-len(found) // most)) if most else 1
    return found[::step]


def scope(group: str, samples: list[Sample]) -> str:
    """`in`, or why no forward pass without randomness and sparse tensors uses an operator.

    Out are operators that compute a gradient, whose name or samples or results have sparse tensors,
    whose results are no tensors, are not defined (`empty`), differ with the seed, or have a shape
    that depends on the data, that work in place, and those of which torch runs no sample on a CPU.
    """
    if _OF_TRAINING.search(group):
        return "computes a gradient"
    if "sparse" in group:
        return "sparse"
    if _UNDEFINED.search(group):
        return _NOT_DEFINED
    if group.endswith("_") and not group.endswith("__"):
        return "works in place"
    if samples and all(map(_has_shape_of_data, samples[:8])):
        return "the shape of a result depends on the data"
    ran = False
    for sample in samples[:: max(1, len(samples) // 8)]:
        try:
            results = [_seeded(sample, seed) for seed in (1, 2)]
        except Exception:
            continue
        ran = True
        if any(x.layout != torch.strided for x in (*results[0], *sample.inputs)):
            return "sparse"
        if not results[0]:
            return "results are no tensors"
        for one, other in zip(*results, strict=True):
            if one.shape != other.shape or not torch.allclose(one, other, 0, 0, equal_nan=True):
                return "random"
    return "in" if ran else "torch runs no sample"


def _compared(op: Callable[..., Any], shown: Callable[[Any], Any]) -> Callable[..., Any]:
    """What torch's tests compare of a result: signs of singular vectors are free, for example."""
    return lambda *args, **kwargs: shown(op(*args, **kwargs))


def _asks_for_gpu(given: Any) -> bool:
    leaves = pytree.tree_leaves((given.args, given.kwargs))
    return any(isinstance(x, str | torch.device) and str(x).startswith("cuda") for x in leaves)


def _has_shape_of_data(sample: Sample) -> bool:
    """Whether the shape of a result depends on the data, for which kernels have no loops."""
    try:
        with FakeTensorMode() as mode:
            sample.module(*map(mode.from_tensor, sample.inputs))
    except DynamicOutputShapeException:
        return True
    except Exception:  # the export says so
        return False
    return False


def _seeded(sample: Sample, seed: int) -> list[torch.Tensor]:
    """The results with a seed, also of operators whose samples set one of their own."""
    torch.manual_seed(seed)
    with torch.no_grad(), mock.patch.object(torch, "manual_seed"):
        return tensors(sample.module(*copies(sample.inputs)))


def _operators() -> dict[str, Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return {op.full_name: op for op in op_db if torch.float32 in op.dtypes}


def _given(op: Any) -> Iterator[Any]:
    return iter(op.sample_inputs("cpu", torch.float32, requires_grad=False))
