"""Complex numbers and Fourier transforms of torch programs, beside torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.torch_beside import Net, check, check_written

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.read import load_network

_X = torch.linspace(-2, 3, 24).reshape(2, 3, 4)
_Z = torch.view_as_complex(torch.linspace(1, 5, 24).reshape(3, 4, 2)).clone()


def _transforms(x: torch.Tensor) -> Any:
    z, f = torch.fft.rfft(x, norm="ortho"), torch.fft
    back = f.irfft(z, 4), f.irfft(z, 3, norm="forward"), f.irfftn(z, dim=(0, 1))
    return z, f.fftn(x, dim=(0, 1)), f.ifft(z, 6), *back, f.hfft(z), f.ihfft(x)


def _arithmetic(z: torch.Tensor) -> Any:
    y = torch.polar(z.real, z.imag) * 2j - z / (1 + 2j)
    shown = torch.view_as_real(y), y.abs(), y.angle(), y.conj().imag, y.sum(1), y.mT @ z
    return *shown, torch.complex(y.real, y.real[:1]), z.exp(), y.to(torch.complex128)


def _sounds(x: torch.Tensor) -> Any:
    sound, window = x.reshape(2, 12), torch.hann_window(4)
    z = torch.stft(sound, 4, 2, window=window, return_complex=True)
    return z, torch.istft(z, 4, 2, window=window)


class _Rotary(torch.nn.Module):
    """Positions as complex factors that are weights."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer(
            "turns", torch.polar(torch.ones(3, 2), torch.arange(6.0).reshape(3, 2))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pairs of elements, turned."""
        pairs = torch.view_as_complex(x.reshape(2, 3, 2, 2))
        return torch.view_as_real(2 - (pairs * self.turns * 0.5 + 1.5)).flatten(2)


CASES: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "transforms": (_transforms, _X),
    "arithmetic": (_arithmetic, _Z),
    "sounds": (_sounds, _X),
    "long": (lambda x: torch.fft.fft(x), torch.linspace(-1, 1, 1000)),
}


def test_arithmetic() -> None:
    check_written(_arithmetic, _Z)


def test_transforms() -> None:
    check(lambda x: torch.fft.ihfft(torch.fft.irfft(torch.fft.rfft(x, 6), 5)), _X[0, 0])


def test_rotary_positions() -> None:
    check(_Rotary(), _X)


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_complex_numbers(name: str) -> None:
    check(*CASES[name], error=1e-5 if name != "long" else 1e-4)


def test_other_functions_of_complex_numbers_are_refused() -> None:
    program = torch.export.export(Net(lambda z: torch.linalg.det(z)), (_Z[:, :3],), strict=False)
    with pytest.raises(UnsupportedError, match=r"got complex ones; apply torch\.view_as_real"):
        load_network(program)
