"""Fuzzes a reader of the package with atheris, which libFuzzer drives.

    python tests/fuzz/fuzz_readers.py onnx CORPUS -max_total_time=60

Readers: onnx, tflite, pt2, plan, design, profile. An input is read, or refused by one error of
ours. Anything else is a finding: another error, no end, more memory than libFuzzer's limit.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["tvm_stretch"]):
    import tvm_stretch as ts
    from tvm_stretch.cost.profile_file import parse_profile
    from tvm_stretch.frontend import load_network
    from tvm_stretch.frontend.torch_archive import safe_archive
    from tvm_stretch.plan.design import Design
    from tvm_stretch.plan.plan import Plan

_FOLDER = Path(tempfile.mkdtemp(prefix="fuzz."))


def _archive(content: bytes) -> None:
    path = _FOLDER / "net.pt2"
    path.write_bytes(content)
    safe_archive(path)


def _plan(content: bytes) -> None:
    path = _FOLDER / "plan.json"
    path.write_bytes(content)
    plan = Plan.read(path)
    plan.explain()
    if Plan.read(json.loads(plan.to_json())) != plan:
        raise AssertionError("the plan is another one once it is written and read")


def _design(content: bytes) -> None:
    path = _FOLDER / "design.json"
    path.write_bytes(content)
    found = Design.read(path)
    if Design.read(found.to_data()) != found:
        raise AssertionError("the design is another one once it is written and read")


READERS: dict[str, Callable[[bytes], object]] = {
    "onnx": load_network,
    "tflite": lambda content: load_network(content[:4] + b"TFL3" + content[8:]),
    "pt2": _archive,
    "plan": _plan,
    "design": _design,
    "profile": lambda content: parse_profile(content.decode("utf-8", "replace")),
}


def _take(read: Callable[[bytes], object], content: bytes) -> None:
    try:
        read(content)
    except ts.StretchError as error:
        if "expected " not in str(error):
            raise


def main() -> None:
    """Fuzz the reader that is named first."""
    name = sys.argv.pop(1)
    warnings.simplefilter("ignore")
    atheris.Setup(sys.argv, lambda content: _take(READERS[name], content))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
