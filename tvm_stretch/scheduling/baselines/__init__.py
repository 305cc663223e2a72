"""Published schedulers, for comparison and as starting points of `tvm_stretch.scheduling.anneal`.

No compilation imports them; `ilp.py` needs SciPy.
"""

from __future__ import annotations

from tvm_stretch.scheduling.baselines.exhaustive import schedule_exhaustive
from tvm_stretch.scheduling.baselines.hope import schedule_hope_gs, schedule_hope_lp, schedule_ilp
from tvm_stretch.scheduling.baselines.mosaic import schedule_mosaic
from tvm_stretch.scheduling.baselines.single import schedule_single
from tvm_stretch.scheduling.baselines.split import schedule_codl, schedule_mulayer
from tvm_stretch.scheduling.baselines.starpu import schedule_starpu
from tvm_stretch.scheduling.heft import schedule_heft
from tvm_stretch.scheduling.result import Scheduler

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
