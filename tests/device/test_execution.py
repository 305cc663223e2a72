"""Nothing falls back on an OpenCL device: told from the graph, and from a run of it."""

from __future__ import annotations

import pytest
import tvm
from helpers.cpu_targets import TARGET
from helpers.relax_helpers import module, random_const
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.splits import RowSplit
from tvm_stretch.targets.opencl.opencl import local_device

SIZE = (1, 8, 12, 12)
PLAN = Plan(
    ("cpu", "opencl"),
    (),
    shares={"conv2d": (16, 16)},
    splits=(RowSplit("relu", "relu2", (2, 1)),),
)


def network() -> tvm.IRModule:
    """Three convolutions, each with its ReLU."""

    def body(x: relax.Expr) -> relax.Expr:
        for seed, channels in enumerate((8, 32, 32)):
            weight = random_const(32, channels, 3, 3, seed=seed)
            x = relax.op.nn.relu(relax.op.nn.conv2d(x, weight, padding=1))
        return x

    return module(body, SIZE)


@pytest.mark.skipif(local_device() is None, reason="no OpenCL device")
def test_shares_and_rows_run_where_they_are_planned() -> None:
    model = ts.compile(network(), [TARGET, "opencl"], plan=PLAN)
    execution, traced = model.plan.execution, model.timeline(repeat=1).execution
    assert execution is not None and execution.strays == () and traced == execution
    assert set(model.plan.processor_of().values()) == {"cpu", "opencl"}
    assert f"0 of {execution.operators} operators fell back" in model.plan.explain()
