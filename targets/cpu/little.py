"""A second processor made of some of the CPU's cores: the little cores of a phone.

    ts.compile(network, ["llvm", "opencl", "little-cores"], device=phone)
    ts.compile(network, ["llvm", "little-cores"])          # this machine's, if its cores differ
    ts.compile(network, ["llvm", {"kind": "little-cores", "cores": "0-3", "mcpu": "cortex-a55"}])

A kernel that all cores share waits for the slowest core. As a separate processor (HOPE, figure 7)
little cores get parts that fit their speed: regions run on a thread of the executor and on a pool
that is pinned to these cores, and the CPU's kernels do not use them (native/cluster_processor.cc).
Memory is shared, so nothing is copied.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import tvm
from tvm.target import Target

from tvm_stretch.base.errors import TargetError
from tvm_stretch.network.codec import target_data
from tvm_stretch.run.autoload import load_native_library
from tvm_stretch.targets.processor import Kernels, Processor
from tvm_stretch.targets.registry import Attributes, ProcessorKind, register, tvm_target

from .cpu import checked_features, cpu_processor

NAME = "little"
KIND = "little-cores"

WORTH_WAITING = 0.6
"""A core with less than this share of the biggest core's capacity is a little one."""

HANDOVER_NS = 2_000.0
"""Time of a hand-over from the CPU to other cores of it, if it was not measured; both spin
meanwhile. This executor took 0.5 to 3 us on two shared cores of a server (Zen 5)."""

_ATTRIBUTES = ("kind", "cores", "mcpu", "mattr")
_MOST_CORES = 1024


@dataclass(frozen=True)
class _Cluster:
    """Cores of the same kind."""

    cores: tuple[int, ...]  # their numbers
    ratio: float = 1.0  # speed relative to the biggest cores
    name: str = ""  # LLVM's name of the core; empty if unknown


def little_processor(target: Target, host: Processor, cluster: _Cluster) -> Processor:
    """These cores as a separate processor, beside the rest of the CPU."""
    numbers = ",".join(map(str, cluster.cores))
    alike = cpu_processor(target, len(cluster.cores))

    def build(_kernels: Kernels, _schedule: tvm.transform.Pass) -> tvm.runtime.Module:
        load_native_library()
        code = json.dumps({"cores": numbers, "threads": len(cluster.cores)})
        create = tvm.get_global_func("tvm_stretch.create_cluster_code")
        return cast(tvm.runtime.Module, create(code))

    speed = replace(
        alike.speed,
        cycles_per_ns=alike.speed.cycles_per_ns * cluster.ratio,
        handover_ns=HANDOVER_NS,
    )
    return replace(
        alike,
        name=NAME,
        kind="cluster",
        code=replace(alike.code, build=build, runs_host_code=True),
        speed=speed,
        hardware=replace(
            alike.hardware,
            runs_here=host.hardware.runs_here and alike.hardware.runs_here,
            driver=f"cores {numbers}",
            cores=cluster.cores,
        ),
    )


def _make(given: Attributes, host: Processor) -> Processor:
    cluster = _cluster(given)
    described = target_data(host.target)
    named = {key: given[key] for key in ("mcpu", "mattr") if key in given}
    if named:
        described = {k: v for k, v in described.items() if k not in ("mcpu", "mattr", "tag")}
    return little_processor(tvm_target({**described, **named}), host, cluster)


def _cluster(given: Attributes) -> _Cluster:
    """The cores that a target names, or those of this machine."""
    unknown = sorted(set(given) - set(_ATTRIBUTES))
    if unknown:
        raise TargetError(
            f"expected {', '.join(_ATTRIBUTES[1:])} for target {KIND}, got {', '.join(unknown)}; "
            'write {"kind": "little-cores", "cores": "0-3"}'
        )
    return _Cluster(_read(given["cores"])) if "cores" in given else _of_this_machine()


def _read(text: object) -> tuple[int, ...]:
    """The numbers in a list of cores such as ``0,4-7``."""
    sizes: list[int] = []
    for item in str(text).split(","):
        first, dash, last = item.partition("-")
        if not (first.isdigit() and (last.isdigit() or not dash)):
            break
        sizes += range(int(first), min(int(last or first), _MOST_CORES) + 1)
    else:
        if sizes and len(set(sizes)) == len(sizes) and max(sizes) < _MOST_CORES:
            return tuple(sorted(sizes))
    raise TargetError(
        'expected a list of cores like "0,2-3" for cores of target little-cores, got '
        f"{text!r}; correct it"
    )


def _of_this_machine() -> _Cluster:
    load_native_library()
    machine = json.loads(str(tvm.get_global_func("tvm_stretch.describe_machine")()))
    sizes = {core["number"]: core["capacity"] or core["mhz"] or 1 for core in machine["cores"]}
    return _little_of(sizes, {}, "this machine")


def _little_of(sizes: Mapping[int, int], names: Mapping[int, str], whose: str) -> _Cluster:
    """The cores that are much slower than the biggest."""
    biggest = max(sizes.values())
    little = [core for core, size in sizes.items() if size < WORTH_WAITING * biggest]
    if not little:
        raise TargetError(
            f"expected big and little cores for target {KIND}, got {whose}, whose cores are "
            'all alike; name some: {"kind": "little-cores", "cores": "0-1"}'
        )
    ratio = min(sizes[core] for core in little) / biggest
    own = {names.get(core, "") for core in little}
    return _Cluster(tuple(sorted(little)), ratio, own.pop() if len(own) == 1 else "")


def _why_absent(given: Attributes) -> str:
    try:
        _cluster(given)
    except TargetError as error:
        return str(error)
    return ""


def _host_cores(given: Attributes) -> int:
    """The number of cores that the CPU's kernels leave to this processor."""
    return len(_cluster(given).cores)


def _on_device(given: Attributes, machine: Mapping[str, Any], host: Processor) -> Processor:
    """The little cores of a phone, compiled for under their own name if its features allow that."""
    if set(given) != {"kind"}:
        return _make(given, host)
    cores: Sequence[Any] = machine["cores"]
    sizes = {core.number: core.size for core in cores}
    names = {core.number: core.name for core in cores}
    cluster = _little_of(sizes, names, machine["name"])
    target = host.target
    if cluster.name:
        named = Target({"kind": "llvm", "mtriple": machine["triple"], "mcpu": cluster.name})
        if set(checked_features(named)) <= set(machine["features"]):
            target = named
    return little_processor(target, host, cluster)


register(
    ProcessorKind(
        KIND, _make, _why_absent, _host_cores, by_default=False, nickname=NAME, on_device=_on_device
    )
)
