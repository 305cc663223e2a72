"""The readers of files of others that are fuzzed, and what a reader may do with any input."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import tvm_stretch as ts
from tvm_stretch.plan.cost.profile_file import parse_profile
from tvm_stretch.plan.design import Design
from tvm_stretch.plan.plan import Plan
from tvm_stretch.read import load_network

_FOLDER = Path(tempfile.mkdtemp(prefix="fuzz."))


def _archive(content: bytes) -> None:
    path = _FOLDER / "net.pt2"
    path.write_bytes(content)
    load_network(path)


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


def _language(content: bytes) -> None:
    """The input is the head of a file; zeros stand for its weights: mutations hit the head."""
    path = _FOLDER / "net.gguf"
    path.write_bytes(content)
    os.truncate(path, len(content) + (2 << 20))
    ts.read_gguf(path, places=4)


READERS: dict[str, Callable[[bytes], object]] = {
    "onnx": load_network,
    "tflite": lambda content: load_network(content[:4] + b"TFL3" + content[8:]),
    "pt2": _archive,
    "gguf": _language,
    "plan": _plan,
    "design": _design,
    "profile": lambda content: parse_profile(content.decode("utf-8", "replace")),
}


def take(name: str, content: bytes) -> None:
    """Read it, or refuse it by an error of ours."""
    try:
        READERS[name](content)
    except ts.StretchError as error:
        if "expected " not in str(error):
            raise
