"""Remembers the plan that won, so that nothing is measured twice on a machine.

    operators and their shapes, processors, what `ts.tune` found out about them,
    cores, this package      ->      the plan that won, and when it did

Weights do not matter: a network that was trained further runs by the same plan. Several processors
win only if all of them were free, so that result is kept for a week. A single one also wins while
another program uses the others, and where something disturbed the contest anyone may win: such
results are kept for an hour, and a disturbed one says so.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tvm
import tvm_ffi

from tvm_stretch.base.errors import PlanError
from tvm_stretch.base.files import cache_folder, read_whole
from tvm_stretch.make.code.generate import compiler_versions
from tvm_stretch.make.code.kernel_cache import KernelCache, cache_of, digest
from tvm_stretch.plan.cost.fingerprint import default_folder, fingerprint
from tvm_stretch.plan.plan import Plan
from tvm_stretch.targets.processor import Processor

_FOLDER = "plans"
_LASTING_SECONDS, _DOUBTFUL_SECONDS = 7 * 24 * 3600, 3600
_DISTURBED = "; other programs disturbed the measurement, so it is repeated after an hour"
_FOUND = ("json", "tuned.json", "probe.json")
_SETTINGS = ("TVM_STRETCH_", "POCL_", "TVM_NUM_THREADS", "TVM_BIND_THREADS")
"""Variables that decide where drivers and threads run."""


@dataclass(frozen=True)
class Memory:
    """The winning plan of one network on the processors of one machine, kept in the cache."""

    cache: KernelCache
    key: bytes

    def find(self) -> Plan | None:
        """The plan that won; None if there is none, or it is old."""
        entry = self.cache.find(self.key)
        if entry is None:
            return None
        try:
            expires, plan = json.loads(entry)
            remembered = Plan.read(plan)
            left = expires - time.time()
        except (PlanError, TypeError, ValueError, RecursionError):  # of another version
            return None
        return remembered if 0 < left <= _LASTING_SECONDS else None

    def store(self, plan: Plan, is_lasting: bool = True) -> None:
        """Remember that this plan won just now; ``is_lasting`` unless something disturbed that."""
        has_several = len({region.processor for region in plan.regions}) > 1
        if not is_lasting or (not has_several and is_busy()):
            plan, is_lasting = replace(plan, reason=plan.reason + _DISTURBED), False
        keeps = _LASTING_SECONDS if has_several and is_lasting else _DOUBTFUL_SECONDS
        entry = [time.time() + keeps, json.loads(plan.to_json())]
        self.cache.store(self.key, json.dumps(entry).encode())


def is_busy() -> bool:
    """Whether more threads want to run than a compile has: one a core, and one that measures."""
    return os.getloadavg()[0] > len(os.sched_getaffinity(0)) + 1


def memory_of(
    mod: tvm.IRModule,
    processors: Sequence[Processor],  # all of this machine's that the model has, the CPU first
    targets: str,  # their targets and limits as text
) -> Memory | None:
    """The memory of a canonical module; None if the user wants no files."""
    if cache_folder(_FOLDER) is None:
        return None
    parts = [
        _network(mod),
        *(json.dumps(fingerprint(p), sort_keys=True) for p in processors),
        targets,
        str(sorted(os.sched_getaffinity(0))),
        *(f"{name}={os.environ[name]}" for name in sorted(os.environ) if _is_setting(name)),
        compiler_versions(),
        _planner(),
    ]
    texts = (part.encode(errors="surrogatepass") for part in parts)  # variables hold any bytes
    return Memory(cache_of(_FOLDER), digest(*texts, *_findings(processors)))


def _network(mod: tvm.IRModule) -> str:
    """The network as text: its names, which plans use, and all but the values of constants."""
    blocks = mod["main"].body.blocks
    names = [binding.var.name for block in blocks for binding in block.bindings]
    params = [param.name for param in mod["main"].params]
    identity = tvm_ffi.structural_hash(mod, skip_tensor_content=True)
    return json.dumps([identity, params, names])


def _is_setting(name: str) -> bool:
    return name.startswith(_SETTINGS)


def _findings(processors: Sequence[Processor]) -> list[bytes]:
    """The content of the files of `ts.tune`; empty if there are none."""
    folder = default_folder(processors[0])
    if folder is None:
        return []
    names = (f"{p.name}.{kind}" for p in processors for kind in _FOUND)
    return [_content(folder / name) for name in names]


def _content(path: Path) -> bytes:
    try:
        return read_whole(path)
    except OSError:  # it is missing, or was deleted meanwhile; its reader reports that
        return b""


@functools.cache
def _planner() -> str:
    """The source of everything that makes plans."""
    package = Path(__file__).parent.parent
    files = [p for room in ("search", "scheduling", "cost") for p in (package / room).rglob("*.py")]
    return digest(*(path.read_bytes() for path in sorted(files))).hex()


_planner()  # now, as in `generate.py`
