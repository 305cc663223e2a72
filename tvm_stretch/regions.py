"""From a processor for each operator to regions.

    conv2d.p0 cpu, conv2d.p1 opencl, relu.p0 cpu, relu.p1 opencl, relu = concat, conv2d1 cpu
        ->
    r0 cpu: conv2d.p0, relu.p0    r1 opencl: conv2d.p1, relu.p1    r2 cpu: relu    r3 cpu: conv2d1

A region waits only before its first operator, and others see its results only when it ends. So a
region ends where another processor reads one of its results, and an operator that has to wait
begins a new one. A view of what several processors wrote, or read, is a region by itself: it costs
nothing, and nobody waits for more than the writers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import relax

from tvm_stretch.passes.calls import Calls
from tvm_stretch.plan import PlannedRegion

_VIEWS = ("relax.concat", "relax.reshape", "relax.strided_slice", "relax.split")


def form_regions(
    main: relax.Function, processor_of: Mapping[str, str], order: Sequence[str] | None = None
) -> tuple[PlannedRegion, ...]:
    """The fewest regions in which no operator waits for longer than it must.

    Args:
        main: canonical Relax.
        processor_of: where each operator runs.
        order: all operators, each after what it reads; by default program order.
    """
    calls = Calls(main)
    reads = {n: [leaf.var.name for leaf in calls.leaves(c)] for n, c in calls.calls.items()}
    readers: dict[str, set[str]] = {}
    for name, sources in reads.items():
        for source in sources:
            readers.setdefault(source, set()).add(processor_of[name])
    forming = _Forming()
    for name in order if order is not None else reads:
        processor = processor_of[name]
        is_view = calls.calls[name].op.name in _VIEWS
        shared = is_view and bool(readers.get(name, set()) - {processor})
        forming.add(name, processor, reads[name], is_view=is_view, shared=shared)
    return tuple(
        PlannedRegion(f"r{number}", processor, tuple(operators))
        for number, (processor, operators) in enumerate(forming.regions)
    )


class _Forming:
    """Regions while they grow; at most one of each processor is open."""

    def __init__(self) -> None:
        self.regions: list[tuple[str, list[str]]] = []
        self._region_of: dict[str, int] = {}
        self._open: dict[str, int] = {}

    def add(
        self, name: str, processor: str, reads: list[str], *, is_view: bool, shared: bool
    ) -> None:
        """Put the next operator of the network into a region.

        Args:
            name: of the operator.
            processor: where it runs.
            reads: the tensors that it reads.
            is_view: it costs nothing.
            shared: it is a view that other processors read.
        """
        sources = {self._region_of[read] for read in reads if read in self._region_of}
        foreign = {region for region in sources if self.regions[region][0] != processor}
        for region in foreign:
            self._close(region)
        if shared or (is_view and foreign):
            for region in sources:
                self._close(region)
            self.regions.append((processor, [name]))
            self._region_of[name] = len(self.regions) - 1
            self._open.pop(processor, None)
            return
        if any(
            region > self._open.get(processor, -1) for region in foreign | self._closed(sources)
        ):
            self._open.pop(processor, None)
        if processor not in self._open:
            self._open[processor] = len(self.regions)
            self.regions.append((processor, []))
        number = self._open[processor]
        self.regions[number][1].append(name)
        self._region_of[name] = number

    def _closed(self, sources: set[int]) -> set[int]:
        """Sources that are no longer open: what they hold may be another processor's work."""
        return {region for region in sources if region not in self._open.values()}

    def _close(self, region: int) -> None:
        processor = self.regions[region][0]
        if self._open.get(processor) == region:
            del self._open[processor]
