"""Where the channels of a stretched network's tensors come from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Source:
    """Which channels of the original network a tensor of the stretched network stands for.

    Attributes:
        tensor: of the original network.
        channels: of that tensor; -1 for new channels.
        tied: a name that all tensors inside a block of a branch with the same channels share; other
            channels may be chosen for all of them together. Empty if the channels are fixed.
        unit: number of neighbouring channels that stay together.
        is_new: whether a layer computes the tensor that the original network does not have.
    """

    tensor: str
    channels: NDArray[np.int64]
    tied: str = ""
    unit: int = 1
    is_new: bool = False
