"""Schedulers that ``ts.compile(..., scheduler=)`` takes by name, for callers who write none.

hope           HOPE's linear program of each piece of the network
hope-greedy    HOPE's greedy search
heft           whole kernels by HEFT
"""

from __future__ import annotations

from typing import TypeAlias

from tvm_stretch.base.errors import InputError
from tvm_stretch.base.named_arguments import is_one_of
from tvm_stretch.plan.scheduling.heft import schedule_heft
from tvm_stretch.plan.scheduling.result import Scheduler

SchedulerLike: TypeAlias = Scheduler | str

NAMES = ("hope", "hope-greedy", "heft")


def read_scheduler(given: object) -> Scheduler:
    """The scheduler that a caller names or gives."""
    if callable(given):
        return given
    if not is_one_of(given, NAMES):
        raise InputError(
            f"expected a function from Problem to Result, or one of {', '.join(NAMES)}, for "
            f"scheduler, got {given!r:.100}; see tutorials/03_writing_a_scheduler.py"
        )
    if given == "heft":
        return schedule_heft
    from tvm_stretch.plan.scheduling import hope  # SciPy's solver is imported only for it

    return hope.schedule_hope_lp if given == "hope" else hope.schedule_hope_gs
