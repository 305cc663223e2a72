"""Which processor runs which operator, and when: ``Problem`` in, ``Result`` out.

    >>> problem = Problem(("cpu", "gpu"), operators, tensors, transfers)
    >>> result = schedule_heft(problem)
    >>> result.makespan, result.placement

Every scheduler has this signature. A compilation runs HEFT for segments with branches, and brings
its own plans into another order where that gains (`reordered`). ``scheduler=`` asks another one
about the whole network. HOPE stands here (`hope.py`), schedulers of other papers beside the
benchmarks that compare them.
"""

from __future__ import annotations

from tvm_stretch.plan.scheduling.check import check_schedule
from tvm_stretch.plan.scheduling.heft import schedule_heft
from tvm_stretch.plan.scheduling.problem import (
    FREE,
    Job,
    Problem,
    Tensor,
    TransferCost,
    linear_transfer,
)
from tvm_stretch.plan.scheduling.result import Result, Scheduler, result_of
from tvm_stretch.plan.scheduling.simulate import Simulation, run_sequence, simulate

__all__ = [
    "FREE",
    "Job",
    "Problem",
    "Result",
    "Scheduler",
    "Simulation",
    "Tensor",
    "TransferCost",
    "check_schedule",
    "linear_transfer",
    "result_of",
    "run_sequence",
    "schedule_heft",
    "simulate",
]
