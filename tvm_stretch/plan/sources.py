"""Where the channels of a stretched network's tensors come from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Source:
    """Which channels of the given network a tensor of the stretched one stands for.

    Attributes:
        tensor: of the given network.
        channels: of it; -1 for new ones.
        tied: where the tensor lies within a block of a branch: those of one such name have the
            same channels, and these may as well be others. Empty where they may not.
        unit: that many channels stay together.
        is_new: a layer that the given network does not have computes the tensor.
    """

    tensor: str
    channels: NDArray[np.int64]
    tied: str = ""
    unit: int = 1
    is_new: bool = False
