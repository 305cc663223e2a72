"""A second processor made of cores of the CPU: the little ones of a phone.

    ts.compile(network, ["llvm", "opencl", "little-cores"], device=phone)
    ts.compile(network, ["llvm", "little-cores"])          # this machine's, where it has two kinds
    ts.compile(network, ["llvm", {"kind": "little-cores", "cores": "0-3", "mcpu": "cortex-a55"}])

A kernel that all cores share waits for the slowest of them. As a processor of their own (HOPE,
figure 7) little cores get parts that fit them: regions run on a thread of ours and on a pool that
stays on these cores, and the CPU's kernels keep off them (native/cluster_processor.cc). Memory is
the same, so nothing is copied.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import tvm
from tvm.target import Target

from tvm_stretch.errors import TargetError
from tvm_stretch.runtime.autoload import load_native_library

from .cpu import checked_features, cpu_processor
from .processor import Kernels, Processor
from .registry import Attributes, ProcessorKind, register, tvm_target

NAME = "little"
KIND = "little-cores"

WORTH_WAITING = 0.6
"""A core with less than this share of the biggest one's capacity is a little one."""

HANDOVER_NS = 2_000.0
"""From the CPU to other cores of it, where nobody measured: both spin meanwhile. This executor on
two shared cores of a server (Zen 5) took 0.5 to 3 us."""

_ATTRIBUTES = ("kind", "cores", "mcpu", "mattr")
_MOST_CORES = 1024


@dataclass(frozen=True)
class _Cluster:
    """Cores that are alike.

    Attributes:
        cores: their numbers.
        ratio: how fast they are; the biggest are 1.
        name: what LLVM calls them; empty if it is not known.
    """

    cores: tuple[int, ...]
    ratio: float = 1.0
    name: str = ""


def little_processor(target: Target, host: Processor, cluster: _Cluster) -> Processor:
    """These cores as a processor of their own, beside the rest of the CPU."""
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
        build=build,
        runs_host_code=True,
        runs_here=host.runs_here and alike.runs_here,
        speed=speed,
        driver=f"cores {numbers}",
        cores=cluster.cores,
    )


def _make(said: Attributes, host: Processor) -> Processor:
    cluster = _cluster(said)
    described: dict[str, Any] = json.loads(str(host.target))
    given = {key: said[key] for key in ("mcpu", "mattr") if key in said}
    if given:
        described = {k: v for k, v in described.items() if k not in ("mcpu", "mattr", "tag")}
    return little_processor(tvm_target({**described, **given}), host, cluster)


def _cluster(said: Attributes) -> _Cluster:
    """The cores that a target names, or those of this machine.

    Raises:
        TargetError: it says what it should not, or this machine's cores are all alike.
    """
    unknown = sorted(set(said) - set(_ATTRIBUTES))
    if unknown:
        raise TargetError(
            f"expected {', '.join(_ATTRIBUTES[1:])} for target {KIND}, got {', '.join(unknown)}; "
            'write {"kind": "little-cores", "cores": "0-3"}'
        )
    return _Cluster(_read(said["cores"])) if "cores" in said else _of_this_machine()


def _read(text: object) -> tuple[int, ...]:
    """``0,4-7``.

    Raises:
        TargetError: it is no list of cores.
    """
    found: list[int] = []
    for item in str(text).split(","):
        first, dash, last = item.partition("-")
        if not (first.isdigit() and (last.isdigit() or not dash)):
            break
        found += range(int(first), min(int(last or first), _MOST_CORES) + 1)
    else:
        if found and len(set(found)) == len(found) and max(found) < _MOST_CORES:
            return tuple(sorted(found))
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
    """The cores that are not big ones.

    Raises:
        TargetError: there are none.
    """
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


def _why_absent(said: Attributes) -> str:
    try:
        _cluster(said)
    except TargetError as error:
        return str(error)
    return ""


def _host_cores(said: Attributes) -> int:
    """The CPU's kernels keep off them."""
    return len(_cluster(said).cores)


def _on_device(said: Attributes, machine: Mapping[str, Any], host: Processor) -> Processor:
    """The little cores of a phone, by their own name if they can do all that kernels may use."""
    if set(said) != {"kind"}:
        return _make(said, host)
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
