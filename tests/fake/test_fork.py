"""Models in a fork of the process that loaded them: an error at once, or an answer; no wait."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable

import numpy as np
import pytest
from helpers.fake_targets import TARGET, fake_processor
from helpers.small_models import build_model
from tvm import relax, s_tir, te, topi

import tvm_stretch as ts
from tvm_stretch.base.errors import RunError

X = np.arange(64, dtype="float32")


def model(target: object) -> ts.Model:
    """The cosine, on one processor."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((64,), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            out = bb.emit_output(relax.op.cos(x))
        bb.emit_func_output(out)
    return ts.compile(bb.get(), [target], cpu_threads=1)


def parallel_model() -> ts.Model:
    """The cosine, on two threads of the CPU."""
    x = te.placeholder((64,), name="x")
    schedule = s_tir.Schedule(te.create_prim_func([x, topi.cos(x)]))
    schedule.parallel(*schedule.get_loops(schedule.get_sblock("compute")))
    bb = relax.BlockBuilder()
    kernel = bb.add_func(schedule.mod["main"], "cosine")
    value = relax.Var("x", relax.TensorType((64,), "float32"))
    with bb.function("main", [value]):
        with bb.dataflow():
            out = bb.emit_output(relax.call_tir(kernel, [value], value.ty))
        bb.emit_func_output(out)
    return build_model(bb.get(), TARGET, threads=2)


def in_fork(check: Callable[[], None]) -> None:
    """Run `check` in a fork; one that takes longer than 20 s fails."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        try:
            check()
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def refused(call: Callable[[], object]) -> None:
    with pytest.raises(RunError, match="fork") as caught:
        call()
    assert str(caught.value).startswith("expected ")


def test_a_model_of_two_processors() -> None:
    both = model(fake_processor())
    both(X)
    models = [both]
    both.run_async(X).result()

    def check() -> None:
        refused(lambda: both(X))
        refused(both.create_instance)
        refused(both.health)
        refused(both.run_async(X).result)
        models.clear()  # nor does its end wait

    in_fork(check)
    np.testing.assert_allclose(both(X), np.cos(X), rtol=1e-5)


def test_a_run_that_goes_on_in_the_parent() -> None:
    slow = model(fake_processor(regions={"r0": {"latency_us": 1_000_000}}))
    future = slow.run_async(X)
    in_fork(lambda: refused(future.result))
    np.testing.assert_allclose(future.result(), np.cos(X), rtol=1e-5)


def test_a_model_of_the_cpu_goes_on() -> None:
    alone = model(TARGET)
    alone.run_async(X).result()

    def check() -> None:
        np.testing.assert_allclose(alone(X), np.cos(X), rtol=1e-5)
        np.testing.assert_allclose(alone.run_async(X).result(), np.cos(X), rtol=1e-5)

    in_fork(check)


def test_the_pool_of_the_parent() -> None:
    """TVM's workers do not exist in the child, so runs take a thread of it with its own pool."""
    two = parallel_model()
    two(X)

    def check() -> None:
        np.testing.assert_allclose(two(X), np.cos(X), rtol=1e-5)
        np.testing.assert_allclose(two.run_async(X).result(), np.cos(X), rtol=1e-5)

    in_fork(check)
