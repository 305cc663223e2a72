"""An entry of the zoo: a network's published figures and the function that builds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .builder import Builder, Tensor


@dataclass(frozen=True)
class NetworkInfo:
    """Published figures of one network.

    Attributes:
        params: Trained parameters, in millions (BN scale and shift count, its statistics do not).
        macs: Multiply-adds, in thousands of millions, of one sample at the published size.
        size: Published input height and width (for the LSTM: time steps).
        input_shape: Shape of one sample at the published size.
        classes: Published number of classes.
        source: Where the figures come from.
    """

    params: float
    macs: float
    size: int
    input_shape: tuple[int, ...]
    classes: int
    source: str

    def sample_shape(self, size: int | None = None) -> tuple[int, ...]:
        """Shape of one sample if ``size`` replaces the published size."""
        return tuple(size if size and d == self.size else d for d in self.input_shape)


@dataclass(frozen=True)
class Entry:
    """A network of the zoo: ``emit(builder, input, classes)`` returns the output."""

    info: NetworkInfo
    emit: Callable[[Builder, Tensor, int], Tensor]


def image_network(
    emit: Callable[[Builder, Tensor, int], Tensor],
    *,
    params: float,
    macs: float,
    size: int,
    source: str,
    classes: int = 1000,
) -> Entry:
    """A network that takes square RGB images."""
    return Entry(NetworkInfo(params, macs, size, (3, size, size), classes, source), emit)
