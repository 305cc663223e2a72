"""Small networks of the families that NN-Stretch stretched, and designs of branches for them.

The designs are what `ts.stretch` finds with its usual rules, so at least 90 % of the original's
multiply-adds and parameters in each segment, for a phone's CPU and GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import tvm
from tvm_stretch.passes.duplicate_and_scale import duplicate_and_scale

import tvm_stretch as ts
from benchmarks.accuracy_trials import Inherited, Prepared
from tvm_stretch.plan.design import Design
from tvm_stretch.training.graph import Graph
from tvm_stretch.training.relax_graph import Arrays, graph_of, with_weights
from tvm_stretch.zoo.builder import Builder, Tensor

DEVICE = "snapdragon-855"
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
    hidden = 4 * x.channels
    y = b.conv_bn(x, hidden, act="swish")
    y = b.conv_bn(y, hidden, 3, stride, groups=hidden, act="swish")
    residual = stride == 1 and x.channels == width
    y = b.conv_bn(y, width, scale=_BRANCH if residual else 1.0)
    return b.add(y, x) if residual else y


@dataclass(frozen=True)
class Small:
    """A network: a stem of stride ``stem_stride``, stages of blocks, mean, classes."""

    block: Block
    stem: int
    stem_stride: int
    widths: tuple[int, ...]
    depths: tuple[int, ...]

    def build(self, channels: int, size: int, classes: int, seed: int = 0) -> onnx.ModelProto:
        """The network for images of a size, with random weights."""
        b = Builder(seed)
        x = b.input("x", (1, channels, size, size))
        x = b.conv_bn(x, self.stem, 3, self.stem_stride, act="relu")
        for stage, (width, depth) in enumerate(zip(self.widths, self.depths, strict=True)):
            for index in range(depth):
                x = self.block(b, x, width, 2 if stage > 0 and index == 0 else 1)
        return b.finish("small", b.classifier(x, classes))


NETWORKS: Mapping[str, Small] = {
    "resnet": Small(_basic, 16, 2, (16, 32, 64), (3, 3, 3)),
    "regnetx": Small(_grouped, 16, 2, (24, 56, 112), (2, 4, 4)),
    "mbconv": Small(_mb_conv, 16, 2, (16, 32, 64), (2, 3, 3)),
}


def prepare(name: str, channels: int, size: int, classes: int) -> Prepared:
    """A network and the design that `ts.stretch` finds best for a phone's CPU and GPU."""
    model = NETWORKS[name].build(channels, size, classes)
    found = ts.stretch(model, device=DEVICE, targets=["llvm", "opencl"])
    work, size_of = found.original
    told = (
        f"{work / 1e6:.2f} M multiply-adds, {size_of / 1e3:.1f} k parameters -> "
        f"{found.best.multiply_adds / 1e6:.2f} M, {found.best.parameters / 1e3:.1f} k: "
        + "; ".join(map(str, found.best.design.segments))
    )
    return prepared(name, found.mod, found.best.design, told)


def spread(
    name: str, channels: int, size: int, classes: int, count: int
) -> list[tuple[Graph, str, int]]:
    """Graphs of designs from a third of the original's capacity to all of it, told, with sizes."""
    model = NETWORKS[name].build(channels, size, classes)
    found = {}
    for capacity in np.linspace(1 / 3, 1, count):
        rules = ts.Rules(capacity=float(capacity))
        best = ts.stretch(model, device=DEVICE, targets=["llvm", "opencl"], rules=rules)
        told = "; ".join(map(str, best.best.design.segments))
        found[told] = (graph_of(best.module())[0], told, best.best.parameters)
    return list(found.values())


def prepared(name: str, mod: tvm.IRModule, design: Design, told: str) -> Prepared:
    """A network and its design; which element is whose is found by stretching known numbers."""
    original, arrays = graph_of(mod)

    def stretched(values: Callable[[np.ndarray], np.ndarray]) -> Arrays:
        known = {n: values(a).astype("float32") for n, a in arrays.items()}
        return graph_of(duplicate_and_scale(with_weights(mod, known), design, noise=0))[1]

    numbered = stretched(lambda a: np.arange(1, a.size + 1).reshape(a.shape))
    ones, zeros = stretched(np.ones_like), stretched(np.zeros_like)
    graph, _ = graph_of(duplicate_and_scale(mod, design))
    inherited = {
        name: _inherited(name, arrays, numbered[name], ones[name], zeros[name]) for name in zeros
    }
    return Prepared(name, original, graph, inherited, told)


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
