"""The table of operators: its rows are operators that exist."""

from __future__ import annotations

import pytest
import tvm

from tvm_stretch.network import integer_kernels, operators
from tvm_stretch.network.emitting import blocked_values, scale_operators
from tvm_stretch.network.properties import padding_rules
from tvm_stretch.passes import channels_first, form_integers, frames_as_images

COLUMNS = {
    "layout": operators.LAYOUT,
    "padding": operators.PADDING,
    "integer": operators.INTEGER,
    "scaled": operators.SCALED,
    "channels first": channels_first._RULES,
    "frames": frames_as_images._RULES,
}
FILLED_BY = (blocked_values, scale_operators, padding_rules, form_integers)
OF_OURS = {"TupleGetItem", "running.sum", "running.product"}


@pytest.mark.parametrize("name", COLUMNS)
def test_rows_are_operators(name: str) -> None:
    assert COLUMNS[name]
    for kind in COLUMNS[name]:
        integer = kind.removeprefix("integer.")
        if integer != kind:
            assert integer in integer_kernels._MEANINGS
        elif kind not in OF_OURS:
            tvm.ir.Op.get(f"relax.{kind}")


def test_a_function_stands_in_all_its_rows() -> None:
    column = operators.Column()

    @column("nn.relu", "nn.silu")
    def rule() -> None:
        """A rule."""

    assert column == {"nn.relu": rule, "nn.silu": rule}
