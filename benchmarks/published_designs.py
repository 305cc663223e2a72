"""NN-Stretch's published designs, counted layer by layer, with predictions of a phone's twin.

    {"R-34-CD": {"depths": [[3, 2], ..], "widths": [[32, 64], ..], "devices": ["cpu", "dsp"], ..}}

Each stage has a branch for each device; all branches read the whole concatenation of the stage
before. Stem, head and concatenations are on the CPU. Branches of EfficientNet begin with a 1x1 to
their share of the channels and end with a 1x1 to an equal share of the original ones. Nothing is
built here: the layers are counted from the design, and their times come from a profile.

`ORIGINALS` are the six networks that were stretched, in the same form; `LATENCY_MS` are their
latencies on single processors, from which `speeds` of families of operators follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any, TypeAlias

import numpy as np
from scipy.optimize import nnls

from tutorials.zoo import regnet
from tvm_stretch.network.operator_graph import Group
from tvm_stretch.plan.cost.profile import Profile
from tvm_stretch.plan.measuring.calibrate import processor_of
from tvm_stretch.plan.scheduling.clock import Clock, Step, Written
from tvm_stretch.targets.kernels.features import Work

Design: TypeAlias = Mapping[str, Any]

_IMAGE, _CLASSES = 224, 1000
_FLOAT_BYTES = 4


def work_of_convolution(
    in_channels: int,
    out_channels: int,
    kernel: int | tuple[int, int],
    out_size: int | tuple[int, int],
    *,
    stride: int = 1,
    groups: int = 1,
    more_values: float = 0.0,
) -> Work:
    """A convolution of one sample.

    Args:
        in_channels: of all groups.
        out_channels: of all groups.
        kernel: its height and width.
        out_size: height and width of the result.
        stride: of both axes.
        groups: of channels.
        more_values: other operands of the epilogue, such as the other summand.
    """
    taps = kernel * kernel if isinstance(kernel, int) else prod(kernel)
    pixels = out_size * out_size if isinstance(out_size, int) else prod(out_size)
    weights = out_channels * (in_channels // groups) * taps
    values = (in_channels * stride**2 + out_channels) * pixels + more_values
    return Work.of_conv(float(weights * pixels), values, in_channels, weights, groups, taps)


def work_of_group(group: Group) -> Work:
    """The work of operators that become one kernel."""
    anchor = group.anchor
    moved = (group.read_bytes + group.bytes) / _FLOAT_BYTES
    if not anchor.multiply_adds:
        return Work(values=moved)
    if not anchor.kind.startswith("nn.conv"):  # a matrix product; its second operand may be one
        weights = prod(anchor.arg_shapes[1])
        return Work("pointwise", anchor.multiply_adds, max(0.0, moved - weights), weights)
    data, weight = anchor.arg_shapes[:2]
    weights = prod(weight)
    values = max(0.0, moved - weights)
    taps = prod(weight[2:])
    return Work.of_conv(anchor.multiply_adds, values, data[1], weights, anchor.groups, taps)


def _original(
    depths: Sequence[int], widths: Sequence[int], strides: Sequence[int], **rest: Any
) -> Design:
    return {
        "strides": [[stride] for stride in strides],
        "depths": [[depth] for depth in depths],
        "widths": [[width] for width in widths],
        "original_widths": list(widths),
        "devices": ["cpu"],
        **rest,
    }


def _resnet(kind: str, widths: Sequence[int], multiple: float) -> Design:
    groups = [[round(width * multiple)] for width in widths]
    ends = {"stem_type": "res_stem_in", "stem_w": 64}
    rest = {"block_type": kind, "bot_muls": [multiple] * 4, "group_ws": groups}
    return _original((3, 4, 6, 3), widths, (1, 2, 2, 2), **ends, **rest)


def _regnet(w_0: int, w_a: float, w_m: float, depth: int, group: int) -> Design:
    widths, depths = zip(*regnet.stages(w_0, w_a, w_m, depth, group), strict=True)
    ends = {"stem_type": "simple_stem_in", "stem_w": 32}
    rest = {"bot_muls": [1] * 4, "group_ws": [[group]] * 4, "block_type": "res_bottleneck_block"}
    return _original(depths, widths, (2, 2, 2, 2), **ends, **rest)


def _efficientnet(depths: Sequence[int], widths: Sequence[int], stem: int, head: int) -> Design:
    ends = {"stem_type": "simple_stem_in", "stem_w": stem, "head_w": head}
    rest = {"bot_muls": [1, *[6] * 6], "kernels": [3, 3, 5, 3, 5, 5, 3], "block_type": "mbconv"}
    return _original(depths, widths, (1, 2, 2, 2, 1, 2, 1), **ends, **rest)


ORIGINALS: Mapping[str, Design] = {
    "R-34": _resnet("res_basic_block", (64, 128, 256, 512), 1),
    "R-50": _resnet("res_bottleneck_block", (256, 512, 1024, 2048), 0.25),
    "RX-1.6": _regnet(80, 34.01, 2.25, 18, 24),
    "RX-4": _regnet(96, 38.65, 2.43, 23, 40),
    "EN-L4": _efficientnet((1, 4, 4, 6, 6, 8, 1), (24, 32, 56, 112, 160, 272, 448), 32, 1280),
    "EN-B5": _efficientnet((3, 5, 5, 7, 7, 9, 3), (24, 40, 64, 128, 176, 304, 512), 48, 2048),
}
"""By NN-Stretch's names; EfficientNet-B5 without squeeze-and-excitation, as it was deployed."""


@dataclass(frozen=True)
class Part:
    """The work of one processor between two meeting points.

    Attributes:
        processor: its name in plans.
        works: its kernels.
        values: the number of values that it writes.
    """

    processor: str
    works: tuple[Work, ...]
    values: int


@dataclass(frozen=True)
class Counted:
    """A design, counted: the stem, the branches of each stage, the head."""

    stem: Part
    stages: tuple[tuple[Part, ...], ...]
    head: Part

    @property
    def works(self) -> list[Work]:
        """All kernels, without concatenations."""
        parts = [self.stem, *(part for stage in self.stages for part in stage), self.head]
        return [work for part in parts for work in part.works]


class _Layers:
    """The layers of one branch, and the shape that they have come to."""

    def __init__(self, channels: int, size: int) -> None:
        self.channels, self.size = channels, size
        self.works: list[Work] = []

    def conv(self, out: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        self.size //= stride
        self.works.append(
            work_of_convolution(self.channels, out, kernel, self.size, stride=stride, groups=groups)
        )
        self.channels = out

    def add(self) -> None:
        """The last convolution adds the shortcut as well."""
        last = self.works[-1]
        self.works[-1] = replace(last, values=last.values + self.channels * self.size**2)

    def shortcut(self, source: int, size: int, stride: int) -> None:
        """Add the shortcut of a residual block that began with these channels and this size."""
        if source != self.channels or stride > 1:
            beside = _Layers(source, size)
            beside.conv(self.channels, 1, stride)
            self.works += beside.works
        self.add()

    def pool(self, size: int) -> None:
        before = self.channels * self.size**2
        self.size = size
        self.works.append(Work("other", 0.0, before + self.channels * size**2))

    def block(self, kind: str, width: int, stride: int, multiple: float, rest: Design) -> None:
        """One block of a stage; `rest` has its kernel size and group width."""
        source, size = self.channels, self.size
        if kind == "mbconv":
            hidden = source * int(multiple)
            if multiple != 1:
                self.conv(hidden)
            self.conv(hidden, rest["kernel"], stride, groups=hidden)
            self.conv(width)
            if stride == 1 and source == width:
                self.add()
            return
        if kind == "res_basic_block":
            self.conv(width, 3, stride)
            self.conv(width, 3)
        else:
            inner = round(width * multiple)
            self.conv(inner)
            self.conv(inner, 3, stride, groups=inner // rest["group"])
            self.conv(width)
        self.shortcut(source, size, stride)


def count(design: Design) -> Counted:
    """The layers of a design."""
    stem = _Layers(3, _IMAGE)
    if design["stem_type"] == "res_stem_in":
        stem.conv(design["stem_w"], design.get("stem_k", 7), 2)
        stem.pool(stem.size // 2)
    else:
        stem.conv(design["stem_w"], 3, 2)
    channels, size = stem.channels, stem.size
    stages = []
    # Lists zip to the shortest one.
    for index in range(min(len(design[key]) for key in ("strides", "depths", "widths"))):
        stage = list(_stage(design, index, channels, size))
        stages.append(tuple(part for part, _ in stage))
        size = stage[0][1].size
        channels = sum(layers.channels for _, layers in stage)
    head = _Layers(channels, size)
    if "head_w" in design:
        head.conv(design["head_w"])
    head.pool(1)
    head.conv(_CLASSES)
    return Counted(_part("cpu", stem), tuple(stages), _part("cpu", head))


def _stage(design: Design, index: int, channels: int, size: int) -> Iterator[tuple[Part, _Layers]]:
    """The branches of a stage; a stage with one is the CPU's."""
    kind, widths = design["block_type"], design["widths"][index]
    devices = design["devices"] if len(widths) > 1 else ["cpu"]
    for branch, (device, width) in enumerate(zip(devices, widths, strict=True)):
        rest = {
            "kernel": design.get("kernels", [3] * (index + 1))[index],
            "group": design["group_ws"][index][branch] if "group_ws" in design else 1,
        }
        layers = _Layers(channels, size)
        original = design["original_widths"][index]
        stretched = kind == "mbconv" and len(widths) > 1
        if stretched:
            layers.conv(_round8(width / original * channels))
        for block in range(design["depths"][index][branch]):
            stride = design["strides"][index][branch % len(design["strides"][index])]
            layers.block(kind, width, stride if block == 0 else 1, design["bot_muls"][index], rest)
        if stretched and width != original // len(widths):
            layers.conv(original // len(widths))
        yield _part(processor_of(device), layers), layers


def _part(processor: str, layers: _Layers) -> Part:
    return Part(processor, tuple(layers.works), layers.channels * layers.size**2)


def _round8(channels: float) -> int:
    return max(8, int(channels + 4) // 8 * 8)


def predict_ms(design: Design, profile: Profile) -> float:
    """The latency of a design on a device."""
    return _run(design, profile).when(["head"]) / 1e6


def predict_mj(design: Design, profile: Profile) -> float:
    """The energy of a run of a design on a device whose profile has powers."""
    clock, power = _run(design, profile), profile.power(list(profile.processors))
    assert power is not None
    return power.millijoules(clock.when(["head"]), clock.busy)


def _run(design: Design, profile: Profile) -> Clock:
    counted = count(design)
    names = list(profile.processors)

    def step(tensor: str, part: Part, reads: Sequence[tuple[str, int | None]], index: int) -> Step:
        processor = profile.processor(part.processor)
        ns = round(sum(processor.nanoseconds(work) for work in part.works))
        size = _FLOAT_BYTES * part.values
        return Step(tensor, names.index(part.processor), ns, tuple(reads), size, index)

    def hand_over(writer: int, reader: int, size: int) -> int:
        return profile.hand_over(names[writer], names[reader], size)

    clock = Clock([0] * len(names), hand_over, {"image": [Written(0, 0, 0)]})
    clock.run([step("stem", counted.stem, [("image", None)], 0)])
    before = "stem"
    for number, parts in enumerate(counted.stages):
        branches = f"stage {number}"
        # Others begin before the CPU, which waits for them all.
        ordered = sorted(enumerate(parts), key=lambda item: item[1].processor == "cpu")
        clock.run([step(branches, part, [(before, None)], i) for i, part in ordered])
        before = branches
        if len(parts) > 1:
            values = sum(part.values for part in parts)
            join = Part("cpu", (Work("other", 0.0, 2 * values),), values)
            before = f"{branches} joined"
            clock.run([step(before, join, [(branches, None)], 0)])
    clock.run([step("head", counted.head, [(before, None)], 0)])
    return clock


def round_trips_ms(profile: Profile, other: str, parts: Sequence[tuple[int, int]]) -> float:
    """The time for another processor to read values from the CPU and to return values, in all."""
    names = [("cpu", other), (other, "cpu")]
    moves = [pair for part in parts for pair in zip(names, part, strict=True)]
    return sum(profile.hand_over(*pair, _FLOAT_BYTES * values) for pair, values in moves) / 1e6


# --- latencies of single processors ---------------------------------------------------------------

FAMILIES = ("dense", "pointwise", "grouped", "depthwise")
"""Convolutions: ordinary with windows, 1x1 (and matrix products), in groups, channel by channel."""

PROCESSORS = ("cpu", "gpu", "dsp")

LATENCY_MS = {
    "resnet34": (21.692, 36.517, 24.377),
    "resnet50": (28.825, 37.406, 30.399),
    "regnetx_1_6gf": (27.45, 45.078, 32.626),
    "regnetx_4gf": (37.06, 74.512, 48.878),
    "efficientnet_lite4": (16.264, 18.497, 16.283),
    "efficientnet_b5": (26.674, 32.156, 29.782),
}
"""By network, for each of `PROCESSORS`: what NN-Stretch (Wei et al., MobiSys 2023) publishes in its
artifact, a Xiaomi 9 (Snapdragon 855: Kryo 485, Adreno 640, Hexagon 690), TFLite 2.8; the networks
are 8-bit integers on CPU and DSP, half floats on the GPU (section 7.2 there)."""

MULTIPLY_ADDS_M = {
    "resnet34": (3644.0, 19.8, 0.0, 0.0),
    "resnet50": (1967.7, 2121.4, 0.0, 0.0),
    "regnetx_1_6gf": (10.8, 1188.6, 403.4, 0.0),
    "regnetx_4gf": (10.8, 2833.2, 1120.5, 0.0),
    "efficientnet_lite4": (10.8, 1240.2, 0.0, 96.7),
    "efficientnet_b5": (16.3, 2197.1, 0.0, 143.1),
}
"""By network, millions for each of `FAMILIES`: the same networks of our zoo at 224 x 224, the input
that the paper names; EfficientNet-B5 without squeeze-and-excitation, as it was deployed there."""


@cache
def speeds() -> dict[str, dict[str, float]]:
    """Multiply-adds per nanosecond of each processor, by family: least relative errors.

    `fitted_ms` is then within 20 % of all latencies but those of RegNetX-1.6GF, for which it says
    up to 37 % too little: its groups are 24 channels wide, those of RegNetX-4GF 40.
    """
    amounts = np.array(list(MULTIPLY_ADDS_M.values())) * 1e6
    found = {}
    for processor, column in zip(PROCESSORS, np.array(list(LATENCY_MS.values())).T, strict=True):
        nanoseconds = column[:, None] * 1e6
        each, _ = nnls(amounts / nanoseconds, np.ones(len(column)))
        found[processor] = dict(zip(FAMILIES, (1 / each).tolist(), strict=True))
    return found


def fitted_ms(network: str, processor: str) -> float:
    """The latency of a network by the fitted speeds."""
    known = speeds()[processor]
    amounts = zip(FAMILIES, MULTIPLY_ADDS_M[network], strict=True)
    return sum(amount / known[family] for family, amount in amounts)
