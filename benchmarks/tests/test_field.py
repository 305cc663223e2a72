"""Field tests: how lines of the tables are read, and when an answer counts as different."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from benchmarks.field import cells, compared, families, main
from benchmarks.harness import difference
from benchmarks.one_node import model_of, operators


def test_a_line_is_a_model_of_one_node_with_its_inputs() -> None:
    (operator,) = operators("Clip  f16:2x3~0,9 =f16:(1) -  \n")
    made = model_of(operator)
    (node,) = onnx.load_from_string(made.onnx).graph.node
    assert list(node.input) == ["x0", "x1", ""]
    assert list(made.inputs) == ["x0"]
    assert made.inputs["x0"].dtype == "float16" and made.inputs["x0"].ctypes.data % 64 == 0
    np.testing.assert_array_equal(made.expected[0], np.maximum(made.inputs["x0"], 1))


def test_outputs_come_from_the_schema_and_inputs_are_the_same_each_time() -> None:
    (operator,) = operators("TopK  1x100 =[5]  axis=1")
    one, other = model_of(operator), model_of(operator)
    np.testing.assert_array_equal(one.inputs["x0"], other.inputs["x0"])
    values, places = one.expected
    assert (values.shape, places.dtype) == ((1, 5), np.int64)


def test_every_line_can_be_read() -> None:
    assert len(families()) == 9
    for table in families().values():
        for operator in operators(table):
            assert operator.operands, operator


@pytest.mark.parametrize(
    ("got", "want", "expected"),
    [
        ([1.0, np.nan], [1.0, np.nan], 0.0),
        ([1.0, 4.5], [1.0, 5.0], 0.1),
        ([1.0, np.nan], [1.0, 5.0], np.inf),
        ([1.0], [1.0, 5.0], np.inf),
    ],
)
def test_difference(got: list[float], want: list[float], expected: float) -> None:
    assert difference(np.array(got), [np.array(want)]) == pytest.approx(expected)


def test_integers_differ_by_steps() -> None:
    assert difference(np.array([3], "uint8"), [np.array([5], "uint8")]) == 2
    assert difference(np.array([3], "int8"), [np.array([3], "uint8")]) == np.inf


def test_rows_mark_slow_and_different_answers() -> None:
    assert cells("1", 0.0, 2.0, 3.0, 1.5) == ["2.0", "3.0", "**1.50**"]
    assert cells("1", 2e-3, 2.0, 1.0, 0.5)[-1] == "0.50 (differs: 2.0e-03)"
    assert cells("f16:1", 2e-3, 2.0, 1.0, 0.5)[-1] == "0.50"


def test_times_are_those_of_one_run_however_often_it_is_repeated() -> None:
    (operator,) = operators("Add  128x768 =768")
    error, theirs, ours, ratio = compared(model_of(operator), 5)
    assert error == 0 and 0.1 < ratio / (ours / theirs) < 10


def test_the_command_prints_a_row(capsys: pytest.CaptureFixture) -> None:
    main(["Squeeze", "--turns", "1"])
    assert "| Squeeze | 1x1280x1x1 =[2,3] |" in capsys.readouterr().out
