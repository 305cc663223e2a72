"""``ts.compare``: tensor by tensor, where two builds begin to differ."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers.onnx_models import Net
from onnx import TensorProto, helper

import tvm_stretch as ts
from tvm_stretch.api.differences import _differences, _distance


def network() -> onnx.ModelProto:
    net = Net(seed=3)
    x = net.input("x", (1, 16, 12, 12))
    y = net.op("Relu", net.op("Conv", x, net.weight((16, 16, 3, 3)), pads=[1] * 4))
    y = net.op("Add", y, x)
    return net.model(net.op("GlobalAveragePool", net.op("Sigmoid", y)))


def test_every_value_is_compared_with_onnx_runtime() -> None:
    found = ts.compare(network(), ["llvm"])
    operators = [tensor.operator for tensor in found.tensors]
    assert operators == ["Conv", "Relu", "Add", "Sigmoid", "GlobalAveragePool"]
    assert found.begin == () and 0 < found.largest.relative < 1e-5
    assert found.tensors[0].shape == (1, 16, 12, 12)
    assert repr(found).splitlines()[-1] == "no difference (relative above 0.001)"


def test_two_builds_are_compared() -> None:
    found = ts.compare(network(), ["llvm"], reference=["llvm"])
    assert found.largest.largest == 0 and found.begin == ()


def test_differences_begin_where_inputs_are_equal() -> None:
    names = {"a": "Conv", "b": "Relu", "c": "Conv", "d": "Add"}
    nodes = [
        helper.make_node("Conv", ["x"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["x"], ["c"]),
        helper.make_node("Add", ["b", "c"], ["d"]),
    ]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("x", *names)]
    model = helper.make_model(helper.make_graph(nodes, "g", infos[:1], infos[1:]))
    expected = {name: np.ones(2, "float32") for name in names}
    got = {**expected, "c": np.array([1, 1.5], "float32"), "d": np.array([1, 1.5], "float32")}
    found = {tensor.name: tensor for tensor in _differences(model, got, expected, 1e-3)}
    assert {name: found[name].operator for name in names} == names
    assert [name for name in names if found[name].begins] == ["c"]
    assert found["c"].largest == 0.5 and found["c"].relative == pytest.approx(0.5 / 2**0.5)


@pytest.mark.parametrize(
    ("one", "other", "want"),
    [
        ([1, np.nan], [1, np.nan], (0, 0)),
        ([np.inf], [np.inf], (0, 0)),
        ([np.nan], [1], (np.inf, np.inf)),
        ([np.inf], [-np.inf], (np.inf, np.inf)),
        ([1], [0], (1, np.inf)),
        ([0], [0], (0, 0)),
        ([3, np.inf], [4, np.inf], (1, 0.25)),
    ],
)
def test_values_that_are_not_finite(one: list, other: list, want: tuple[float, float]) -> None:
    assert _distance(np.array(one), np.array(other)) == want


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"source": 3}, ts.InputError),
        ({"limit": 0}, ts.InputError),
        ({"inputs": {"y": np.zeros(3)}}, ts.InputError),
        ({"inputs": np.zeros(3)}, ts.InputError),
        ({"source": b"no network"}, ts.ModelError),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict, error: type) -> None:
    with pytest.raises(error, match=r"^expected .*, got .*; "):
        ts.compare(**{"source": network(), "targets": ["llvm"], **arguments})
