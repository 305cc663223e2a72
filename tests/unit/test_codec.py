"""Dataclasses in attributes: what is written is read again, with the same types."""

from __future__ import annotations

from typing import Any

import pytest

from tvm_stretch.network.codec import from_text, to_text
from tvm_stretch.network.integers import Integer, Rounding
from tvm_stretch.network.provenance import Provenance
from tvm_stretch.network.states import Guard
from tvm_stretch.network.steps import Recurrence

ROUNDING = Rounding("uint8", 3, 0, 255)
VALUES: dict[str, tuple[Any, Any]] = {
    "nested": (Integer, Integer("add", ROUNDING, (1, 2), (0.5, 0.1, -3.0), (2, 1))),
    "without an optional value": (Integer, Integer("conv2d", zeros=(7,))),
    "tuples of tuples": (
        Recurrence,
        Recurrence("lstm", 3, 1, 8, (False, True), (("sigmoid", "tanh"), ("relu",))),
    ),
    "a list": (tuple[int, tuple[Guard, ...]], (2, (Guard("x", 0, (0, 1), (3, 4), "indices"),))),
    "a table": (dict[str, Provenance], {"a + b": Provenance(("a", "b"), part=1)}),
}


@pytest.mark.parametrize("name", VALUES)
def test_read_again(name: str) -> None:
    kind, value = VALUES[name]
    read = from_text(kind, to_text(value))
    assert read == value
    assert repr(read) == repr(value)  # tuples too


def test_fields_that_are_left_out_have_their_defaults() -> None:
    assert from_text(dict[str, Provenance], '{"a": {"helpers": ["b"]}}')["a"] == Provenance(
        helpers=("b",)
    )
