"""Stretch a network of your own, train it, and see its timeline.

Run it: `python tutorials/07_training.py`.  It needs torch, and no device: the second processor is
that of `tvm_stretch.run.testing`, as in tutorial 6, which shows the search for designs.
"""

from __future__ import annotations

import numpy as np
import torch
import tvm
from torch import Tensor, nn

import tvm_stretch as ts
from tvm_stretch.run.testing import fake_processor
from tvm_stretch.targets import cpu_processor

SIZE, CLASSES = 16, 8


def section(title: str) -> None:
    """Print a heading."""
    print(f"\n{'=' * 8} {title}")


class Block(nn.Module):
    """A basic residual block."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width)])
        self.skip = nn.Conv2d(before, width, 1, stride, bias=False) if before != width else None

    def forward(self, x: Tensor) -> Tensor:
        """Two convolutions plus the shortcut."""
        y = torch.relu(self.norms[0](self.first(x)))
        y = self.norms[1](self.second(y))
        return torch.relu(y + (self.skip(x) if self.skip else x))


def network() -> nn.Sequential:
    """Two stages of two blocks."""
    stem = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    blocks = [Block(16, 16, 1), Block(16, 16, 1), Block(16, 32, 2), Block(32, 32, 1)]
    ends = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES)]
    return nn.Sequential(*stem, *blocks, *ends)


def stripes(count: int) -> tuple[Tensor, Tensor]:
    """Stripes of four directions, in noise."""
    labels = torch.randint(CLASSES, (count,))
    angle = labels * (np.pi / CLASSES)
    line = torch.arange(SIZE) * 1.0
    along = angle.cos()[:, None, None] * line[:, None] + angle.sin()[:, None, None] * line
    waves = torch.sin(1.4 * along + 6.3 * torch.rand(count, 1, 1))
    return waves[:, None] + 3.0 * torch.randn(count, 3, SIZE, SIZE), labels


section("1. A trained network")
torch.manual_seed(0)
teacher = network()
images, labels = stripes(640)
tests = ts.training.Batches(*stripes(256), 256, shuffled=False)
loader = ts.training.Batches(images, labels, 32)  # any DataLoader will do
ts.training.fit(teacher, loader, ts.training.Training(epochs=3))
print(f"right: {ts.training.accuracy(teacher, tests):.2f}")

section("2. Stretched")
x = torch.zeros(1, 3, SIZE, SIZE)
cpu = cpu_processor(tvm.target.Target("llvm"), threads=1)
targets = [cpu, fake_processor("second")]
st = ts.stretch(torch.export.export(teacher.eval(), (x,)), targets)
print(st.best)

section("3. Trained")
# An ordinary torch module, whose weights are rows and columns of the given ones.  At first the
# statistics of its batch normalisations are wrong, and channels are missing.  `imitate` fits every
# layer to what the given network computes, by least squares: no labels, no training.  `refine` goes
# on with all layers together, by gradient descent, without labels too.  `distill` lets that network
# teach it; your own training will do.
net = st.to_torch()
print([name for name, _ in net.named_parameters()][:4])
print(f"as it comes: {ts.training.accuracy(net, tests):.2f}")
ts.training.recalibrate(net, images)
print(f"with statistics of its own: {ts.training.accuracy(net, tests):.2f}")
original = ts.training.to_torch(st.mod)
ts.training.imitate(net, original, images)
print(f"imitating: {ts.training.accuracy(net, tests):.2f}")
ts.training.refine(net, original, images, steps=50)
print(f"refined: {ts.training.accuracy(net, tests):.2f}")
ts.training.distill(net, teacher, loader, ts.training.Training(epochs=2, rate=0.02))
print(f"distilled: {ts.training.accuracy(net, tests):.2f}")
assert ts.training.accuracy(net, tests) > 0.8

section("4. Compiled: its timeline")
# The weights go back into the very network that they came from, with its branches.  This one is so
# small that a meeting of processors may take longer than what it saves: `explain` says what was
# measured, and compile() keeps the faster plan.
module = st.load_torch(net)
model = ts.compile(module, targets, cpu_threads=1)
picture = tests.images[:1]
with torch.no_grad():
    expected = net(picture)
assert torch.allclose(model(picture), expected, rtol=1e-3, atol=1e-3)
print("the same numbers as in torch")
print(model.plan.explain())
print(model.timeline())
