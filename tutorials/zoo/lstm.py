"""The LSTM of HOPE's evaluation: one layer, 1024 hidden units, 10 time steps, unrolled.

Input ``[batch, steps, 1024]``. The last state goes through a dense layer to the 29 characters of
DeepSpeech (Hannun et al., 2014), whose configuration HOPE follows. Each gate has weights of its
own, so that a scheduler can place the gates apart. One step:

    i, f, g, o = (x[t] @ W[gate] + h @ R[gate] + b[gate] for each gate)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    h = sigmoid(o) * tanh(c)
"""

from __future__ import annotations

import numpy as np

from .builder import Builder, Tensor
from .entry import Entry, NetworkInfo
from .probe import Array

_UNITS = 1024
_STEPS = 10


def _split(b: Builder, x: Tensor, axis: int, parts: int) -> list[Tensor]:
    """Equal parts along an axis."""
    extent = x.shape[axis] // parts
    sizes = b.constant(f"split.{parts}x{extent}", np.full(parts, extent, np.int64))
    names = b.node("Split", [x.name, sizes], parts, axis=axis)
    shape = (*x.shape[:axis], extent, *x.shape[axis + 1 :])
    samples = np.split(x.probe, parts, axis=axis)
    return [Tensor(n, shape, sample) for n, sample in zip(names, samples, strict=True)]


def _matmul(b: Builder, x: Tensor, name: str, weight: Array) -> Tensor:
    out = b.node("MatMul", [x.name, name])[0]
    return Tensor(out, (x.shape[0], weight.shape[1]), x.probe @ weight)


def _time_steps(b: Builder, x: Tensor) -> list[Tensor]:
    """``[batch, steps, features]`` to one ``[batch, features]`` for each step."""
    axes = b.constant("squeeze.axes", np.array([1], np.int64))
    batch, steps, features = x.shape
    return [
        Tensor(b.node("Squeeze", [part.name, axes])[0], (batch, features), part.probe[:, 0])
        for part in _split(b, x, 1, steps)
    ]


class _Gate:
    """Weights of one gate, the same at every step."""

    def __init__(self, b: Builder, name: str, features: int) -> None:
        self.b, self.name = b, name
        self.from_input = b.weight(f"{name}.input.weight", (features, _UNITS), 1.0 / features)
        # States are smaller than inputs; weights twice as large make up for it.
        self.from_state = b.weight(f"{name}.state.weight", (_UNITS, _UNITS), 4.0 / _UNITS)
        offsets = b.offsets(_UNITS)
        self.bias = Tensor(b.constant(f"{name}.bias", offsets), (_UNITS,), offsets)

    def compute(self, x: Tensor, h: Tensor) -> Tensor:
        """Before its activation."""
        products = self.b.add(
            _matmul(self.b, x, f"{self.name}.input.weight", self.from_input),
            _matmul(self.b, h, f"{self.name}.state.weight", self.from_state),
        )
        return self.b.add(products, self.bias)


def _lstm(b: Builder, x: Tensor, classes: int) -> Tensor:
    batch, _, features = x.shape
    gates = [_Gate(b, name, features) for name in ("i", "f", "g", "o")]
    zeros = b.constant("state.zeros", np.zeros((batch, _UNITS), np.float32))
    h = c = Tensor(zeros, (batch, _UNITS), np.zeros((1, _UNITS), np.float32))
    for step in _time_steps(b, x):
        i, f, g, o = (gate.compute(step, h) for gate in gates)
        kept = b.mul(b.act(f, "sigmoid"), c)
        c = b.add(kept, b.mul(b.act(i, "sigmoid"), b.act(g, "tanh")))
        h = b.mul(b.act(o, "sigmoid"), b.act(c, "tanh"))
    return b.dense(h, classes)


# Nobody publishes figures for it: 4 * 1024 * (1024 + 1024 + 1) parameters, all but the bias used
# once per step; the dense layer adds 0.03 M of each.
NETWORKS: dict[str, Entry] = {
    "lstm": Entry(
        NetworkInfo(
            params=8.39,
            macs=0.0839,
            size=_STEPS,
            input_shape=(_STEPS, _UNITS),
            classes=29,
            source="HOPE, section 5.1",
        ),
        _lstm,
    ),
}
