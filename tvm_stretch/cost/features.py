"""The cost model's view of a kernel: a frozen dataclass for each family, with units in names.

Fields decide the latency of a kernel as it will run: fused, scheduled, in its layout.
``model_cycles`` is the analytic estimate of the templates (`targets/kernels/choose.py`) for one
core; the learned models correct it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

from tvm_stretch.errors import CostModelError
from tvm_stretch.files import Format

SCHEMA_VERSION = 7
"""Increase it when a field of a feature class changes; files of other versions are refused."""

MEASUREMENTS = Format(
    "tvm_stretch.measurements",
    SCHEMA_VERSION,
    "the measurements",
    CostModelError,
    "measure again into another file",
)

_TYPICAL_ROUND_BYTES = 128 << 20
_LARGEST = 2**62
_AT_LEAST_ONE = frozenset(
    {
        *("vector_lanes", "item_bytes", "tile_pixels", "tile_out_vectors", "groups"),
        *("merged_groups", "register_tiles", "register_out_vectors"),
        *("out_height_pixels", "out_width_pixels", "tiles"),
    }
)


@dataclass(frozen=True)
class Features:
    """Base of all families; every field is a number.

    Attributes:
        flops: multiplies and adds of the anchor; a multiply-add counts as two.
        in_bytes: of the kernel's inputs without its weights.
        weight_bytes: of constants in the form in which the kernel reads them.
        out_bytes: of its results.
        epilogue_flops: arithmetic of the elementwise operators that are fused after the anchor.
        model_cycles: see the module docstring.
        round_bytes: bytes that the processor touches between two runs of the kernel, usually a
            whole network. It decides in which memory the weights are found.
        reuse_bytes: bytes touched since the kernel's inputs were read or written, on average.
        vector_lanes: numbers in a vector of the processor; counts of vectors refer to these.
        item_bytes: of an input number: 4 for float32, 2 for float16, 1 for 8-bit integers.
    """

    family: ClassVar[str] = ""

    flops: float
    in_bytes: int
    weight_bytes: int
    out_bytes: int
    epilogue_flops: float
    model_cycles: float
    round_bytes: int = field(default=_TYPICAL_ROUND_BYTES, kw_only=True)
    reuse_bytes: int = field(default=0, kw_only=True)
    vector_lanes: int = field(default=8, kw_only=True)
    item_bytes: int = field(default=4, kw_only=True)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Names of the columns of `vector`."""
        return tuple(field.name for field in fields(cls))

    def vector(self) -> list[float]:
        """The columns as logarithms, because only ratios matter."""
        return [math.log2(1.0 + max(0.0, float(value))) for value in vars(self).values()]

    @property
    def total_bytes(self) -> int:
        """All memory that the kernel touches."""
        return self.in_bytes + self.weight_bytes + self.out_bytes


@dataclass(frozen=True)
class ConvFeatures(Features):
    """A direct convolution with its register tile."""

    family: ClassVar[str] = "conv"

    in_channels: int
    out_channels: int
    out_height_pixels: int
    out_width_pixels: int
    kernel_height_taps: int
    kernel_width_taps: int
    stride_pixels: int
    dilation_pixels: int
    groups: int
    data_block_lanes: int
    reduce_lanes: int
    tile_pixels: int
    tile_out_vectors: int
    tail_pixels: int
    tail_out_vectors: int


@dataclass(frozen=True)
class DenseFeatures(ConvFeatures):
    """A matrix product: a pointwise convolution of a few pixels, limited by its weights."""

    family: ClassVar[str] = "dense"


@dataclass(frozen=True)
class IntegerConvFeatures(ConvFeatures):
    """A direct convolution of 8-bit numbers."""

    family: ClassVar[str] = "integer_conv"


@dataclass(frozen=True)
class IntegerDenseFeatures(DenseFeatures):
    """A matrix product of 8-bit numbers."""

    family: ClassVar[str] = "integer_dense"


@dataclass(frozen=True)
class WinogradFeatures(Features):
    """A Winograd convolution with its tiles, or one of the two kernels into which it can be split.

    Attributes:
        input_stages: 1 if the kernel transforms the input.
        product_stages: 1 if it multiplies and transforms the output.
    """

    family: ClassVar[str] = "winograd"

    in_channels: int
    out_channels: int
    out_height_pixels: int
    out_width_pixels: int
    groups: int
    merged_groups: int
    tile_side_pixels: int
    tiles: int
    reduce_lanes: int
    register_tiles: int
    register_out_vectors: int
    tail_tiles: int
    input_stages: int = field(default=1, kw_only=True)
    product_stages: int = field(default=1, kw_only=True)


@dataclass(frozen=True)
class WindowFeatures(Features):
    """A kernel that reduces windows channel by channel."""

    channels: int
    out_height_pixels: int
    out_width_pixels: int
    kernel_height_taps: int
    kernel_width_taps: int
    stride_pixels: int
    dilation_pixels: int
    outside_taps_permille: int


@dataclass(frozen=True)
class DepthwiseFeatures(WindowFeatures):
    """A depthwise convolution."""

    family: ClassVar[str] = "depthwise"


@dataclass(frozen=True)
class IntegerDepthwiseFeatures(DepthwiseFeatures):
    """A depthwise convolution of 8-bit numbers."""

    family: ClassVar[str] = "integer_depthwise"


@dataclass(frozen=True)
class PoolFeatures(WindowFeatures):
    """Maximum or average of windows."""

    family: ClassVar[str] = "pool"

    averages: int


@dataclass(frozen=True)
class GenericFeatures(Features):
    """Anything else: elementwise, reductions, layout changes, concat, copies.

    Attributes:
        gathers: additional loads for vectors whose lanes are not contiguous.
    """

    family: ClassVar[str] = "generic"

    out_elements: int
    steps: int
    loads: int
    gathers: int
    calls: int
    conditions: int
    reduce_steps: int
    inner_elements: int
    stages: int


@dataclass(frozen=True)
class TransferFeatures(Features):
    """A tensor that moves from one processor to another; 0 bytes is the bare hand-over."""

    family: ClassVar[str] = "transfer"

    from_processor: int
    to_processor: int

    @staticmethod
    def of(size: int, sender: int, receiver: int) -> TransferFeatures:
        """A transfer of ``size`` bytes; processors by index, the CPU first."""
        return TransferFeatures(0.0, size, 0, size, 0.0, 0.0, sender, receiver)


@dataclass(frozen=True)
class RunFeatures(Features):
    """Overhead of a run besides its kernels: starting it, and proceeding from kernel to kernel."""

    family: ClassVar[str] = "run"

    launches: int

    @staticmethod
    def of(launches: int) -> RunFeatures:
        """A run of ``launches`` kernels."""
        return RunFeatures(0.0, 0, 0, 0, 0.0, 0.0, launches)


FAMILIES: dict[str, type[Features]] = {
    kind.family: kind
    for kind in (
        ConvFeatures,
        DenseFeatures,
        IntegerConvFeatures,
        IntegerDenseFeatures,
        WinogradFeatures,
        DepthwiseFeatures,
        IntegerDepthwiseFeatures,
        PoolFeatures,
        GenericFeatures,
        TransferFeatures,
        RunFeatures,
    )
}


def to_json(features: Features) -> dict[str, Any]:
    """A JSON object that `from_json` reads."""
    return {"family": features.family, **asdict(features)}


def from_json(data: dict[str, Any]) -> Features:
    """Read what `to_json` wrote.

    Raises:
        CostModelError: the family is unknown, or fields or values are not of this version.
    """
    if not isinstance(data, dict):
        raise CostModelError(f"expected an object for features, got {data!r}; {MEASUREMENTS.again}")
    values = dict(data)
    family = values.pop("family", None)
    kind = FAMILIES.get(str(family))
    if kind is None:
        raise CostModelError(
            f"expected one of {sorted(FAMILIES)} for family, got {family!r}; measure again"
        )
    found = MEASUREMENTS.build(kind, values, str(family))
    for item in fields(found):
        value = getattr(found, item.name)
        known = (int,) if item.type == "int" else (int, float)
        least = 1 if item.name in _AT_LEAST_ONE else 0
        if type(value) not in known or not least <= value <= _LARGEST:
            raise CostModelError(
                f"expected an {item.type} from {least} to 2^62 for {item.name} of {family}, got "
                f"{value!r}; {MEASUREMENTS.again}"
            )
    if isinstance(found, WinogradFeatures) and found.merged_groups > found.groups:
        raise CostModelError(
            f"expected at most {found.groups} for merged_groups of {family}, got "
            f"{found.merged_groups}; {MEASUREMENTS.again}"
        )
    return found
