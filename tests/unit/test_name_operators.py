"""Names of operators: unique, readable, and kept where somebody chose them."""

from __future__ import annotations

import pytest
from helpers.relax_helpers import assert_unchanged, binding_names, module, random_const
from tvm import relax
from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R

from tutorials import zoo
from tvm_stretch.base.errors import InputError
from tvm_stretch.network.operators import Operators
from tvm_stretch.passes.name_operators import NameOperators
from tvm_stretch.read import load_network


def test_made_up_names_become_names_of_operators():
    weight = random_const(3, 3, 3, 3)

    def body(x):
        y = relax.op.nn.relu(relax.op.nn.conv2d(x, weight))
        return relax.op.nn.relu(relax.op.nn.conv2d(y, weight))

    before = module(body, (1, 3, 9, 9))
    after = NameOperators()(before)
    assert binding_names(after) == ["conv2d", "relu", "conv2d1", "relu1"]
    assert_structural_equal(after, before, map_free_vars=True)
    assert_unchanged(NameOperators(), after)


def test_chosen_names_stay():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4,), "float32"), relu: R.Tensor((4,), "float32")):
            with R.dataflow():
                lv3 = R.nn.relu(x)
                mine = R.add(lv3, relu)
                gv = R.nn.relu(mine)
                R.output(gv)
            return gv

    after = NameOperators()(Before)
    assert binding_names(after) == ["relu1", "mine", "relu2"]
    assert [param.name for param in after["main"].params] == ["x", "relu"]


def test_repeated_names_become_unique():
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    builder = relax.BlockBuilder()
    bindings, value = [], x
    for _ in range(3):
        call = builder.normalize(relax.op.exp(value))
        value = relax.DataflowVar("same", call.ty)
        bindings.append(relax.VarBinding(value, call))
    out = relax.Var("out", value.ty)
    block = relax.DataflowBlock([*bindings, relax.VarBinding(out, value)])
    function = relax.Function([x], relax.SeqExpr([block], out), out.ty)
    mod = relax.transform.Normalize()(ts_module(function))
    with pytest.raises(InputError, match="unique names of operators, got 'same' twice"):
        Operators(mod["main"])
    assert binding_names(NameOperators()(mod)) == ["same", "exp", "exp1", "out"]


def ts_module(function):
    import tvm

    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


@pytest.mark.parametrize("name, size", [("resnet18", 32), ("mobilenet_v3_small", 32), ("lstm", 3)])
def test_networks(name: str, size: int):
    network = zoo.build(name, size=size)
    mod = load_network(network)
    operators = Operators(mod["main"])
    assert len({operator.name for operator in operators}) == len(operators)
    assert not any(operator.name.startswith(("lv", "gv")) for operator in operators)
    if name != "lstm":  # its state starts at zero, so that the first products are constants
        assert sum(o.multiply_adds for o in operators) == zoo.count(network)[1]
