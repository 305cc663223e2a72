"""Tags, outlining and the verifier: expected modules, refusals, the same numbers as before."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import tvm
from helpers.cpu_targets import TARGET
from helpers.random_networks import networks, plans
from helpers.relax_helpers import (
    answers,
    assert_same_numerics,
    binding_names,
    module,
    random_const,
    random_inputs,
)
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax
from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_stretch.base.errors import PlanError, UnsupportedError
from tvm_stretch.network.properties.verify import VerifyError, verify
from tvm_stretch.passes.name_operators import NameOperators
from tvm_stretch.passes.partition_regions import PartitionRegions
from tvm_stretch.passes.tag import TagOperators, check_plan
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.targets.cpu.cpu import cpu_processor
from tvm_stretch.targets.processor import Operators, Processor


def processor(name: str, **changes: object) -> Processor:
    """The CPU under another name."""
    return dataclasses.replace(cpu_processor(TARGET, 1), name=name, **changes)


PROCESSORS = [processor("cpu"), processor("other")]


def plan(*regions: tuple[str, str, list[str]]) -> Plan:
    return Plan(("cpu", "other"), tuple(PlannedRegion(n, p, tuple(o)) for n, p, o in regions))


def partition(mod: tvm.IRModule, planned: Plan) -> tvm.IRModule:
    check_plan(planned, mod["main"])
    mod = PartitionRegions()(TagOperators(planned)(mod))
    verify(mod, PROCESSORS)
    return mod


@I.ir_module
class Before:
    @R.function
    def main(x: R.Tensor((1, 4), "float32")) -> R.Tensor((1, 4), "float32"):
        with R.dataflow():
            neg = R.negative(x)
            relu = R.nn.relu(neg)
            add = R.add(relu, neg)
            R.output(add)
        return add


@I.ir_module
class Expected:
    @R.function
    def r0(x: R.Tensor((1, 4), "float32")) -> R.Tensor((1, 4), "float32"):
        R.func_attr({"processor": "cpu"})
        with R.dataflow():
            neg = R.negative(x)
            R.output(neg)
        return neg

    @R.function
    def r1(neg: R.Tensor((1, 4), "float32")) -> R.Tensor((1, 4), "float32"):
        R.func_attr({"processor": "other"})
        with R.dataflow():
            relu = R.nn.relu(neg)
            add = R.add(relu, neg)
            R.output(add)
        return add

    @R.function
    def main(x: R.Tensor((1, 4), "float32")) -> R.Tensor((1, 4), "float32"):
        cls = Expected
        with R.dataflow():
            neg: R.Tensor((1, 4), "float32") = cls.r0(x)
            add: R.Tensor((1, 4), "float32") = cls.r1(neg)
            R.output(add)
        return add


CUT = plan(("r0", "cpu", ["neg"]), ("r1", "other", ["relu", "add"]))


def test_one_function_per_region() -> None:
    after = partition(Before, CUT)
    assert_structural_equal(after, Expected, map_free_vars=True)
    assert_same_numerics(Before, after)


def test_tags_are_an_attribute_and_nothing_else() -> None:
    tagged = TagOperators(CUT)(Before)
    assert_same_numerics(Before, tagged)
    assert "regions" in tagged["main"].attrs
    untagged = tagged.clone()
    untagged["main"] = tagged["main"].without_attr("regions")
    assert_structural_equal(untagged, Before, map_free_vars=True)


def test_without_tags_nothing_is_cut() -> None:
    assert_structural_equal(PartitionRegions()(Before), Before, map_free_vars=True)


def test_operators_keep_their_names_and_main_its_attributes() -> None:
    mod = Before.clone()
    mod["main"] = mod["main"].with_attr("output_names", ["y"])
    after = partition(mod, CUT)
    names = binding_names(after, "r1")
    assert names == ["relu", "add"]
    assert list(after["main"].attrs["output_names"]) == ["y"]
    assert "regions" not in after["main"].attrs


def test_operators_run_in_the_order_of_the_plan() -> None:
    mod = module(lambda x: relax.op.add(relax.op.nn.relu(x), relax.op.negative(x)), (1, 4))
    mod = NameOperators()(relax.transform.ToNonDataflow()(mod))
    after = partition(mod, plan(("r0", "cpu", ["negative", "relu", "add"])))
    names = binding_names(after, "r0")
    assert names == ["negative", "relu", "add"]
    assert_same_numerics(mod, after)


def test_fields_of_a_tuple_cross_as_tensors() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        parts = relax.op.split(x, 2, axis=1)
        return relax.op.concat([relax.TupleGetItem(parts, 1), relax.TupleGetItem(parts, 0)], axis=1)

    mod = NameOperators()(module(body, (1, 4)))
    after = partition(mod, plan(("r0", "cpu", ["split"]), ("r1", "other", ["concat"])))
    assert [p.name for p in after["r1"].params] == ["split_1", "split_0"]
    assert isinstance(after["r0"].ret_ty, relax.TupleType)
    assert_same_numerics(mod, after)


def test_inputs_and_constants_may_be_results() -> None:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 4), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit_output(relax.op.negative(x), name_hint="neg")
        bb.emit_func_output(relax.Tuple([x, y, random_const(1, 4), y]))
    after = partition(bb.get(), plan(("r0", "other", ["neg"])))
    assert_same_numerics(bb.get(), after)


@given(st.data())
def test_random_partitions_compute_the_same(data: st.DataObject) -> None:
    mod = data.draw(networks())
    planned = data.draw(plans(mod, ("cpu", "other")))
    after = partition(mod, planned)
    assert Plan.read(json.loads(planned.to_json())) == planned
    inputs = random_inputs(mod)
    for want, got in zip(answers(mod, *inputs), answers(after, *inputs), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("planned", "says"),
    [
        (plan(("r0", "cpu", ["neg", "rleu", "add"])), "'rleu'; similar ones are relu"),
        (plan(("r0", "cpu", ["neg", "add"])), "no region for relu"),
        (plan(), "no region for add, neg, relu"),
        (plan(("r0", "cpu", ["relu", "add"]), ("r1", "cpu", ["neg"])), "'r1' before region 'r0'"),
        (plan(("r0", "cpu", ["relu", "neg", "add"])), "'neg' before 'relu' in region 'r0'"),
        (
            plan(("r0", "cpu", ["neg", "add"]), ("r1", "other", ["relu"])),
            "each need the other's results",
        ),
    ],
)
def test_plans_that_do_not_fit_are_refused(planned: Plan, says: str) -> None:
    with pytest.raises(PlanError, match=r"^expected .*, got .*") as caught:
        check_plan(planned, Before["main"])
    assert says in str(caught.value)


def test_control_flow_is_refused() -> None:
    @I.ir_module
    class Branch:
        @R.function
        def main(c: R.Tensor((), "bool"), x: R.Tensor((1, 4), "float32")) -> R.Tensor(
            (1, 4), "float32"
        ):
            if c:  # noqa: SIM108
                y = R.negative(x)
            else:
                y = R.nn.relu(x)
            return y

    with pytest.raises(UnsupportedError, match="control flow"):
        check_plan(plan(("r0", "cpu", ["y"])), Branch["main"])


def broken(mod: tvm.IRModule, processors: list[Processor]) -> str:
    with pytest.raises(VerifyError, match=r"^expected .*, got .*; ") as caught:
        verify(mod, processors)
    return str(caught.value)


def test_verifier_accepts_what_is_right() -> None:
    verify(Expected, PROCESSORS)


def test_verifier_names_every_broken_rule() -> None:
    assert "main calls" in broken(Before, PROCESSORS)
    assert "region r1 is for other" in broken(Expected, PROCESSORS[:1])
    anonymous = Expected.clone()
    anonymous["r0"] = Expected["r0"].without_attr("processor")
    assert "region r0 is for no processor" in broken(anonymous, PROCESSORS)
    uncalled = Expected.clone()
    uncalled["r2"] = Expected["r1"].with_attr("global_symbol", "r2")
    assert "region r2 is called 0 times" in broken(uncalled, PROCESSORS)


def test_verifier_refuses_operators_that_the_processor_refuses() -> None:
    def refuse(call: relax.Call) -> str | None:
        return "no relu here" if call.op.name == "relax.nn.relu" else None

    choosy = processor("other", operators=Operators(refuse=refuse))
    assert "relu does not run on other: no relu here" in broken(Expected, [PROCESSORS[0], choosy])
