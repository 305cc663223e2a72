"""Batch normalisations of ONNX files go into the convolutions before them."""

from __future__ import annotations

from collections import Counter

import onnx
import pytest
from helpers.onnx_models import Net, assert_same, random_inputs, run_onnxruntime

from tvm_stretch.make.fold_onnx_norms import fold_batch_norms


def kinds(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def folded(model: onnx.ModelProto) -> onnx.ModelProto:
    """Folded: a valid model that answers the same, from a model that stays as it was."""
    before = model.SerializeToString()
    found = fold_batch_norms(model)
    assert model.SerializeToString() == before
    onnx.checker.check_model(found, full_check=True)
    inputs = random_inputs(model)
    assert_same(run_onnxruntime(model, inputs), run_onnxruntime(found, inputs))
    return found


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("groups", [1, 8])
def test_folded(bias: bool, groups: int) -> None:
    net = Net()
    x = net.conv(net.input("x", (1, 8, 9, 9)), 16, (3, 3), groups=groups, bias=bias)
    found = folded(net.model(net.op("Relu", net.batch_norm(x))))
    assert kinds(found) == {"Conv": 1, "Relu": 1}
    assert len(found.graph.initializer) == 2  # nothing is left of what was read before


def test_one_after_the_other_and_at_the_end() -> None:
    net = Net()
    x = net.conv(net.input("x", (1, 4, 9, 9)), 4, (3, 3))
    x = net.batch_norm(net.batch_norm(x))
    x = net.batch_norm(net.conv(x, 5, (1, 1)))
    assert kinds(folded(net.model(x))) == {"Conv": 2}


def test_behind_several_that_stand_side_by_side() -> None:
    """As in the factorised reductions of NASNet."""
    net = Net()
    x = net.input("x", (1, 8, 9, 9))
    parts = [net.conv(x, channels, (1, 1), bias=channels == 5) for channels in (4, 5, 6)]
    inner = net.op("Concat", *parts[:2], axis=1)
    outer = net.op("Concat", inner, parts[2], axis=1)
    assert kinds(folded(net.model(net.batch_norm(outer)))) == {"Conv": 3, "Concat": 2}
    net = Net()
    x = net.input("x", (1, 8, 9, 9))
    pooled = net.op("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4)
    mixed = net.op("Concat", net.conv(x, 4, (1, 1)), pooled, axis=1)
    assert "BatchNormalization" in kinds(folded(net.model(net.batch_norm(mixed))))


def test_weights_that_two_layers_share() -> None:
    net = Net()
    x, weight = net.input("x", (1, 4, 9, 9)), net.weight((4, 4, 3, 3))
    ends = [net.batch_norm(net.op("Conv", x, weight)) for _ in range(2)]
    assert kinds(folded(net.model(*ends))) == {"Conv": 2}


def test_what_something_else_reads_stays() -> None:
    net = Net()
    x = net.conv(net.input("x", (1, 4, 9, 9)), 4, (3, 3))
    assert kinds(folded(net.model(net.batch_norm(x), x))) == {"Conv": 1, "BatchNormalization": 1}
    net = Net()
    x = net.op("Relu", net.conv(net.input("x", (1, 4, 9, 9)), 4, (3, 3)))
    assert "BatchNormalization" in kinds(folded(net.model(net.batch_norm(x))))


def test_weights_that_are_computed() -> None:
    net = Net()
    x = net.input("x", (1, 4, 9, 9))
    weight = net.op("Relu", net.weight((4, 4, 3, 3)))
    assert "BatchNormalization" in kinds(
        folded(net.model(net.batch_norm(net.op("Conv", x, weight))))
    )
