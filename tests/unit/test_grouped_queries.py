"""Decoders whose heads share keys and values: kernels stay in an order in which they can run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.fake_targets import TARGET
from helpers.relax_helpers import random_const
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax

from tvm_stretch.base.errors import ScheduleError
from tvm_stretch.make.kernels import kernels_alone, kernels_of_plan
from tvm_stretch.network.operator_graph import OperatorGraph
from tvm_stretch.network.operators import Operators
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.regions import form_regions
from tvm_stretch.read import load_network
from tvm_stretch.targets.cpu.cpu import cpu_processor

HOST = cpu_processor(TARGET, 1)
SIZE = 8  # of a head


def _repeated(x: relax.Expr, times: int, how: str) -> relax.Expr:
    """(1, groups, n, SIZE) with every group ``times`` times: what exporters write for it."""
    groups, places = (int(d) for d in x.ty.shape.values[1:3])
    if how == "repeat":
        return relax.op.repeat(x, times, axis=1)
    wide = relax.op.expand_dims(x, 2)
    if how == "tile":
        wide = relax.op.tile(wide, [1, 1, times, 1, 1])
    else:
        wide = relax.op.broadcast_to(wide, (1, groups, times, places, SIZE))
    return relax.op.reshape(wide, (1, groups * times, places, SIZE))


def _decoder(groups: int, times: int, places: int, hows: list[str], last_first: bool):
    """Layers whose caches are inputs and results, as `states` has them."""
    heads, bb = groups * times, relax.BlockBuilder()
    width = heads * SIZE
    x = start = relax.Var("x", relax.TensorType((1, width), "float32"))
    cache = relax.TensorType((1, groups, places, SIZE), "float32")
    past = [relax.Var(f"past.{n}", cache) for n in range(2 * len(hows))]
    with bb.function("main", [start, *past]):
        with bb.dataflow():
            results = []
            for layer, how in enumerate(hows):

                def head(count: int, of: relax.Expr = x) -> relax.Expr:
                    flat = relax.op.matmul(of, random_const(width, count * SIZE))
                    return bb.emit(relax.op.reshape(flat, (1, count, 1, SIZE)))

                grown = []
                for before in past[2 * layer : 2 * layer + 2]:
                    kept = relax.op.strided_slice(before, [2], [1], [places])
                    grown.append(bb.emit(relax.op.concat([kept, head(groups)], axis=2)))
                keys, values = (bb.emit(_repeated(bb.normalize(g), times, how)) for g in grown)
                turned = relax.op.permute_dims(keys, [0, 1, 3, 2])
                scores = relax.op.nn.softmax(relax.op.matmul(head(heads), turned))
                read = relax.op.reshape(relax.op.matmul(scores, values), (1, width))
                x = bb.emit(relax.op.add(x, relax.op.matmul(read, random_const(width, width))))
                results += grown
            logits = relax.op.reshape(x, (1, 1, width))
            ordered = [*results, logits] if last_first else [logits, *results]
            out = bb.emit_output(relax.Tuple([bb.emit(result) for result in ordered]))
        bb.emit_func_output(out)
    return load_network(bb.get())


@given(
    st.integers(1, 3),
    st.integers(2, 3),
    st.integers(2, 9),
    st.lists(st.sampled_from(["tile", "expand", "repeat"]), min_size=1, max_size=2),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_kernels_stand_in_an_order_in_which_they_can_run(
    groups: int, times: int, places: int, hows: list[str], last_first: bool, seed: int
) -> None:
    mod = _decoder(groups, times, places, hows, last_first)
    assert kernels_alone(mod, HOST).graph.groups
    operators, rng = Operators(mod["main"]), np.random.default_rng(seed)
    calls = [op.name for op in operators if isinstance(op.binding.value, relax.Call)]
    placed = {name: HOST.name if rng.random() < 0.7 else "other" for name in calls}
    other = replace(HOST, name="other")
    plan = Plan((HOST.name, "other"), form_regions(mod["main"], placed))
    level = kernels_of_plan(mod, plan, [HOST, other], operators)
    made = {*(p.name for p in mod["main"].params)}
    for group in level.graph.groups:
        made.add(group.name)
        assert made.issuperset(read for read in group.reads if read in operators), group


def test_an_order_in_which_kernels_cannot_run_is_refused_by_name() -> None:
    main = _decoder(1, 2, 3, ["tile"], False)["main"]
    computed = [group.name for group in OperatorGraph(main).groups]
    with pytest.raises(ScheduleError, match=f"got {computed[-1]} before ") as refused:
        OperatorGraph(main, [(name,) for name in reversed(computed)])
    assert "whose result it reads" in str(refused.value)
