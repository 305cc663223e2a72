"""JoinTables: a tensor times its table is a table, with the very numbers of ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
from helpers.integer_networks import TABLE
from helpers.quantised_models import integers, optimised
from helpers.relax_helpers import answers
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.network.integer_kernels import integer_call
from tvm_stretch.network.integers import Integer, Rounding
from tvm_stretch.network.operators import kind_of
from tvm_stretch.network.properties.integer_summary import describe_integers, with_integers
from tvm_stretch.passes.join_tables import JoinTables
from tvm_stretch.read import load_network

SWISH = """<ir_version: 8, opset_import: ["": 17]>
swish ({of}[256] x) => ({of}[256] y)
<float s = {{{s}}}, {of} z = {{{z}}}, float s1 = {{0.00390625}}, {of} z1 = {{{z1}}},
 float s2 = {{{s2}}}, {of} z2 = {{{z2}}}> {{
    a = DequantizeLinear (x, s, z)
    b = Sigmoid (a)
    c = QuantizeLinear (b, s1, z1)
    d = DequantizeLinear (c, s1, z1)
    e = Mul (a, d)
    y = QuantizeLinear (e, s2, z2)
}}"""


def kinds(mod: tvm.IRModule) -> list[str]:
    return [kind_of(b.value) for block in mod["main"].body.blocks for b in block.bindings]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("of", ["uint8", "int8"])
def test_swish_is_one_table(of: str, seed: int) -> None:
    """Of int8 ONNX Runtime takes floats: other seeds differ by a unit in one of 1,600 numbers."""
    dice, least = np.random.default_rng(seed), np.iinfo(of).min
    scale, zero = np.float32(dice.uniform(0.01, 0.1)), int(dice.integers(60, 190)) + least
    most = float(scale) * (255 + least - zero)
    numbers = {"s": scale, "z": zero, "z1": least, "s2": np.float32(most / 240), "z2": least + 9}
    model = onnx.parser.parse_model(SWISH.format(of=of, **numbers))
    x = np.arange(least, least + 256).astype(of)
    mod = load_network(model)
    assert kinds(mod) == ["integer.table"]
    assert describe_integers(mod["main"]) == "1 integer operators"
    got = np.asarray(ts.compile(model, cpu_threads=1)(x))
    np.testing.assert_array_equal(got, optimised(model, x))


SHAPE = (2, 3, 5, 7)
TIMES = Integer("multiply", Rounding("uint8", 4, 9, 250), (3, 5), (0.0117, 4.0))


def network(name: str) -> tvm.IRModule:
    """Tables of x, and what is computed of them."""
    builder = relax.BlockBuilder()
    x, other = (relax.Var(n, relax.TensorType(SHAPE, "uint8")) for n in ("x", "other"))

    def table(of: relax.Expr, seed: int, dtype: str = "uint8") -> relax.Var:
        numbers = relax.const(integers(256, dtype=dtype, seed=seed))
        return builder.emit(integer_call(builder, TABLE, of, numbers))

    def times(a: relax.Expr, b: relax.Expr) -> relax.Var:
        return builder.emit(integer_call(builder, TIMES, a, b))

    with builder.function("main", [x, other]):
        with builder.dataflow():
            gate = table(x, 1, "int8")
            one = builder.emit(relax.op.strided_slice(gate, [2, 3], [0, 0], [1, 1]))
            result = {
                "behind each other": lambda: table(gate, 2),
                "two tables": lambda: times(table(x, 3), gate),
                "a product of a product": lambda: times(x, times(gate, x)),
                "both": lambda: relax.Tuple([times(gate, x), gate]),
                "another tensor": lambda: times(gate, other),
                "no table": lambda: times(x, x),
                "one number": lambda: times(x, one),
            }[name]()
            out = builder.emit_output(result)
        builder.emit_func_output(out)
    plain = relax.transform.CanonicalizeBindings()(builder.get())
    return with_integers(relax.transform.DeadCodeElimination()(plain))


JOINED, PRODUCT = "integer.table", "integer.multiply"


@pytest.mark.parametrize(
    ("name", "after"),
    [
        ("behind each other", [JOINED]),
        ("two tables", [JOINED]),
        ("a product of a product", [JOINED]),
        ("both", [JOINED, JOINED]),
        ("another tensor", [JOINED, PRODUCT]),
        ("no table", [PRODUCT]),
        ("one number", [JOINED, "strided_slice", PRODUCT]),
    ],
)
def test_the_same_numbers(name: str, after: list[str]) -> None:
    mod = network(name)
    joined = JoinTables()(mod)
    assert [kind for kind in kinds(joined) if kind.startswith(("integer", "strided"))] == after
    data = [integers(*SHAPE, seed=seed) for seed in range(len(mod["main"].params))]
    for got, want in zip(answers(joined, *data), answers(mod, *data), strict=True):
        np.testing.assert_array_equal(got, want)
