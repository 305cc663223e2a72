"""Training as in the paper (SGD with momentum, a cosine schedule), and distillation.

    fit(net, loader, Training(epochs=30, rate=0.1))
    distill(net, teacher, loader, Training(epochs=30))   # loss + alpha * T^2 * weighted soft labels

Every epoch has its own seed, so a run that is resumed from a checkpoint ends with exactly the
weights of an uninterrupted run. A checkpoint is for one network and one set of settings:
``tvm_stretch.checkpoint 1 <fingerprint of the rest>``, and what torch.save makes of a dict.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tvm_stretch.base.errors import InputError, TrainingError
from tvm_stretch.base.files import (
    as_path,
    check_place,
    open_regular,
    reason_of,
    write_whole,
    writing,
)
from tvm_stretch.base.progress import Progress, reporting, say
from tvm_stretch.lab.training.data import Loader, device_of, evaluating, labelled, module, place

ALPHA = 2.5
TEMPERATURE = 2.0
"""Constants of weighted soft labels (Zhou et al., 2021) for ImageNet, which NN-Stretch uses."""

WARM_UP = 0.05
"""The share of the training during which the learning rate rises."""

LOOK_EVERY = 50
"""The number of steps between two checks and reports of the loss."""

_RANGES = (
    ("rate", 1e-12, math.inf),
    ("momentum", 0, 1),
    ("weight_decay", 0, math.inf),
    ("seed", 0, 2**32),
)
"""Numbers of a training, and their ranges."""

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A function of images, the network's outputs for them, and labels."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a network is trained.

    Attributes:
        epochs: how often all images are seen.
        rate: the highest learning rate; it falls along a cosine. Use 0.01 after a warm start.
        momentum: the momentum of SGD.
        weight_decay: the decay of weights; scales and offsets have none.
        seed: the same seed on the same device gives the same result.
        device: where to train, by default the network's device; the network stays there.
        checkpoint: a file that is written after every epoch, from which the same call resumes.
        progress: as for ``ts.compile``.

    Raises:
        InputError: a number is out of its range.

    Examples:
        >>> ts.training.Training(epochs=3, rate=0.01)
        Training(epochs=3, rate=0.01, ...)
    """

    epochs: int
    rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-5
    seed: int = 0
    device: str | torch.device | None = None
    checkpoint: str | os.PathLike[str] | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if type(self.epochs) is not int or self.epochs < 1:
            raise InputError(
                f"expected a positive number for epochs, got {self.epochs!r}; raise it"
            )
        for name, least, most in _RANGES:
            value = getattr(self, name)
            if not isinstance(value, int | float) or not least <= value < most:
                raise InputError(
                    f"expected a number from {least} to below {most} for {name}, got {value!r}; "
                    "see training.Training"
                )
        if type(self.seed) is not int:
            raise InputError(f"expected a whole number for seed, got {self.seed!r}; give an int")


def fit(net: nn.Module, loader: Loader, training: Training) -> list[float]:
    """Train a network to classify; returns the mean loss of every epoch of this call.

    Args:
        net: changed in place; in evaluation mode afterwards.
        loader: gives pairs of images and labels, once an epoch.
        training: how it is trained.

    Raises:
        TrainingError: the loss is not finite, or the checkpoint is of another network or training.
        InputError: the loader gives no pairs of images and labels.

    Examples:
        >>> net = ts.training.to_torch("resnet18.onnx")
        >>> loader = [(torch.randn(2, 3, 224, 224), torch.tensor([0, 1]))]
        >>> losses = ts.training.fit(net, loader, ts.training.Training(epochs=2, rate=0.01))
        >>> len(losses)
        2
    """

    def loss(_images: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(logits, labels)

    return train(net, loader, loss, training, "labels")


def distill(
    net: nn.Module,
    teacher: nn.Module,
    loader: Loader,
    training: Training,
    *,
    alpha: float = ALPHA,
    temperature: float = TEMPERATURE,
) -> list[float]:
    """Like `fit`, with a teacher's weighted soft labels added to the loss.

    Args:
        net: changed in place; in evaluation mode afterwards.
        teacher: the trained network that was stretched; its mode and weights do not change.
        loader: gives pairs of images and labels, once an epoch.
        training: how it is trained.
        alpha: the weight of the teacher's soft labels, beside the labels.
        temperature: the divisor of the logits.

    Examples:
        >>> net, teacher = (ts.training.to_torch("resnet18.onnx") for _ in range(2))
        >>> loader = [(torch.randn(2, 3, 224, 224), torch.tensor([0, 1]))]
        >>> training = ts.training.Training(epochs=1, rate=0.01)
        >>> len(ts.training.distill(net, teacher, loader, training))
        1
    """
    for name, value in (("alpha", alpha), ("temperature", temperature)):
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise InputError(f"expected a positive number for {name}, got {value!r}; see distill")
    module(teacher, "teacher").to(place(training.device, module(net, "net")))

    def loss(images: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            taught = teacher(images)
        if taught.shape != logits.shape:
            raise InputError(
                f"expected a teacher of the same classes, got {tuple(taught.shape)} beside "
                f"{tuple(logits.shape)}; give the network that was stretched"
            )
        hard = functional.cross_entropy(logits, labels)
        return hard + alpha * weighted_soft_labels(logits, taught, labels, temperature)

    what = f"soft labels of alpha {alpha}, temperature {temperature}"
    with evaluating(teacher):
        return train(net, loader, loss, training, what)


def weighted_soft_labels(
    logits: Tensor, taught: Tensor, labels: Tensor, temperature: float
) -> Tensor:
    """The loss against a teacher's soft labels; a sample counts more where the teacher is better.

    A sample's weight is 1 - exp(-student's loss / teacher's loss).
    """
    soft = functional.softmax(taught / temperature, 1)
    losses = -(soft * functional.log_softmax(logits / temperature, 1)).sum(1)
    with torch.no_grad():
        own = functional.cross_entropy(logits, labels, reduction="none")
        its = functional.cross_entropy(taught, labels, reduction="none")
        weight = 1 - torch.exp(-own / (its + 1e-7))
    return temperature**2 * (weight * losses).mean()


def train(net: nn.Module, loader: Loader, loss: Loss, training: Training, what: str) -> list[float]:
    """The loop of `fit`, with any loss; ``what`` names the loss in checkpoints."""
    where = place(training.device, module(net, "net"))
    net.to(where)
    optimizer = _optimizer(net, training)
    numbers = {name: getattr(training, name) for name in ("epochs", *(n for n, *_ in _RANGES))}
    recorded = {**numbers, "loss": what}
    checkpoint = training.checkpoint
    path = None if checkpoint is None else as_path(checkpoint, "a checkpoint")
    done, losses = 0, []
    if path is not None and path.exists():
        done = read_checkpoint(path, net, optimizer, recorded)
    elif path is not None:
        check_place(path, "checkpoint")
    try:
        with reporting(training.progress), repeatable(where):
            for epoch in range(done, training.epochs):
                torch.manual_seed(training.seed * 1_000_003 + epoch)
                net.train()
                losses.append(_epoch(net, loader, loss, optimizer, training, epoch))
                if path is not None:
                    write_checkpoint(path, net, optimizer, recorded, epoch + 1)
    finally:
        net.eval()
    return losses


def _epoch(
    net: nn.Module,
    loader: Loader,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    training: Training,
    epoch: int,
) -> float:
    """Train for an epoch and return the mean loss; reading it seldom saves a GPU's waits."""
    where = device_of(net)
    length = len(loader) if isinstance(loader, Sized) else 0
    total, steps = torch.zeros((), device=where), 0
    for images, labels in labelled(loader, where):
        part = min(1.0, (steps + 0.5) / length) if length else 0.5
        for group in optimizer.param_groups:
            group["lr"] = training.rate * share_of_rate((epoch + part) / training.epochs)
        optimizer.zero_grad()
        logits = net(images)
        if not steps:
            _check_classes(logits, labels)
        batch_loss = loss(images, logits, labels)
        batch_loss.backward()
        optimizer.step()
        total += batch_loss.detach()
        steps += 1
        if steps % LOOK_EVERY == 0:
            _report(total, steps, training, epoch)
    return _report(total, steps, training, epoch)


def _check_classes(logits: Tensor, labels: Tensor) -> None:
    """Check labels against outputs, for the first batch only: a check waits for the GPU."""
    if logits.ndim != 2 or not 0 <= int(labels.min()) <= int(labels.max()) < logits.shape[1]:
        raise InputError(
            f"expected labels below the network's number of classes, got {int(labels.min())} to "
            f"{int(labels.max())} for outputs of {tuple(logits.shape)}; give the numbers of "
            "classes, from 0 on"
        )


def _report(total: Tensor, steps: int, training: Training, epoch: int) -> float:
    mean = total.item() / steps
    if not math.isfinite(mean):
        raise TrainingError(
            f"expected a finite loss, got {mean} in epoch {epoch + 1} of {training.epochs}; "
            "train with a lower rate, and look for NaN among the images"
        )
    say(f"epoch {epoch + 1} of {training.epochs}, loss {mean:.3f}")
    return mean


def share_of_rate(done: float) -> float:
    """The learning rate, from 0 to 1, when this share of the training is done.

    >>> share_of_rate(0.025), share_of_rate(0.05), share_of_rate(0.525)
    (0.5, 1.0, 0.5)
    """
    if done < WARM_UP:
        return done / WARM_UP
    return 0.5 * (1 + math.cos(math.pi * (done - WARM_UP) / (1 - WARM_UP)))


def _optimizer(net: nn.Module, training: Training) -> torch.optim.Optimizer:
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, value in net.named_parameters():
        if value.requires_grad:
            (decayed if value.ndim > 1 and name.endswith("weight") else others).append(value)
    groups = [
        {"params": decayed, "weight_decay": training.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    if not decayed and not others:
        raise InputError("expected a network with weights to train, got none; see requires_grad")
    return torch.optim.SGD(
        [group for group in groups if group["params"]],
        lr=training.rate,
        momentum=training.momentum,
    )


@contextlib.contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """Context in which a seed decides all numbers; torch's generators are restored at the end."""
    devices = [device] if device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices),
        torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=True
        ),
    ):
        yield


_NAME = b"tvm_stretch.checkpoint 1"


def graph_of_module(net: nn.Module) -> str:
    """A fingerprint of the network; other modules are told apart by names and shapes of weights."""
    if fingerprint := getattr(net, "fingerprint", None):
        return str(fingerprint)
    shapes = [(key, tuple(value.shape)) for key, value in net.state_dict().items()]
    return hashlib.blake2b(repr(shapes).encode(), digest_size=16).hexdigest()


def write_checkpoint(
    path: Path,
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    settings: Mapping[str, Any],
    epoch: int,
) -> None:
    """Write the state after an epoch."""
    buffer = io.BytesIO()
    state = {
        "graph": graph_of_module(net),
        "settings": dict(settings),
        "epoch": epoch,
        "net": net.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    torch.save(state, buffer)
    content = buffer.getvalue()
    with writing("the checkpoint", TrainingError):
        write_whole(path, b"%s %s\n" % (_NAME, _digest(content)) + content)


def read_checkpoint(
    path: Path,
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    settings: Mapping[str, Any],
) -> int:
    """Load a checkpoint into the network and optimizer; return the number of finished epochs."""
    state = _read(path, net)
    if state["graph"] != graph_of_module(net):
        raise TrainingError(
            f"expected a checkpoint of this network in {path}, got one of another; give another "
            "path, or remove the file"
        )
    if state["settings"] != dict(settings):
        saved = state["settings"]
        name = next(n for n in {**settings, **saved} if saved.get(n) != settings.get(n))
        raise TrainingError(
            f"expected a checkpoint of the same training in {path}, got {name}={saved.get(name)!r} "
            f"where this has {settings.get(name)!r}; give another path, or remove the file"
        )
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["epoch"])


def _read(path: Path, net: nn.Module) -> dict[str, Any]:
    try:
        with open_regular(path) as file:
            head, _, content = file.read().partition(b"\n")
    except OSError as error:
        raise TrainingError(
            f"expected a readable checkpoint, got {reason_of(error)}; check the path, or remove "
            "the file"
        ) from error
    if head != b"%s %s" % (_NAME, _digest(content)):
        got = "a damaged one" if head.startswith(_NAME) else "another kind of file"
        raise TrainingError(
            f"expected a checkpoint of this version of tvm_stretch in {path}, got {got}; give "
            "another path, or remove the file"
        )
    where = device_of(net)
    state: dict[str, Any] = torch.load(io.BytesIO(content), map_location=where, weights_only=True)
    return state


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).hexdigest().encode()
