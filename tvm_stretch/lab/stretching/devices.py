"""One design for a series of devices (NN-Stretch, section 6), which is trained once.

print(ts.stretching.judge_on(st, ["snapdragon-855", "snapdragon-8-gen-1"]))

plan         Snapdragon 855     Snapdragon 8 Gen 1   at worst
as it is     26.98 ms  x1.47    12.31 ms  x1.36      x1.47
design 1     18.36 ms  x1.00    9.20 ms  x1.02       x1.02
...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tvm_stretch.base.compiling import compiling
from tvm_stretch.base.errors import InputError, PlanError
from tvm_stretch.lab.stretching.judge import judge_design
from tvm_stretch.lab.stretching.stretching import Stretching, task_of
from tvm_stretch.plan.design import Design, DesignLike
from tvm_stretch.plan.plan_table import PlanTable
from tvm_stretch.plan.search.site import DeviceLike, site_of
from tvm_stretch.targets.registry import stand_ins


@compiling()
def judge_on(
    found: Stretching, devices: Sequence[DeviceLike], designs: Sequence[DesignLike] | None = None
) -> PlanTable[Design]:
    """Predict designs on several devices; `PlanTable.plan` is the design that suits all of them.

    Args:
        found: the network, and the rules that prune.
        devices: as ``device`` of ``ts.compile``; nothing is measured on them.
        designs: by default those that the rules of ``found`` keep, the fastest first.

    Raises:
        InputError: ``devices`` is no list of devices.
        PlanError: there is no design, or one that does not fit the network.
        UnsupportedError: a device has fewer than two processors for branches.

    Examples:
        >>> st = ts.stretch("resnet18.onnx", device="snapdragon-855")
        >>> devices = ["snapdragon-855", "snapdragon-8-gen-1"]
        >>> ts.stretching.judge_on(st, devices).best
        'as it is'
    """
    if isinstance(devices, str) or not isinstance(devices, Sequence) or not devices:
        raise InputError(
            f"expected a list of devices for devices, got {devices!r:.80}; name two profiles, say"
        )
    kept = [c.design for c in found.candidates if c.kept]
    given = kept if designs is None else [Design.read(design) for design in designs]
    if not given:
        raise PlanError("expected designs to judge, got none that the rules keep; name one")
    named = {"as it is": Design(())} | {f"design {n}": one for n, one in enumerate(given, 1)}
    columns, refusals, names = list[dict[str, float]](), list[str](), list[str]()
    for device in devices:
        site = site_of(device, found.where.get("targets"), built=False)
        task, _, _ = task_of(found.mod, site.costs(), site.places)
        names.append(site.device or "here")
        column = {"as it is": task.fastest_alone_ns / 1e9}
        for name, design in [*named.items()][1:]:
            try:
                judged = judge_design(task, found.rules, _renamed(design, site.names))
            except PlanError as error:
                refusals.append(f"{name} does not run on {names[-1]}: {error}")
                continue
            column[name] = judged.ns / 1e9
            refusals += [f"{name} on {names[-1]}: {judged.rule}"] if judged.rule else []
        columns.append(column)
    seconds = {name: tuple(column.get(name) for column in columns) for name in named}
    return PlanTable(tuple(names), named, seconds, tuple(refusals))


def _renamed(design: Design, names: Sequence[str]) -> Design:
    """The design for a device whose processor of the same kind has another name (hexagon, npu)."""
    renamed = {
        name: next((other for other in (name, *stand_ins(name)) if other in names), name)
        for name in design.processors
    }
    segments = [
        replace(s, branches=tuple(replace(b, processor=renamed[b.processor]) for b in s.branches))
        for s in design.segments
    ]
    return Design(tuple(segments))
