"""What the compiler knows of a processor, and how it says no."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import tvm
from tvm import relax, tirx

from tvm_stretch.errors import TargetError

from .kernels.machine import VectorMachine

Kernels = Mapping[str, tirx.PrimFunc]
Build = Callable[[Kernels, tvm.transform.Pass], tvm.runtime.Module]
Check = Callable[[relax.Call], str | None]
Remark = Callable[[Mapping[str, relax.Call]], Mapping[str, str]]


HOST_ONLY = (
    "sort",
    "argsort",
    "topk",
    "unique",
    "nonzero",
    "cumsum",
    "cumprod",
    "multinomial_from_uniform",
    "vision.non_max_suppression",
    "vision.all_class_non_max_suppression",
)
"""Operators of Relax whose implementation calls a function of the host."""


def _host_code(_kernels: Kernels, _schedule: tvm.transform.Pass) -> tvm.runtime.Module:
    raise TargetError(
        "expected a function for Processor.build, got none; the CPU's kernels are linked, those of "
        "any other processor are built by a function of its own"
    )


@dataclass(frozen=True)
class OpRule:
    """One row of a processor's operator table.

    Attributes:
        op: name of the Relax operator, for example ``relax.nn.conv2d``.
        dtypes: result types it runs in; empty for any.
        check: returns None, or the reason for refusing a particular call.
        note: what a reader of the table should know.
    """

    op: str
    dtypes: tuple[str, ...] = ()
    check: Check = lambda _call: None
    note: str = ""


@dataclass(frozen=True)
class Speed:
    """The few numbers of a processor that decide orders of magnitude, where nobody measured it.

    Attributes:
        cycles_per_ns: clock of a core, times the cores that share a kernel.
        bytes_per_ns: bandwidth of memory that no cache holds.
        start_ns: a kernel without work.
        handover_ns: a transfer without bytes.
    """

    cycles_per_ns: float
    bytes_per_ns: float
    start_ns: float
    handover_ns: float


@dataclass(frozen=True)
class Processor:
    """Something that runs kernels.

    Attributes:
        name: the word for it in plans and messages, ``cpu`` for example.
        target: the TVM target its kernels are built for.
        threads: cores a kernel may use.
        rules: operators with a row of their own.
        refuse: reason for refusing a call without a row, or None to take it.
        remark: which of the calls that it takes, by their names, are slow there, and why.
        machine: what its kernel templates need to know.
        phases: passes from Relax with kernel templates (BlockChannels) to kernel-level Relax.
        schedule: the pass that gives the PrimFuncs their loop nests.
        speed: what is typical of such processors.
        kind: which part of the executor drives it (native/processor.h).
        build: makes the executor's module of its kernels, by their names, and of `schedule`.
        runs_host_code: its kernels are linked with the CPU's.
        runs_here: it is a processor of this machine, so that plans can be measured.
        on_host_cores: it is made of the CPU's own cores: what is known of their loop nests holds
            for it, and they share caches.
        packet_ns: what a packet of instructions takes, of a processor that is emulated here: its
            kernels are timed by counting packets, because an emulator's own time says nothing of
            it. 0 where a clock tells.
        driver: what its measurements depend on, beside the machine and all of the above.
        cores: of the CPU, that it has for itself.
        computes_half: it has instructions for arithmetic in float16.
        device: the name of the device behind RPC that it is a part of; empty for this machine and
            for what is known by its target alone.
    """

    name: str
    target: tvm.target.Target
    threads: int
    rules: tuple[OpRule, ...]
    refuse: Check
    machine: VectorMachine
    phases: tuple[tvm.transform.Pass, ...]
    schedule: tvm.transform.Pass
    speed: Speed
    kind: str = "cpu"
    build: Build = _host_code
    runs_host_code: bool = False
    runs_here: bool = True
    on_host_cores: bool = False
    driver: str = ""
    cores: tuple[int, ...] = ()
    computes_half: bool = False
    device: str = ""
    packet_ns: float = 0.0
    remark: Remark = lambda _calls: {}

    @property
    def is_host(self) -> bool:
        """Whether it is the CPU, which also runs the executor."""
        return self.kind == "cpu"

    def why_not(self, call: relax.Call) -> str | None:
        """Why this processor refuses ``call``; None if it runs it."""
        name = call.op.name if isinstance(call.op, tvm.ir.Op) else "call"
        for rule in self.rules:
            if rule.op == name:
                dtype = str(getattr(call.ty, "dtype", ""))
                if rule.dtypes and dtype not in rule.dtypes:
                    return f"{name} runs in {', '.join(rule.dtypes)}, not {dtype}"
                return rule.check(call)
        return self.refuse(call)
