"""Products with weights in blocks are shared by processors: outputs, bands of tokens, limits."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers.relax_helpers import assert_same_numerics, binding_names
from onnx import TensorProto, helper, numpy_helper

import tvm_stretch as ts
from tvm_stretch.base.errors import InputError
from tvm_stretch.network.operators import Operators
from tvm_stretch.passes.branch_segments import branch_segments
from tvm_stretch.passes.split_outputs import split_outputs
from tvm_stretch.plan.splits import RowSplit
from tvm_stretch.read import load_network

ROWS, WIDTH, INNER = 6, 256, 328


def block_layers(bits: int = 4, level: int = 0) -> onnx.ModelProto:
    """X + second(silu(first(x))), of `ROWS` tokens."""
    rng = np.random.default_rng(bits)
    nodes, arrays = [], []

    def product(name: str, x: str, inputs: int, outputs: int) -> None:
        blocks = -(-inputs // 32)
        made = {
            "B": rng.integers(0, 256, (outputs, blocks, 4 * bits), dtype="uint8"),
            "scales": rng.uniform(0.1, 1, (outputs, blocks)).astype("float32"),
            "zeros": rng.uniform(0, 9, (outputs, blocks)).astype("float32"),
        }
        arrays.extend(numpy_helper.from_array(a, f"{name}.{n}") for n, a in made.items())
        sizes = {"K": inputs, "N": outputs, "bits": bits, "block_size": 32}
        given = [x, *(f"{name}.{n}" for n in made)]
        sizes["accuracy_level"] = level
        nodes.append(
            helper.make_node(
                "MatMulNBits", given, [name], name=name, domain="com.microsoft", **sizes
            )
        )

    product("first", "x", WIDTH, INNER)
    nodes.append(helper.make_node("Sigmoid", ["first"], ["gate"], name="gate"))
    nodes.append(helper.make_node("Mul", ["first", "gate"], ["silu"], name="silu"))
    product("second", "silu", INNER, WIDTH)
    nodes.append(helper.make_node("Add", ["x", "second"], ["y"], name="y"))
    port = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "blocks",
        [port("x", TensorProto.FLOAT, [ROWS, WIDTH])],
        [port("y", TensorProto.FLOAT, [ROWS, WIDTH])],
        arrays,
    )
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8)


def products(model: onnx.ModelProto) -> tuple[object, list[str]]:
    mod = load_network(model)
    operators = Operators(mod["main"])
    found = [op.name for op in operators if op.kind.startswith("matmul.")]
    work = [operators[name].multiply_adds / (ROWS * WIDTH * INNER) for name in found]
    assert work == pytest.approx([1, 1], rel=0.1)  # rounded inputs fill the last block
    return mod, found


@pytest.mark.parametrize(("bits", "level"), [(4, 0), (4, 4), (8, 0)])
def test_shares_of_outputs_have_the_same_answer(bits: int, level: int) -> None:
    mod, (first, second) = products(block_layers(bits, level))
    after = split_outputs(mod, {first: (192, 136), second: (96, 160)})
    assert {f"{first}.p0", f"{first}.p1", f"{second}.p1"} <= set(binding_names(after))
    assert_same_numerics(mod, after)
    with pytest.raises(InputError, match="expected multiples of 16"):
        split_outputs(mod, {first: (200, 128)})


@pytest.mark.parametrize("bits", [4, 8])
def test_bands_of_tokens_have_the_same_answer(bits: int) -> None:
    mod, (first, _) = products(block_layers(bits))
    after, _ = branch_segments(mod, [RowSplit("x", "y", (1, 2))])
    assert {f"{first}.r0", f"{first}.r1"} <= set(binding_names(after))
    assert_same_numerics(mod, after)


@pytest.mark.parametrize("bands", [False, True])
def test_a_model_of_both_processors_reads_the_weights_once(bands: bool) -> None:
    source = block_layers()
    _, (first, second) = products(source)
    plan = ts.Plan(("cpu", "opencl"), (), shares={first: (192, 136), second: (96, 160)})
    if bands:
        plan = ts.Plan(("cpu", "opencl"), (), splits=(RowSplit("x", "y", (1, 2)),))
    x = np.random.default_rng(1).standard_normal((ROWS, WIDTH)).astype("float32")
    alone = ts.compile(source, ["llvm"], cpu_threads=1)
    shared = ts.compile(source, ["llvm", "opencl"], cpu_threads=1, plan=plan)
    np.testing.assert_allclose(shared(x), alone(x), rtol=1e-4, atol=1e-2)
    assert shared.graph.weights_bytes < 1.05 * alone.graph.weights_bytes


@pytest.mark.parametrize("target", ["llvm", "opencl"])
@pytest.mark.parametrize("level", [0, 4])
def test_nothing_is_fused_into_products_of_rows(target: str, level: int) -> None:
    """A fused kernel would lose the loop nest of the product, and be many times slower."""
    model = ts.compile(block_layers(level=level), [target], cpu_threads=1)
    names = [node.kernel for node in model.graph.nodes]
    own = [name for name in names if "nibbles" in name or "words" in name]
    assert len(own) == 2 and not any("fused" in name for name in own)


def test_a_limit_counts_multiply_adds_of_blocks() -> None:
    model = ts.compile(block_layers(), ["llvm", "opencl"], cpu_threads=1, max_share={"cpu": 0.3})
    placed = {op: r.processor for r in model.plan.regions for op in r.operators}
    assert placed["first"] == placed["second"] == "opencl"
