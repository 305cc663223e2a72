"""A campaign of hostile ONNX models: one error of ours, or the answers of ONNX's own reference.

Damaged as bytes, and as messages whose fields are exchanged, doubled, removed or replaced by junk.
"""

from __future__ import annotations

import contextlib
import random
import warnings
from typing import Any

import numpy as np
import onnx
from google.protobuf import json_format
from helpers.mutations import campaign, damaged_bytes, damaged_json, dice_of
from helpers.onnx_models import Net
from helpers.relax_helpers import answers, random_inputs
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tvm_stretch.base.errors import StretchError
from tvm_stretch.read import load_network


def convolutions() -> onnx.ModelProto:
    net = Net(seed=0)
    x = net.input("x", (1, 3, 8, 8))
    y = net.op("Relu", net.conv(x, 4, kernel=(3, 3), pads=(1, 0, 1, 2)))
    y = net.op("MaxPool", y, kernel_shape=[2, 2], strides=[2, 1], ceil_mode=1)
    y = net.op("Concat", y, net.op("Sigmoid", y), axis=1)
    return net.model(net.op("ReduceMean", y, axes=[2, 3], keepdims=0))


def shapes() -> onnx.ModelProto:
    net = Net(seed=1)
    x = net.input("x", (2, 3, 4))
    y = net.op("Transpose", x, perm=[0, 2, 1])
    y = net.op("Reshape", y, net.constant(np.asarray([0, -1, 2])))
    starts, ends = net.constant(np.asarray([0, 1])), net.constant(np.asarray([2, 5]))
    y = net.op("Slice", y, starts, ends, net.constant(np.asarray([0, 1])))
    y = net.op("Gather", y, net.constant(np.asarray([[0, 1], [-1, 0]])), axis=1)
    y = net.op("Pad", y, net.constant(np.asarray([0, 1, 0, 0, 0, 0, 2, 1])))
    return net.model(net.op("Softmax", net.op("Squeeze", y), axis=-1))


def control_flow() -> onnx.ModelProto:
    """If, Loop, a local function."""
    value = helper.make_tensor_value_info
    then = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["t"])], "t", [], [value("t", 1, [2])]
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["e"])], "e", [], [value("e", 1, [2])]
    )
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["c"], ["d"]),
            helper.make_node("Twice", ["v"], ["w"], domain="own"),
        ],
        "body",
        [value("i", 7, []), value("c", 9, []), value("v", 1, [2])],
        [value("d", 9, []), value("w", 1, [2])],
    )
    nodes = [
        helper.make_node("If", ["yes"], ["a"], then_branch=then, else_branch=other),
        helper.make_node("Loop", ["three", "yes", "a"], ["y"], body=body),
    ]
    constants = [
        numpy_helper.from_array(np.asarray(3), "three"),
        numpy_helper.from_array(np.asarray(True), "yes"),
    ]
    twice = helper.make_function(
        "own",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 18)],
    )
    graph = helper.make_graph(nodes, "g", [value("x", 1, [2])], [value("y", 1, [2])], constants)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=[twice], ir_version=9)


MODELS = (convolutions, shapes, control_flow)


def hostile(dice: random.Random, model: onnx.ModelProto) -> bytes:
    """The bytes of a damaged model; of messages those that are messages still."""
    if dice.random() < 0.3:
        return damaged_bytes(dice, model.SerializeToString())
    good = json_format.MessageToDict(model)
    while True:
        found = onnx.ModelProto()
        with contextlib.suppress(json_format.ParseError, ValueError, TypeError, AttributeError):
            json_format.ParseDict(damaged_json(dice, good), found, ignore_unknown_fields=True)
            return found.SerializeToString()


def expected(content: bytes, inputs: dict[str, np.ndarray]) -> list[Any] | None:
    """What ONNX's reference says; None where it says nothing."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            model = onnx.load_from_string(content)
            onnx.checker.check_model(model, full_check=True)
            return list(ReferenceEvaluator(model).run(None, inputs))
    except Exception:  # whatever its operators raise
        return None


@campaign(500)
def test_hostile_models(piece: int) -> None:
    for dice in dice_of(piece):
        content = hostile(dice, dice.choice(MODELS)())
        try:
            mod = load_network(content)
        except StretchError as error:
            assert str(error).startswith("expected ") and "; " in str(error), error
            continue
        inputs = random_inputs(mod)
        names = [param.name for param in mod["main"].params]
        wanted = expected(content, dict(zip(names, inputs, strict=True)))
        if wanted is None:
            continue
        for want, got in zip(wanted, answers(mod, *inputs), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
