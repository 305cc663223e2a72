"""Fills in what docstrings leave to another one: readers of a page do not look it up.

    targets: as for `compile`; by default all of them.
    ->  targets: processors, such as ``"opencl"``; by default all of them.

mkdocstrings loads it as an extension of griffe (`mkdocs.yml`).
"""

from __future__ import annotations

import contextlib
import inspect
import re
from typing import Any

import griffe

import tvm_stretch as ts

_REFERENCE = re.compile(r"as for `{1,2}(?:\w+\.)*(\w+)`{1,2}")
_FIELD = re.compile(r"^ {4}(\w+): ((?:.*\n?)(?: {6,}.*\n?|\n(?= {6}))*)", re.MULTILINE)


def fields(docstring: str) -> dict[str, str]:
    """The descriptions of arguments and attributes, each in one line without its full stop."""
    found = _FIELD.findall(inspect.cleandoc(docstring))
    return {name: " ".join(text.split()).removesuffix(".") for name, text in found}


def filled(docstring: str) -> str:
    """The docstring, in whose fields the descriptions of other functions stand."""

    def field(match: re.Match[str]) -> str:
        name = match[1]
        if not _REFERENCE.search(match[2]):
            return match[0]
        text = _REFERENCE.sub(lambda other: described(other[1], name), " ".join(match[2].split()))
        return f"    {name}: {text}\n"

    return _FIELD.sub(field, inspect.cleandoc(docstring))


def described(function: str, name: str) -> str:
    """How a public function describes an argument."""
    places = (ts, ts.tune, ts.training, ts.stretching, ts.Model)
    value = next(getattr(place, function) for place in places if hasattr(place, function))
    known = fields(filled(inspect.getdoc(value) or ""))
    if name not in known:
        raise KeyError(f"expected an argument {name!r} of {function}, got {', '.join(known)}")
    return known[name]


class FillIn(griffe.Extension):  # type: ignore[misc]
    """Fills in the docstrings of what pages show; those of private functions have other names."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Replace the docstring of an object that was read."""
        if obj.docstring is not None and _REFERENCE.search(obj.docstring.value):
            with contextlib.suppress(LookupError, StopIteration):
                obj.docstring.value = filled(obj.docstring.value)
