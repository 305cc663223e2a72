"""Six models and a phone, whose steps `walk.py` lets fail one by one.

A scenario makes a model and exports it, loads it, and runs it. `make` is where a compiler writes
and reads files, `load` and `run` are where an app needs memory, a driver or another process.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import test_lengths
import test_states
from helpers import dsp_targets, engine_targets
from helpers.cpu_targets import TARGET
from helpers.relax_helpers import module, random_const
from helpers.rpc_processes import Phone, Tracker
from helpers.small_models import SHAPE, compiled, random_input, scaled_model
from tvm import relax
from walk import VARIABLES

import tvm_stretch as ts
from tvm_stretch.make.code import kernel_cache
from tvm_stretch.network.operators import Calls
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.read import load_network

Answers = list[np.ndarray]


@dataclass(frozen=True)
class Scenario:
    """A way from a network to answers, in steps.

    Attributes:
        kinds: what may fail in it.
        make: compiles the model; it knows nothing of what was compiled before but the cache.
        run: what the model answers, always the same.
        load: opens an exported model.
        close: ends what `load` opened.
    """

    name: str
    kinds: tuple[str, ...]
    make: Callable[[], Any]
    run: Callable[[Any], Answers]
    load: Callable[[Path], Any] = ts.load
    close: Callable[[Any], None] = lambda _model: None


def _new(make: Callable[[], Any]) -> Callable[[], Any]:
    """As in a new process: only files are known."""

    def made() -> Any:
        kernel_cache._cache_of.cache_clear()
        return make()

    return made


def _called(*given: Any) -> Callable[[Any], Answers]:
    def run(model: Any) -> Answers:
        found = model(*given)
        return list(found) if isinstance(found, tuple) else [found]

    return run


def _branches() -> Any:
    """Two branches, one of them on OpenCL, and their sum there."""

    def body(x: relax.Expr) -> relax.Expr:
        x = relax.op.nn.relu(relax.op.nn.conv2d(x, random_const(16, 8, 3, 3, seed=1), padding=1))
        left = relax.op.nn.conv2d(x, random_const(16, 16, 1, 1, seed=2))
        return relax.op.add(left, relax.op.nn.max_pool2d(x, (3, 3), padding=1))

    mod = module(body, SHAPE)
    stem, relu, left, right, join = Calls(load_network(mod)["main"]).calls
    regions = (
        PlannedRegion("stem", "cpu", (stem, relu)),
        PlannedRegion("left", "opencl", (left,)),
        PlannedRegion("right", "cpu", (right,)),
        PlannedRegion("join", "opencl", (join,)),
    )
    return ts.compile(mod, [TARGET, "opencl"], plan=Plan(("cpu", "opencl"), regions), cpu_threads=1)


def _states() -> Any:
    return test_states.looping(test_states.decoder(), [TARGET])


def _run_states(model: Any) -> Answers:
    model.reset()
    model.states["token"] = np.array([[4]])
    found = model.run_steps(test_states.PLACES)
    return [found.next_token, found.logits, model.states["past.0"]]


def _lengths() -> Any:
    network = test_lengths.attention(total=[1, test_lengths.RESULTS])
    return ts.compile(
        network,
        [TARGET],
        lengths={"n": [1, 6], "batch": [1]},
        states={"total": "next_total"},
        cpu_threads=1,
    )


def _run_lengths(model: Any) -> Answers:
    model.reset()
    found = [model(test_lengths.tokens(1, n)) for n in (6, 1, 6)]
    return [*(one for pair in found for one in pair), model.states["total"]]


def _group_of(path: Path) -> Any:
    return ts.Group({"first": ts.load(path), "second": ts.load(path)})


def _run_group(group: Any) -> Answers:
    x = np.ones((1, 8, 9, 8), "float32")
    if isinstance(group, ts.Model):  # that a group of it shall answer as it does
        return [group(x)] * 3
    futures = [group.submit(name, x) for name in ("first", "second", "first")]
    return [future.result() for future in futures]


class _There:
    """A model on a phone of this machine, which is started once."""

    phone: Phone | None = None

    def __init__(self, path: Path) -> None:
        if _There.phone is None:
            tracker = Tracker()
            _There.address = tracker.address
            _There.phone = Phone("--tracker", tracker.address)
            atexit.register(_There.phone.kill)
            atexit.register(tracker.kill)
        self.device = ts.connect(_There.address, "pixel", timeout=5.0, wait=10.0)
        try:
            self.model = self.device.load(ts.load(path))
        except BaseException:
            self.device.close()  # or nobody else gets the phone
            raise

    address = ""


def _run_there(there: Any) -> Answers:
    return [(there if isinstance(there, ts.Model) else there.model)(random_input())]


_FILES = ("write", "write+", "rename", "read")

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "cpu",
            ("allocation", *_FILES),
            _new(lambda: compiled(9)),
            _called(np.ones((1, 8, 9, 8), "float32")),
        ),
        Scenario(
            "opencl", ("allocation", "opencl", *_FILES), _new(_branches), _called(random_input())
        ),
        Scenario(
            "dsp",
            ("allocation", "command", "silence"),
            lambda: dsp_targets.compiled(deadline_ms=500),
            _called(dsp_targets.picture(1)),
        ),
        Scenario(
            "engine",
            ("allocation", "command", "silence"),
            lambda: engine_targets.compiled({**engine_targets.ENGINE, "deadline_ms": 2000}),
            _called(random_input(1)[:, :, :12, :10]),
        ),
        Scenario("states", ("allocation", *_FILES), _new(_states), _run_states),
        Scenario("lengths", ("allocation",), _new(_lengths), _run_lengths),
        Scenario(
            "phone",
            ("message",),
            scaled_model,
            _run_there,
            load=_There,
            close=lambda there: there.device.close(),
        ),
        *(
            Scenario(name, ("opencl",), _new(_branches), _called(random_input()))
            for name in VARIABLES
        ),
        Scenario("group", ("allocation",), _new(lambda: compiled(9)), _run_group, load=_group_of),
    )
}
