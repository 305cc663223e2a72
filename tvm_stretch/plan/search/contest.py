"""Finds the fastest of several models of one network on this machine, and does no harm.

The models run in turns, so a change of the machine's speed affects all of them. A challenger wins
if the median of the ratios of all rounds is below 1, and so is their confidence interval. Otherwise
the first model stays.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from tvm_stretch.base.errors import StretchError
from tvm_stretch.base.progress import count, step
from tvm_stretch.plan.search.objective import Objective
from tvm_stretch.run.model import Model
from tvm_stretch.run.timeline import Timeline

_ROUNDS = 15
_FEWEST = 6
"""Enough where each challenger wins or loses clearly, in all of them."""
_WARM_UP = 3
_PATIENCE = 4
"""On a disturbed machine there are up to this many times as many rounds."""

_TRACED = 5
"""Runs of each plan."""

_PROMISING = 0.95
"""A challenger that seems to need less than this of the first's time is worth being sure of."""

_CALM = 1.25
"""Ratios of models that nothing disturbs lie closer together than this."""


class MeasureError(StretchError):
    """A model failed while it was measured: a device was lost, or its driver is gone."""


@contextlib.contextmanager
def _measuring() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError) as error:  # errors of TVM, and ours
        lines = str(error).strip().splitlines() or [repr(error)]
        raise MeasureError(lines[-1]) from error


@dataclass(frozen=True)
class Outcome:
    """The comparison of one model with the first."""

    seconds: float  # median latency
    ratio: float  # median of its latency to the first model's, round by round
    low: float  # lower end of the ratio's 95 % confidence interval
    high: float  # upper end


def compare(models: Sequence[Model], rounds: int = _ROUNDS) -> list[Outcome]:
    """Latencies of the models, measured in turns on the same kind of random input.

    Args:
        models: the others have to beat the first one.
        rounds: the most rounds; fewer if the result is clear before.

    Raises:
        MeasureError: a model failed.
    """
    samples: list[list[float]] = [[] for _ in models]
    with _measuring():
        runs = [model.timed_run() for model in models]
        for run in runs:
            for _ in range(_WARM_UP):
                step()
                run()
        for _ in range(_PATIENCE):
            for _ in range(rounds):
                count("round", len(samples[0]) + 1, _PATIENCE * rounds)
                _take_turns(runs, samples)
                outcomes = [_outcome(latencies, samples[0]) for latencies in samples]
                if len(samples[0]) >= _FEWEST and all(map(_clear, outcomes[1:])):
                    return outcomes
            if _settled(outcomes):
                break
    return outcomes


def _take_turns(runs: Sequence[Callable[[], float]], samples: Sequence[list[float]]) -> None:
    """One round: each model once."""
    for run, latencies in zip(runs, samples, strict=True):
        step()
        run()  # another model has filled the caches
        latencies.append(run())


def _undecided(outcome: Outcome) -> bool:
    """Whether a model seems faster, but its confidence interval includes 1."""
    return outcome.ratio < _PROMISING and outcome.high >= 1


def _clear(outcome: Outcome) -> bool:
    """Whether the confidence interval shows that a model is clearly faster, or slower."""
    return outcome.high < _PROMISING or outcome.low > 1


def _settled(outcomes: Sequence[Outcome]) -> bool:
    """Whether more rounds would hardly change the winner."""
    return not any(map(_undecided, outcomes))


def is_lasting(outcomes: Sequence[Outcome]) -> bool:
    """Whether another contest would have the same winner: nothing disturbed this one."""
    return _settled(outcomes) and all(o.high < _CALM * o.low for o in outcomes)


def trace(model: Model, count: int) -> list[Timeline]:
    """Timelines of several runs.

    Raises:
        MeasureError: the model failed.
    """
    with _measuring():
        return [model.timeline() for _ in range(count)]


def _outcome(latencies: Sequence[float], first: Sequence[float]) -> Outcome:
    ratios = sorted(a / b for a, b in zip(latencies, first, strict=True))
    # Distribution-free interval of the median: order statistics around the middle.
    reach = math.ceil(0.98 * math.sqrt(len(ratios)))
    middle = len(ratios) // 2
    low, high = max(0, middle - reach), min(len(ratios) - 1, middle + reach)
    return Outcome(median(latencies), median(ratios), ratios[low], ratios[high])


def winner(outcomes: Sequence[Outcome]) -> int:
    """The fastest model that beats the first beyond doubt, or the first."""
    beating = [i for i, outcome in enumerate(outcomes) if i and outcome.high < 1]
    return min(beating, key=lambda i: outcomes[i].ratio, default=0)


@dataclass(frozen=True)
class Usual:
    """An undisturbed run of a plan."""

    seconds: float = 0.0  # 0 if unknown
    work_ns: tuple[int, ...] = ()  # of each region, without waits
    watts: float = 0.0  # 0 if unknown


def usual_runs(model: Model, arena: Callable[[Model], Model], objective: Objective) -> list[Usual]:
    """What each plan of a model takes at present, and its regions; watts if energy counts.

    Raises:
        MeasureError: a plan failed while it was measured.
        MeterError: energy counts, and no meter is usable.
    """
    pinned = list(_pinned(arena(model)))
    seconds = [outcome.seconds for outcome in compare(pinned)]
    costs = objective.measure(pinned, seconds)
    return [
        Usual(taken, _work_of(trace(one, _TRACED)), (cost.millijoules or 0.0) / 1e3 / taken)
        for one, taken, cost in zip(pinned, seconds, costs, strict=True)
    ]


def _work_of(timelines: Sequence[Timeline]) -> tuple[int, ...]:
    runs = zip(*(timeline.regions for timeline in timelines), strict=True)
    return tuple(
        round(median(sum(span.end - span.start for span in region.work) for region in same))
        for same in runs
    )


def _pinned(model: Model) -> Iterator[Model]:
    for name in model.plans:
        instance = model.create_instance()
        instance.use(name)
        yield instance
