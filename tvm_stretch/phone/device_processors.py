"""Makes the compiler's processors for a remote device."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tvm.target import Target

from tvm_stretch.base.errors import InputError, TargetError
from tvm_stretch.phone.description import Description
from tvm_stretch.phone.device import Device
from tvm_stretch.targets.cpu.cpu import HOST, cpu_processor
from tvm_stretch.targets.processor import Processor
from tvm_stretch.targets.processors import make_processors, require_threads
from tvm_stretch.targets.registry import (
    Attributes,
    TargetLike,
    attributes,
    kind_of,
    stand_ins,
    tvm_target,
    used_unasked,
)

Targets = Sequence[TargetLike] | TargetLike | None
Processors = tuple[list[Processor], list[Processor]]


def processors_of(
    place: Device | Description | None,  # their device; None for this machine
    targets: Targets,  # the wanted processors; by default all of the device, or this machine's CPU
    # the number of cores for CPU kernels; on a device, by default the big cores
    cpu_threads: int | None,
) -> Processors:
    """All processors of a model, and the processors to place operators on; see `make_processors`.

    Raises:
        DeviceError: the device does not describe itself.
        InputError: ``place`` is not a device.
        TargetError: the device has no such processor.
    """
    if place is None:
        return make_processors((HOST,) if targets is None else targets, cpu_threads)
    if not isinstance(place, Device | Description):
        raise InputError(
            f"expected what ts.connect gives for device, got {place!r}; connect to the device"
        )
    if cpu_threads is not None:
        require_threads(cpu_threads)
    description = place if isinstance(place, Description) else place.describe()
    wanted = _kinds_of(description) if targets is None else _as_list(targets)
    own = next((item for item in wanted if _is_cpu(item)), HOST)
    host = _host(own, description, cpu_threads or len(description.big_cores))
    others = [_on_device_or_given(item, description, host) for item in wanted if not _is_cpu(item)]
    on_cores = [p for p in others if isinstance(p, Processor) and p.hardware.on_host_cores]
    big = {core.number for core in description.big_cores}
    taken = sum(len(big & {*p.hardware.cores}) if p.hardware.cores else p.threads for p in on_cores)
    if taken and not cpu_threads:  # a driver that runs on the CPU's cores
        host = _host(own, description, max(1, host.threads - taken))
    everything, placeable = make_processors([host, *others], host.threads)
    there = {
        p.name: replace(p, hardware=replace(p.hardware, runs_here=False, device=description.name))
        for p in everything
    }
    names = [p.name for p in placeable if p is not host or any(map(_is_cpu, wanted))]
    return list(there.values()), [there[name] for name in names]


def _as_list(targets: Any) -> list[Any]:
    one = isinstance(targets, str | Mapping | Target | Processor)
    return [targets] if one else list(targets)


def _kinds_of(description: Description) -> list[Any]:
    """The CPU, and other processors that the device describes and that are used by default."""
    kinds: list[Any] = [HOST]
    host = _host(HOST, description, 1)
    for name in used_unasked():
        with contextlib.suppress(TargetError):
            if name != HOST and _on_device({"kind": name}, description, host) is not None:
                kinds.append(name)
    return kinds


def _on_device(target: Attributes, description: Description, host: Processor) -> Processor | None:
    """The device's processor of a target; None for kinds that devices do not describe."""
    make = kind_of(target).on_device
    return None if make is None else make(target, vars(description), host)


def _is_cpu(item: Any) -> bool:
    if isinstance(item, Processor):
        return item.is_host
    return bool(attributes(item)["kind"] == HOST)


def _host(item: Any, description: Description, threads: int) -> Processor:
    """The CPU as a processor or target describes it; a plain ``llvm`` is the device's CPU."""
    if isinstance(item, Processor):
        return item
    plain = attributes(item) == {"kind": HOST}
    return cpu_processor(tvm_target(description.target() if plain else item), threads)


def _on_device_or_given(item: Any, description: Description, host: Processor) -> Any:
    """The device's processor of a target, or the target if devices do not describe its kind."""
    if isinstance(item, Processor):
        return item
    target = attributes(item)
    try:
        return _on_device(target, description, host) or item
    except TargetError:
        # a target with more attributes than its kind describes the processor that it means
        for name in stand_ins(target["kind"]) if len(target) == 1 else ():
            with contextlib.suppress(TargetError):
                return _on_device({"kind": name}, description, host)
        raise
