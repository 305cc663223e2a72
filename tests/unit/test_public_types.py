"""Type checkers of users see types: the package says that it is typed, and `Any` stands nowhere."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import tvm_stretch as ts

DYNAMIC = {
    "ts.Device.call": "a function of the device returns whatever it returns",
    "ts.results.Stretching.compile_untrained": "options of `compile` pass through",
    "ts.training.TrainableNetwork.forward": "torch decides",
    "ts.training.TrainableNetwork.compute": "torch decides",
    "ts.training.TrainableNetwork.bound": "torch decides",
}
"""What has no better type, and why. Answers of models are `Answer` (`run/values.py`)."""


def functions(name: str, value: object) -> Iterator[tuple[str, object]]:
    """The functions behind a public name: itself, or the public methods of a class."""
    if inspect.ismodule(value):
        for own in getattr(value, "__all__", vars(value)):
            if not own.startswith("_"):
                yield from functions(f"{name}.{own}", getattr(value, own))
    elif inspect.isclass(value):
        for own, member in inspect.getmembers(value):
            if own in ("__init__", "__call__") or not own.startswith("_"):
                found = member.fget if isinstance(member, property) else member
                yield f"{name}.{own}", inspect.unwrap(found) if callable(found) else None
    elif callable(value):
        yield name, inspect.unwrap(value)


def dynamic() -> set[str]:
    """Public functions of ours whose signature says `Any`."""
    found = set()
    for name in ts.__all__:
        for where, function in functions(f"ts.{name}", getattr(ts, name)):
            annotations = getattr(function, "__annotations__", {}).values()
            ours = str(getattr(function, "__module__", "")).startswith("tvm_stretch")
            if ours and any(re.search(r"\bAny\b", str(text)) for text in annotations):
                found.add(where)
    return found


def test_no_public_signature_says_any() -> None:
    assert dynamic() == set(DYNAMIC)


def test_the_package_says_that_it_is_typed() -> None:
    assert Path(ts.__file__).with_name("py.typed").is_file()
