"""Run ONNX's own node cases through tvm_stretch, a batch of them per process.

    python tests/device/onnx_node_cases.py --update     rewrites onnx_node_cases.txt

Each case gets one verdict:

    ok                            outputs equal the expected ones
    ok if constant: shape, axes   the same, with these inputs as constants of the model: what
                                  they say must be known when the network is compiled
    refused: ...                  a StretchError with this message
    WRONG: ... / CRASHED          never acceptable
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
from onnx.backend.test.case.test_case import TestCase

from tvm_stretch.base.errors import InputError, ModelError, StretchError, UnsupportedError
from tvm_stretch.passes.store_small_types import STORED

LISTING = Path(__file__).with_suffix(".txt")
Feeds = dict[str, np.ndarray]


def execute(model: onnx.ModelProto, feeds: Feeds, target: str = "llvm") -> list[np.ndarray]:
    """Compile and run ``model``: the one place that knows how."""
    import tvm_stretch as ts

    place = {"kind": "llvm", "opt-level": 0} if target == "llvm" else target
    result = ts.compile(model, targets=[place], cpu_threads=1)(**feeds)
    return list(result) if isinstance(result, tuple) else [result]


def cases() -> dict[str, TestCase]:
    """All node cases by name."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in collect_testcases(None)}


def cases_of(names: Sequence[str]) -> dict[str, TestCase]:
    """At least the cases of these names; making all of them takes a quarter of a minute."""
    from onnx.backend.test.case import node

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in pkgutil.iter_modules(node.__path__):
            if any(name.startswith(f"test_{module.name}") for name in names):
                importlib.import_module(f"{node.__name__}.{module.name}")
    found = {case.name: case for case in node._NodeTestCases}
    return found if found.keys() >= {*names} else cases()


def verdict(case: TestCase, target: str = "llvm") -> str:
    """The verdict on one case; see the module docstring."""
    names = [value.name for value in case.model.graph.input]
    baked: list[str] = []
    while True:
        try:
            compare(case, names, baked, target)
        except (ModelError, UnsupportedError) as error:
            more = _to_bake(error, case, baked)
            if not more:
                return "refused: " + " ".join(str(error).split())
            baked.extend(more)
        except InputError as error:  # nothing is given for an optional input
            return "refused: " + " ".join(str(error).split())
        except AssertionError as error:
            return "WRONG: " + " ".join(str(error).split())[:300]
        except Exception as error:
            return f"WRONG: {type(error).__name__} " + " ".join(str(error).split())[-300:]
        else:
            return "ok if constant: " + ", ".join(baked) if baked else "ok"


def _to_bake(error: StretchError, case: TestCase, baked: Sequence[str]) -> list[str]:
    """Inputs that may have to be constant for what ``error`` refuses, none if it is about more."""
    if "a constant input" not in str(error) and "depends on the data" not in str(error):
        return []
    node = case.model.graph.node[0]
    match = re.search(rf"a constant input (\d+) .* for {node.op_type}\b", str(error))
    if match and len(case.model.graph.node) == 1:
        wanted = {node.input[int(match.group(1))]}
    else:  # refused inside a function body: whatever looks like a shape
        wanted = {v.name for v in case.model.graph.input if _is_shape_like(v)}
    return [v.name for v in case.model.graph.input if v.name in wanted and v.name not in baked]


def _is_shape_like(value: onnx.ValueInfoProto) -> bool:
    tensor = value.type.tensor_type
    integer = tensor.elem_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
    return integer and len(tensor.shape.dim) <= 1


def compare(
    case: TestCase, names: Sequence[str], baked: Sequence[str], target: str = "llvm"
) -> None:
    """Run every data set of ``case``, with the inputs ``baked`` as constants of the model."""
    for inputs, expected in (map(_arrays, data_set) for data_set in case.data_sets):
        feeds = dict(zip(names, inputs, strict=False))
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        for name in baked:
            model.graph.initializer.append(
                onnx.numpy_helper.from_array(np.asarray(feeds[name]), name)
            )
        given = {n: _bytes_of(v) for n, v in feeds.items() if n not in baked}
        results = execute(model, given, target)
        assert len(results) == len(expected), f"{len(results)} outputs instead of {len(expected)}"
        for got, want in zip(results, expected, strict=True):
            _check_equal(got, want, case.rtol, case.atol)


def _arrays(values: Sequence[np.ndarray | onnx.TensorProto | list]) -> list[np.ndarray | list]:
    """Values of a data set, some of which are protos, as arrays; sequences stay lists."""
    return [
        onnx.numpy_helper.to_array(v)
        if isinstance(v, onnx.TensorProto)
        else v
        if isinstance(v, list) or v is None
        else np.asarray(v)
        for v in values
    ]


def _bytes_of(array: Any) -> Any:
    """Numbers of 2 to 8 bits as models take and give them; other values as they are."""
    kind = STORED.get(str(getattr(array, "dtype", "")))
    if kind is None:
        return array
    return array.astype(kind) if "int" in str(array.dtype) else array.view(kind)


def _check_equal(got: np.ndarray, want: np.ndarray, rtol: float, atol: float) -> None:
    if str(want.dtype) in STORED:
        kind, stored = want.dtype, _bytes_of(want)
        assert got.dtype == stored.dtype, f"type {got.dtype} instead of {stored.dtype} for {kind}"
        if "float" in str(kind):  # there are several NaN
            got, want = got.view(kind).astype("float32"), want.astype("float32")
        else:
            want = stored
    assert got.dtype == want.dtype, f"type {got.dtype} instead of {want.dtype}"
    assert got.shape == want.shape, f"shape {got.shape} instead of {want.shape}"
    # The expected values were rounded in another order: some units in the last place may differ.
    rtol = max(rtol, {"float16": 4 / 2**10, "bfloat16": 4 / 2**7}.get(want.dtype.name, 0))
    if want.dtype.name == "bfloat16":
        got, want = got.astype("float32"), want.astype("float32")
    if want.dtype.name == "float32":  # sums of numbers of both signs end near zero
        atol = max(atol, 4 * float(np.finfo("float32").eps * np.abs(want).max(initial=0)))
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)


def run_batches(names: Sequence[str], workers: int) -> dict[str, str]:
    """Verdicts by name, from ``workers`` processes at a time."""
    count = max(workers, 1)
    with ThreadPoolExecutor(count) as pool:
        parts = pool.map(run_batch, [list(names[i::count]) for i in range(count)])
    return {name: text for part in parts for name, text in part.items()}


def run_batch(names: Sequence[str]) -> dict[str, str]:
    """Run ``names`` in a process of their own; after a crash go on with the next case."""
    verdicts: dict[str, str] = {}
    while left := [name for name in names if name not in verdicts]:
        command = [sys.executable, "-W", "ignore", __file__, "--worker"]
        done = subprocess.run(
            command, input="\n".join(left), text=True, capture_output=True, check=False
        )
        lines = [line.split("\t", 1) for line in done.stdout.splitlines() if "\t" in line]
        verdicts.update({name: text for name, text in lines if name in left})
        if missing := [name for name in left if name not in verdicts]:
            verdicts[missing[0]] = f"CRASHED: exit status {done.returncode}"
    return verdicts


def _work() -> None:
    """Read names from stdin, write one verdict per line to stdout."""
    names = sys.stdin.read().split()
    known = cases_of(names)
    for name in names:
        print(f"{name}\t{verdict(known[name])}", flush=True)


def read_listing() -> dict[str, str]:
    """The checked-in verdicts."""
    lines = LISTING.read_text().splitlines() if LISTING.exists() else []
    return dict(line.split(" -> ", 1) for line in lines)


def listing_lines(verdicts: dict[str, str]) -> Iterator[str]:
    """The lines of the checked-in file."""
    for name in sorted(verdicts):
        yield f"{name} -> {verdicts[name]}\n"


def main() -> None:
    """Entry point of a worker, or of an update of the listing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", action="store_true")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("pattern", nargs="?", default="")
    args = parser.parse_args()
    if args.worker:
        _work()
        return
    verdicts = run_batches([name for name in cases() if args.pattern in name], args.jobs)
    if args.update:
        LISTING.write_text("".join(listing_lines(read_listing() | verdicts)))
    else:
        sys.stdout.writelines(listing_lines(verdicts))


if __name__ == "__main__":
    main()
