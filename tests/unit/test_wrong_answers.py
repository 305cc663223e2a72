"""Engines that compute another network are found, and the operators that they get wrong."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.relax_helpers import module
from tvm import relax

from tvm_stretch.plan.search import wrong_answers
from tvm_stretch.plan.search.site import Site
from tvm_stretch.plan.search.wrong_answers import WrongAnswer, doubted, find_wrong, first_wrong
from tvm_stretch.read.load import load_network


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
    wrong_answer = find_wrong(site, built, models)
    if not wrong:
        assert wrong_answer is None
        return
    assert wrong_answer is not None and wrong in wrong_answer.message
    assert wrong_answer.processor is engine


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16, 17, 100, 1000])
def test_the_first_wrong_operator_is_among_those_that_are_found(count: int) -> None:
    names = [str(number) for number in range(count)]
    for bad in {0, 1, count // 3, count // 2, count - 1} & {*range(count)}:
        asked: list[int] = []

        def is_wrong(there: list[str], bad: int = bad, asked: list[int] = asked) -> bool:
            asked.append(len(there))
            return str(bad) in there

        suspects = first_wrong(names, is_wrong)
        assert str(bad) in suspects
        assert len(asked) <= 5
        assert len(suspects) <= -(-count // 16)


def test_nothing_is_found_in_a_network_whose_operators_are_right() -> None:
    assert first_wrong(["a", "b"], lambda _names: False) == []


def test_the_operator_then_its_kind_then_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[list[str]] = []

    def body(x: relax.Expr) -> relax.Expr:
        return relax.op.exp(relax.op.nn.relu(relax.op.exp(x)))

    mod = load_network(module(body, (2, 3)))

    def distrust(doubtful: Sequence[relax.Call], _reason: str) -> None:
        refused.append([str(call.op) for call in doubtful])

    operators = SimpleNamespace(distrust=distrust)
    engine: Any = SimpleNamespace(name="npu", operators=operators, why_not=lambda _call: None)
    job: Any = SimpleNamespace(mod=mod)
    site = Site([engine], [engine])
    monkeypatch.setattr(wrong_answers, "first_wrong", lambda able, _is_wrong: [able[0]])
    wrong = WrongAnswer(engine, np.zeros(1), "expected other answers")
    for round_number in range(3):
        site = doubted(job, site, wrong).site
        assert len(refused) == min(round_number + 1, 2)
        assert [p.name for p in site.placeable] == (["npu"] if round_number < 2 else [])
    assert [len(one) for one in refused] == [1, 2]
    assert refused[0][0] == refused[1][0] == refused[1][1]
