"""Values of the command's arguments: what a text stands for."""

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


def shape(text: str) -> tuple[str, tuple[int | str, ...]]:
    """``x=1,3,224,224``, or ``tokens=1,n`` with a name for a dimension of ``--length``."""
    name, _, sizes = text.rpartition("=")
    numbers = tuple(size if size.isidentifier() else _integer(size) for size in sizes.split(","))
    if not name or None in numbers:
        raise argparse.ArgumentTypeError(f"expected INPUT=1,3,224,224 or the like, got {text!r}")
    return name, tuple(size for size in numbers if size is not None)


def length(text: str) -> tuple[str, tuple[int, ...] | slice]:
    """``n=64,128``, or ``n=1..512`` for any size in between, as a slice."""
    name, _, sizes = text.rpartition("=")
    first, any_size, last = sizes.partition("..")
    numbers = tuple(map(_integer, (first, last) if any_size else sizes.split(",")))
    lengths = tuple(number for number in numbers if number is not None)
    if not name or len(lengths) < len(numbers):
        raise argparse.ArgumentTypeError(f"expected n=64,128 or n=1..512, got {text!r}")
    return name, slice(*lengths) if any_size else lengths


def _integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


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
    name, equals, path = text.rpartition("=")
    if not path or (equals and not name):
        raise argparse.ArgumentTypeError(f"expected x.npy or INPUT=x.npy, got {text!r}")
    return name, Path(path)


def named_network(text: str) -> tuple[str, str]:
    """``R-50=resnet50.onnx``."""
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"expected R-50=resnet50.onnx or the like, got {text!r}")
    return name, path


def two_numbers(text: str) -> tuple[int, int]:
    """``128,64``."""
    one, _, other = text.partition(",")
    return positive(one), positive(other)


def positive(text: str) -> int:
    """A number of runs."""
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text!r}")
    return int(text)
