"""Statistics of batch normalisations, computed anew: all that a warm start needs at first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tvm_stretch.errors import InputError
from tvm_stretch.progress import Progress, count, reporting
from tvm_stretch.training.data import device_of
from tvm_stretch.training.network import TrainableNetwork

BATCH = 128


@torch.no_grad()
def recalibrate(net: nn.Module, images: Any, progress: Progress | None = None) -> None:
    """Give the batch normalisations the mean and variance of these images; no other weight changes.

    Those that a stretching put behind its own 1x1 convolutions pass everything on as it is, and go
    on doing so: scale and offset are made to fit their statistics.

    Args:
        net: changed in place; it stays in training or evaluation mode.
        images: an array or a tensor of a few hundred or more, or batches: those of a loader, whose
            labels are not read.
        progress: as for ``ts.compile``.

    Raises:
        InputError: there are no images.
    """
    norms = [layer for layer in net.modules() if isinstance(layer, _BatchNorm)]
    passing = [_Passing(layer) for layer in _new_norms(net)]
    usual = [(norm.momentum, norm.training) for norm in norms]
    device, was_training = device_of(net), net.training
    net.eval()
    for norm in set(norms) - {each.norm for each in passing}:
        norm.reset_running_stats()
        norm.momentum = None  # the mean of all batches
        norm.train()
    batches = 0
    try:
        with reporting(progress):
            for batches, batch in enumerate(_batches(images), 1):
                count("batch", batches, _length(images))
                net(batch.to(device, torch.float32))
    finally:
        for each in passing:
            each.hook.remove()
        net.train(was_training)
        for norm, (momentum, training) in zip(norms, usual, strict=True):
            norm.momentum = momentum
            norm.train(training)
    if not batches:
        raise InputError("expected images to recalibrate with, got none; give a few hundred")
    for each in passing:
        each.settle()


class _Passing:
    """A batch normalisation that passes everything on; looks at what it is given."""

    def __init__(self, norm: _BatchNorm) -> None:
        self.norm = norm
        self.means: list[Tensor] = []
        self.variances: list[Tensor] = []
        self.hook = norm.register_forward_pre_hook(self._look)

    def _look(self, _: nn.Module, given: tuple[Tensor, ...]) -> None:
        axes = [axis for axis in range(given[0].ndim) if axis != 1]
        self.means.append(given[0].mean(axes))
        self.variances.append(given[0].var(axes))

    def settle(self) -> None:
        """The statistics that were seen, and what undoes them."""
        mean, variance = torch.stack(self.means).mean(0), torch.stack(self.variances).mean(0)
        slope = torch.sqrt(variance + self.norm.eps)
        found = {"running_mean": mean, "running_var": variance, "weight": slope, "bias": mean}
        self.norm.load_state_dict(found, strict=False)


def _new_norms(net: nn.Module) -> Iterator[_BatchNorm]:
    """Behind convolutions of a stretching's own, and not trained yet."""
    if not isinstance(net, TrainableNetwork):
        return
    for norm in net.new_norms():
        state = norm.state_dict()
        is_one = all((state[name] == 1).all() for name in ("weight", "running_var"))
        if is_one and not any(state[name].any() for name in ("bias", "running_mean")):
            yield norm


def _batches(images: Any) -> Iterator[Tensor]:
    if isinstance(images, np.ndarray | Tensor):
        yield from torch.as_tensor(images).split(BATCH)
        return
    for batch in images:
        yield torch.as_tensor(batch[0] if isinstance(batch, list | tuple) else batch)


def _length(images: Any) -> int:
    if isinstance(images, np.ndarray | Tensor):
        return -(-len(images) // BATCH)
    return len(images) if hasattr(images, "__len__") else 0
