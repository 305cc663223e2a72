"""Families of what no template computes, and features of all families as JSON.

Templates declare the families of their kernels (`targets/kernels/features.py`); here are kernels
without a template, transfers between processors, and the overhead of runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar

from tvm_stretch.base.errors import CostModelError
from tvm_stretch.base.formats import Format
from tvm_stretch.targets.kernels.features import FAMILIES, Features, Phases, Work, feature
from tvm_stretch.targets.kernels.template import every_template

MEASUREMENTS = Format(
    "tvm_stretch.measurements", 9, "the measurements", CostModelError, "measure again"
)
"""The version is that of the lines; each family of features has a version of its own."""

_LARGEST = 2**62
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class GenericFeatures(Features):
    """Anything without a family of its own: elementwise, reductions, layout changes, copies."""

    family: ClassVar[str] = "generic"

    out_elements: int
    steps: int
    loads: int
    gathers: int  # additional loads for vectors whose lanes are not contiguous
    calls: int
    conditions: int
    reduce_steps: int = field(metadata=feature(is_constant=True))
    inner_elements: int = field(metadata=feature(is_constant=True))
    stages: int = field(metadata=feature(is_constant=True))

    @property
    def read_bytes(self) -> int:
        """A slice reads only a part of its input."""
        return min(self.in_bytes, self.item_bytes * self.loads)

    def own_phases(self) -> Phases:
        """Statements, by what they do."""
        is_scalar = self.inner_elements % self.vector_lanes != 0
        return {
            "steps": self.steps / 20,
            "loads": self.loads / 20,
            "gathers": float(self.gathers),
            "calls": float(self.calls),
            "conditions": self.conditions / 4,
            "scalar": self.steps / 2 if is_scalar else 0.0,
            "flops": self.flops / 20,
        }

    def device_work(self) -> Work:
        """Values that are moved, in bytes of the results, if there are several."""
        size = self.out_bytes // max(1, self.out_elements)
        moved = self.read_bytes + self.out_bytes
        return Work(values=moved / max(1, min(_FLOAT_BYTES, size)))


@dataclass(frozen=True)
class MeanFeatures(GenericFeatures):
    """A mean of 8-bit pixels."""

    family: ClassVar[str] = "integer_mean"
    stand_in: ClassVar[str] = GenericFeatures.family


@dataclass(frozen=True)
class TableFeatures(GenericFeatures):
    """A function of 8-bit numbers, which are looked up."""

    family: ClassVar[str] = "table"
    stand_in: ClassVar[str] = GenericFeatures.family


_TURN_NS = 160.0
"""The time in which one work-item loads a few numbers from memory and stores one: about 100 cycles
of a phone's GPU, which has no caches to speak of."""
_TURN_VALUES = 500
"""The values that such a GPU moves meanwhile, where all its work-items do."""


@dataclass(frozen=True)
class InOrderFeatures(GenericFeatures):
    """A kernel on a GPU whose steps need each other: few work-items compute all of it."""

    family: ClassVar[str] = "in_order"

    turns: int  # stores that a work-item makes one after the other

    def own_phases(self) -> Phases:
        """The slowest item's time counts."""
        return {**super().own_phases(), "turns": _TURN_NS * self.turns}

    def device_work(self) -> Work:
        """As many values as would take the same time."""
        work = super().device_work()
        return replace(work, values=work.values + _TURN_VALUES * self.turns)


@dataclass(frozen=True)
class TransferFeatures(Features):
    """A tensor that moves from one processor to another; 0 bytes is the bare hand-over."""

    family: ClassVar[str] = "transfer"
    is_kernel: ClassVar[bool] = False

    from_processor: int
    to_processor: int

    @staticmethod
    def make(size: int, sender: int, receiver: int) -> TransferFeatures:
        """A transfer of ``size`` bytes; processors by index, the CPU first."""
        return TransferFeatures(0.0, size, 0, size, 0.0, 0.0, sender, receiver)

    def phases(self) -> Phases:
        """The hand-over, and bytes."""
        return {"start": 300.0, "bytes": self.in_bytes / 10}

    def device_work(self) -> Work:
        """None: a profile has transfers of its own."""
        return Work(kernels=0)


@dataclass(frozen=True)
class RunFeatures(Features):
    """Overhead of a run besides its kernels: starting it, and proceeding from kernel to kernel."""

    family: ClassVar[str] = "run"
    is_kernel: ClassVar[bool] = False

    launches: int

    @staticmethod
    def make(launches: int) -> RunFeatures:
        """A run of ``launches`` kernels."""
        return RunFeatures(0.0, 0, 0, 0, 0.0, 0.0, launches)

    def phases(self) -> Phases:
        """The start of the run, and its kernels."""
        return {"start": 300.0, "launches": 1000.0 * self.launches}

    def device_work(self) -> Work:
        """None: kernels have their own start."""
        return Work(kernels=0)


@dataclass(frozen=True)
class LaunchedRunFeatures(Features):
    """A whole run on a GPU, whose launches hide beside its kernels (`Launching`)."""

    family: ClassVar[str] = "launched_run"
    is_kernel: ClassVar[bool] = False

    launches: int = field(metadata=feature(least=1))
    weight_launches: int  # those of kernels that read weights, which have more arguments
    kernel_ns: int  # of all kernels, each measured alone

    @staticmethod
    def make(kernels: Sequence[Features | None], kernel_ns: int) -> LaunchedRunFeatures:
        """A run of kernels that take ``kernel_ns`` alone; None is a kernel without features."""
        launches = [(1, 0) if k is None else k.launches_and_weights for k in kernels]
        total, weighted = (sum(column) for column in zip(*launches, strict=True))
        return LaunchedRunFeatures(0.0, 0, 0, 0, 0.0, 0.0, total, weighted, kernel_ns)

    def device_work(self) -> Work:
        """None: it is a sum of kernels."""
        return Work(kernels=0)


def families() -> dict[str, type[Features]]:
    """All families, by name."""
    every_template()  # they declare most of them
    return FAMILIES


def to_json(features: Features) -> dict[str, Any]:
    """A JSON object that `from_json` reads."""
    return {"family": features.family, "version": features.version, **asdict(features)}


def from_json(data: Any) -> Features | None:
    """Read what `to_json` wrote; None for a family, or a version, that is not this package's."""
    if not isinstance(data, dict):
        raise CostModelError(f"expected an object for features, got {data!r}; {MEASUREMENTS.again}")
    values = dict(data)
    family, version = values.pop("family", None), values.pop("version", None)
    kind = families().get(str(family))
    if not isinstance(family, str) or type(version) is not int:
        raise CostModelError(
            f"expected a name and a number for family and version, got {family!r} and "
            f"{version!r}; {MEASUREMENTS.again}"
        )
    if kind is None or version != kind.version:
        return None
    features = MEASUREMENTS.build(kind, values, family)
    limits = {one.name: (one.metadata.get("least", 0), _LARGEST) for one in fields(kind)}
    return MEASUREMENTS.within(features, family, 0, _LARGEST, **limits)
