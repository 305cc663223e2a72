"""How near images are to the images that they should be: PSNR, SSIM and VMAF.

    psnr(image, wanted)    decibels: squared errors of pixels against the largest possible one
    ssim(image, wanted)    up to 1: means, contrasts and patterns of windows of 11x11 pixels
    vmaf(images, wanted)   0 to 100: what viewers would say of a video, by Netflix's model

Images have channels, rows and columns, and numbers from 0 to 1. VMAF is that of the package
`vmaf-torch` (the official model 0.6.1 in PyTorch), where it is installed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import torch

_WINDOW, _SIGMA = 11, 1.5
"""The Gaussian window of Wang et al. (2004), and their constants for numbers from 0 to 1."""
_C1, _C2 = 0.01**2, 0.03**2

_LUMA = np.array([65.481, 128.553, 24.966])
"""The luminance of red, green and blue by BT.601, from 16 to 235 as videos store it."""


@dataclass(frozen=True)
class Quality:
    """Means of the images of a video."""

    psnr: float  # decibels
    ssim: float
    vmaf: float | None  # None where the package is absent


def quality(images: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> Quality:
    """The quality of a video, beside the video that it should be."""
    shown = [np.clip(image, 0, 1).astype("float64") for image in images]
    pairs = list(zip(shown, wanted, strict=True))
    decibels, alike = (fmean(measure(*pair) for pair in pairs) for measure in (psnr, ssim))
    return Quality(decibels, alike, vmaf(shown, wanted))


def psnr(image: np.ndarray, wanted: np.ndarray) -> float:
    """The peak signal-to-noise ratio, in decibels; infinite for equal images."""
    error = float(np.square(np.subtract(image, wanted, dtype="float64")).mean())
    return -10 * math.log10(error) if error else math.inf


def ssim(image: np.ndarray, wanted: np.ndarray) -> float:
    """The structural similarity, mean of the channels and of all windows within the image."""
    x, y = image.astype("float64"), wanted.astype("float64")
    mean_x, mean_y = _windows(x), _windows(y)
    variance_x, variance_y = _windows(x * x) - mean_x**2, _windows(y * y) - mean_y**2
    covariance = _windows(x * y) - mean_x * mean_y
    means = (2 * mean_x * mean_y + _C1) / (mean_x**2 + mean_y**2 + _C1)
    patterns = (2 * covariance + _C2) / (variance_x + variance_y + _C2)
    return float((means * patterns).mean())


def vmaf(images: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float | None:
    """VMAF of a video's luminance in whole numbers, mean of its frames."""
    try:
        from vmaf_torch import VMAF
    except ImportError:
        return None
    shown, given = (torch.from_numpy(_luminance(video)) for video in (images, wanted))
    with torch.no_grad():
        return float(VMAF(clip_score=True)(given, shown).mean())


def _windows(image: np.ndarray) -> np.ndarray:
    """Weighted means of all windows: rows first, then columns."""
    places = np.arange(_WINDOW) - _WINDOW // 2
    weights = np.exp(-(places**2) / (2 * _SIGMA**2))
    weights /= weights.sum()
    for axis in (1, 2):
        image = np.lib.stride_tricks.sliding_window_view(image, _WINDOW, axis) @ weights
    return image


def _luminance(video: Sequence[np.ndarray]) -> np.ndarray:
    """Frames of one channel, from 16 to 235."""
    frames = 16 + np.tensordot(np.stack(video), _LUMA, (1, 0))
    return np.round(frames)[:, None].astype("float32")
