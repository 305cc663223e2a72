"""A user's limits of the search: how much one processor may compute, how finely work is shared.

    max_share={"opencl": 0.7}     opencl computes at most 70 % of the network's multiply-adds
    share_parts=8                 shares are whole eighths of a layer, or of a segment's rows

The search applies the first limit piece by piece and checks whole plans again. Operators that no
other processor supports do not count. Beside a plan of the caller, nothing is searched: its first
limit is then that of the time alone, which runs keep (`Site.limited`).

The rules of NN-Stretch (section 4.2) drop options that cannot win. Its rules for accuracy do not
apply: our branches compute the same numbers as before.

equation 4    cost-amortized meeting points     a meeting costs at most α of the work before it
equation 5    no straggler branches             no branch takes longer than β of the whole segment
equation 6    FLOPs alignment                   branches as large as their processors are fast
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm_stretch.base.errors import InputError
from tvm_stretch.network.properties.meeting_points import DEFAULT_ALPHA
from tvm_stretch.plan.scheduling import Scheduler
from tvm_stretch.plan.search.objective import LATENCY, Objective
from tvm_stretch.targets.processor import Processor
from tvm_stretch.targets.processors import kinds
from tvm_stretch.targets.registry import nicknames

_MOST_PARTS = 1024
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Limits:
    """Bounds on shares."""

    caps: Mapping[int, float]  # the largest share of each processor that is limited, by its place
    parts: int = 0  # shares are multiples of ``1 / parts``; 0 for as fine as kernels allow
    text: str = ""  # the same for people
    scheduler: Scheduler | None = None  # the caller's, which plans the whole network too
    objective: Objective = LATENCY  # what the plan is to make small
    searches: bool = True  # whether a plan is searched and measured if none is known

    def may_do_all(self, place: int) -> bool:
        """Whether a processor may compute something whole."""
        return place not in self.caps

    def allow(self, amounts: Mapping[int, float]) -> bool:
        """Whether processors may divide work in these amounts."""
        total = sum(amounts.values())
        return all(
            amounts.get(place, 0) <= (cap + _ROUNDING) * total for place, cap in self.caps.items()
        )

    def unit(self, total: int, unit: int) -> int:
        """What shares of ``total`` are multiples of, where a kernel wants multiples of ``unit``."""
        return -(-total // (self.parts * unit)) * unit if self.parts else unit

    def apportion(self, total: int, speeds: Mapping[int, float]) -> dict[int, int] | None:
        """As `pruning.apportion`, but with an upper limit for each processor; None if impossible.

        >>> Limits({1: 0.5}).apportion(16, {0: 1.0, 1: 3.0})
        {0: 8, 1: 8}
        """
        shares: dict[int, int] = {}
        left = dict(speeds)
        while left and total - sum(shares.values()) >= len(left):
            proposed = apportion(total - sum(shares.values()), left)
            most = {p: int((self.caps.get(p, 1.0) + _ROUNDING) * total) for p in left}
            over = [place for place in left if proposed[place] > most[place]]
            if not over:
                return {place: {**shares, **proposed}[place] for place in speeds}
            if not all(most[place] for place in over):
                return None
            for place in over:
                shares[place] = most[place]
                del left[place]
        return None


NO_LIMITS = Limits({})


def read_limits(
    max_share: object,  # the largest share of each processor that is to be limited, by name
    parts: object,  # of how many parts shares are multiples
    processors: Sequence[Processor],  # all of the model's
    placeable: Sequence[Processor],  # those that operators may be placed on
    is_planned: bool = False,  # whether the caller's plan says what each processor computes
) -> Limits:
    """What a user asks for."""
    given = max_share if isinstance(max_share, Mapping) else {}
    if max_share is not None and not (given and all(map(_is_share, given.values()))):
        raise InputError(
            "expected the largest shares by processor, above 0 and up to 1, for max_share, got "
            f'{max_share!r:.100}; write max_share={{"opencl": 0.7}}, and leave a processor that '
            "shall compute nothing out of targets"
        )
    is_count = isinstance(parts, int) and not isinstance(parts, bool)
    if parts is not None and not (is_count and 2 <= parts <= _MOST_PARTS):  # type: ignore[operator]
        raise InputError(
            f"expected a number of parts from 2 to {_MOST_PARTS} for share_parts, got {parts!r}; 8 "
            "makes shares of whole eighths"
        )
    if parts is not None and is_planned:
        raise InputError(
            f"expected no share_parts where plans are given, got {parts}; change the numbers of "
            "shares and splits in the plan itself"
        )
    count = parts if isinstance(parts, int) else 0
    names = [processor.name for processor in processors]
    most = {_checked(name, names): float(share) for name, share in given.items()}
    caps = {names.index(n): share for n, share in most.items() if n in names and share < 1}
    limited = [processor.name for processor in placeable if names.index(processor.name) in caps]
    if limited and len(limited) == len(placeable) and not is_planned:
        raise InputError(
            "expected a processor that may compute all for max_share, got limits of "
            f"{', '.join(limited)}; leave one of them out of max_share, or add a target"
        )
    what = "time" if is_planned else "work"
    text = [f"at most {share:.3g} of the {what} on {names[place]}" for place, share in caps.items()]
    text += [f"shares in parts of 1/{count}"] if count else []
    return Limits(caps, count, "; ".join(text))


def _is_share(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value <= 1  # type: ignore[operator]


def _checked(name: object, names: Sequence[str]) -> str:
    """The processor's own name; that of a kind whose device is absent is as good."""
    nicks = {kind: nick for nick, kind in nicknames().items()}
    if isinstance(name, str) and name in (*names, *kinds()):
        return name if name in names else nicks.get(name, name)
    raise InputError(
        f"expected names of processors for max_share, got {name!r}; choose from {', '.join(names)}"
    )


ALPHAS = (0.5, DEFAULT_ALPHA)
"""Half, beyond which a meeting costs more than two processors can save; and the paper's α, with
which branches are longer and meet less often."""

BETA = 1.0
"""The paper's 1.1 leaves room for what training may change; our branches must not lose."""


def amortised(communication_ns: float, computation_ns: float, alpha: float = ALPHAS[0]) -> bool:
    """Whether the work before a meeting is worth it (equation 4, cost-amortized)."""
    return communication_ns <= alpha * computation_ns


def straggles(slowest_ns: float, alone_ns: float, beta: float = BETA) -> bool:
    """Whether a branch takes longer than the fastest processor for the segment (equation 5)."""
    return slowest_ns > beta * alone_ns


def apportion(total: int, speeds: Mapping[int, float]) -> dict[int, int]:
    """Whole numbers of at least 1 in proportion to the processors' speeds (equation 6).

    The total must be at least the number of processors.

    >>> apportion(16, {0: 1.0, 1: 3.0})
    {0: 4, 1: 12}
    """
    whole = sum(speeds.values())
    exact = {place: total * speed / whole for place, speed in speeds.items()}
    shares = {place: max(1, int(share)) for place, share in exact.items()}
    missing = total - sum(shares.values())
    for _ in range(abs(missing)):
        by_gap = {place: exact[place] - shares[place] for place in shares}
        if missing > 0:
            shares[max(by_gap, key=by_gap.__getitem__)] += 1
        else:
            shrinkable = [place for place in shares if shares[place] > 1]
            shares[min(shrinkable, key=by_gap.__getitem__)] -= 1
    return shares
