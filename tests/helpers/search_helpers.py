"""Scripted costs and small networks for tests of the search."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import tvm
from helpers.cpu_targets import cpu_of
from helpers.fake_targets import fake_processor
from helpers.relax_helpers import random_const
from tvm import relax

from tvm_stretch.plan.cost.prediction import AnalyticModel
from tvm_stretch.plan.search.costs import Costs
from tvm_stretch.read import load_network
from tvm_stretch.targets.cpu.cpu import CORE, cpu_processor
from tvm_stretch.targets.processor import Operators, Processor

_USUAL_LANES = 8


def costs(
    *speeds: float,
    meeting: int = 2_000,
    refuse: Mapping[int, object] | None = None,
    lanes: int = _USUAL_LANES,
) -> Costs:
    """Processors of these speeds, the CPU's typical one being 1, with vectors of so many lanes.

    Wider vectors have slower clocks: arithmetic takes as long on all of them, and stays as long
    compared with memory.
    """
    refuse = refuse or {}
    processors: list[Processor] = []
    for place in range(len(speeds)):
        target = cpu_of(lanes)
        host = cpu_processor(target, 1)
        processor = fake_processor(f"p{place}", target=target) if place else host
        if place in refuse:
            processor = dataclasses.replace(processor, operators=Operators(refuse=refuse[place]))
        processors.append(processor)
    base = CORE
    models = {
        p.name: AnalyticModel(
            dataclasses.replace(
                base,
                cycles_per_ns=base.cycles_per_ns * speed * _USUAL_LANES / lanes,
                bytes_per_ns=base.bytes_per_ns * speed,
            )
        )
        for p, speed in zip(processors, speeds, strict=True)
    }

    def hand_over(writer: int, reader: int, size: int) -> int:
        return 0 if writer == reader else meeting + size // 20

    together = (1.0,) * len(speeds)
    return Costs(tuple(processors), models, hand_over, together, "scripted", trusted=True)


def emit(layers: Sequence[str], size: int = 28, channels: int = 32) -> tvm.IRModule:
    """A chain of layers: conv, depthwise, residual (two convolutions and a sum), fork."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, channels, size, size), "float32"))

    def conv(value: relax.Expr, kernel: int = 3, groups: int = 1) -> relax.Expr:
        weight = random_const(channels, channels // groups, kernel, kernel, seed=kernel)
        call = relax.op.nn.conv2d(value, weight, padding=kernel // 2, groups=groups)
        return bb.emit(relax.op.nn.relu(bb.emit(call)))

    with bb.function("main", [x]):
        with bb.dataflow():
            value: relax.Expr = x
            for layer in layers:
                if layer == "conv":
                    value = conv(value)
                elif layer == "depthwise":
                    value = conv(value, groups=channels)
                elif layer == "residual":
                    value = bb.emit(relax.op.add(conv(conv(value)), value))
                else:
                    value = bb.emit(relax.op.add(conv(conv(value)), conv(conv(value, 1))))
            out = bb.emit_output(relax.op.nn.relu(value))
        bb.emit_func_output(out)
    return load_network(bb.get())
