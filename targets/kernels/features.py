"""Features of kernels: what the cost models know of a kernel, by families that templates declare.

A family is a frozen dataclass with units in the names of its fields. Fields decide the latency of
a kernel as it will run: fused, scheduled, in its layout.  ``model_cycles`` is the template's own
estimate for one core; learned models correct it.

The latency is approximated by a weighted sum of phases, which the family computes from its fields:

    conv 64 -> 64   ->   {"start": 300, "multiply": 81234, "tiles": 5120, "output": 6720, ...}

Each is in nanoseconds of an imaginary core, so 1 is a sensible first weight. A field says where
a template's configuration has it, so no other list names it; `Features.of_kernel` reads them:

    tile_pixels: int = field(metadata=feature("pixels", least=1))
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import Any, ClassVar, TypeVar

Phases = dict[str, float]
Family = TypeVar("Family", bound="Features")

FAMILIES: dict[str, type[Features]] = {}
"""By name; a class registers itself."""

_TYPICAL_ROUND_BYTES = 128 << 20
L1_BYTES, L2_BYTES, L3_BYTES = 32e3, 512e3, 16e6
"""Cache sizes at which accesses get slower; steps are smooth, so other sizes only shift them."""

LARGE_BYTES = 48e6
"""The largest cache of usual devices: the second level of an H100 has 50 MB."""

GIGAHERTZ = 2.5
"""Clock of the imaginary core."""

_CHEAP = 8
"""Cheap operations for each element of an epilogue; more indicate an exponential or quotient."""

_IMAGE_CHANNELS = 4


@dataclass(frozen=True)
class EpilogueWork:
    """The operators that are fused after an anchor."""

    flops: float = 0.0  # their arithmetic
    bytes: int = 0  # of their operands other than the anchor's result
    out_bytes: int = 0  # of the kernel's result, unless it has the anchor's shape


@dataclass(frozen=True)
class Work:
    """What a kernel does, in the few quantities whose prices a device's profile contains.

        conv 3x3, 64 -> 128, 28 x 28    ->    Work("dense", multiply_adds=57.8e6, values=175616,
                                                   weights=73728)

    Only work that every device would have to do counts: no transforms of Winograd, no padding.
    """

    # convolutions of an image's few channels, with windows, 1x1 (and matrix products), in
    # groups, and channel by channel
    families: ClassVar[tuple[str, ...]] = ("image", "dense", "pointwise", "grouped", "depthwise")

    family: str = "other"  # one of these, or ``other``: kernels that move values and multiply few
    multiply_adds: float = 0.0  # of convolutions and matrix products
    values: float = 0.0  # activations that are read and written
    weights: float = 0.0  # number of weights that are read
    groups: int = 0  # of a grouped convolution; 0 for everything else
    kernels: int = 1  # 0 for kernels that only this compiler needs

    @staticmethod
    def of_conv(
        multiply_adds: float, values: float, channels: int, weights: float, groups: int, taps: int
    ) -> Work:
        """The work of a convolution of ``channels`` input channels."""
        if groups > 1:
            family = "depthwise" if groups == channels else "grouped"
        elif taps == 1:
            family = "pointwise"
        else:
            family = "image" if channels <= _IMAGE_CHANNELS else "dense"
        return Work(family, multiply_adds, values, weights, groups if family == "grouped" else 0)


def feature(
    read: str | Callable[[Any], float] | None = "",
    *,
    least: int = 0,
    is_constant: bool = False,
) -> dict[str, Any]:
    """The metadata of a family's field.

    Args:
        read: an attribute of a configuration, or a function of it; by default the field's own
            name. None: configurations do not have it.
        least: the smallest value.
        is_constant: whether it stays as it is when the kernel's result grows; see `scaled`.
    """
    return {"read": read, "least": least, "is_constant": is_constant}


@dataclass(frozen=True)
class Features:
    """Base of all families; every field is a number.

    A family increases ``version`` when the meaning of its fields or phases changes. Measurements
    of its earlier versions are then ignored, those of other families stay valid.
    """

    family: ClassVar[str] = ""
    version: ClassVar[int] = 1
    stand_in: ClassVar[str] = ""
    """A family with the same fields, whose model predicts this one until it is measured."""
    is_kernel: ClassVar[bool] = True
    """Whether it describes a kernel, and neither a transfer nor a run."""
    result_bytes: ClassVar[int] = 0
    """Bytes of a number of the result; 0: as many as of an input."""

    flops: float  # multiplies and adds of the anchor; a multiply-add counts as two
    in_bytes: int  # of the kernel's inputs without its weights
    weight_bytes: int  # of constants in the form in which the kernel reads them
    out_bytes: int  # of its results
    # arithmetic of the elementwise operators that are fused after the anchor
    epilogue_flops: float
    model_cycles: float  # see the module docstring
    # bytes that the processor touches between two runs of the kernel, usually a whole network
    # It decides in which memory the weights are found
    round_bytes: int = field(
        default=_TYPICAL_ROUND_BYTES, kw_only=True, metadata=feature(None, is_constant=True)
    )
    # bytes touched since the kernel's inputs were read or written, on average
    reuse_bytes: int = field(default=0, kw_only=True, metadata=feature(None, is_constant=True))
    # numbers in a vector of the processor; counts of vectors refer to these
    vector_lanes: int = field(
        default=8, kw_only=True, metadata=feature("lanes", least=1, is_constant=True)
    )
    # of an input number: 4 for float32, 2 for float16, 1 for 8-bit integers
    item_bytes: int = field(
        default=4, kw_only=True, metadata=feature(None, least=1, is_constant=True)
    )

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "family" in cls.__dict__:
            FAMILIES[cls.family] = cls

    @classmethod
    def of_kernel(
        cls: type[Family],
        config: Any,  # a template's configuration
        cycles: float,  # by its own model
        epilogue: EpilogueWork,
        item: int,  # bytes of a number of the kernel's input
        flops: float,
        # numbers that the kernel reads and writes, and its constants
        numbers: tuple[int, int, int],
    ) -> Family:
        """The features of a configuration."""
        read, written, constants = numbers
        sources = {field.name: field.metadata.get("read") for field in fields(cls)}
        own = {
            name: source(config) if callable(source) else getattr(config, source or name)
            for name, source in sources.items()
            if source is not None
        }
        return cls(
            flops=flops,
            in_bytes=item * read + epilogue.bytes,
            weight_bytes=item * constants,
            out_bytes=epilogue.out_bytes or (cls.result_bytes or item) * written,
            epilogue_flops=epilogue.flops,
            model_cycles=cycles,
            item_bytes=item,
            **own,
        )

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Names of the columns of `vector`."""
        return tuple(field.name for field in fields(cls))

    def vector(self) -> list[float]:
        """The columns as logarithms, because only ratios matter."""
        return [math.log2(1.0 + max(0.0, float(value))) for value in vars(self).values()]

    @property
    def launch_count(self) -> int:
        """How many kernels of the device it is."""
        return 1

    @property
    def launches_and_weights(self) -> tuple[int, int]:
        """Its launches, and those with weights among their arguments."""
        return self.launch_count, self.launch_count if self.weight_bytes else 0

    @property
    def total_bytes(self) -> int:
        """All memory that the kernel touches."""
        return self.in_bytes + self.weight_bytes + self.out_bytes

    @property
    def far_weight_bytes(self) -> float:
        """Bytes of weights that even a large cache lost in a round, of which it keeps a part."""
        return self.weight_bytes * max(0.0, 1.0 - LARGE_BYTES / max(1, self.round_bytes))

    @property
    def read_bytes(self) -> int:
        """Bytes of the inputs that are really read."""
        return self.in_bytes

    def phases(self) -> Phases:
        """The quantities of the kernel; all kernels of a family have the same names."""
        cold = {
            "cold_start": 300.0 * missing(self.round_bytes, L2_BYTES),
            "cold_l3": 300.0 * missing(self.round_bytes, L3_BYTES),
        }
        return {"start": 300.0, **cold, **self._memory(), **self.own_phases()}

    def own_phases(self) -> Phases:
        """The quantities that only this family has."""
        return {}

    def hints(self) -> list[float]:
        """Ratios that help the trees: how well registers and caches are used."""
        elements = max(1.0, self.out_bytes / self.item_bytes)
        return [self.epilogue_flops / elements, self.flops / max(1, self.total_bytes)]

    def device_work(self) -> Work:
        """The work of the kernel on any device."""
        return Work(values=(self.in_bytes + self.out_bytes) / self.item_bytes)

    def scaled(self, share: Fraction, read: Fraction) -> Features:
        """A kernel of a share of the result, which reads a share of the input."""
        changed = {
            field.name: max(least, type(value)(value * part.numerator / part.denominator))
            for field in fields(self)
            if not field.metadata.get("is_constant")
            for value, least in ((getattr(self, field.name), field.metadata.get("least", 0)),)
            for part in (read if field.name == "in_bytes" else share,)
        }
        return replace(self, **changed)

    def _memory(self) -> Phases:
        """Traffic of weights since the last round, and of inputs since they were written."""
        weights, read, written = self.weight_bytes, self.read_bytes, self.out_bytes
        beyond_l2 = missing(self.round_bytes, L2_BYTES)
        beyond_l3 = missing(self.round_bytes, L3_BYTES)
        since = self.reuse_bytes + read  # the end of a tensor evicts its beginning
        cheap = _CHEAP * written / self.item_bytes
        return {
            "weights_memory": weights * beyond_l3 / 12,
            "weights_cache": weights * beyond_l2 * (1 - beyond_l3) / 30,
            "input": read / 60 * missing(since, L1_BYTES),
            "input_cache": read * missing(since, L2_BYTES) / 30,
            "input_memory": read * missing(since, L3_BYTES) / 12,
            "output": written / 30,
            "large_output": written * missing(written, L2_BYTES) / 12,
            "epilogue": min(self.epilogue_flops, cheap) / 20,
            "functions": max(0.0, self.epilogue_flops - cheap) / 20,
        }


def missing(distance: float, size: float) -> float:
    """Share of data last touched ``distance`` bytes ago that a cache of this size has lost."""
    return 1.0 / (1.0 + (size / max(distance, 1.0)) ** 2)
