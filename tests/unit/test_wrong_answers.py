"""Engines that compute another network are found, and the operators that they get wrong."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tvm_stretch.plan.search.wrong_answers import find_wrong, first_wrong


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [([1, 2, np.nan], ""), ([1, 2.1, 5], ""), ([2, -1, np.nan], "141%"), ([np.nan] * 3, "nan%")],
)
def test_an_engine_that_computes_another_network(answer: list[float], wrong: str) -> None:
    """Where the CPU's answer to noise is no number, as a logarithm's, nothing is compared."""
    engine = SimpleNamespace(name="npu", code=SimpleNamespace(model=bytes))
    cpu = SimpleNamespace(name="cpu", code=SimpleNamespace(model=None))
    site: Any = SimpleNamespace(processors=[cpu, engine])
    models: Any = [
        SimpleNamespace(meters=SimpleNamespace(answer_to_noise=partial(np.array, values)))
        for values in ([1, 2, np.nan], answer)
    ]
    built: Any = [
        SimpleNamespace(plan=SimpleNamespace(processor_of=partial(dict, x=name)))
        for name in ("cpu", "npu")
    ]
    found = find_wrong(site, built, models)
    if not wrong:
        assert found is None
        return
    assert found is not None and wrong in found.said
    assert found.processor is engine


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16, 17, 100, 1000])
def test_the_first_wrong_operator_is_among_those_that_are_found(count: int) -> None:
    names = [str(number) for number in range(count)]
    for bad in {0, 1, count // 3, count // 2, count - 1} & {*range(count)}:
        asked: list[int] = []

        def is_wrong(there: list[str], bad: int = bad, asked: list[int] = asked) -> bool:
            asked.append(len(there))
            return str(bad) in there

        found = first_wrong(names, is_wrong)
        assert str(bad) in found
        assert len(asked) <= 5
        assert len(found) <= -(-count // 16)


def test_nothing_is_found_in_a_network_whose_operators_are_right() -> None:
    assert first_wrong(["a", "b"], lambda _names: False) == []
