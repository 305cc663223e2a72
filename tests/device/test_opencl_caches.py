"""Caches that a GPU writes: rows alone, in each kind of memory, in any order of runs and plans."""

from __future__ import annotations

import pytest
from helpers import fresh_process

from tvm_stretch.targets.opencl.opencl import local_device

pytestmark = pytest.mark.skipif(local_device() is None, reason="no OpenCL device")

CODE = """
import json
import numpy as np
import tvm
import tvm_stretch as ts
from helpers.caches import STATES, TARGET, ACTIONS, Beside, cache, operators, planned
from tvm_stretch.plan.plan import Plan

device, = json.loads(tvm.get_global_func("tvm_stretch.opencl_devices")())
first, last = operators()
cut = first.index("scatter_nd")
plans = {
    "alone": [("cpu", [*first, *last])],
    "two": [("cpu", first[:cut]), ("opencl", [*first[cut:], *last])],
    "reads": [("cpu", first), ("opencl", last)],
}
own = {name: Plan(("cpu", "opencl"), planned(parts)) for name, parts in plans.items()}
model = ts.compile(cache(), [TARGET, "opencl"], plans=own, states=STATES, cpu_threads=1)
assert [state.row for state in model.graph.states] == [64]

beside = Beside(model)
actions = [one for one in ACTIONS if one not in (Beside.lose_device, Beside.change_plan)]
for _ in range(STEPS):
    if beside.rng.random() < 0.3:
        model.use(str(beside.rng.choice([*plans])))
    beside.rng.choice(np.array(actions, object))(beside)
    if beside.rng.random() < 0.3:
        beside.check()
beside.step()
beside.check()
print(device["memory"])
"""


@pytest.mark.parametrize("steps", [60, pytest.param(5_000, marks=pytest.mark.full)])
@pytest.mark.parametrize("memory", ["shared", "mapped", "mirror"])
def test_a_gpu_writes_rows_alone(memory: str, steps: int) -> None:
    code = CODE.replace("STEPS", str(steps))
    assert fresh_process.run(code, TVM_STRETCH_OPENCL_MEMORY=memory) == memory
