"""What RPC costs a benchmark: a model on a server of this machine beside the same model here.

    python -m benchmarks.remote resnet18 squeezenet1_1 [--turns 7]

Answers are compared first; then both take turns, 20 runs each.
"""

from __future__ import annotations

import argparse
from statistics import median

import numpy as np

import tvm_stretch as ts
from benchmarks.fleet import farm
from tvm_stretch import zoo

_RUNS = 20


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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="+", metavar="NETWORK")
    parser.add_argument("--turns", type=int, default=7)
    given = parser.parse_args()
    for network in given.networks:
        found = sorted(overheads(network, given.turns))
        print(f"{network}: {median(found):.3f} ({found[0]:.3f} to {found[-1]:.3f})")
