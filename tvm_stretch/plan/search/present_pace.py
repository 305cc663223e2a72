"""How fast the machine is now: small reference networks beside their predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.network.expressions import network_of
from tvm_stretch.network.integer_kernels import integer_call
from tvm_stretch.network.integers import Integer, Rounding
from tvm_stretch.plan.search import search
from tvm_stretch.plan.search.contest import (
    Outcome,
)
from tvm_stretch.plan.search.costs import Costs
from tvm_stretch.plan.search.realise import Candidate
from tvm_stretch.read import load_network

_LAYERS, _CHANNELS, _SIDE = 8, 64, 28
_FEW_LAYERS, _SMALL_SIDE = 2, 14


def at_present_pace(
    costs: Costs,
    # builds and times plans of a network
    measure: Callable[[tvm.IRModule, Sequence[Candidate]], Sequence[Outcome]],
) -> Costs:
    """The costs at the machine's present speed, by a small chain of convolutions.

        cpu alone: predicted 0.80 ms, takes 1.00    -> cpu      x 1.25
        both:      predicted 0.45 ms, takes 0.68    -> together x 1.21

    Other guests of a machine slow its cores down, not always equally, and branches that meet wait
    for the slower one. A processor that takes no floats is timed with a chain of integers: its
    model predicts the chip of a DSP, but an emulator takes some hundred times as long.
    """
    for chain in (_chain, _integer_chain):
        network = load_network(chain())
        result = search(network, costs)
        if len(result.singles) == len(costs.processors):
            break
    else:
        return costs  # one of them supports no convolutions
    candidates = [*result.singles, *result.rivals[:1]]
    outcomes = measure(network, candidates)
    ratios = [o.seconds * 1e9 / c.cost.ns for o, c in zip(outcomes, candidates, strict=True)]
    names = [candidate.plan.regions[0].processor for candidate in result.singles]
    alone = dict(zip(names, ratios, strict=False))
    factors = [alone[processor.name] for processor in costs.processors]
    met = ratios[-1] / max(factors) if result.rivals else 1.0
    return costs.corrected(factors, together=max(1.0, met))


def _integer_chain() -> tvm.IRModule:
    """Like `_chain`, in 8 bits and so small that an emulator is fast enough."""
    dice = np.random.default_rng(0)
    x = relax.Var("x", relax.TensorType((1, _CHANNELS, _SMALL_SIDE, _SMALL_SIDE), "uint8"))
    layer = Integer("conv2d", Rounding("uint8", 0, 0, 255), (0,), padding=(1, 1, 1, 1))

    def layers(bb: relax.BlockBuilder) -> relax.Expr:
        y: relax.Expr = x
        for _ in range(_FEW_LAYERS):
            weight = dice.integers(-127, 128, (_CHANNELS, _CHANNELS, 3, 3)).astype("int8")
            bias, factor = np.zeros(_CHANNELS, "int32"), np.full(_CHANNELS, 4e-4, "float32")
            constants = map(relax.const, (weight, bias, factor))
            y = bb.emit(integer_call(bb, layer, y, *constants))
        return y

    return network_of([x], layers)


def _chain() -> tvm.IRModule:
    """The reference network: layers like those of real networks, with as many meetings."""
    dice = np.random.default_rng(0)
    x = relax.Var("x", relax.TensorType((1, _CHANNELS, _SIDE, _SIDE), "float32"))

    def layers(bb: relax.BlockBuilder) -> relax.Expr:
        y = x
        for _ in range(_LAYERS):
            weight = dice.standard_normal((_CHANNELS, _CHANNELS, 3, 3)) / 24
            constant = relax.const(weight.astype("float32"))
            y = bb.emit(relax.op.nn.relu(bb.emit(relax.op.nn.conv2d(y, constant, padding=1))))
        return y

    return network_of([x], layers)
