"""Trees are rewritten by functions that may fail, and the process lives on."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import fresh_process
from tvm import te, tirx
from tvm.ir import Call

from tvm_stretch.network.rewriting import rewrite

HERE = Path(__file__).resolve().parent
FAILING = """
import sys
sys.path[:0] = {paths}
import test_rewriting as tests
for _ in range(300):
    tests.fails_behind_a_replacement()
print("alive")
"""


def network() -> tirx.PrimFunc:
    x = te.placeholder((8, 16), name="x")
    y = te.compute(x.shape, lambda i, j: tirx.sigmoid(x[i, j]) * 0.5, name="y")
    return te.create_prim_func([x, y])


def fails_behind_a_replacement() -> None:
    def fail(_store: tirx.BufferStore) -> None:
        raise ValueError("not here")

    rules = (Call, lambda call: call.args[0] * 2.0), (tirx.BufferStore, fail)
    with pytest.raises(ValueError, match="not here"):
        rewrite(network().body, *rules)


def test_rules_of_several_kinds() -> None:
    seen: list[str] = []

    def store(found: tirx.BufferStore) -> tirx.BufferStore:
        seen.append(str(found.value))
        return found

    body = rewrite(network().body, (Call, lambda call: call.args[0]), (tirx.BufferStore, store))
    assert len(seen) == 1 and "sigmoid" not in seen[0]
    assert "sigmoid" not in str(body)


def test_what_a_rule_raises_leaves_the_heap_whole() -> None:
    paths = [str(HERE), str(HERE.parent)]
    assert fresh_process.run(FAILING.format(paths=paths)).strip() == "alive"


def test_ctrl_c_in_a_rule() -> None:
    def pressed(_call: Call) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rewrite(network().body, (Call, pressed))
