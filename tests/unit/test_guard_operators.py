"""Values that kernels cannot compute with: refused by name, and nothing breaks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from helpers.onnx_models import run_onnxruntime
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.base.errors import InputError, ModelError
from tvm_stretch.network.states import read_guards
from tvm_stretch.read import load_network

ROWS, COLUMNS = 4, 3
X = np.arange(ROWS * COLUMNS, dtype="float32").reshape(ROWS, COLUMNS)
HUGE = 10**15
Arrays = Mapping[str, np.ndarray]
NONE: Arrays = {}


def part(op: str, given: Arrays, constants: Arrays = NONE, **attributes: object) -> onnx.GraphProto:
    """One node, named like its operator; constants are its last inputs, its output is `op`."""
    inputs = {f"{op}.{name}": array for name, array in given.items()}
    weights = {f"{op}.{name}": array for name, array in constants.items()}
    node = helper.make_node(op, [*inputs, *weights], [op], name=f"my/{op}", **attributes)
    return helper.make_graph(
        [node],
        op,
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in inputs.items()
        ],
        [helper.make_empty_tensor_value_info(op)],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )


def network(*parts: onnx.GraphProto) -> onnx.ModelProto:
    """The parts beside each other."""
    graph = helper.make_graph(
        [node for p in parts for node in p.node],
        "net",
        [value for p in parts for value in p.input],
        [value for p in parts for value in p.output],
        [tensor for p in parts for tensor in p.initializer],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def i(*values: object) -> np.ndarray:
    return np.array(values, "int64")


ONES = np.ones((1, COLUMNS), "float32")

# Per operator: good inputs, then a bad value of one of them, and what is said of it.
CASES = {
    "Gather": ({"x": X, "i": i(-1, 0)}, i(0, -5), "expected -4 to 3 .* got -5 at [1]"),
    "GatherElements": (
        {"x": X, "i": i([-1, 0, 3])},
        i([0, HUGE, 0]),
        f"expected -4 to 3 .* got {HUGE} at [0, 1]",
    ),
    "GatherND": ({"x": X, "i": i([-1, -1])}, i([0, 3]), "expected -3 to 2 .* got 3 at [0, 1]"),
    "ScatterElements": (
        {"x": X, "i": i([-1, 0, 3]), "u": ONES},
        i([-HUGE, 0, 0]),
        f"expected -4 to 3 .* got -{HUGE} at [0, 0, 0]",
    ),
    "ScatterND": (
        {"x": X, "i": i([-1, -1]), "u": ONES[0, :1]},
        i([4, 0]),
        "expected -4 to 3 .* got 4 at [0, 0]",
    ),
    "ReverseSequence": ({"x": X, "i": i(1, 4, 2)}, i(1, 5, 1), "expected 0 to 4 .* got 5 at [1]"),
    "Div": (
        {"x": i(-7, 7), "i": i(2, -1)},
        i(1, 0),
        "expected no zero .* got 0 at [1]",
    ),
    "Mod": (
        {"x": i(-7, 7).astype("int32"), "i": i(2, -1).astype("int32")},
        i(1, 0).astype("int32"),
        "expected no zero .* got 0 at [1]",
    ),
}


@pytest.mark.parametrize("target", ["llvm", "opencl"])
def test_values_that_only_the_run_knows(target: str) -> None:
    """One network of all operators; every bad value is one error, and the model lives."""
    kept = [op for op in CASES if target == "llvm" or not op.startswith("Scatter")]
    model = network(*(part(op, CASES[op][0]) for op in kept))
    try:
        compiled = ts.compile(model, [target], cpu_threads=1)
    except ts.TargetError:
        pytest.skip("needs an OpenCL device")
    good = {f"{op}.{name}": array for op in kept for name, array in CASES[op][0].items()}
    expected = run_onnxruntime(model, good)
    for op in kept:
        _, bad, said = CASES[op]
        pattern = said.replace("[", r"\[") + "; correct the inputs"
        with pytest.raises(InputError, match=pattern) as caught:
            compiled(**{**good, f"{op}.i": bad})
        assert f"'my/{op}'" in str(caught.value)
        with pytest.raises(InputError, match=pattern):
            compiled.run_async(**{**good, f"{op}.i": bad}).result()
        for got, want in zip(compiled(**good), expected, strict=True):
            np.testing.assert_array_equal(got, want)
    # ONNX Runtime dies of the quotient that is too large.
    least = {
        f"{op}.x": np.full(2, np.iinfo(d).min, d) for op, d in (("Div", "int64"), ("Mod", "int32"))
    }
    answers = compiled(**{**good, **least})
    np.testing.assert_array_equal(answers.Div, [np.iinfo("int64").min // 2, np.iinfo("int64").min])
    np.testing.assert_array_equal(answers.Mod, [0, 0])


def test_computed_values() -> None:
    """They are results that the caller does not see."""
    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["a", "a"], ["square"], name="square"),
            helper.make_node("Gather", ["x", "square"], ["y"], name="pick"),
        ],
        "net",
        [
            helper.make_tensor_value_info("a", TensorProto.INT64, [2]),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, COLUMNS]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, COLUMNS])],
    )
    opset = [helper.make_opsetid("", 17)]
    model = ts.compile(helper.make_model(graph, opset_imports=opset, ir_version=8), cpu_threads=1)
    assert [info.name for info in model.outputs] == ["y"]
    np.testing.assert_array_equal(model(a=i(1, -1), x=X), X[[1, 1]])
    with pytest.raises(InputError, match=r"-4 to 3 .* 'pick', got 4 at \[1\]"):
        model(a=i(1, 2), x=X)
    assert model.benchmark(2).median > 0  # whatever the noise is


@pytest.mark.parametrize(
    ("op", "given", "constant", "said"),
    [
        ("Gather", {"x": X}, i(0, 4), r"-4 to 3 .* got 4 at \[1\]"),
        ("GatherND", {"x": X}, i([0, -4]), r"-3 to 2 .* got -4 at \[0, 1\]"),
        ("GatherElements", {"x": X}, i([0, 0, HUGE]), rf"-4 to 3 .* got {HUGE} at \[0, 2\]"),
        ("Div", {"x": i(1, 2)}, i(1, 0), r"no zero .* got 0 at \[1\]"),
        ("Mod", {}, {"x": i(1, 2), "i": i(1, 0)}, r"no zero .* got 0 at \[1\]"),
    ],
)
def test_constants(op: str, given: Arrays, constant: np.ndarray | Arrays, said: str) -> None:
    constants = constant if isinstance(constant, dict) else {"i": constant}
    with pytest.raises(ModelError, match=f"expected {said}; correct the network") as caught:
        load_network(network(part(op, given, constants)))
    assert f"my/{op}" in str(caught.value)


@pytest.mark.parametrize(("last", "results"), [(2, 1), (3, None)])
def test_what_becomes_constant(last: int, results: int | None) -> None:
    """It is checked, and what was there to look at it is dropped."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((ROWS, COLUMNS), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            places = bb.emit(
                relax.op.add(relax.op.arange(0, 2, 1, "int64"), relax.const(last, "int64"))
            )
            out = bb.emit_output(relax.op.take(x, places, 0))
        bb.emit_func_output(out)
    if results is None:
        with pytest.raises(ModelError, match=r"-4 to 3 for the indices of take, got 4 at \[1\]"):
            load_network(bb.get())
        return
    main = load_network(bb.get())["main"]
    assert read_guards(main) == (None, [])
    assert isinstance(main.ret_ty, relax.TensorType)


def test_who_needs_no_guard() -> None:
    """Sound constants, sorted elements and division of floats."""
    mod = load_network(
        network(
            part("Gather", {"x": X}, {"i": i(0, -1)}),
            part("Div", {"x": i(1, 2)}, {"i": i(3, -1)}),
            part("Mul", {"x": X, "y": X}),
        )
    )
    assert read_guards(mod["main"]) == (None, [])


def test_a_constant_index_keeps_its_rank() -> None:
    proto = network(part("Gather", {"x": X}, {"i": np.array(-1, "int64")}, axis=1))
    bindings = [b for group in load_network(proto)["main"].body.blocks for b in group.bindings]
    (take,) = (b.value for b in bindings if getattr(b.value.op, "name", "") == "relax.take")
    assert take.args[1].value.numpy().shape == ()
    assert int(take.args[1].value.numpy()) == COLUMNS - 1
