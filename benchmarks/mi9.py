"""The speeds of a phone's processors by family of operators.

`LATENCY_MS` are the latencies of single processors that NN-Stretch (Wei et al., MobiSys 2023)
publishes in its artifact: a Xiaomi 9 (Snapdragon 855: Kryo 485, Adreno 640, Hexagon 690), TFLite
2.8; the networks are 8-bit integers on CPU and DSP, half floats on the GPU (section 7.2 there).
`MULTIPLY_ADDS_M` counts the same networks of our zoo at 224 x 224, the input that the paper names;
EfficientNet-B5 without squeeze-and-excitation, as it was deployed there.

`speeds()` fits one speed for each family and processor by least squares of relative errors.
`fitted_ms()` is within 20 % of all latencies but those of RegNetX-1.6GF, for which it says up to
37 % too little: its groups are 24 channels wide, those of RegNetX-4GF 40.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy.optimize import nnls

FAMILIES = ("dense", "pointwise", "grouped", "depthwise")
"""Convolutions: ordinary with windows, 1x1 (and matrix products), in groups, channel by channel."""

PROCESSORS = ("cpu", "gpu", "dsp")

LATENCY_MS = {
    "resnet34": (21.692, 36.517, 24.377),
    "resnet50": (28.825, 37.406, 30.399),
    "regnetx_1_6gf": (27.45, 45.078, 32.626),
    "regnetx_4gf": (37.06, 74.512, 48.878),
    "efficientnet_lite4": (16.264, 18.497, 16.283),
    "efficientnet_b5": (26.674, 32.156, 29.782),
}
"""By network, for each of `PROCESSORS`."""

MULTIPLY_ADDS_M = {
    "resnet34": (3644.0, 19.8, 0.0, 0.0),
    "resnet50": (1967.7, 2121.4, 0.0, 0.0),
    "regnetx_1_6gf": (10.8, 1188.6, 403.4, 0.0),
    "regnetx_4gf": (10.8, 2833.2, 1120.5, 0.0),
    "efficientnet_lite4": (10.8, 1240.2, 0.0, 96.7),
    "efficientnet_b5": (16.3, 2197.1, 0.0, 143.1),
}
"""By network, millions for each of `FAMILIES`."""


@cache
def speeds() -> dict[str, dict[str, float]]:
    """Multiply-adds per nanosecond of each processor, by family."""
    amounts = np.array(list(MULTIPLY_ADDS_M.values())) * 1e6
    found = {}
    for processor, column in zip(PROCESSORS, np.array(list(LATENCY_MS.values())).T, strict=True):
        nanoseconds = column[:, None] * 1e6
        each, _ = nnls(amounts / nanoseconds, np.ones(len(column)))
        found[processor] = dict(zip(FAMILIES, (1 / each).tolist(), strict=True))
    return found


def fitted_ms(network: str, processor: str) -> float:
    """The latency of a network by the fitted speeds."""
    known = speeds()[processor]
    amounts = zip(FAMILIES, MULTIPLY_ADDS_M[network], strict=True)
    return sum(amount / known[family] for family, amount in amounts)
