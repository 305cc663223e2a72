"""``ts.tune.compare_plans()`` finds the best plan for several phones that are to run the same one.

    print(ts.tune.compare_plans("resnet50.onnx", [pixel, mi]))

    plan         pixel-8          mi-9             at worst
    of pixel-8   31.2 ms  x1.00   55.0 ms  x1.31   x1.31
    of mi-9      34.9 ms  x1.12   42.0 ms  x1.00   x1.12
    best for all: of mi-9, which costs 12 % on pixel-8, nothing on mi-9

Every plan is built for every phone, for its own processors, and measured there, in turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from tvm_stretch.api.compiler import compile
from tvm_stretch.base.errors import InputError, StretchError, last_line
from tvm_stretch.base.named_arguments import named_arguments
from tvm_stretch.base.progress import Progress, reporting, say
from tvm_stretch.phone.device import Device
from tvm_stretch.phone.fleet import Fleet
from tvm_stretch.plan.plan import Plan, PlanLike
from tvm_stretch.plan.plan_table import PlanTable
from tvm_stretch.plan.search.contest import compare
from tvm_stretch.plan.search.decision import read_plans, what_runs
from tvm_stretch.run.model import Model
from tvm_stretch.targets.registry import TargetLike


@named_arguments
def compare_plans(
    source: object,
    devices: Sequence[Device] | Fleet,
    targets: Sequence[TargetLike] | TargetLike | None = None,
    *,
    plans: Mapping[str, PlanLike] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    cpu_threads: int | None = None,
    progress: Progress | None = None,
) -> PlanTable[Plan]:
    """Measure plans for a network on several phones, each plan on all of them.

    Args:
        source: as for ``compile``.
        devices: at least two devices of ``ts.connect``; or a fleet of several keys, which gives one
            phone of each key.
        targets: the processors of each device that may run operators; by default all.
        plans: plans by name; by default the plan that ``compile`` chooses for each device.
        shapes: as for ``compile``.
        cpu_threads: as for ``compile``.
        progress: as for ``compile``.

    Returns:
        A table of latencies, with the best plan for all devices and its cost.

    Raises:
        InputError: ``devices`` are not devices, or only one kind.
        DeviceError: a device fails.

    Examples:
        >>> keys = ["pixel-8", "mi-9"]
        >>> phones = [ts.connect("192.0.2.7:9190", key) for key in keys]  # doctest: +SKIP
        >>> print(ts.tune.compare_plans("resnet18.onnx", phones))  # doctest: +SKIP
    """
    given = read_plans(plans)
    with reporting(progress), ExitStack() as stack:
        phones = _phones(devices, stack)
        names = _names(phones)

        def compiled(phone: Device, plan: Plan | None) -> Model:
            return compile(
                source,
                targets,
                device=phone,
                plan=plan,
                shapes=shapes,
                cpu_threads=cpu_threads,
                progress=progress,
            )

        if given is None:
            given = {}
            for name, phone in zip(names, phones, strict=True):
                say(f"searching for a plan for {name}")
                own = compiled(phone, None).plan
                if all(what_runs(own) != what_runs(other) for other in given.values()):
                    given[f"of {name}"] = own
        columns, refusals = [], list[str]()
        for name, phone in zip(names, phones, strict=True):
            models: dict[str, Model] = {}
            for what, plan in given.items():
                try:
                    models[what] = phone.load(compiled(phone, plan))
                    models[what].timed_run()()
                except StretchError as error:
                    models.pop(what, None)
                    refusals.append(f"{what} does not run on {name}: {last_line(error)}")
            say(f"measuring {len(models)} plans on {name}")
            outcomes = compare([*models.values()]) if models else []
            columns.append(dict(zip(models, (one.seconds for one in outcomes), strict=True)))
    seconds = {what: tuple(column.get(what) for column in columns) for what in given}
    return PlanTable(tuple(names), given, seconds, tuple(refusals))


def _phones(devices: object, stack: ExitStack) -> list[Device]:
    if isinstance(devices, Fleet):
        if len(devices.keys) < 2:
            raise InputError(
                f"expected a fleet of at least two keys for devices, got only {devices.keys[0]!r}; "
                "plans are compared between kinds of phones, so name another, or call ts.compile "
                "for this one"
            )
        return [stack.enter_context(devices.connect(key)) for key in devices.keys]
    listed = [*devices] if isinstance(devices, Sequence) and not isinstance(devices, str) else []
    if len(listed) < 2 or not all(isinstance(device, Device) for device in listed):
        raise InputError(
            f"expected at least two devices, or a fleet, for devices, got {devices!r:.100}; "
            "ts.connect gives one"
        )
    return listed


def _names(phones: Sequence[Device]) -> list[str]:
    """The keys of the phones; phones of the same key are numbered."""
    names: list[str] = []
    for phone in phones:
        same = sum(other.name == phone.name for other in phones[: len(names)])
        names.append(f"{phone.name} ({same + 1})" if same else phone.name)
    return names
