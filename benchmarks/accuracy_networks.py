"""Small networks of the families that NN-Stretch stretched, and designs of branches for them.

Every stage becomes two branches that together have about as many multiply-adds and parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import onnx

import tvm_stretch as ts
from tutorials.zoo.builder import Builder, Tensor
from tvm_stretch.lab.stretching.segments import Run
from tvm_stretch.lab.stretching.stretching import Stretching
from tvm_stretch.plan.design import Branch, Design, StretchedSegment

_BRANCH = 0.5
_GROUP = 8

Block = Callable[[Builder, Tensor, int, int], Tensor]


def _basic(b: Builder, x: Tensor, width: int, stride: int) -> Tensor:
    y = b.conv_bn(x, width, 3, stride, act="relu")
    y = b.conv_bn(y, width, 3, scale=_BRANCH)
    skip = x if stride == 1 and x.channels == width else b.conv_bn(x, width, 1, stride)
    return b.add(y, skip, act="relu")


def _grouped(b: Builder, x: Tensor, width: int, stride: int) -> Tensor:
    y = b.conv_bn(x, width, act="relu")
    y = b.conv_bn(y, width, 3, stride, groups=width // _GROUP, act="relu")
    y = b.conv_bn(y, width, scale=_BRANCH)
    skip = x if stride == 1 and x.channels == width else b.conv_bn(x, width, 1, stride)
    return b.add(y, skip, act="relu")


def _mb_conv(b: Builder, x: Tensor, width: int, stride: int) -> Tensor:
    hidden = 3 * x.channels
    y = b.conv_bn(x, hidden, act="swish")
    y = b.conv_bn(y, hidden, 3, stride, groups=hidden, act="swish")
    residual = stride == 1 and x.channels == width
    y = b.conv_bn(y, width, scale=_BRANCH if residual else 1.0)
    return b.add(y, x) if residual else y


@dataclass(frozen=True)
class Small:
    """A network: a stem, stages of blocks, mean, classes."""

    block: Block
    stem: int
    widths: tuple[int, ...]
    depths: tuple[int, ...]

    def build(self, channels: int, size: int, classes: int, seed: int = 0) -> onnx.ModelProto:
        """The network for images of a size, with random weights."""
        b = Builder(seed)
        x = self.begin(b, channels, size)
        for width, stride in self.blocks(size):
            x = self.block(b, x, width, stride)
        return b.finish("small", b.classifier(x, classes))

    def begin(self, b: Builder, channels: int, size: int) -> Tensor:
        """The stem."""
        x = b.input("x", (1, channels, size, size))
        return b.conv_bn(x, self.stem, 3, 2 if size > 16 else 1, act="relu")

    def blocks(self, size: int) -> Iterator[tuple[int, int]]:
        """Width and stride of each block."""
        for stage, (width, depth) in enumerate(zip(self.widths, self.depths, strict=True)):
            for index in range(depth):
                strided = index == 0 and (stage > 0 or size > 16)
                yield width, 2 if strided else 1


NETWORKS: Mapping[str, Small] = {
    "resnet": Small(_basic, 16, (16, 32, 64), (3, 3, 3)),
    "regnetx": Small(_grouped, 16, (24, 56, 112), (2, 3, 3)),
    "mbconv": Small(_mb_conv, 16, (16, 32, 64), (2, 3, 3)),
}


def stretching(small: Small, channels: int, size: int, classes: int) -> Stretching:
    """A network for images of a size, ready for designs."""
    model = small.build(channels, size, classes)
    return ts.stretch(model, device="snapdragon-855", targets=["llvm", "opencl"])


def _two_branches(run: Run, width: int) -> StretchedSegment:
    """Two branches; the second has one block less."""
    deep, less = run.depth, max(1, run.depth - 1)
    branches = (Branch("cpu", deep, width), Branch("opencl", less, width))
    return StretchedSegment(run.start, run.end, branches, run.merge)


def equal_capacity(st: Stretching) -> Design:
    """Two branches in every stage, whose widths keep each stage's multiply-adds and parameters.

    The choice of `ts.stretch` would depend on a device, and these networks are too small for
    phones: a meeting would take longer than the layers.
    """
    work, size = st.original
    design = Design(())
    for run in st.task.chain.runs:
        tried = []
        for width in sorted({run.rounded(percent / 100) for percent in range(30, 101)}):
            longer = Design((*design.segments, _two_branches(run, width)))
            judged = st.judge(longer)
            kept = judged.multiply_adds / work + judged.parameters / size
            tried.append((abs(kept - 2), width, longer))
        design = min(tried, key=lambda each: each[:2])[2]
    return design
