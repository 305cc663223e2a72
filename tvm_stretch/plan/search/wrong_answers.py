"""Finds what a vendor's compiler computes wrongly, so that only this goes elsewhere.

    on the engine      the rest on the CPU     the answer is
    o1 to o8                                   wrong
    o1 to o4           o5 to o8                right
    o1 to o6           o7 and o8               wrong: o5 or o6

Bisection finds the first operator with which the answer becomes wrong. It is refused; the second
time all operators of its kind are, and the third time the engine is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tvm_stretch.base.errors import StretchError
from tvm_stretch.base.progress import say
from tvm_stretch.make.pipeline import Job, Observer, build_parts
from tvm_stretch.network.operators import Calls
from tvm_stretch.plan.plan import Plan, abbreviate
from tvm_stretch.plan.regions import form_regions
from tvm_stretch.plan.search.realise import Candidate
from tvm_stretch.plan.search.site import Site
from tvm_stretch.run.model import Model
from tvm_stretch.targets.processor import Processor

_OTHER_NETWORK = 0.5
"""Answers differ by this much of their norm only if something else is computed: roundings of 8 bits
make a tenth of it in networks of random weights."""
_TRIES = 5
_ROUNDS = 2
"""In the first, bisection leads to operators, in the second to kinds of operators."""


class WrongAnswerError(StretchError):
    """A vendor's compiler made another network of a region.

    Attributes:
        site: where the search goes on: the engine is left out, or refuses some operators.
    """

    site: Site


def _wrong(answer: str, what: str, site: Site) -> WrongAnswerError:
    error = WrongAnswerError(f"{answer}; {what}")
    error.site = site
    return error


@dataclass(frozen=True)
class WrongAnswer:
    """What an engine computed, compared with the CPU."""

    processor: Processor
    expected: np.ndarray
    message: str


def find_wrong(
    site: Site, built: Sequence[Candidate], models: Sequence[Model]
) -> WrongAnswer | None:
    """Compare what vendors' compilers made with a model that none of them had a part in."""
    engines = {p.name: p for p in site.processors if p.code.model is not None}
    used = [engines.keys() & {*candidate.plan.processor_of().values()} for candidate in built]
    plain = next((m for m, own in zip(models, used, strict=True) if not own), None)
    if plain is None or not any(used):
        return None
    expected = plain.meters.answer_to_noise()
    for model, own in zip(models, used, strict=True):
        if own and _is_other(share := _difference(model, expected)):
            processor = engines[min(own)]
            answers = f"to compute what the CPU computes, got answers that differ by {share:.0%}"
            return WrongAnswer(processor, expected, f"expected {processor.name} {answers} of them")
    return None


def _difference(model: Model, expected: np.ndarray) -> float:
    """How far a model's answer to noise is from another, in parts of that one's norm."""
    means = np.isfinite(expected)  # noise may have no logarithm
    apart = np.linalg.norm((model.meters.answer_to_noise() - expected)[means])
    return float(apart) / max(float(np.linalg.norm(expected[means])), 1e-30)


def _is_other(share: float) -> bool:
    """Whether answers that differ this much are another network's; also if it is no number."""
    return not share <= _OTHER_NETWORK


def doubted(job: Job, site: Site, wrong: WrongAnswer) -> WrongAnswerError:
    """What the search does about a wrong answer."""
    name, distrust = wrong.processor.name, wrong.processor.operators.distrust
    rounds = site.doubted.count(name)
    if rounds == _ROUNDS or distrust is None:
        return _wrong(wrong.message, "it is left out", site.without_placing(name))
    calls = Calls(job.mod["main"]).calls
    able = [n for n, call in calls.items() if not wrong.processor.why_not(call)]

    def is_wrong(there: Sequence[str]) -> bool:
        model = Model.from_parts(build_parts(_placing(job, site, wrong.processor, there)))
        assert site.take is not None
        return _is_other(_difference(site.take(model), wrong.expected))

    suspects = first_wrong(able, is_wrong)
    if not suspects:
        return _wrong(wrong.message, "it is left out", site.without_placing(name))
    if rounds:
        kinds = {calls[n].op for n in suspects}
        suspects = [n for n in able if calls[n].op in kinds]
    distrust([calls[n] for n in suspects], f"in a region with others: {wrong.message}")
    later = replace(site, doubted=(*site.doubted, name))
    return _wrong(wrong.message, f"{abbreviate(tuple(suspects))} go elsewhere", later)


def first_wrong(names: Sequence[str], is_wrong: Callable[[Sequence[str]], bool]) -> list[str]:
    """The operators among which is the first with which the answer becomes wrong.

    Empty if it is right with all of them: the fault is of a region then, or of a part of a layer.
    """
    if not is_wrong(names):
        return []
    right, wrong = 0, len(names)
    for number in range(2, _TRIES + 1):
        if wrong - right > 1:
            say(f"looking for the operator with another answer, {number} of {_TRIES}")
            middle = (right + wrong) // 2
            right, wrong = (right, middle) if is_wrong(names[:middle]) else (middle, wrong)
    return [*names[right:wrong]]


def _placing(job: Job, site: Site, processor: Processor, there: Sequence[str]) -> Job:
    """The job with these operators on a processor, and the others on the first other one."""
    main, apart = job.mod["main"], frozenset(there)
    others = [p for p in site.placeable if p.name != processor.name]
    places = {}
    for name, call in Calls(main).calls.items():
        order = [processor, *others] if name in apart else [*others, processor]
        places[name] = next(p.name for p in order if not p.why_not(call))
    plan = Plan(tuple(site.names), form_regions(main, places))
    return replace(job.by(plan), observer=Observer())
