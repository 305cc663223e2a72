"""Kernels to measure: those of real networks, and their neighbours.

As in nn-Meter, sampling starts from layers of real networks (`prior.json`: the distinct layers of
the zoo) and goes on around the kernels that the model predicts worst.

    Sample("conv", 64, (56, 56), 64, (3, 3), padding=(1, 1, 1, 1), epilogue="add_relu")
        ->  conv2d + bias + residual -> relu, through the processor's own phases
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from tvm import s_tir, tirx

from tvm_stretch.base.errors import CostModelError
from tvm_stretch.network.attributes import ANNOTATION
from tvm_stretch.network.expressions import nodes_of
from tvm_stretch.plan.cost.generic_features import MEASUREMENTS
from tvm_stretch.targets.kernels.layers import ConvShape, Sliding, WindowShape, taken
from tvm_stretch.targets.kernels.template import read_template

PRIOR = Path(__file__).with_name("prior.json")
KINDS = ("conv", "dense", "depthwise", "pair", "max", "avg", "elementwise")
EPILOGUES = ("none", "bias", "relu", "relu6", "swish", "sigmoid", "add", "add_relu", "leaky")
DTYPES = ("float32", "uint8", "int8")
_LARGEST_MULTIPLY_ADDS = 1_200_000_000
_LARGEST_BYTES, _LARGEST_DENSE_BYTES = 40_000_000, 128_000_000
_FUNCTIONS = ("swish", "sigmoid")
_FUNCTION = 0.2
"""The share of the zoo's layers that get an exponential epilogue, as few networks have one."""

_SHARE, _SMALL, _NARROW = 0.25, 0.2, 0.2
"""The shares of neighbours that compute a part of the output channels, that have a small image,
and that have few channels (a quarter, or as few as a vector)."""


@dataclass(frozen=True)
class Sample(Sliding):
    """One kernel to measure."""

    batch: ClassVar[int] = 1

    kind: str  # one of `KINDS`
    in_channels: int
    in_size: tuple[int, int]
    out_channels: int
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)  # top, left, bottom, right
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    epilogue: str = "none"  # one of `EPILOGUES`; integers have none
    dtype: str = "float32"  # the type of its tensors: float32, or 8-bit integers

    @property
    def is_possible(self) -> bool:
        """Whether such a kernel exists and is small enough to measure quickly."""
        if self.kind == "pair":
            return all(layer.is_possible for layer in self.of_pair)
        height, width = self.out_size
        largest = max(
            self.in_channels * self.in_size[0] * self.in_size[1],
            self.out_channels * height * width,
            self.out_channels * self.in_channels // self.groups * self.kernel[0] * self.kernel[1],
        )
        return (
            min(height, width, self.in_channels, self.out_channels) > 0
            and self.in_channels % self.groups == self.out_channels % self.groups == 0
            and 4 * largest <= (_LARGEST_DENSE_BYTES if self.kind == "dense" else _LARGEST_BYTES)
            and taken(ConvShape, self, batch=1).multiply_adds <= _LARGEST_MULTIPLY_ADDS
        )

    @property
    def of_pair(self) -> tuple[Sample, Sample]:
        """The depthwise layer of a pair, and the 1x1 layer that reads its result."""
        count, outputs = self.in_channels, self.out_channels
        first = replace(self, kind="depthwise", out_channels=count, groups=count, epilogue="relu6")
        return first, Sample("conv", count, self.out_size, outputs, epilogue=self.epilogue)

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads."""
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Sample:
        """Read what `to_json` wrote."""
        sample = MEASUREMENTS.build(Sample, data, "a sample")
        is_kind = sample.kind in KINDS and sample.epilogue in EPILOGUES and sample.dtype in DTYPES
        if not is_kind or not sample._is_window() or min(sample.out_size) < 1:
            raise CostModelError(
                f"expected a kernel that exists for a sample, got {data!r}; {MEASUREMENTS.again}"
            )
        return sample

    def _is_window(self) -> bool:
        pairs = (*self.in_size, *self.kernel, *self.stride, *self.dilation)
        return (
            min(self.in_channels, self.out_channels, self.groups, *pairs) > 0 <= min(self.padding)
        )


# --- from networks --------------------------------------------------------------------------------


def sample_of(name: str, function: tirx.PrimFunc) -> Sample | None:
    """The sample that compiles to this kernel; None for kernels without one."""
    notes = [block.annotations for block in nodes_of(function.body, s_tir.SBlock)]
    marks = [str(note[ANNOTATION]) for note in notes if ANNOTATION in note]
    layer = read_template(marks[-1]).sampled if marks else None
    if not isinstance(layer, ConvShape | WindowShape) or layer.batch != 1:
        return None
    dtype = getattr(layer, "dtype", "float32")
    values: dict[str, Any] = {"epilogue": _epilogue(name), "dtype": dtype}
    if dtype != "float32":
        values["epilogue"] = "none"
    if isinstance(layer, WindowShape):
        channels = ("in_channels", "out_channels", "groups")
        return taken(Sample, layer, **values, **dict.fromkeys(channels, layer.channels))
    is_dense = "dense" in name if dtype == "float32" else layer.is_dense
    return taken(Sample, layer, kind="dense" if is_dense else "conv", **values)


def _epilogue(name: str) -> str:
    """The kind of epilogue, by the fused kernel's name."""
    words = [re.sub(r"\d+$", "", word) for word in name.split("_")]
    adds = words.count("add")
    if "silu" in words or ("multiply" in words and "sigmoid" in words):
        return "swish"
    for word, kind in (("sigmoid", "sigmoid"), ("clip", "relu6"), ("leakyrelu", "leaky")):
        if word in words:
            return kind
    if "relu" in words:
        return "add_relu" if adds > 1 else "relu"
    return ("none", "bias", "add")[min(adds, 2)]


def load_prior() -> list[Sample]:
    """The distinct layers of the zoo's networks."""
    return [Sample.from_json(item) for item in json.loads(PRIOR.read_text(encoding="utf-8"))]


def pairs_of(samples: Sequence[Sample]) -> list[Sample]:
    """The pairs of a depthwise and a 1x1 layer that GPUs may compute as one kernel.

    Networks join them (`passes/join_depthwise.py`), so their latencies need a model of pairs.
    """
    convs: dict[tuple[object, ...], list[Sample]] = {}
    for conv in samples:
        plain = (conv.kind, conv.kernel, conv.stride, conv.groups) == ("conv", (1, 1), (1, 1), 1)
        if plain and not any(conv.padding):
            convs.setdefault((conv.in_channels, conv.in_size), []).append(conv)
    return [
        replace(
            first, kind="pair", groups=1, out_channels=conv.out_channels, epilogue=conv.epilogue
        )
        for first in samples
        if first.kind == "depthwise" and first.in_channels == first.out_channels
        for conv in convs.get((first.out_channels, first.out_size), ())
    ]


def far_reader(dice: random.Random) -> Sample:
    """A dense layer whose weights are more than the cache of a large GPU keeps.

    Beside it all weights come from memory, as in networks of a hundred megabytes.
    """
    inputs = 512 * dice.randint(12, 20)
    return Sample("dense", inputs, (1, 1), dice.randint(48, 112) * 10**6 // (32 * inputs) * 8)


def wide_window(dice: random.Random) -> Sample:
    """A 3x3 convolution of many channels, for which a GPU often takes Winograd's algorithm.

    Few layers of the zoo are like that, but they are most of the time of their networks.
    """
    while True:
        inputs, outputs = (8 * round(2.0 ** dice.uniform(3.5, 7)) for _ in range(2))
        side = dice.choice((4, 7, 8, 10, 13, 14, 17, 20, 26, 28, 35, 40, 52, 56))
        sample = Sample(
            *("conv", inputs, (side, side), outputs, (3, 3)), padding=(1, 1, 1, 1), epilogue="relu"
        )
        if sample.is_possible:
            return sample


def by_kind(samples: Sequence[Sample], dice: random.Random) -> Sample:
    """One of the samples; kinds of which there are few are taken more often than their share.

    Networks with many layers of a kind, such as average pools, are few of all networks.
    """
    kinds: dict[tuple[object, ...], list[Sample]] = {}
    for sample in samples:
        windows = sample.kernel != (1, 1), sample.stride != (1, 1), sample.groups > 1
        kinds.setdefault((sample.kind, *windows), []).append(sample)
    groups = list(kinds.values())
    (own,) = dice.choices(groups, [math.sqrt(len(group)) for group in groups])
    return dice.choice(own)


def with_functions(samples: Sequence[Sample], dice: random.Random) -> list[Sample]:
    """The samples, some with an exponential epilogue."""
    changed = []
    for sample in samples:
        epilogue = dice.choice(_FUNCTIONS) if dice.random() < _FUNCTION else sample.epilogue
        is_kernel = sample.kind in ("conv", "dense", "depthwise")
        changed.append(replace(sample, epilogue=epilogue) if is_kernel else sample)
    return changed


def in_integers(sample: Sample) -> Sample:
    """The sample with 8-bit integers, whose epilogue is only rounding."""
    return replace(sample, epilogue="none", dtype="uint8")


def neighbour(sample: Sample, dice: random.Random) -> Sample:
    """A similar kernel with other channels, another size, perhaps another tile."""

    def near(value: int, step: int) -> int:
        scaled = value * 2.0 ** dice.uniform(-0.8, 0.8)
        return max(step, round(scaled / step) * step) if value >= step else value

    for _ in range(50):
        step = dice.choice((8, 8, 16, 4))
        size = sample.in_size
        if sample.kind != "dense" and dice.random() < 0.6:
            side = near(size[0], 1)
            size = (side, side if size[0] == size[1] else near(size[1], 1))
            if dice.random() < 0.3:  # bands of rows, as branches have them
                size = (max(sample.kernel[0], size[0] // dice.choice((2, 3, 4))), size[1])
        group = sample.in_channels // sample.groups
        if sample.kind in ("depthwise", "max", "avg", "elementwise"):
            inputs = outputs = groups = near(sample.in_channels, step)
        elif sample.groups > 1:
            groups = max(1, near(sample.groups, 1))
            inputs = outputs = group * groups
        else:
            groups, inputs = 1, near(sample.in_channels, step)
            outputs = near(sample.out_channels, step)
            if sample.kind != "dense" and dice.random() < _NARROW:  # as small networks are
                inputs, outputs = (max(8, near(c // 4, 8)) for c in (inputs, outputs))
            if dice.random() < _SHARE:
                outputs = max(8, round(sample.out_channels * dice.randint(1, 7) / 64) * 8)
        if sample.kind != "dense" and dice.random() < _SMALL:
            side = dice.choice((1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28))
            size = (side, side)
        epilogue = dice.choice(EPILOGUES[1:8]) if dice.random() < 0.5 else sample.epilogue
        similar = replace(
            sample,
            in_channels=inputs,
            out_channels=outputs,
            groups=groups,
            in_size=size,
            epilogue=epilogue,
        )
        if similar.is_possible:
            return similar
    return sample
