"""Random networks beside ONNX Runtime; the campaign is a command of `random_graphs.py`."""

from __future__ import annotations

import numpy as np
import pytest
import random_graphs
from random_graphs import Case


@pytest.mark.parametrize("seed", range(6))
def test_a_random_network(seed: int) -> None:
    verdict = random_graphs.check(seed)
    assert verdict["verdict"] == "right", verdict


@pytest.mark.full
@pytest.mark.parametrize("start", range(1000, 1400, 20))
@pytest.mark.parametrize("second", ["", "opencl"])
def test_many_random_networks(start: int, second: str) -> None:
    verdicts = [random_graphs.check(seed, second) for seed in range(start, start + 20)]
    assert not [found for found in verdicts if found["verdict"] not in ("right", "refused")]
    assert sum(found["verdict"] == "right" for found in verdicts) >= 15


def test_a_wrong_node_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    case = random_graphs.draw(2)
    right = random_graphs._session

    class Broken:
        """Another answer for one node."""

        def __init__(self, model: object) -> None:
            self.session = right(model)

        def run(self, names: object, feeds: object) -> list[np.ndarray]:
            return [answer + 1 for answer in self.session.run(names, feeds)]

    monkeypatch.setattr(random_graphs, "_session", Broken)
    first = next(n for n in case.graph.nodes if n.output[0] in case.graph.shapes)
    found = random_graphs.smallest(Case(case.graph, case.results, {}, (1,), False), 1, 2)
    assert found.startswith(first.op_type)
    assert random_graphs.check(2)["verdict"] == "wrong"
