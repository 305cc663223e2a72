"""What the compiler knows of a processor, and how a processor refuses operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tvm
from tvm import relax, tirx

from tvm_stretch.base.errors import TargetError

from .kernels.machine import VectorMachine

Kernels = Mapping[str, tirx.PrimFunc]
Build = Callable[[Kernels, tvm.transform.Pass], tvm.runtime.Module]
Check = Callable[[relax.Call], str | None]
ModelWriter = Callable[[relax.Function], bytes]
Foresee = Callable[[Sequence[relax.Call]], object]
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
        "expected a function for Processor.build, got none; only the CPU's kernels are linked, any "
        "other processor needs a function that builds them"
    )


@dataclass(frozen=True)
class OpRule:
    """One row of a processor's operator table."""

    op: str  # name of the Relax operator, for example ``relax.nn.conv2d``
    dtypes: tuple[str, ...] = ()  # result types in which it runs; empty for any
    check: Check = lambda _call: None  # returns None, or the reason for refusing a particular call
    note: str = ""  # explanation for readers of the table


@dataclass(frozen=True)
class Speed:
    """Order-of-magnitude numbers of a processor, used until it is measured."""

    cycles_per_ns: float  # clock of a core, times the cores that share a kernel
    bytes_per_ns: float  # bandwidth of memory beyond the caches
    start_ns: float  # time of a kernel without work
    handover_ns: float  # time of a transfer without bytes
    # time to start a region as a whole, and to learn that it is done, where a vendor's runtime runs
    # it; 0 where regions are kernels
    region_ns: float = 0.0


@dataclass(frozen=True)
class Processor:
    """Something that runs kernels.

    Attributes:
        name: its name in plans and messages, ``cpu`` for example.
        target: the TVM target for which its kernels are built.
        threads: cores a kernel may use.
        rules: operators with a row of their own.
        refuse: reason for refusing a call that has no row; None to accept it.
        foresee: receives all calls of a network before `refuse` does: what takes long to ask about
            each can be asked about all.
        remark: returns those of its calls that are slow there, by name, with the reason.
        machine: the properties that its kernel templates need.
        phases: passes from Relax with kernel templates (BlockChannels) to kernel-level Relax.
        schedule: the pass that gives the PrimFuncs their loop nests.
        speed: of typical processors of this kind.
        kind: the part of the executor that drives it (native/processor.h).
        build: makes the executor's module from its kernels, by name, and `schedule`.
        runs_host_code: whether its kernels are linked with the CPU's.
        runs_here: whether it is a processor of this machine, so that plans can be measured.
        on_host_cores: whether it consists of the CPU's own cores: the cost model of the CPU's loop
            nests holds for it, and they share caches.
        packet_ns: time of an instruction packet if the processor is emulated here: its kernels are
            timed by counting packets, because an emulator's own time says nothing. Otherwise 0.
        model: writes a region as the one model that an engine (a vendor's runtime) runs; None for
            processors whose regions are kernels. Its phases and schedule only serve to predict.
        driver: anything else on which its measurements depend, besides the machine and the above.
        cores: the CPU's cores that it uses exclusively.
        computes_half: whether it has instructions for float16 arithmetic.
        computes_bfloat: whether it has fast instructions for products in bfloat16.
        prefers_half: whether float16 is faster there than integers, as on GPUs.
        integers: the precision in which it computes integer operators: ``float16``, or
            ``float16+float32`` with float32 sums; empty for exact integers.
        max_share: the share of the time for which it may be busy; the executor pauses for the rest.
        device: name of its device, if that is reached by RPC; empty for this machine and for
            processors that are only known by their target.
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
    computes_bfloat: bool = False
    prefers_half: bool = False
    integers: str = ""
    max_share: float = 1.0
    device: str = ""
    packet_ns: float = 0.0
    model: ModelWriter | None = None
    remark: Remark = lambda _calls: {}
    foresee: Foresee = lambda _calls: None

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
