"""PSNR and SSIM against closed forms: flat images, and chequered ones around a mean."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

from benchmarks.image_quality import psnr, quality, ssim, vmaf

C1, C2 = 1e-4, 9e-4
SHAPE = (3, 24, 20)


def flat(value: float) -> np.ndarray:
    return np.full(SHAPE, value, "float32")


def chequered(mean: float, contrast: float) -> np.ndarray:
    """Pixels of mean + contrast and of mean - contrast take turns, as on a chessboard."""
    signs = 1 - 2 * (np.indices(SHAPE[1:]).sum(0) % 2)
    return np.broadcast_to(mean + contrast * signs, SHAPE)


@pytest.mark.parametrize("error", [0.5, 0.1, 1 / 255])
def test_psnr_of_a_constant_error(error: float) -> None:
    """An error of 1/255 has the usual 48.13 dB."""
    assert psnr(flat(0.5 - error), flat(0.5)) == pytest.approx(-20 * math.log10(error), rel=1e-5)
    assert psnr(chequered(0.5, error), flat(0.5)) == pytest.approx(-20 * math.log10(error))


def test_equal_images_are_alike() -> None:
    image = np.random.default_rng(0).random(SHAPE)
    assert psnr(image, image) == math.inf
    assert ssim(image, image) == 1


@pytest.mark.parametrize(("a", "b"), [(0.2, 0.6), (0.0, 1.0), (0.5, 0.5)])
def test_ssim_of_flat_images_compares_means(a: float, b: float) -> None:
    wanted = (2 * a * b + C1) / (a * a + b * b + C1)
    assert ssim(flat(a), flat(b)) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(("first", "second"), [(0.2, 0.1), (0.2, -0.2), (0.3, 0.0), (0.02, 0.2)])
def test_ssim_of_chequered_images_compares_contrasts(first: float, second: float) -> None:
    """The mean of a window is that of the image, its deviation is the contrast."""
    wanted = (2 * first * second + C2) / (first**2 + second**2 + C2)
    found = ssim(chequered(0.5, first), chequered(0.5, second))
    assert found == pytest.approx(wanted, rel=1e-6)
    both = wanted * (2 * 0.4 * 0.5 + C1) / (0.4**2 + 0.5**2 + C1)
    assert ssim(chequered(0.4, first), chequered(0.5, second)) == pytest.approx(both, rel=1e-6)


def test_quality_is_the_mean_of_frames_within_0_and_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vmaf_torch", None)
    found = quality([flat(1.7), flat(0.9)], [flat(0.9), flat(0.89)])
    assert found.psnr == pytest.approx((20 + 40) / 2, rel=1e-4)
    assert 0.99 < found.ssim < 1 and found.vmaf is None


def test_vmaf_falls_with_noise() -> None:
    pytest.importorskip("vmaf_torch")
    random = np.random.default_rng(0)
    frames = np.kron(random.random((2, 3, 20, 30)), np.ones((1, 1, 8, 8)))
    noise = random.standard_normal(frames.shape)
    scores = [vmaf([*np.clip(frames + e * noise, 0, 1)], [*frames]) for e in (0, 0.02, 0.1)]
    assert scores[0] > 90 and scores[0] > scores[1] > scores[2] >= 0  # type: ignore[operator]
