"""A much faster processor that refuses the ends of a network gets its middle."""

from __future__ import annotations

import dataclasses

from helpers.cpu_targets import TARGET
from helpers.fake_targets import fake_processor
from helpers.relax_helpers import module, random_const
from tvm import relax

from tvm_stretch.plan.search import planning_costs, search
from tvm_stretch.read import load_network
from tvm_stretch.targets.cpu.cpu import cpu_processor
from tvm_stretch.targets.processor import Hardware, Speed


def no_sigmoid(call: relax.Call) -> str | None:
    return "no sigmoid" if "sigmoid" in call.op.name else None


def test_the_middle_goes_to_the_fast_processor() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        x = relax.op.sigmoid(x)
        for seed in range(3):
            x = relax.op.nn.conv2d(x, random_const(64, 64, 3, 3, seed=seed), padding=1)
        return relax.op.sigmoid(relax.op.nn.max_pool2d(x, (2, 2), (2, 2)))

    fast = dataclasses.replace(
        fake_processor("fast", refuse=no_sigmoid),
        speed=Speed(cycles_per_ns=500.0, bytes_per_ns=500.0, start_ns=100.0, handover_ns=1_000.0),
        hardware=Hardware(),
    )
    mod = load_network(module(body, (1, 64, 28, 28)))
    found = search(mod, planning_costs([cpu_processor(TARGET, 1), fast]))
    owners = found.rivals[0].plan.processor_of()
    assert {owner for name, owner in owners.items() if "sigmoid" in name} == {"cpu"}
    assert {owner for name, owner in owners.items() if "conv2d" in name} == {"fast"}
