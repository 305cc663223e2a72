"""Types of the commands' arguments: text to values. Nothing here imports TVM or NumPy."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def target(text: str) -> str | dict[str, Any]:
    """A processor: a name, or a TVM target as JSON."""
    if not text.startswith("{"):
        return text
    try:
        return dict(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"expected a target as JSON, got {text[:80]!r}") from error


def shape(text: str) -> tuple[str, tuple[int, ...]]:
    """``x=1,3,224,224``."""
    name, _, sizes = text.rpartition("=")
    try:
        return name, tuple(int(size) for size in sizes.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"expected INPUT=1,3,224,224 or the like, got {text!r}"
        ) from error


def share(text: str) -> tuple[str, float]:
    """``opencl=0.7``."""
    name, _, share = text.rpartition("=")
    try:
        return name, float(share)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"expected opencl=0.7 or the like, got {text!r}"
        ) from error


def named_file(text: str) -> tuple[str, Path]:
    """``x=picture.npy``, or a file alone."""
    name, _, path = text.rpartition("=")
    return name, Path(path)


def named_network(text: str) -> tuple[str, str]:
    """``R-50=resnet50.onnx``."""
    name, found, path = text.partition("=")
    if not (name and found and path):
        raise argparse.ArgumentTypeError(f"expected R-50=resnet50.onnx or the like, got {text!r}")
    return name, path


def positive(text: str) -> int:
    """A number of runs."""
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text!r}")
    return int(text)
