"""Where the channels of a stretched network's tensors come from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Source:
    """Which channels of the original network a tensor of the stretched network stands for."""

    tensor: str  # of the original network
    channels: NDArray[np.int64]  # of that tensor; -1 for new channels
    # a name that all tensors inside a block of a branch with the same channels share; other
    # channels may be chosen for all of them together. Empty if the channels are fixed.
    tied: str = ""
    unit: int = 1  # number of neighbouring channels that stay together
    # whether a layer computes the tensor that the original network does not have
    is_new: bool = False
