"""The designs that NN-Stretch published, through our pass; counted independently, compiled, run.

Depths and widths of the branches of each stage, as the paper's artifact states them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import tvm
from helpers.cpu_targets import TARGET
from helpers.fake_targets import fake_processor
from helpers.relax_numpy import evaluate
from helpers.search_helpers import costs

import tvm_stretch as ts
from tutorials import zoo
from tvm_stretch.lab.stretching.design_rules import Rules
from tvm_stretch.lab.stretching.judge import Task, judge_design
from tvm_stretch.lab.stretching.predict import Chain
from tvm_stretch.lab.stretching.segments import find_runs
from tvm_stretch.lab.stretching.tables import Pricing
from tvm_stretch.network.expressions import shape_of
from tvm_stretch.network.operators import Operators
from tvm_stretch.network.properties.repeated_blocks import detect_stages
from tvm_stretch.passes.duplicate_and_scale import branch_operators, duplicate_and_scale
from tvm_stretch.plan.design import Design
from tvm_stretch.read import load_trainable
from tvm_stretch.targets.cpu.cpu import cpu_processor

Lists = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Published:
    """A design; ``kind`` and the numbers after it describe the network, not the branches.

    Attributes:
        expansion: hidden channels by those of a bottleneck's result, or of what MBConv reads.
        group: channels of a group, 0 if there are none.
    """

    network: str
    depths: Lists
    widths: Lists
    kind: str
    stem: int
    expansion: float = 1.0
    group: int = 0
    kernels: tuple[int, ...] = ()
    strides: tuple[int, ...] = (2, 2, 2, 2)
    originals: tuple[int, ...] = ()
    head: int = 0

    @property
    def branches(self) -> int:
        return max(map(len, self.depths))


DESIGNS = {
    "R-34-CD": Published(
        "resnet34",
        ((3, 2), (3, 3), (6, 5), (3, 2)),
        ((32, 64), (80, 64), (144, 160), (256, 320)),
        "basic",
        64,
        strides=(1, 2, 2, 2),
    ),
    "R-50-CDG": Published(
        "resnet50",
        ((2, 2, 2), (3, 4, 3), (4, 5, 3), (2, 2, 2)),
        ((128, 128, 160), (320, 256, 256), (576, 448, 448), (1344, 1120, 736)),
        "bottleneck",
        64,
        expansion=0.25,
        strides=(1, 2, 2, 2),
    ),
    "RX-1.6-CG": Published(
        "regnetx_1_6gf",
        ((1, 2), (3, 3), (6, 10), (2, 1)),
        ((48, 24), (144, 72), (360, 192), (816, 648)),
        "bottleneck",
        32,
        group=24,
    ),
    "EN-L4-CD": Published(
        "efficientnet_lite4",
        ((1,), (2, 3), (2, 3), (5, 5), (4, 5), (6, 6), (1,)),
        ((24,), (32, 24), (48, 40), (96, 88), (120, 128), (232, 176), (448,)),
        "mb_conv",
        32,
        expansion=6,
        kernels=(3, 3, 5, 3, 5, 5, 3),
        strides=(1, 2, 2, 2, 1, 2, 1),
        originals=(24, 32, 56, 112, 160, 272, 448),
        head=1280,
    ),
}


class Count:
    """Multiply-adds and parameters, layer by layer, from the lists alone."""

    def __init__(self) -> None:
        self.work = self.size = 0

    def conv(self, read: int, width: int, kernel: int, side: int, groups: int = 1) -> int:
        weights = width * read // groups * kernel**2
        self.work += weights * side**2
        self.size += weights + 2 * width
        return width

    def block(self, d: Published, stage: int, read: int, width: int, side: int, step: int) -> int:
        """Returns the side of the image behind it."""
        after = -(-side // step)
        if d.kind == "mb_conv":
            inside = int(read * (d.expansion if stage else 1))
            if inside != read:
                self.conv(read, inside, 1, side)
            self.conv(inside, inside, d.kernels[stage], after, inside)
            self.conv(inside, width, 1, after)
            return after
        if d.kind == "basic":
            self.conv(read, width, 3, after)
            self.conv(width, width, 3, after)
        else:
            inside = round(width * d.expansion)
            self.conv(read, inside, 1, side)
            self.conv(inside, inside, 3, after, inside // d.group if d.group else 1)
            self.conv(inside, width, 1, after)
        if read != width or step > 1:
            self.conv(read, width, 1, after)
        return after

    def stage(self, d: Published, stage: int, read: int, side: int) -> tuple[int, int]:
        """Returns the channels and the side of the image behind it."""
        count, total, after = len(d.depths[stage]), 0, side
        for depth, width in zip(d.depths[stage], d.widths[stage], strict=True):
            channels = read
            if d.kind == "mb_conv" and count > 1:
                channels = max(8, round(width * read / d.originals[stage] / 8) * 8)
                self.conv(read, channels, 1, side)
            after = side
            for index in range(depth):
                step = 1 if index else d.strides[stage]
                after = self.block(d, stage, channels, width, after, step)
                channels = width
            if d.kind == "mb_conv" and count > 1:
                share = d.originals[stage] // count
                channels = self.conv(width, share, 1, after) if width != share else share
            total += channels
        return total, after


def counted(d: Published, size: int) -> tuple[int, int]:
    count, side = Count(), size // 2
    channels = count.conv(3, d.stem, 7 if d.network.startswith("resnet") else 3, side)
    side = side // 2 if d.network.startswith("resnet") else side
    for stage in range(len(d.depths)):
        channels, side = count.stage(d, stage, channels, side)
    if d.head:
        channels = count.conv(channels, d.head, 1, side)
    count.work += channels * 1000
    count.size += channels * 1000 + 1000
    return count.work, count.size


@cache
def original(network: str, size: int) -> tvm.IRModule:
    return load_trainable(zoo.build(network, size=size))


def design_of(d: Published, size: int, processors: tuple[str, ...]) -> Design:
    stages = detect_stages(original(d.network, size))
    ends = [(stage.blocks[0].inputs[0], stage.blocks[-1].output) for stage in stages]
    merge = "project" if d.kind == "mb_conv" else "concat"
    return Design.of_lists(ends, processors[: d.branches], d.depths, d.widths, merge)


def figures(mod: tvm.IRModule) -> tuple[int, int]:
    operators = Operators(mod["main"])
    learned = {"nn.conv2d": (1,), "matmul": (1,), "nn.batch_norm": (1, 2)}
    size = sum(
        int(np.prod(shape_of(op.call.args[i])))
        for op in operators
        for i in learned.get(op.kind, ())
    )
    return sum(op.multiply_adds for op in operators), size + 1000  # the classifier's offsets


def one_and_full(name: str) -> list[object]:
    """One by default, the others in `make test-full`."""
    return [
        name,
        *(pytest.param(other, marks=pytest.mark.full) for other in DESIGNS if other != name),
    ]


@pytest.mark.parametrize("name", one_and_full("RX-1.6-CG"))
def test_figures(name: str):
    """As built, as predicted without building, and as counted here."""
    d = DESIGNS[name]
    design = design_of(d, 64, ("cpu", "p1", "p2"))
    mod = original(d.network, 64)
    built = duplicate_and_scale(mod, design)
    assert figures(built) == counted(d, 64)
    assert len(branch_operators(built)) == d.branches
    operators = Operators(mod["main"])
    task = Task(Chain.cut(operators, find_runs(operators)), Pricing(costs(1, 1, 1)), home=0)
    judged = judge_design(task, Rules(), design)
    assert (judged.multiply_adds, judged.parameters) == counted(d, 64)


def test_originals_are_those_of_table_6():
    """Counted by the same formulas as the branched ones: thousands of millions, millions."""
    stages = {
        "resnet34": (((3,), (4,), (6,), (3,)), ((64,), (128,), (256,), (512,)), 3.7, 21.8),
        "resnet50": (((3,), (4,), (6,), (3,)), ((256,), (512,), (1024,), (2048,)), 4.1, 25.6),
        "regnetx_1_6gf": (((2,), (4,), (10,), (2,)), ((72,), (168,), (408,), (912,)), 1.6, 9.2),
    }
    for d in DESIGNS.values():
        if d.network in stages:
            depths, widths, work, size = stages[d.network]
            whole = Published(
                d.network, depths, widths, d.kind, d.stem, d.expansion, d.group, strides=d.strides
            )
            found = counted(whole, 224)
            assert found[0] / 1e9 == pytest.approx(work, rel=0.02)
            assert found[1] / 1e6 == pytest.approx(size, rel=0.02)
            assert found == tuple(reversed(zoo.count(zoo.build(d.network))))


def test_branches_hold_less_than_the_original():
    """Of ResNet-34's parameters the design has 62 to 66 %: latencies are not of equal capacity."""
    work, size = counted(DESIGNS["R-34-CD"], 224)
    assert 0.6 < size / 21.8e6 < 0.68
    assert work < 3.67e9


@pytest.mark.full
@pytest.mark.parametrize("name", DESIGNS)
def test_compiled_and_run(name: str):
    """On a CPU and fake processors that run its kernels: the same answers as the module's."""
    d = DESIGNS[name]
    names = ("cpu", "second", "third")[: d.branches]
    module = duplicate_and_scale(original(d.network, 64), design_of(d, 64, names))
    host = cpu_processor(tvm.target.Target(TARGET), 1)
    others = [fake_processor(name, target=host.target) for name in names[1:]]
    model = ts.compile(module, [host, *others])
    x = np.random.default_rng(0).standard_normal((1, 3, 64, 64), dtype="float32")
    expected, got = evaluate(module, x), model(x)
    assert np.abs(got - expected).max() <= 1e-3 * np.abs(expected).max()
