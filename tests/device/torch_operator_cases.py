"""Run calls of torch through torch.export and tvm_stretch, and compare with torch.

    python tests/device/torch_operator_cases.py [PATTERN]          verdicts of the cases
    python tests/device/torch_operator_cases.py --update           rewrites torch_operator_cases.txt

Each case of `tests/torch_cases` gets one verdict:

    ok              the same as torch: exactly, or within a few roundings of the largest number
    refused: ...    a StretchError with this message
    no export: ...  torch itself does not export it
    WRONG: ...      never acceptable
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from torch_cases import images, layers, moves, pointwise
from torch_cases.inputs import Case, inputs_of, module_of

from tvm_stretch.base.errors import ModelError, UnsupportedError

LISTING = Path(__file__).with_suffix(".txt")
_FAMILIES = {"pointwise": pointwise, "layers": layers, "images": images, "moves": moves}
CASES: dict[str, Case] = {
    f"{family}: {name}": case
    for family, module in _FAMILIES.items()
    for name, case in module.CASES.items()
}
_BATCH = 16
_ROUNDINGS = 64
"""Results are sums of at most some dozens of products: that many roundings of the largest one."""


def execute(program: torch.export.ExportedProgram, inputs: Iterable[np.ndarray]) -> list[Any]:
    """Compile and run ``program``: the one place that knows how."""
    import tvm_stretch as ts

    target = {"kind": "llvm", "opt-level": 0}
    result = ts.compile(program, targets=[target], cpu_threads=1)(*inputs)
    return list(result) if isinstance(result, tuple) else [result]


class _Together(torch.nn.Module):
    """Several cases as one network; results are those of the first, then those of the second."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(module_of(CASES[name]) for name in names)
        self.counts = [len(CASES[name]) - 1 for name in names]

    def forward(self, *x: torch.Tensor) -> list[Any]:
        """The results of each case."""
        ends = np.cumsum(self.counts)
        inputs = [x[end - n : end] for end, n in zip(ends, self.counts, strict=True)]
        return [part(*own) for part, own in zip(self.parts, inputs, strict=True)]


def verdicts(names: Sequence[str]) -> dict[str, str]:
    """The verdicts on cases, which are one network if torch and tvm_stretch take all of them."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inputs = [x for name in names for x in inputs_of(name, CASES[name])]
        module = _Together(names)
        want = [torch.utils._pytree.tree_leaves(results) for results in module(*inputs)]
        try:
            program = torch.export.export(module, tuple(inputs))
        except Exception as error:
            return _split(names) or {names[0]: f"no export: {type(error).__name__}"}
    try:
        results = iter(execute(program, [_array(x) for x in inputs]))
    except (ModelError, UnsupportedError) as error:
        return _split(names) or {names[0]: "refused: " + " ".join(str(error).split())}
    except Exception as error:
        text = f"WRONG: {type(error).__name__} " + " ".join(str(error).split())[-300:]
        return _split(names) or {names[0]: text}
    found = {n: _compared([next(results) for _ in w], w) for n, w in zip(names, want, strict=True)}
    assert next(results, None) is None, names
    return found


def _split(names: Sequence[str]) -> dict[str, str]:
    """The verdicts by halves, none of a single case."""
    if len(names) == 1:
        return {}
    middle = len(names) // 2
    return verdicts(names[:middle]) | verdicts(names[middle:])


def _compared(results: Sequence[np.ndarray], want: Sequence[torch.Tensor]) -> str:
    try:
        for got, expected in zip(results, want, strict=True):
            _check(np.asarray(got), expected)
    except AssertionError as error:
        return "WRONG: " + " ".join(str(error).split())[:300]
    return "ok"


def _array(x: torch.Tensor) -> np.ndarray:
    if x.dtype != torch.bfloat16:
        return x.numpy()
    import ml_dtypes

    return x.float().numpy().astype(ml_dtypes.bfloat16)


def _check(got: np.ndarray, expected: torch.Tensor) -> None:
    kind = str(expected.dtype).removeprefix("torch.")
    assert str(got.dtype) == kind, f"type {got.dtype} instead of {kind}"
    assert got.shape == tuple(expected.shape), f"shape {got.shape}, not {tuple(expected.shape)}"
    if not expected.dtype.is_floating_point:
        np.testing.assert_array_equal(got, expected.numpy())
        return
    want = expected.double().numpy()
    largest = np.abs(want[np.isfinite(want)]).max(initial=0)
    bound = _ROUNDINGS * torch.finfo(expected.dtype).eps * 0.5
    half = expected.dtype in (torch.float16, torch.bfloat16)
    atol = largest * (bound / 16 if half else bound)
    np.testing.assert_allclose(got.astype("float64"), want, rtol=bound / 16, atol=atol)


def read_listing() -> dict[str, str]:
    """The checked-in verdicts."""
    lines = LISTING.read_text().splitlines() if LISTING.exists() else []
    return dict(line.split(" -> ", 1) for line in lines)


def listing_lines(verdicts: dict[str, str]) -> Iterator[str]:
    """The lines of the checked-in file."""
    for name in CASES:
        if name in verdicts:
            yield f"{name} -> {verdicts[name]}\n"


def main() -> None:
    """Print the verdicts, or update the listing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("pattern", nargs="?", default="")
    args = parser.parse_args()
    names = [name for name in CASES if args.pattern in name]
    listed = read_listing()
    together = [name for name in names if listed.get(name) == "ok"]
    groups = [together[i : i + _BATCH] for i in range(0, len(together), _BATCH)]
    found = {}
    for group in [*groups, *([name] for name in names if listed.get(name) != "ok")]:
        for name, text in verdicts(group).items():
            found[name] = text
            if not args.update:
                print(name, "->", text, flush=True)
    if args.update:
        LISTING.write_text("".join(listing_lines(listed | found)))


if __name__ == "__main__":
    main()
