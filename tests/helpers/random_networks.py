"""Random canonical networks and random ways to spread them over processors, for Hypothesis."""

from __future__ import annotations

import numpy as np
import tvm
from hypothesis import strategies as st
from tvm import relax

from tvm_stretch.network.operators import Calls
from tvm_stretch.passes.name_operators import NameOperators
from tvm_stretch.plan.plan import Plan, PlannedRegion


class _Emitter:
    """Emits random operators on tensors (1, channels, size, size)."""

    def __init__(self, draw: st.DrawFn, size: int) -> None:
        self.draw = draw
        self.size = size
        self.bb = relax.BlockBuilder()
        self.random = np.random.default_rng(draw(st.integers(0, 1000)))
        self.pool: list[relax.Expr] = []

    def pick(self, channels: int | None = None) -> relax.Expr:
        fitting = [e for e in self.pool if channels in (None, _channels(e))]
        return fitting[self.draw(st.integers(0, len(fitting) - 1))]

    def weight(self, *shape: int) -> relax.Expr:
        return relax.const(self.random.standard_normal(shape).astype("float32") / 4)

    def step(self, kinds: list[str]) -> None:
        x = self.pick()
        channels = _channels(x)
        kind = self.draw(st.sampled_from(kinds))
        emit = self.bb.emit
        if kind == "relu":
            self.pool.append(emit(relax.op.nn.relu(x)))
        elif kind == "add":
            self.pool.append(emit(relax.op.add(x, self.pick(channels))))
        elif kind == "bias":
            self.pool.append(emit(relax.op.multiply(x, self.weight(1, channels, 1, 1))))
        elif kind == "concat":
            self.pool.append(emit(relax.op.concat([x, self.pick()], axis=1)))
        elif kind == "split" and channels > 1:
            parts = emit(relax.op.split(x, [self.draw(st.integers(1, channels - 1))], axis=1))
            self.pool += [emit(relax.TupleGetItem(parts, i)) for i in range(2)]
        elif kind == "flat":
            flat = emit(relax.op.negative(emit(relax.op.flatten(x))))
            shape = (1, channels, self.size, self.size)
            self.pool.append(emit(relax.op.reshape(flat, shape)))
        elif kind == "conv":
            out = self.draw(st.integers(1, 20))
            weight = self.weight(out, channels, 3, 3)
            self.pool.append(emit(relax.op.nn.conv2d(x, weight, padding=1)))

    def results(self) -> list[relax.Expr]:
        """Some values, some of them twice, perhaps an input or a constant."""
        chosen = [self.pick() for _ in range(self.draw(st.integers(0, 2)))]
        if self.draw(st.integers(0, 4)) == 0:
            chosen.append(self.weight(1, 3))
        return [*chosen, self.pool[-1]]


def _channels(expr: relax.Expr) -> int:
    return int(expr.ty.shape.values[1])


ELEMENTWISE = ["relu", "add", "bias", "concat", "split", "flat"]
WITH_CONVOLUTIONS = [*ELEMENTWISE, "conv", "conv"]


@st.composite
def networks(
    draw: st.DrawFn,
    kinds: list[str] | None = None,
    least_steps: int = 1,
    most_steps: int = 10,
) -> tvm.IRModule:
    """A canonical network. Size 3 makes parts start at odd places."""
    emitter = _Emitter(draw, draw(st.sampled_from([4, 3])))
    params = []
    for i in range(draw(st.integers(1, 2))):
        shape = (1, draw(st.integers(1, 4)), emitter.size, emitter.size)
        params.append(relax.Var(f"x{i}", relax.TensorType(shape, "float32")))
    emitter.pool = list(params)
    with emitter.bb.function("main", params):
        with emitter.bb.dataflow():
            for _ in range(draw(st.integers(least_steps, most_steps))):
                emitter.step(kinds or ELEMENTWISE)
            results = [
                emitter.bb.emit_output(r) if r not in params and isinstance(r, relax.Var) else r
                for r in emitter.results()
            ]
        emitter.bb.emit_func_output(results[0] if len(results) == 1 else relax.Tuple(results))
    clean = tvm.transform.Sequential(
        [
            relax.transform.CanonicalizeBindings(),
            relax.transform.DeadCodeElimination(),
            NameOperators(),
        ]
    )
    return clean(emitter.bb.get())


@st.composite
def plans(draw: st.DrawFn, mod: tvm.IRModule, processors: tuple[str, ...]) -> Plan:
    """A random plan: any order of the operators that respects what they read, cut anywhere."""
    calls = Calls(mod["main"])
    reads = {
        name: {leaf.var.name for leaf in calls.leaves(call)} & set(calls.calls)
        for name, call in calls.calls.items()
    }
    regions: list[tuple[str, list[str]]] = []
    done: set[str] = set()
    while len(done) < len(reads):
        ready = [name for name in reads if name not in done and reads[name] <= done]
        name = ready[draw(st.integers(0, len(ready) - 1))]
        done.add(name)
        if not regions or draw(st.booleans()):
            regions.append((draw(st.sampled_from(processors)), []))
        regions[-1][1].append(name)
    return Plan(
        processors,
        tuple(PlannedRegion(f"r{i}", p, tuple(names)) for i, (p, names) in enumerate(regions)),
    )
