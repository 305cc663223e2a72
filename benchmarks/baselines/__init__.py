"""Published schedulers, for comparison and as starting points of `benchmarks.baselines.anneal`.

HOPE is part of the package (`tvm_stretch/plan/scheduling/hope.py`); ``ts.compile(..., scheduler=)``
takes each of the others as a function.
"""

from __future__ import annotations

from benchmarks.baselines.mosaic import schedule_mosaic
from benchmarks.baselines.simple import schedule_exhaustive, schedule_single
from benchmarks.baselines.split import schedule_codl, schedule_mulayer
from benchmarks.baselines.starpu import schedule_starpu
from tvm_stretch.plan.scheduling.heft import schedule_heft
from tvm_stretch.plan.scheduling.hope import schedule_hope_gs, schedule_hope_lp, schedule_ilp
from tvm_stretch.plan.scheduling.result import Scheduler

__all__ = [
    "BASELINES",
    "schedule_codl",
    "schedule_exhaustive",
    "schedule_hope_gs",
    "schedule_hope_lp",
    "schedule_ilp",
    "schedule_mosaic",
    "schedule_mulayer",
    "schedule_single",
    "schedule_starpu",
]

# These take any graph; the exhaustive scheduler and the program of the whole graph take small ones.
BASELINES: dict[str, Scheduler] = {
    "single": schedule_single,
    "MOSAIC": schedule_mosaic,
    "StarPU": schedule_starpu,
    "HEFT": schedule_heft,
    "µLayer": schedule_mulayer,
    "CoDL": schedule_codl,
    "HOPE:GS": schedule_hope_gs,
    "HOPE:LP": schedule_hope_lp,
}
