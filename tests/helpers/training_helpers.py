"""A network that trains in a blink, and images that it learns to tell apart."""

from __future__ import annotations

import torch
from helpers.stretch_networks import SIZE, Block, basic, network

import tvm_stretch as ts

_GENERATOR = torch.Generator().manual_seed(0)
LABELS = torch.randint(5, (48,), generator=_GENERATOR)
IMAGES = torch.randn(48, 3, SIZE, SIZE, generator=_GENERATOR) + LABELS[:, None, None, None] - 2.0


def net_of(block: Block = basic) -> ts.training.TrainableNetwork:
    return ts.training.to_torch(network(block, ((8, 1), (16, 1))))


def loader(size: int = 16) -> ts.training.Batches:
    return ts.training.Batches(IMAGES, LABELS, size)
