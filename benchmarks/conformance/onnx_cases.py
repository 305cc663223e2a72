"""ONNX's own cases: nodes, simple and pytorch-* models, and light models.

Verdicts are those of `tests/device/onnx_node_cases.py`: `make test-full` compares them with a list.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import onnx

from benchmarks.conformance.torch_cases import Verdict

_KINDS = ("simple", "pytorch-converted", "pytorch-operator")
_CASES = 20
"""Node cases of a group."""


def groups() -> list[str]:
    """Groups of cases whose names are neighbours."""
    nodes = sorted(_node_cases().cases())
    return [
        *(f"node {begin}" for begin in range(0, len(nodes), _CASES)),
        *_KINDS,
        *(f"light {path.stem}" for path in _light()),
    ]


def judge(group: str, target: str, most: int, singly: bool, done: set[str]) -> Iterator[Verdict]:
    """The verdicts on a group of cases."""
    yield "", "scope", "in"
    for place, (name, case) in enumerate(_cases_of(group)):
        if name in done or (most and place >= most):
            continue
        yield name, "begins", ""
        text = _node_cases().verdict(case, target)
        word, _, detail = text.partition(": ")
        kind = {"ok": "right", "ok if constant": "right", "refused": "refused"}.get(word, "wrong")
        error = re.match(r"(\w*Error) ", detail)
        yield name, "raw" if kind == "wrong" and error else kind, detail


def _cases_of(group: str) -> list[tuple[str, Any]]:
    from onnx.backend.test.loader import load_model_tests

    if group.startswith("node "):
        known, begin = _node_cases().cases(), int(group.split()[1])
        return [(name, known[name]) for name in sorted(known)[begin : begin + _CASES]]
    if group.startswith("light "):
        return [(path.stem, _light_case(path)) for path in _light() if path.stem in group.split()]
    found = sorted(load_model_tests(kind=group), key=lambda case: case.name)
    return [(case.name, _read(case)) for case in found]


@cache
def _node_cases() -> Any:
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
    from device import onnx_node_cases

    return onnx_node_cases


def _light() -> list[Path]:
    import onnx.backend.test

    return sorted((Path(onnx.backend.test.__file__).parent / "data" / "light").glob("*.onnx"))


def _read(case: Any) -> Any:
    """The case with its model and data."""
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    sets = []
    for data in sorted(folder.glob("test_data_set_*")):
        inputs = [data / f"input_{i}.pb" for i in range(len([*data.glob("input_*.pb")]))]
        outputs = [data / f"output_{i}.pb" for i in range(len([*data.glob("output_*.pb")]))]
        kinds = [value.type for value in (*model.graph.input, *model.graph.output)]
        values = [_value(p, k) for p, k in zip((*inputs, *outputs), kinds, strict=False)]
        sets.append((values[: len(inputs)], values[len(inputs) :]))
    return replace(case, model=model, data_sets=sets)


def _value(path: Path, kind: onnx.TypeProto) -> Any:
    if kind.WhichOneof("value") != "sequence_type":
        return onnx.TensorProto.FromString(path.read_bytes())
    return onnx.numpy_helper.to_list(onnx.SequenceProto.FromString(path.read_bytes()))


def _light_case(path: Path) -> Any:
    """ONNX's runner feeds these networks with numbers of its own rule, `arange` scaled."""
    import numpy as np
    from onnx.backend.test.case.test_case import TestCase

    model = onnx.load(path)
    weights = {w.name for w in model.graph.initializer}
    weights |= {name for node in model.graph.node for name in node.output}  # listed as inputs, too
    fed = [value for value in model.graph.input if value.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(fed)
    inputs = []
    for value in fed:
        shape = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
        count = int(np.prod(shape))
        inputs.append((np.arange(count, dtype="float32") / count).reshape(shape))
    output = onnx.TensorProto.FromString(Path(f"{path.with_suffix('')}_output_0.pb").read_bytes())
    return TestCase(
        path.stem, path.stem, None, None, model, [(inputs, [output])], "light", 1e-3, 1e-7
    )
