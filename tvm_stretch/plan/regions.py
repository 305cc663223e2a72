"""Form regions from the processor of each operator.

    conv2d.p0 cpu, conv2d.p1 opencl, relu.p0 cpu, relu.p1 opencl, relu = concat, conv2d1 cpu
        ->
    r0 cpu: conv2d.p0, relu.p0    r1 opencl: conv2d.p1, relu.p1    r2 cpu: relu    r3 cpu: conv2d1

A region waits only before its first operator, and others see its results only when it ends.
Therefore a region ends where another processor waits for one of its results but not for the next
one, and an operator that has to wait begins a new region. A view of results of several processors,
or for several, is a region by itself: it costs nothing, and its readers wait for nothing but the
writers.

Operators of one kernel that has several products, such as an attention, can stay together: apart,
they are other kernels, which take longer than an early start saves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import relax

from tvm_stretch.network.expressions import PIECES, RESHAPES
from tvm_stretch.network.operators import Calls, kind_of
from tvm_stretch.plan.plan import PlannedRegion
from tvm_stretch.targets.processor import Processor


def form_regions(
    main: relax.Function,
    processor_of: Mapping[str, str],
    # all operators, each after its operands; by default program order
    order: Sequence[str] | None = None,
    # operators that stay in one region, in program order, although the first of them then waits for
    # the operands of all; only they read their results, but for the last one
    together: Sequence[Sequence[str]] = (),
) -> tuple[PlannedRegion, ...]:
    """The fewest regions in which no operator waits longer than necessary."""
    calls = Calls(main)
    reads = {n: [leaf.var.name for leaf in calls.leaves(c)] for n, c in calls.calls.items()}
    views = {name for name, call in calls.calls.items() if kind_of(call) in RESHAPES | PIECES}
    last_of = {name: names[-1] for names in together for name in names}
    members = {names[-1]: names for names in together}
    for first, *others in together:
        inside = {first, *others}
        reads[first] += [n for name in others for n in reads[name] if n not in inside]
    forming = _Forming(processor_of, reads, views)
    for name in order if order is not None else calls.calls:
        if last_of.get(name, name) == name:
            for one in members.get(name, [name]):
                forming.add(one)
    return tuple(
        PlannedRegion(f"r{number}", processor, tuple(operators))
        for number, (processor, operators) in enumerate(forming.regions)
    )


def place_operators(
    main: relax.Function,
    names: Sequence[str],
    placeable: Sequence[Processor],
    owners: Mapping[str, int],
) -> dict[str, str]:
    """Place parts on their owners, other operators on the first processor that supports them."""
    placed, calls = {}, Calls(main).calls
    for processor in placeable:
        processor.operators.foresee(list(calls.values()))
    for name, call in calls.items():
        if name in owners:
            placed[name] = names[owners[name]]
            continue
        willing = (p.name for p in placeable if p.why_not(call) is None)
        placed[name] = next(willing, placeable[0].name)
    return placed


class _Forming:
    """Regions under construction; each processor has at most one open region.

    Args:
        processor_of: the processor of each operator.
        reads: the operands of each operator.
        views: operators that cost nothing.
    """

    def __init__(
        self, processor_of: Mapping[str, str], reads: Mapping[str, list[str]], views: set[str]
    ) -> None:
        self.regions: list[tuple[str, list[str]]] = []
        self._processor_of = processor_of
        self._reads = reads
        self._views = views
        self._region_of: dict[str, int] = {}
        self._open: dict[str, int] = {}
        self._awaiting = self._find_awaiting()
        self._awaited_by: dict[int, set[str]] = {}

    def _find_awaiting(self) -> dict[str, set[str]]:
        """For each operator the operators that read its result, directly or through views."""
        awaiting: dict[str, set[str]] = {name: set() for name in self._reads}
        for reader in reversed(list(self._reads)):
            readers = awaiting[reader]
            for name in self._reads[reader]:
                if name not in awaiting:
                    continue
                awaiting[name] |= readers if reader in self._views else {reader}
        return awaiting

    def add(self, name: str) -> None:
        """Put the next operator of the network into a region."""
        processor, reads = self._processor_of[name], self._reads[name]
        sources = {self._region_of[read] for read in reads if read in self._region_of}
        foreign = {region for region in sources if self.regions[region][0] != processor}
        for region in foreign:
            self._close(region)
        elsewhere = {r for r in self._awaiting[name] if self._processor_of[r] != processor}
        if name in self._views and (foreign or elsewhere):
            for region in sources:
                self._close(region)
            self._open.pop(processor, None)
            self._region_of[name] = len(self.regions)
            self.regions.append((processor, [name]))
            return
        if any(
            region > self._open.get(processor, -1) for region in foreign | self._closed(sources)
        ):
            self._open.pop(processor, None)
        if self._awaited_by.get(self._open.get(processor, -1), set()) - elsewhere:
            self._open.pop(processor)  # some that wait for it need not wait for this operator
        if processor not in self._open:
            self._open[processor] = len(self.regions)
            self.regions.append((processor, []))
        number = self._open[processor]
        self.regions[number][1].append(name)
        self._region_of[name] = number
        self._awaited_by.setdefault(number, set()).update(elsewhere)

    def _closed(self, sources: set[int]) -> set[int]:
        """Sources that are closed, on which another processor may work next."""
        return {region for region in sources if region not in self._open.values()}

    def _close(self, region: int) -> None:
        processor = self.regions[region][0]
        if self._open.get(processor) == region:
            del self._open[processor]
