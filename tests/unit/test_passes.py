"""Passes alone: which there are, in a ``Sequential`` of TVM, and some that have no other test."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
import tvm
from helpers.cpu_targets import TARGET
from helpers.fake_targets import fake_processor
from helpers.relax_helpers import (
    assert_same_numerics,
    assert_unchanged,
    module,
    random_const,
    random_inputs,
    run,
    two_convolutions,
)
from tvm import relax
from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_stretch.passes
from tvm_stretch.network.attributes import MODEL
from tvm_stretch.network.operators import PROCESSOR
from tvm_stretch.passes import (
    Canonicalise,
    CanonicaliseTrainable,
    CarryStates,
    GuardOperators,
    KeepViews,
    LowRank,
    PartitionBySupport,
    PartitionRegions,
    PruneChannels,
    ReturnTuple,
    SettleGuards,
    TagOperators,
    WholeRegions,
)
from tvm_stretch.passes.carry_states import carry_states
from tvm_stretch.passes.low_rank import low_rank
from tvm_stretch.passes.merge_regions import kernels_of, merge_regions
from tvm_stretch.passes.prune_channels import prune_channels
from tvm_stretch.passes.whole_regions import model_of
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.targets.cpu.cpu import cpu_processor
from tvm_stretch.targets.processor import Processor

FOLDER = Path(__file__).resolve().parents[2] / "passes"


def pass_classes() -> dict[str, str]:
    """The classes in `passes` that TVM makes passes of, and their files."""
    found = {}
    for path in FOLDER.glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and "module_pass" in "".join(
                map(ast.unparse, node.decorator_list)
            ):
                found[node.name] = path.stem
    return found


def test_all_passes_are_exported_with_a_line_each() -> None:
    assert pass_classes() == tvm_stretch.passes.PASSES
    lines = (tvm_stretch.passes.__doc__ or "").splitlines()
    said = [line.split()[0] for line in lines if line.strip() and "  " in line.strip()]
    assert sorted(said) == sorted(tvm_stretch.passes.PASSES)


def test_each_file_of_a_pass_is_exported() -> None:
    files = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    assert files - set(tvm_stretch.passes.PASSES.values()) == {"merge_regions"}


# --- partitioning by support, in a Sequential of TVM ---


def without_pools() -> Processor:
    return fake_processor(
        "second", refuse=lambda call: "it has no pools" if "pool" in call.op.name else None
    )


def with_a_pool() -> tvm.IRModule:
    def body(x: relax.Expr) -> relax.Expr:
        y = relax.op.nn.relu(relax.op.nn.conv2d(x, random_const(8, 4, 3, 3), padding=1))
        return relax.op.nn.relu(relax.op.nn.max_pool2d(y, (2, 2), strides=(2, 2)))

    return module(body, (1, 4, 8, 8))


def regions_of(mod: tvm.IRModule) -> dict[str, tuple[str, int]]:
    """The processor of each region, and how many operators it has."""
    return {
        var.name_hint: (str(f.attrs[PROCESSOR]), sum(len(b.bindings) for b in f.body.blocks))
        for var, f in mod.functions.items()
        if PROCESSOR in (f.attrs or {})
    }


def test_partition_by_support_in_a_sequential_of_tvm() -> None:
    mod, cpu = with_a_pool(), cpu_processor(TARGET, 1)
    passes = [
        Canonicalise(),
        PartitionBySupport([without_pools(), cpu]),
        relax.transform.LegalizeOps(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
    parts = tvm.transform.Sequential(passes[:2])(mod)
    assert regions_of(parts) == {"r0": ("second", 2), "r1": ("cpu", 1), "r2": ("second", 1)}
    built = tvm.transform.Sequential(passes)(mod)
    assert_same_numerics(mod, parts)
    (x,) = random_inputs(mod)
    np.testing.assert_allclose(run(built, x)[0], run(mod, x)[0], rtol=1e-4, atol=1e-5)


def test_the_order_of_processors_decides_where_operators_go() -> None:
    mod, cpu = Canonicalise()(with_a_pool()), cpu_processor(TARGET, 1)
    assert {
        who for who, _ in regions_of(PartitionBySupport([cpu, without_pools()])(mod)).values()
    } == {"cpu"}


def test_an_operator_that_no_processor_supports_is_named() -> None:
    with pytest.raises(
        Exception, match=r"max_pool2d.* on second: it has no pools; add a processor"
    ):
        PartitionBySupport([without_pools()])(Canonicalise()(with_a_pool()))


# --- passes that are tested within others ---


def test_return_tuple() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((2, 3), "float32")):
            with R.dataflow():
                one = R.nn.relu(x)
                two = R.negative(x)
                both = (one, two)
                R.output(both)
            return both

    after = ReturnTuple()(Before)
    assert isinstance(after["main"].body.body, relax.Tuple)
    assert [field.name for field in after["main"].body.body.fields] == ["one", "two"]
    assert_same_numerics(Before, after)
    assert_unchanged(ReturnTuple(), after)
    assert_unchanged(ReturnTuple(), module(lambda x: relax.op.nn.relu(x), (2, 3)))


def test_return_tuple_of_a_call() -> None:
    mod = module(lambda x: relax.op.split(x, 2), (4, 3))
    after = ReturnTuple()(mod)
    assert len(after["main"].body.body.fields) == 2
    assert_same_numerics(mod, after)


def in_two_regions() -> tvm.IRModule:
    plan = Plan(
        ("cpu", "engine"),
        (
            PlannedRegion("a", "cpu", ("conv2d", "relu")),
            PlannedRegion("b", "engine", ("conv2d1", "relu1")),
        ),
    )
    return tvm.transform.Sequential([TagOperators(plan), PartitionRegions()])(two_convolutions())


def test_whole_regions_hold_the_region_as_a_model() -> None:
    mod = in_two_regions()
    seen: list[relax.Function] = []

    def writer(function: relax.Function) -> bytes:
        seen.append(function)
        return b"a model"

    whole = WholeRegions({"engine": writer})(mod)
    assert [function.attrs[PROCESSOR] for function in seen] == ["engine"]
    assert_structural_equal(whole["a"], mod["a"])
    call = whole["b"].body.blocks[0].bindings[0].value
    assert call.op.name == "relax.call_tir" and call.args[0].name_hint == "b_model"
    assert model_of(whole["b_model"]) == b"a model"
    assert MODEL not in (whole["a"].attrs or {})
    assert_unchanged(WholeRegions({}), mod)


def test_a_spare_of_a_whole_region_computes_the_same() -> None:
    mod = in_two_regions()
    whole = WholeRegions({"engine": lambda _: b""}, spare=True)(mod)
    (x,) = random_inputs(mod)
    np.testing.assert_allclose(run(whole, x)[0], run(mod, x)[0], rtol=1e-4, atol=1e-4)


def test_merge_regions_gives_every_kernel_one_owner() -> None:
    mod = in_two_regions()
    parts = {
        name: KeepViews()(
            tvm.IRModule(
                {var: mod[var] for var in mod.get_global_vars() if var.name_hint == region}
            )
        )
        for name, region in (("cpu", "a"), ("engine", "b"))
    }
    merged = merge_regions(mod["main"], parts)
    owned = {
        name: [var.name_hint for var in kernels_of(merged, name).get_global_vars()]
        for name in parts
    }
    assert {name: len(kernels) for name, kernels in owned.items()} == {"cpu": 2, "engine": 2}
    assert not set(owned["cpu"]) & set(owned["engine"])
    assert_same_numerics(mod, merged)


def test_kernels_of_constants_belong_to_the_cpu() -> None:
    weight = random_const(3, 4)

    def body(x: relax.Expr) -> relax.Expr:
        return relax.op.add(x, relax.op.negative(weight))

    mod = module(body, (3, 4))
    names = [b.var.name for b in mod["main"].body.blocks[0].bindings]
    plan = Plan(("cpu", "engine"), (PlannedRegion("b", "engine", tuple(names)),))
    mod = tvm.transform.Sequential([TagOperators(plan), PartitionRegions()])(mod)
    region = tvm.IRModule({var: mod[var] for var in mod.get_global_vars() if var.name_hint == "b"})
    merged = merge_regions(mod["main"], {"cpu": tvm.IRModule({}), "engine": KeepViews()(region)})
    assert len(kernels_of(merged, "cpu").functions) == 1, "negative, which reads a constant"
    assert len(kernels_of(merged, "engine").functions) == 1
    assert_same_numerics(mod, merged)


# --- passes beside functions ---


def test_passes_do_what_their_functions_do() -> None:
    mod = CanonicaliseTrainable()(two_convolutions())
    assert_structural_equal(LowRank(0.5)(mod), low_rank(mod, 0.5)[0], map_free_vars=True)
    assert_structural_equal(
        PruneChannels(0.5)(mod), prune_channels(mod, 0.5)[0], map_free_vars=True
    )
    states = module(lambda x, y: relax.op.add(x, y), (1, 4), (1, 4))
    given = {"x1": "output0"}
    want = carry_states(states, given)
    assert_structural_equal(CarryStates(given)(states), want, map_free_vars=True)


def test_guards_in_a_sequential() -> None:
    mod = module(
        lambda x, i: relax.op.take(x, i, axis=0, mode="fast"),
        (4, 3),
        (2,),
        dtype=("float32", "int64"),
    )
    guarded = tvm.transform.Sequential([GuardOperators(), SettleGuards()])(mod)
    assert "guards" in guarded["main"].attrs
    x = np.arange(12, dtype="float32").reshape(4, 3)
    far = np.array([0, 99], "int64")
    np.testing.assert_equal(run(guarded, x, far)[0], x[[0, 3]])
    assert_unchanged(GuardOperators(), guarded)
