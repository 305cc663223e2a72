"""Images to classify without a download: drawn shapes, and scikit-learn's digits.

A shape is a curve around a centre, ``radius(angle)``, one for each of ten classes: polygons,
flowers, a ring, frames. It is turned, squeezed, moved and scaled; its colours and those of the
ground are random, other shapes lie half outside, and noise covers all of it. A hexagon in that
noise is easily taken for a circle, so that a small network is right in about nine of ten cases.

Torch's CPU generator draws everything, so that a seed gives the same images everywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

CLASSES = 10
SIZE = 32
_ANGLES = 256
_NOISE = 0.33
_DIGITS_TESTED = 597


@dataclass(frozen=True)
class Data:
    """Images and labels to train with, and to test with.

    Attributes:
        images: the training images.
        labels: their labels.
        test_images: the test images.
        test_labels: their labels.
        are_turned: whether training images are randomly turned and mirrored.
    """

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    are_turned: bool = False

    def to(self, device: str) -> Data:
        """The data on a device."""
        moved = (self.images, self.labels, self.test_images, self.test_labels)
        return Data(*(value.to(device) for value in moved), self.are_turned)


def turned(images: Tensor) -> Tensor:
    """Each image mirrored and turned by a right angle, or not, by chance."""
    chosen = torch.rand(3, len(images)).to(images.device) < 0.5
    moves = (lambda x: x.flip(2), lambda x: x.flip(3), lambda x: x.transpose(2, 3))
    for which, move in zip(chosen, moves, strict=True):
        images = torch.where(which[:, None, None, None], move(images), images)
    return images


def shapes(seed: int, trained: int, tested: int) -> Data:
    """Drawn shapes; others for every seed."""
    random = torch.Generator().manual_seed(seed)
    return Data(*_drawn(trained, random), *_drawn(tested, random), are_turned=True)


def digits(path: Path, seed: int) -> Data:
    """scikit-learn's digits, which the file keeps, split anew for every seed."""
    if not path.exists():
        from sklearn.datasets import load_digits

        bunch = load_digits()
        images = torch.tensor(bunch.images, dtype=torch.float32)[:, None]
        labels = torch.tensor(bunch.target, dtype=torch.int64)
        torch.save({"images": images / 8 - 1, "labels": labels}, path)
    held: dict[str, Any] = torch.load(path, weights_only=True)
    random = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(held["labels"]), generator=random)
    train, test = order[_DIGITS_TESTED:], order[:_DIGITS_TESTED]
    images, labels = held["images"], held["labels"]
    return Data(images[train], labels[train], images[test], labels[test])


def _curves() -> tuple[Tensor, Tensor]:
    """The radius of each class by angle, and the share of it that is a hole."""
    angle = torch.arange(_ANGLES) * (2 * math.pi / _ANGLES)

    def polygon(corners: int) -> Tensor:
        part = 2 * math.pi / corners
        return math.cos(part / 2) / torch.cos(angle % part - part / 2)

    def flower(petals: int) -> Tensor:
        return 0.7 + 0.3 * torch.cos(petals * angle)

    circle = torch.ones(_ANGLES) * 0.95
    solid = [polygon(3), polygon(4), polygon(6), circle, flower(3), flower(4), flower(5)]
    curves = torch.stack([*solid, circle, polygon(4), polygon(3) * 1.1])
    holes = torch.tensor([0.0] * 7 + [0.5] * 3)
    return curves, holes


def _drawn(count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images of deviation about 1, and their classes."""
    labels = torch.randint(CLASSES, (count,), generator=random)
    parts = [_drawn_batch(part, random) for part in labels.split(2048)]
    return torch.cat(parts), labels


def _drawn_batch(labels: Tensor, random: torch.Generator) -> Tensor:
    count = len(labels)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *shape, generator=random)

    image = uniform(-0.4, 0.4, 3, 1, 1) + _slope(uniform(-0.3, 0.3, 2))
    for _ in range(2):  # others lie at the border
        other = torch.randint(CLASSES, (count,), generator=random)
        turn = uniform(0, 2 * math.pi)
        centre = torch.stack([turn.cos(), turn.sin()], 1) * uniform(16, 20, 1)
        mask = _mask(other, centre, uniform(4, 7), uniform(0, 2 * math.pi), uniform(0.8, 1))
        image = image + mask * uniform(-0.8, 0.8, 3, 1, 1)
    centre, radius = uniform(-3, 3, 2), uniform(8, 12)
    mask = _mask(labels, centre, radius, uniform(0, 2 * math.pi), uniform(0.85, 1))
    sign = torch.where(uniform(0, 1, 1, 1, 1) < 0.5, -1.0, 1.0)
    image = image + mask * sign * uniform(0.5, 1.2, 3, 1, 1)
    noise = torch.randn(count, 3, SIZE, SIZE, generator=random)
    return (image + _NOISE * noise) / 0.55


def _grid() -> tuple[Tensor, Tensor]:
    """Places of pixels, from the middle."""
    line = torch.arange(SIZE) - (SIZE - 1) / 2
    return line[None, :, None], line[None, None, :]


def _slope(direction: Tensor) -> Tensor:
    rows, columns = _grid()
    slope = (rows * direction[:, 0, None, None] + columns * direction[:, 1, None, None]) / SIZE
    return slope[:, None]


def _mask(labels: Tensor, centre: Tensor, radius: Tensor, turn: Tensor, squeeze: Tensor) -> Tensor:
    """How much of each pixel a shape covers."""
    curves, holes = _curves()
    rows, columns = _grid()
    down, right = rows - centre[:, 0, None, None], columns - centre[:, 1, None, None]
    cosine, sine = turn.cos()[:, None, None], turn.sin()[:, None, None]
    across, along = (right * cosine + down * sine), (down * cosine - right * sine)
    across = across / squeeze[:, None, None]
    angle = torch.atan2(along, across) % (2 * math.pi)
    index = (angle * (_ANGLES / (2 * math.pi))).long().clamp(0, _ANGLES - 1)
    edge = radius[:, None, None] * curves[labels[:, None, None], index]
    distance = torch.hypot(across, along)
    inside = torch.sigmoid(3 * (edge - distance))
    hole = torch.sigmoid(3 * (edge * holes[labels][:, None, None] - distance))
    return (inside * (1 - hole * (holes[labels][:, None, None] > 0)))[:, None]
