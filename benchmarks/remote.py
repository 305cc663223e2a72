"""The overhead of RPC: a model on a server of this machine beside the same model in-process.

    python -m benchmarks.remote resnet18 squeezenet1_1 [--turns 7]
    python -m benchmarks.remote resnet50 --uploads

Answers are compared first; then both take turns, 20 runs each. With `--uploads`, the bytes sent for
a network (at 64x64) with one plan, then with another: its convolutions in shares of the CPU and
OpenCL, 1 : 1 and 3 : 1.
"""

from __future__ import annotations

import argparse
from statistics import median

import numpy as np

import tvm_stretch as ts
from benchmarks.fleet import farm
from tutorials import zoo
from tvm_stretch.network.operators import Operators
from tvm_stretch.read import load_network

_RUNS = 20
_PARTS = 64
"""A quarter of this number of channels is a whole block on every CPU."""


def overheads(name: str, turns: int) -> list[float]:
    """The median run there by the median run here, turn by turn."""
    here = ts.compile(zoo.build(name), ["llvm"], cpu_threads=1)
    info = here.inputs[0]
    x = np.random.default_rng(0).standard_normal(info.shape).astype("float32")
    with farm(1) as fleet, fleet.connect(fleet.keys[0]) as phone:
        there = phone.load(here)
        np.testing.assert_array_equal(np.asarray(there(x)), np.asarray(here(x)))
        ratios = []
        for _ in range(turns):
            local = here.benchmark(_RUNS).median
            ratios.append(there.benchmark(_RUNS).median / local)
    return ratios


def uploads(name: str) -> list[float]:
    """Megabytes that are sent of a network by one plan after the other."""
    network = zoo.build(name, size=64)
    channels = {
        op.name: op.shape[1]
        for op in Operators(load_network(network)["main"])
        if op.kind == "nn.conv2d" and op.shape[1] % _PARTS == 0
    }
    sent = []
    with farm(1) as fleet, fleet.connect(fleet.keys[0]) as phone:
        for quarters in (2, 3):
            parts = {op: n * quarters // 4 for op, n in channels.items()}
            shares = {op: (part, channels[op] - part) for op, part in parts.items()}
            plan = ts.Plan(("cpu", "opencl"), (), shares=shares)
            before = phone.sent_bytes
            phone.load(ts.compile(network, ["llvm", "opencl"], plan=plan))
            sent.append((phone.sent_bytes - before) / 1e6)
    return sent


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="+", metavar="NETWORK")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--uploads", action="store_true")
    given = parser.parse_args()
    for network in given.networks:
        if given.uploads:
            first, then = uploads(network)
            print(f"{network}: {first:.2f} MB, then {then:.2f}")
            continue
        found = sorted(overheads(network, given.turns))
        print(f"{network}: {median(found):.3f} ({found[0]:.3f} to {found[-1]:.3f})")
