"""Which processor runs which operator, and when: ``Problem`` in, ``Result`` out.

    >>> problem = Problem(("cpu", "gpu"), operators, tensors, transfers)
    >>> result = schedule(problem)
    >>> result.makespan, result.lower_bound, result.placement

Every scheduler has this signature; ``SCHEDULERS`` names them all.
"""

from __future__ import annotations

from tvm_stretch.scheduling.anneal import schedule
from tvm_stretch.scheduling.bounds import lower_bound
from tvm_stretch.scheduling.check import check_schedule
from tvm_stretch.scheduling.exhaustive import schedule_exhaustive
from tvm_stretch.scheduling.heft import schedule_heft
from tvm_stretch.scheduling.hope import schedule_hope_gs, schedule_hope_lp, schedule_ilp
from tvm_stretch.scheduling.mosaic import schedule_mosaic
from tvm_stretch.scheduling.problem import (
    FREE,
    Operator,
    Problem,
    Tensor,
    TransferCost,
    linear_transfer,
)
from tvm_stretch.scheduling.result import Result, Scheduler
from tvm_stretch.scheduling.simulate import Timeline, run_sequence, simulate
from tvm_stretch.scheduling.single import schedule_single, single_processor
from tvm_stretch.scheduling.split import schedule_codl, schedule_mulayer
from tvm_stretch.scheduling.starpu import schedule_starpu

__all__ = [
    "FREE",
    "SCHEDULERS",
    "Operator",
    "Problem",
    "Result",
    "Scheduler",
    "Tensor",
    "Timeline",
    "TransferCost",
    "check_schedule",
    "linear_transfer",
    "lower_bound",
    "run_sequence",
    "schedule",
    "schedule_codl",
    "schedule_exhaustive",
    "schedule_heft",
    "schedule_hope_gs",
    "schedule_hope_lp",
    "schedule_ilp",
    "schedule_mosaic",
    "schedule_mulayer",
    "schedule_single",
    "schedule_starpu",
    "simulate",
    "single_processor",
]

# Any graph; the exhaustive scheduler and the program of the whole graph are for small ones only.
SCHEDULERS: dict[str, Scheduler] = {
    "single": schedule_single,
    "MOSAIC": schedule_mosaic,
    "StarPU": schedule_starpu,
    "HEFT": schedule_heft,
    "µLayer": schedule_mulayer,
    "CoDL": schedule_codl,
    "HOPE:GS": schedule_hope_gs,
    "HOPE:LP": schedule_hope_lp,
    "ours": schedule,
}
