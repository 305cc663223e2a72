"""Gradient descent on all layers of a stretched network towards the given one, without labels.

    teacher    x -> block -> block -> block -> result      each end of a block, and the result,
    net        x' -> block.b0 -> block.b0 --.              is compared with the channels of the
               `---> block.b1 ------> concat -> result'    teacher's that it stands for

`imitate` fits one layer after the other: values inside a branch have to match the teacher's, and
later layers inherit the errors of earlier ones. Here a few hundred steps of gradient descent change
all layers at once, and only values that leave a block have to match.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from tvm_stretch.base.errors import InputError, TrainingError
from tvm_stretch.base.progress import Progress, reporting, say
from tvm_stretch.lab.training.data import device_of, evaluating, image_batches, undone
from tvm_stretch.lab.training.imitate import check_belong, find_fits
from tvm_stretch.lab.training.loop import LOOK_EVERY, repeatable, share_of_rate
from tvm_stretch.lab.training.network import TrainableNetwork
from tvm_stretch.lab.training.statistics import recalibrate

STEPS = 400
"""Steps of gradient descent: a few seconds to a minute for networks of small images."""

BATCH = 128
"""Images per step if the caller gave one array."""


def refine(
    net: TrainableNetwork,
    teacher: TrainableNetwork,
    images: object,
    *,
    steps: int = STEPS,
    rate: float = 4e-3,
    seed: int = 0,
    progress: Progress | None = None,
) -> None:
    """Bring a stretched network's values nearer to the given one's, after `imitate`.

    Args:
        net: the module of `Stretching.to_torch`; changed in place, in evaluation mode afterwards,
            restored after an error.
        teacher: `to_torch` of the network that was stretched; moved to the device of ``net``,
            where it stays.
        images: an array or a tensor of some thousands, or a loader that is read over and over; its
            labels are ignored, and so are batches of one image.
        steps: the number of steps of gradient descent.
        rate: Adam's first learning rate; it falls along a cosine.
        seed: the same seed on the same device gives the same result.
        progress: as for ``ts.compile``.

    Raises:
        InputError: there are fewer than two images, or the networks do not belong together.
        TrainingError: an activation is not finite.

    Examples:
        >>> found = ts.stretch("resnet18.onnx", device="snapdragon-855")
        >>> net, teacher = found.to_torch(), ts.training.to_torch("resnet18.onnx")
        >>> ts.training.refine(net, teacher, torch.randn(4, 3, 224, 224), steps=2)
    """
    check_belong(net, teacher)
    if type(steps) is not int or steps < 1:
        raise InputError(f"expected a positive number for steps, got {steps!r}; try {STEPS}")
    if not isinstance(rate, int | float) or not 0 < rate < math.inf:
        raise InputError(f"expected a positive number for rate, got {rate!r}; try 0.004")
    where = device_of(net)
    teacher.to(where)
    if not isinstance(images, torch.Tensor) and not hasattr(images, "__array__"):
        images = _Several(images if hasattr(images, "__len__") else list(image_batches(images)))
    try:
        with undone(net), evaluating(teacher), reporting(progress), repeatable(where):
            torch.manual_seed(seed)
            net.train()
            _descend(net, teacher, _endless(images), steps, rate)
            recalibrate(net, images)
    finally:
        net.eval()


def _descend(
    net: TrainableNetwork,
    teacher: TrainableNetwork,
    batches: Iterator[Tensor],
    steps: int,
    rate: float,
) -> None:
    """Run the steps of gradient descent."""
    where, compared = device_of(net), _compared(net)
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], rate)
    total, heard = torch.zeros((), device=where), 0
    for step in range(steps):
        batch = next(batches).to(where, torch.float32)
        with torch.no_grad():
            wanted = _values(teacher, batch, {net.sources[name].tensor for name in compared})
        for group in optimizer.param_groups:
            group["lr"] = rate * share_of_rate((step + 0.5) / steps)
        optimizer.zero_grad()
        loss = _apart(net, _values(net, batch, compared), wanted, compared)
        loss.backward()
        optimizer.step()
        total, heard = total + loss.detach(), heard + 1
        if (step + 1) % LOOK_EVERY == 0 or step + 1 == steps:
            mean = total.item() / heard
            if not math.isfinite(mean):
                raise TrainingError(
                    f"expected a finite distance to the teacher, got {mean} until step {step + 1}; "
                    "refine at a lower rate, and look for NaN among the images and the weights"
                )
            say(f"step {step + 1} of {steps}, {mean:.3f} of the variance apart")
            total, heard = torch.zeros((), device=where), 0


class _Several:
    """The batches of a loader, without batches of one image, which has no variance."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Tensor]:
        for batch in image_batches(self.loader):
            if len(batch) > 1:
                yield batch


def _endless(images: object) -> Iterator[Tensor]:
    """Batches of images without end, an array's in another order each time."""
    if isinstance(images, _Several):
        given = True
        while given:
            given = False
            for batch in images:
                given = True
                yield batch
        got = "no such batch"
    else:
        pictures = torch.as_tensor(images)
        while len(pictures) > 1:
            order = torch.randperm(len(pictures)).to(pictures.device)
            size = min(BATCH, len(pictures))
            for part in range(len(pictures) // size):
                yield pictures[order[part * size : (part + 1) * size]]
        got = str(len(pictures))
    raise InputError(
        f"expected batches of at least two images to refine with, got {got}; give some thousands "
        "of images: normalisations and the distance to the teacher need how they differ"
    )


def _compared(net: TrainableNetwork) -> dict[str, float]:
    """The weight of each end of a block and of each result; both kinds weigh the same in total."""
    fits = [fit for fit in find_fits(net) if not net.sources[fit.wanted].tied]
    summands = {fit.other for fit in fits}
    ends = {fit.wanted for fit in fits} - summands - set(net.graph.outputs)
    results = {name for name in net.graph.outputs if name in net.sources}
    weights = {name: 1 / len(part) for part in (ends, results) for name in part}
    return {node.name: weights[node.name] for node in net.graph.nodes if node.name in weights}


def _values(
    net: TrainableNetwork, batch: Tensor, names: Mapping[str, float] | set[str]
) -> dict[str, Tensor]:
    """The values of the named tensors."""
    values, times = net.bound((batch,))
    named = {}
    for node in net.graph.nodes:
        values[node.name] = net.compute(node, values, times)
        if node.name in names:
            named[node.name] = values[node.name]
        for name in node.inputs:
            if net.graph.last_reader.get(name) == node.name:
                values.pop(name, None)
    return named


def _apart(
    net: TrainableNetwork,
    named: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    counts: Mapping[str, float],
) -> Tensor:
    """The mean squared distance of the networks, as a share of the teacher's variance."""
    total = torch.zeros((), device=next(iter(named.values())).device)
    for name, value in named.items():
        source, whole = net.sources[name], wanted[net.sources[name].tensor]
        spread = whole.transpose(0, 1).flatten(1).var(1).mean() + 1e-12
        channels = torch.as_tensor(source.channels, device=value.device)
        has_origin = channels >= 0
        apart = (value[:, has_origin] - whole[:, channels[has_origin]]).square().mean()
        total = total + counts[name] * apart / spread
    return total
