"""Plans of a phone's twin on scripted devices that take what the twin predicts.

    plan of the twin      the model here
    cpu     r0  3 ms      host      nothing
    opencl  r1  2 ms  ->  twin_cpu  label.r0, at least 3 ms of the clock
                          twin_opencl  label.r1, at least 2 ms

The devices run our kernels meanwhile, so predictions have to be longer than the kernels take here.
The phone's CPU is a scripted device, too, because this machine's has another pace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import tvm

from tvm_stretch.make.branching import branch
from tvm_stretch.plan.plan import Plan
from tvm_stretch.targets.processor import Processor


def device_of(processor: str) -> str:
    """The name of the device that stands for a processor of the twin."""
    return f"twin_{processor}"


def lasting(plan: Plan, label: str = "", times: float = 1.0) -> dict[str, dict[str, int]]:
    """The script of a device: what each region of the plan takes, in microseconds."""
    return {
        label + region.name: {
            "latency_us": round(times * (region.predicted_ns[1] - region.predicted_ns[0]) / 1000)
        }
        for region in plan.regions
        if region.predicted_ns is not None
    }


def moved(mod: tvm.IRModule, plan: Plan, host: Processor, label: str = "") -> Plan:
    """The plan on devices after the host, whose regions have names that begin with the label."""
    assert not (plan.shares and plan.splits), "parts of shares are named after places, which move"
    shares = {name: (0, *widths) for name, widths in plan.shares.items()}
    splits = tuple(replace(split, ratios=(0, *split.ratios)) for split in plan.splits)
    count = len(plan.processors)
    parts = (
        branch(mod, own, ()).parts for own, number in ((plan.shares, count), (shares, count + 1))
    )
    renamed: Mapping[str, str] = dict(zip(*parts, strict=True))
    regions = (
        replace(
            region,
            name=label + region.name,
            processor=device_of(region.processor),
            operators=tuple(renamed.get(name, name) for name in region.operators),
        )
        for region in plan.regions
    )
    devices = map(device_of, plan.processors)
    return Plan((host.name, *devices), tuple(regions), shares=shares, splits=splits)
