"""Batches of images for training, and a network's accuracy on them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from tvm_stretch.base.errors import InputError

_BATCH = 128
"""Images per batch if the caller gave one array."""

Loader: TypeAlias = Iterable[Sequence[Tensor]]
"""An iterable of (images, labels), iterated once an epoch: a ``DataLoader``, `Batches`, a list."""


class Batches:
    """Batches of images and labels that are in memory; simpler than a ``DataLoader``.

    Args:
        images: all images, on the device that trains.
        labels: the class number of each image.
        size: images per batch. A smaller batch at the end of an epoch is dropped while shuffled.
        shuffled: whether each epoch has another order, drawn from torch's generator.
        augment: a function that is applied to each batch of images.

    Examples:
        >>> images, labels = torch.zeros(10, 3, 8, 8), torch.zeros(10)
        >>> loader = ts.training.Batches(images, labels, size=4, shuffled=False)
        >>> [len(images) for images, labels in loader]
        [4, 4, 2]
    """

    def __init__(
        self,
        images: Tensor | np.ndarray,
        labels: Tensor | np.ndarray,
        size: int = 128,
        shuffled: bool = True,
        augment: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.images, self.labels = torch.as_tensor(images), torch.as_tensor(labels)
        if len(self.images) != len(self.labels) or not len(self.images):
            raise InputError(
                f"expected as many labels as images, and some, got {len(self.labels)} and "
                f"{len(self.images)}; give one label for each image"
            )
        if type(size) is not int or size < 1:
            raise InputError(f"expected a positive number for size, got {size!r}; try 128")
        self.size = min(size, len(self.images))
        self.shuffled = shuffled
        self.augment = augment

    def __len__(self) -> int:
        count = len(self.images)
        return count // self.size if self.shuffled else -(-count // self.size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        count = len(self.images)
        order = torch.randperm(count) if self.shuffled else torch.arange(count)
        order = order.to(self.images.device)
        for index in range(len(self)):
            chosen = order[index * self.size : (index + 1) * self.size]
            images = self.images[chosen]
            yield self.augment(images) if self.augment else images, self.labels[chosen]


def module(net: object, what: str) -> nn.Module:
    """Check that an argument is a torch module with float32 weights, and return it.

    Raises:
        InputError: it is not a torch module, or its weights have another type.
    """
    if not isinstance(net, nn.Module):
        raise InputError(
            f"expected a torch module for {what}, got {type(net).__name__}; st.to_torch() gives one"
        )
    others = {p.dtype for p in net.parameters() if p.is_floating_point()} - {torch.float32}
    if others:
        raise InputError(f"expected float32 weights in {what}, got {others.pop()}; call float()")
    return net


@contextlib.contextmanager
def evaluating(*nets: nn.Module) -> Iterator[None]:
    """Context of evaluation mode; each layer gets its former mode back at the end."""
    modes = [(layer, layer.training) for net in nets for layer in net.modules()]
    try:
        for net in nets:
            net.eval()
        yield
    finally:
        for layer, was_training in modes:
            layer.training = was_training


def device_of(net: nn.Module) -> torch.device:
    """The device that holds a module's weights; the CPU if it has none."""
    return next((value.device for value in net.parameters()), torch.device("cpu"))


def place(device: str | torch.device | None, net: nn.Module) -> torch.device:
    """The torch device that the caller names; by default the module's.

    Raises:
        InputError: torch has no such device.
    """
    try:
        chosen = device_of(net) if device is None else torch.device(device)
        torch.empty(0, device=chosen)
    except (AssertionError, NotImplementedError, RuntimeError, TypeError) as error:
        raise InputError(
            f"expected a device that torch has for device, got {device!r} ({error}); give 'cpu' or "
            "'cuda'"
        ) from error
    return chosen


def labelled(loader: Loader, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Move each batch of images and labels of a loader to a device.

    Raises:
        InputError: the loader gives no batches, or batches that are not images and labels.
    """
    if not isinstance(loader, Iterable):
        raise InputError(
            f"expected a loader of images and labels, got {type(loader).__name__}; give a "
            "DataLoader or training.Batches"
        )
    batches = 0
    for batches, batch in enumerate(loader, 1):  # noqa: B007
        if not isinstance(batch, list | tuple) or len(batch) != 2:
            raise InputError(
                f"expected pairs of images and labels from the loader, got {type(batch).__name__}; "
                "give a DataLoader or training.Batches"
            )
        images, labels = (torch.as_tensor(part) for part in batch)
        if labels.shape != images.shape[:1] or labels.is_floating_point():
            raise InputError(
                f"expected a whole number as label of each of {len(images)} images, got "
                f"{labels.dtype} of shape {tuple(labels.shape)}; give the numbers of the classes"
            )
        yield (
            images.to(device, torch.float32, non_blocking=True),
            labels.to(device, torch.int64, non_blocking=True),
        )
    if not batches:
        raise InputError(
            "expected a loader that gives batches in every epoch, got none; a generator is empty "
            "after the first: give a list or a DataLoader"
        )


@torch.no_grad()
def accuracy(net: nn.Module, loader: Loader) -> float:
    """The share of images, from 0 to 1, that the network classifies correctly.

    Examples:
        >>> net = ts.training.to_torch("resnet18.onnx")
        >>> loader = [(torch.zeros(2, 3, 224, 224), torch.tensor([0, 1]))]
        >>> 0 <= ts.training.accuracy(net, loader) <= 0.5
        True
    """
    device = device_of(module(net, "net"))
    right = torch.zeros((), dtype=torch.int64, device=device)
    total = 0
    with evaluating(net):
        for images, labels in labelled(loader, device):
            right += (net(images).argmax(1) == labels).sum()
            total += len(labels)
    return int(right) / total


def image_batches(images: Any) -> Iterator[Tensor]:
    """Batches of images without labels, taken from an array or from a loader."""
    if isinstance(images, np.ndarray | Tensor):
        tensor = torch.as_tensor(images)
        yield from tensor.tensor_split(number_of_batches(images)) if len(tensor) else ()
        return
    if isinstance(images, str) or not hasattr(images, "__iter__"):
        raise InputError(
            f"expected an array of images or batches of them, got {type(images).__name__}; give "
            "an array, a tensor or a DataLoader"
        )
    for batch in images:
        yield torch.as_tensor(batch[0] if isinstance(batch, list | tuple) else batch)


def number_of_batches(images: Any) -> int:
    """The number of batches that `image_batches` gives, 0 if it is unknown."""
    if isinstance(images, np.ndarray | Tensor):
        return -(-len(images) // _BATCH)
    return len(images) if hasattr(images, "__len__") else 0


@contextlib.contextmanager
def undone(*nets: nn.Module) -> Iterator[None]:
    """Context that restores the networks' weights if its body raises an error."""
    before = [{name: value.clone() for name, value in net.state_dict().items()} for net in nets]
    try:
        yield
    except BaseException:
        for net, state in zip(nets, before, strict=True):
            net.load_state_dict(state)
        raise
