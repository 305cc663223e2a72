"""Nothing falls back on an OpenCL device: told from the graph, and from a run of it."""

from __future__ import annotations

import pytest
from tvm_stretch.targets.opencl_device import local_device

import tvm_stretch as ts
from tvm_stretch import zoo
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.splits import RowSplit

PLAN = Plan(
    ("cpu", "opencl"),
    (),
    shares={f"conv_{i}": (32, 32) for i in (2, 3, 5, 6)},
    splits=(RowSplit("concat_3", "concat_5", (2, 1)),),
)


@pytest.mark.skipif(local_device() is None, reason="no OpenCL device")
def test_shares_and_rows_run_where_they_are_planned() -> None:
    network = zoo.build("squeezenet1_1", size=64)
    model = ts.compile(network, ["llvm", "opencl"], plan=PLAN)
    execution, traced = model.plan.execution, model.timeline(repeat=1).execution
    assert execution is not None and execution.strays == () and traced == execution
    assert set(model.plan.processor_of().values()) == {"cpu", "opencl"}
    assert f"0 of {execution.operators} operators fell back" in model.plan.explain()
