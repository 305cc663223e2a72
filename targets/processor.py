"""What the compiler knows of a processor, and how a processor refuses operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tvm
from tvm import relax, tirx

from tvm_stretch.base.errors import TargetError, UnsupportedError

from .kernels.machine import VectorMachine

Kernels = Mapping[str, tirx.PrimFunc]
Build = Callable[[Kernels, tvm.transform.Pass], tvm.runtime.Module]
Check = Callable[[relax.Call], str | None]
ModelWriter = Callable[[relax.Function], bytes]
Foresee = Callable[[Sequence[relax.Call]], object]
Remark = Callable[[Mapping[str, relax.Call]], Mapping[str, str]]
Distrust = Callable[[Sequence[relax.Call], str], None]


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
        "expected a function for Code.build, got none; only the CPU's kernels are linked, any "
        "other processor needs a function that builds them"
    )


@dataclass(frozen=True)
class OpRule:
    """One row of a processor's operator table."""

    op: str  # name of the Relax operator, for example ``relax.nn.conv2d``
    dtypes: tuple[str, ...] = ()  # result types in which it runs; empty for any
    check: Check = lambda _call: None  # returns None, or the reason for refusing a particular call
    note: str = ""  # explanation for readers of the table


class RegionError(UnsupportedError):
    """A vendor's compiler refuses a region whose operators it took one by one.

    Some of them are refused from now on, so the same search finds another plan.
    """


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
class Operators:
    """Which operators a processor runs."""

    rules: tuple[OpRule, ...] = ()  # operators with a row of their own
    # the reason for refusing a call that has no row; None to accept it
    refuse: Check = lambda _call: None
    # receives all calls of a network before `refuse` does, where one question about all is faster
    foresee: Foresee = lambda _calls: None
    remark: Remark = lambda _calls: {}  # those of its calls that are slow there, with the reason
    # refuses calls from now on, for a reason; None where kernels are ours, and tested
    distrust: Distrust | None = None


@dataclass(frozen=True)
class Code:
    """How a processor's regions become code."""

    # passes from Relax with kernel templates (BlockChannels) to kernel-level Relax
    phases: tuple[tvm.transform.Pass, ...]
    schedule: tvm.transform.Pass  # gives the PrimFuncs their loop nests
    build: Build = _host_code  # makes the executor's module from its kernels and `schedule`
    runs_host_code: bool = False  # whether its kernels are linked with the CPU's
    # gives loop nests to kernels that share the areas of a stream's frames with the CPU; None for
    # processors that share none
    areas: tvm.transform.Pass | None = None
    # writes a region as the one model that an engine (a vendor's runtime) runs; None for processors
    # whose regions are kernels. Phases and schedule of an engine only serve to predict
    model: ModelWriter | None = None


@dataclass(frozen=True)
class Arithmetic:
    """The types in which a processor computes."""

    half: bool = False  # whether it has instructions for float16
    bfloat: bool = False  # whether it has fast instructions for products in bfloat16
    prefers_half: bool = False  # whether float16 is faster there than integers, as on GPUs
    # the precision in which it computes integer operators: ``float16``, or ``float16+float32`` with
    # float32 sums; empty for exact integers
    integers: str = ""


@dataclass(frozen=True)
class Hardware:
    """The device of a processor."""

    runs_here: bool = True  # whether it is in this machine, so that plans can be measured
    # the name of its device, if that is reached by RPC; empty for this machine and for processors
    # that are only known by their target
    device: str = ""
    driver: str = ""  # what else its measurements depend on, besides the machine and the device
    # whether it consists of the CPU's own cores: the cost model of the CPU's loop nests holds for
    # it, and they share caches
    on_host_cores: bool = False
    cores: tuple[int, ...] = ()  # the CPU's cores that it uses exclusively
    # time of an instruction packet if it is emulated here: its kernels are timed by counting
    # packets, because an emulator's own time says nothing. Otherwise 0
    packet_ns: float = 0.0
    max_share: float = 1.0  # of the time in which it may be busy; the executor pauses for the rest


@dataclass(frozen=True)
class Processor:
    """Something that runs kernels."""

    name: str  # in plans and messages, ``cpu`` for example
    target: tvm.target.Target  # for which its kernels are built
    threads: int  # cores that a kernel may use
    machine: VectorMachine  # the properties that its kernel templates need
    code: Code
    speed: Speed  # of typical processors of this kind
    operators: Operators = Operators()
    kind: str = "cpu"  # the part of the executor that drives it (native/processor.h)
    arithmetic: Arithmetic = Arithmetic()
    hardware: Hardware = Hardware()

    @property
    def is_host(self) -> bool:
        """Whether it is the CPU, which also runs the executor."""
        return self.kind == "cpu"

    def why_not(self, call: relax.Call) -> str | None:
        """Why this processor refuses ``call``; None if it runs it."""
        name = call.op.name if isinstance(call.op, tvm.ir.Op) else "call"
        for rule in self.operators.rules:
            if rule.op == name:
                dtype = str(getattr(call.ty, "dtype", ""))
                if rule.dtypes and dtype not in rule.dtypes:
                    return f"{name} runs in {', '.join(rule.dtypes)}, not {dtype}"
                return rule.check(call)
        return self.operators.refuse(call)
