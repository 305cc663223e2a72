"""Profile of a device that need not be here: costs of each kind of work on its processors.

    phone = load_profile("snapdragon-855")
    phone.processor("cpu").nanoseconds(kernel.device_work())
    phone.hand_over("cpu", "opencl", 1 << 20)

`profile_file.py` reads and writes profiles, and `calibrate.py` computes the numbers of processors
from latencies of a few networks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from tvm_stretch.base.errors import CostModelError
from tvm_stretch.plan.cost.prediction import CostModel, Prediction, analytic
from tvm_stretch.targets.kernels.features import Features, Work

BYTES = {"int8": 1, "float16": 2, "float32": 4}
"""Precisions with the bytes of a value."""

_FLOAT_BYTES = 4
_DOUBT = 1.25
"""Largest error for networks with which a profile was not calibrated."""


@dataclass(frozen=True)
class ProcessorProfile(CostModel):
    """Costs on one processor."""

    name: str  # as in plans
    precision: Literal["int8", "float16", "float32"]  # in which it computes
    multiply_adds_per_ns: Mapping[str, float]  # for each of `Work.families`
    activation_bytes_per_ns: float  # of reading and writing activations, in its precision
    weight_bytes_per_ns: float  # of reading weights, in its precision
    kernel_us: float  # overhead of a kernel
    group_us: float  # overhead of each small convolution of a grouped one
    region_us: float = 0.0  # overhead of a region, where a vendor's runtime runs it as a whole
    threads: int = 1  # cores of a CPU that its kernels use
    mhz: tuple[float, ...] = ()  # clocks that it can have; all numbers hold at the first
    # how many times as long a multiply-add takes in float32; None if that is not known
    float32_slowdown: float | None = None
    # watts while it is busy, beyond the device's `idle_watts`; None if they are not known
    watts: float | None = None
    # the TVM target of its kernels; None if this version makes none
    target: Mapping[str, Any] | None = None
    # operators that it does not support, with reasons
    refuses: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    # how much longer memory takes while the others of a team work (`Profile.crowded`)
    crowding: float = 1.0

    def nanoseconds(self, work: Work) -> float:
        """The time of a kernel."""
        compute = 0.0
        if work.family in self.multiply_adds_per_ns:
            compute = work.multiply_adds / self.multiply_adds_per_ns[work.family]
        started = 1e3 * (self.kernel_us * work.kernels + self.group_us * work.groups)
        return compute + self._memory_ns(work) + started

    def _memory_ns(self, work: Work) -> float:
        """The time in which a kernel reads and writes."""
        size = BYTES[self.precision]
        activations = size * work.values / self.activation_bytes_per_ns
        if work.family == "grouped":  # groups are sliced, and concatenated again
            activations *= 2
        return activations + size * work.weights / self.weight_bytes_per_ns

    def crowded(self, kernels: Sequence[Features]) -> float:
        """How much longer kernels take while others use the same memory: their traffic waits."""
        if self.crowding == 1.0:
            return 1.0
        works = [kernel.device_work() for kernel in kernels]
        alone, memory = (sum(map(f, works)) for f in (self.nanoseconds, self._memory_ns))
        return 1 + (self.crowding - 1) * memory / alone if alone else 1.0

    @property
    def start_ns(self) -> float:
        """The latency of a kernel without work."""
        return 1e3 * self.kernel_us

    def predict_all(self, kernels: Sequence[Features]) -> list[Prediction]:
        """One prediction for each kernel."""
        return analytic([self.nanoseconds(kernel.device_work()) for kernel in kernels], _DOUBT)

    def clocked(self, mhz: float) -> ProcessorProfile:
        """The processor at another of its clocks: it computes, reads and writes as much slower.

        Watts fall in proportion to the clock, as at the same voltage; a device that lowers the
        voltage, too, needs less.
        """
        if mhz not in self.mhz:
            clocks = ", ".join(f"{clock:g}" for clock in self.mhz)
            raise CostModelError(
                f"expected one of {clocks or 'no clocks'} for the MHz of {self.name}, got {mhz:g}; "
                + ("choose one of these" if clocks else "add mhz to its table in the profile")
            )
        ratio = mhz / self.mhz[0]
        return replace(
            self,
            multiply_adds_per_ns={k: v * ratio for k, v in self.multiply_adds_per_ns.items()},
            activation_bytes_per_ns=self.activation_bytes_per_ns * ratio,
            weight_bytes_per_ns=self.weight_bytes_per_ns * ratio,
            kernel_us=self.kernel_us / ratio,
            group_us=self.group_us / ratio,
            region_us=self.region_us / ratio,
            watts=None if self.watts is None else self.watts * ratio,
            mhz=(mhz, *(clock for clock in self.mhz if clock != mhz)),
        )


@dataclass(frozen=True)
class Power:
    """What a device takes while its processors are busy and idle."""

    watts: tuple[float, ...]  # of each processor while it is busy, by its place
    idle_watts: float = 0.0  # of the device, all the time
    copied_pj_per_byte: float = 0.0  # of each byte that is handed over

    def millijoules(self, ns: int, busy: Sequence[int], moved: int = 0) -> float:
        """The energy of a run.

        Args:
            ns: its latency.
            busy: nanoseconds of work of each processor.
            moved: bytes that processors hand over to each other.
        """
        work = sum(w * t for w, t in zip(self.watts, busy, strict=True))
        return (work + self.idle_watts * ns) / 1e6 + self.copied_pj_per_byte * moved / 1e9


@dataclass(frozen=True)
class Transfer:
    """The cost of handing a tensor over."""

    sender: str  # the processor that wrote it
    receiver: str  # the processor that reads it, and is busy meanwhile
    us: float  # time without bytes
    bytes_per_ns: float  # in the wider precision of the two


@dataclass(frozen=True)
class Profile:
    """A device."""

    device: str  # its name
    source: str  # where the numbers come from
    processors: Mapping[str, ProcessorProfile]  # by name; the CPU is among them
    # from the CPU to each other processor and back; transfers that are missing go through the
    # CPU
    transfers: tuple[Transfer, ...] = ()
    together: float = 1.0  # how much longer kernels take while other processors work
    idle_watts: float = 0.0  # of the whole device while no processor is busy
    copied_pj_per_byte: float = 0.0  # picojoules of memory for each byte that is handed over
    # what all processors together can read and write; 0 if that is not known
    memory_bytes_per_ns: float = 0.0

    def in_floats(self) -> Profile:
        """The device while it computes a network of floats in float32, as far as that is known."""
        processors = {
            name: replace(
                one,
                precision="float32",
                multiply_adds_per_ns={
                    family: speed / one.float32_slowdown
                    for family, speed in one.multiply_adds_per_ns.items()
                },
                float32_slowdown=None,
            )
            for name, one in self.processors.items()
            if one.float32_slowdown is not None
        }
        return replace(self, processors={**self.processors, **processors})

    def crowded(self, names: Sequence[str]) -> list[ProcessorProfile]:
        """The processors of a team, each of which knows how much longer its memory takes.

        Together they move at most what the memory can; each alone is below that.
        """
        team = [self.processor(name) for name in names]
        wanted = sum(one.activation_bytes_per_ns for one in team)
        limit = self.memory_bytes_per_ns or wanted
        return [replace(one, crowding=max(1.0, wanted / limit)) for one in team]

    def processor(self, name: str) -> ProcessorProfile:
        """The processor with that name."""
        if name not in self.processors:
            raise CostModelError(
                f"expected a processor of {self.device} ({', '.join(self.processors)}), got "
                f"{name!r}; choose one of these, or add it to the profile"
            )
        return self.processors[name]

    def clocked(
        self,
        mhz: Mapping[str, float],  # of processors by name; others keep theirs
    ) -> Profile:
        """The device while processors have these clocks; hand-overs take as long as before."""
        clocked = {name: self.processor(name).clocked(clock) for name, clock in mhz.items()}
        told = ",".join(f"{name}={clock:g}" for name, clock in mhz.items())
        processors = {**self.processors, **clocked}
        return replace(self, device=f"{self.device}@{told}", processors=processors)

    def power(self, names: Sequence[str]) -> Power | None:
        """The power of these processors; None unless all of them are known."""
        watts = [self.processor(name).watts for name in names]
        measured = tuple(w for w in watts if w is not None)
        if len(measured) < len(watts):
            return None
        return Power(measured, self.idle_watts, self.copied_pj_per_byte)

    def hand_over(self, writer: str, reader: str, size: int, value_bytes: int = 4) -> int:
        """Nanoseconds from the end of a kernel to the start of its reader.

        Args:
            size: bytes of the tensor in Relax.
            value_bytes: of a value in Relax: 4 for float32, 1 in a quantised network.
        """
        if writer == reader:
            return 0
        wider = max(BYTES[self.processor(name).precision] for name in (writer, reader))
        for transfer in self.transfers:
            if (transfer.sender, transfer.receiver) == (writer, reader):
                moved = size * wider / value_bytes / transfer.bytes_per_ns
                return round(1e3 * transfer.us + moved)
        pairs = ((writer, "cpu"), ("cpu", reader))
        return sum(self.hand_over(*pair, size, value_bytes) for pair in pairs)
