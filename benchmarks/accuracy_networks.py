"""Small networks of the families that NN-Stretch stretched, and designs of branches for them.

Every stage becomes two branches that together have about as many multiply-adds and parameters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import tvm

import tvm_stretch as ts
from benchmarks.accuracy_trials import Inherited, Prepared
from tutorials.zoo.builder import Builder, Tensor
from tvm_stretch.lab.stretching.segments import Run
from tvm_stretch.lab.stretching.stretching import Stretching
from tvm_stretch.lab.training.exchange import Arrays, graph_of, with_weights
from tvm_stretch.lab.training.torch_graph import Graph
from tvm_stretch.passes.duplicate_and_scale import duplicate_and_scale, with_sources
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


def prepare(name: str, channels: int, size: int, classes: int) -> Prepared:
    """A network and its design of equal capacity."""
    found = _stretching(name, channels, size, classes)
    design = equal_capacity(found)
    judged, (work, parameters) = found.judge(design), found.original
    told = (
        f"{work / 1e6:.2f} M multiply-adds, {parameters / 1e3:.1f} k parameters -> "
        f"{judged.multiply_adds / 1e6:.2f} M, {judged.parameters / 1e3:.1f} k: {_told(design)}"
    )
    return prepared(name, found.mod, design, told)


def spread(
    name: str, channels: int, size: int, classes: int, count: int
) -> list[tuple[Graph, str, int]]:
    """Graphs of designs of many widths, with descriptions and numbers of parameters."""
    st = _stretching(name, channels, size, classes)
    runs = st.task.chain.runs
    designs = dict.fromkeys(
        Design(tuple(_two_branches(run, run.rounded(ratio)) for run in runs))
        for ratio in np.linspace(0.3, 0.9, count)
    )
    return [(graph_of(st.module(d))[0], _told(d), st.judge(d).parameters) for d in designs]


def _told(design: Design) -> str:
    return "; ".join(map(str, design.segments)).replace(" |", " +")


def _stretching(name: str, channels: int, size: int, classes: int) -> Stretching:
    model = NETWORKS[name].build(channels, size, classes)
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


def prepared(name: str, mod: tvm.IRModule, design: Design, told: str) -> Prepared:
    """A network and its design; stretching known numbers shows where each element comes from."""
    original, arrays = graph_of(mod)

    def stretched(values: Callable[[np.ndarray], np.ndarray]) -> Arrays:
        known = {n: values(a).astype("float32") for n, a in arrays.items()}
        return graph_of(duplicate_and_scale(with_weights(mod, known), design, noise=0))[1]

    numbered = stretched(lambda a: np.arange(1, a.size + 1).reshape(a.shape))
    ones, zeros = stretched(np.ones_like), stretched(np.zeros_like)
    module, sources = with_sources(mod, design)
    graph, _ = graph_of(module)
    inherited = {
        name: _inherited(name, arrays, numbered[name], ones[name], zeros[name]) for name in zeros
    }
    return Prepared(name, original, graph, inherited, sources, told)


def _inherited(
    name: str, arrays: Arrays, number: np.ndarray, one: np.ndarray, zero: np.ndarray
) -> Inherited:
    layer, _, role = name.rpartition(":")
    branch = re.search(r"\.b(\d+)$", layer)
    source = f"{layer[: branch.start()] if branch else layer}:{role}"
    if source not in arrays:
        return Inherited("", np.full(zero.shape, -1), np.zeros_like(zero), zero, False)
    factor = one - zero
    index = np.where(factor > 0, np.rint((number - zero) / np.where(factor, factor, 1)) - 1, -1)
    noisy = bool(branch and int(branch[1])) and zero.ndim == 4 and role == "weight"
    return Inherited(source, index.astype("int32"), factor, zero, noisy)
