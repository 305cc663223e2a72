"""Rotary positions of a language model: cosines and sines of the positions of a run.

A cache of fixed length has a table of all positions. Where caches slide, a position is
``COARSE * far + near``, and the angle of the sum is known from both tables:

    cos(a + b) = cos a cos b - sin a sin b        sin(a + b) = sin a cos b + cos a sin b
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tvm_stretch.base.errors import UnsupportedError

if TYPE_CHECKING:
    from tvm_stretch.read.gguf.decoder import Decoder

COARSE = 1024
"""The rows of each of both tables."""


def add_positions(net: Decoder, n: str) -> None:
    """The positions of the tokens of a run, for both tables."""
    zero, one = (net.constant(str(i), np.int64(i)) for i in (0, 1))
    numbers = net.add("numbers", "Range", zero, net.add("n.scalar", "Squeeze", n), one)
    net.add("numbers.batch", "Unsqueeze", numbers, net.sizes("batch", 0))
    own, step = net.add("positions", "Add", "position", numbers), net.sizes("coarse", COARSE)
    net.add("positions.far", "Div", own, step)
    net.add("positions.near", "Mod", own, step)


def turns_of(net: Decoder, layer: int) -> tuple[str, str]:
    """The cosines and sines of each place."""
    own, local = net.shape, net.family.window(layer) and net.family.local_base
    name = "rotary.local" if local else "rotary"
    if name not in net.turned:
        net.turned.add(name)
        field = f"{net.kind}.rope"
        base = local or net.file.number(f"{field}.freq_base", 10000.0)
        steps = float(base) ** (-np.arange(0, own.turns, 2) / own.turns)
        if not local:
            steps = steps / _slower(net, f"{field}.scaling")
            if net.has("rope_freqs.weight"):
                divisors = net.floats("rope_freqs.weight", own.turns // 2)
                steps = steps / np.where(divisors > 0, divisors, 1)
        if net.keep is None:
            _add_constants(net, name, np.outer(np.arange(own.places), steps))
        else:
            _add_turns_of_run(net, name, steps)
    return f"{name}.cos", f"{name}.sin"


def _add_constants(net: Decoder, name: str, angles: np.ndarray) -> None:
    """Constant cosines and sines."""
    net.constant(f"{name}.cos", np.cos(angles).astype("float32"))
    net.constant(f"{name}.sin", np.sin(angles).astype("float32"))


def _add_turns_of_run(net: Decoder, name: str, steps: np.ndarray) -> None:
    """Cosines and sines of the positions of a run, which may be beyond any table."""
    for part, numbers in (("far", COARSE * np.arange(COARSE)), ("near", np.arange(COARSE))):
        _add_constants(net, f"{name}.{part}", np.outer(numbers, steps))
        for what in ("cos", "sin"):
            table = f"{name}.{part}.{what}"
            net.add(f"{table}.run", "Gather", table, f"positions.{part}")
    for what, one, other, sign in (("cos", "cos", "sin", "Sub"), ("sin", "sin", "cos", "Add")):
        whole, near = f"{name}.{what}", f"{name}.near"
        net.add(f"{whole}.one", "Mul", f"{name}.far.{one}.run", f"{near}.cos.run")
        net.add(f"{whole}.other", "Mul", f"{name}.far.{other}.run", f"{near}.sin.run")
        net.add(whole, sign, f"{whole}.one", f"{whole}.other")


def _slower(net: Decoder, field: str) -> float:
    kind = net.file.text(f"{field}.type", "none")
    if kind not in ("none", "linear"):
        raise UnsupportedError(
            f"expected none or linear for the field {field + '.type'!r}, got {kind!r:.40}; "
            "export the network to ONNX instead"
        )
    return net.file.number(f"{field}.factor", 1.0) if kind == "linear" else 1.0
