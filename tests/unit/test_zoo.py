"""The zoo against published figures and ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.zoo_checks import FULL_ONLY
from onnx import TensorProto, helper, numpy_helper

from tutorials import zoo
from tutorials.zoo.regnet import stages
from tvm_stretch.base.errors import InputError

SLOW = FULL_ONLY | {"resnet34", "regnetx_4gf", "inception_v3"}

NETWORKS_OF_THE_PAPERS = {
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet56",
    "regnetx_1_6gf",
    "regnetx_4gf",
    "efficientnet_lite0",
    "efficientnet_lite4",
    "efficientnet_b5",
    "vgg16",
    "squeezenet1_0",
    "squeezenet1_1",
    "inception_v3",
    "inception_v4",
    "nasnet_large",
    "pnasnet_mobile",
    "pnasnet_large",
    "mobilenet_v1",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "mobilenet_v3_small",
    "shufflenet_v2",
    "yolov2",
    "posenet",
    "fast_style_transfer",
    "retinaface",
    "lstm",
}


def run(model: onnx.ModelProto, *inputs: np.ndarray) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return [session.run(None, {"x": x})[0] for x in inputs]


def samples(name: str, *, size: int | None = None, batch: int = 1, seed: int = 0) -> np.ndarray:
    shape = (batch, *zoo.info(name).sample_shape(size))
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def declared_shape(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    return tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)


def check_published_figures(model: onnx.ModelProto, info: zoo.NetworkInfo):
    params, macs = zoo.count(model)
    assert params / 1e6 == pytest.approx(info.params, rel=0.02)
    assert macs / 1e9 == pytest.approx(info.macs, rel=0.02)


def check_interface(graph: onnx.GraphProto, info: zoo.NetworkInfo):
    assert [value.name for value in graph.input] == ["x"]
    assert [value.name for value in graph.output] == ["logits"]
    assert declared_shape(graph.input[0]) == (1, *info.input_shape)


def check_batch_norms_are_not_folded(graph: onnx.GraphProto, name: str):
    producers = {output: node for node in graph.node for output in node.output}
    norms = [node for node in graph.node if node.op_type == "BatchNormalization"]
    for node in norms:
        source = producers[node.input[0]]
        assert source.op_type in {"Conv", "Concat"}
        assert source.op_type != "Conv" or len(source.input) == 2, f"{source.name} has a bias"
    without = {"vgg16", "squeezenet1_0", "squeezenet1_1", "lstm", "fast_style_transfer"}
    assert bool(norms) != (name in without)


def check_outputs_are_alive(y: np.ndarray, of_another_input: np.ndarray):
    assert np.isfinite(y).all()
    assert 0.1 < y.std() < 10
    assert np.count_nonzero(y) > 0.9 * y.size
    assert np.std(y - of_another_input) > 0.03 * y.std(), "the input hardly matters"


def check_top_1_leads_clearly(y: np.ndarray):
    second, first = np.sort(y.ravel())[-2:]
    assert first - second > 1e-3 * abs(first)


def test_all_networks_are_there():
    assert set(zoo.names()) == NETWORKS_OF_THE_PAPERS


def check_answers(name: str, model: onnx.ModelProto):
    y, other = run(model, samples(name), samples(name, seed=1))
    check_outputs_are_alive(y, other)
    check_top_1_leads_clearly(y)


@pytest.mark.variants(2)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.full if name in SLOW else ())
        for name in sorted(NETWORKS_OF_THE_PAPERS)
    ],
)
def test_network(name):
    info = zoo.info(name)
    model = zoo.build(name)
    check_published_figures(model, info)
    check_interface(model.graph, info)
    check_batch_norms_are_not_folded(model.graph, name)
    check_answers(name, model)


def test_regnetx_4gf_has_the_stages_of_nn_stretch_table_1():
    found = stages(w_0=96, w_a=38.65, w_m=2.43, depth=23, group=40)
    assert [blocks for _, blocks in found] == [2, 5, 14, 2]


def test_same_seed_same_model():
    first, second, other = (
        zoo.build("mobilenet_v3_small", size=64, seed=seed).SerializeToString(deterministic=True)
        for seed in (3, 3, 4)
    )
    assert first == second
    assert first != other


def test_weights_do_not_depend_on_batch_and_classes():
    few = zoo.build("squeezenet1_1", size=64, classes=10, batch=2)
    many = zoo.build("squeezenet1_1", size=64)
    weights = [{t.name: numpy_helper.to_array(t) for t in m.graph.initializer} for m in (few, many)]
    same = [name for name in weights[0] if weights[0][name].shape == weights[1][name].shape]
    assert len(same) == len(weights[1]) - 2  # all but the classifier
    assert all(np.array_equal(weights[0][name], weights[1][name]) for name in same)


# One network of each kind of padding, at sizes that no stride divides.
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("mobilenet_v2", 75),
        ("resnet18", 75),
        ("squeezenet1_0", 90),
        ("pnasnet_mobile", 83),
        ("inception_v3", 101),
        ("lstm", 3),
    ],
)
def test_other_sizes_batches_and_classes(name, size):
    model = zoo.build(name, size=size, batch=2, classes=7)
    onnx.checker.check_model(model, full_check=True)
    (y,) = run(model, samples(name, size=size, batch=2))
    assert y.shape == declared_shape(model.graph.output[0]) == (2, 7)
    assert np.isfinite(y).all()


def test_yolo_output_is_a_feature_map():
    model = zoo.build("yolov2", size=64, classes=3)
    (y,) = run(model, samples("yolov2", size=64))
    assert y.shape == declared_shape(model.graph.output[0]) == (1, 5 * (5 + 3), 2, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "resnet19"}, "expected a network of the zoo for name, got 'resnet19'"),
        ({"name": "resnet18", "size": 0}, "expected a positive number for size, got 0"),
        ({"name": "resnet18", "batch": -1}, "expected a positive number for batch, got -1"),
        ({"name": "lstm", "classes": 0}, "expected a positive number for classes, got 0"),
        ({"name": "vgg16", "size": 16}, "every 2x2 window for size, got 1; give a larger size"),
        ({"name": "yolov2", "size": 80}, "for size, got 5x5; give a size that all strides divide"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(InputError) as raised:
        zoo.build(arguments.pop("name"), **arguments)
    assert message in str(raised.value)


def small_model(nodes, weights, inputs, outputs) -> onnx.ModelProto:
    def values(shapes):
        return [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, shape)
            for n, shape in shapes.items()
        ]

    tensors = [numpy_helper.from_array(np.ones(s, np.float32), n) for n, s in weights.items()]
    graph = helper.make_graph(nodes, "g", values(inputs), values(outputs), tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class TestCount:
    def test_grouped_convolution_with_bias(self):
        conv = helper.make_node("Conv", ["x", "w", "b"], ["y"], group=2, strides=[2, 2])
        model = small_model(
            [conv], {"w": (8, 3, 3, 3), "b": (8,)}, {"x": [1, 6, 9, 9]}, {"y": [1, 8, 4, 4]}
        )
        assert zoo.count(model) == (8 * 3 * 9 + 8, 8 * 4 * 4 * 3 * 9)

    def test_transposed_convolution(self):
        conv = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2])
        model = small_model([conv], {"w": (4, 5, 2, 2)}, {"x": [1, 4, 3, 3]}, {"y": [1, 5, 6, 6]})
        assert zoo.count(model) == (4 * 5 * 4, 4 * 3 * 3 * 5 * 4)

    def test_shared_weight_counts_once_as_parameters(self):
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("MatMul", ["h", "w"], ["y"]),
        ]
        model = small_model(nodes, {"w": (4, 4)}, {"x": [3, 4]}, {"y": [3, 4]})
        assert zoo.count(model) == (16, 2 * 3 * 16)

    def test_batch_norm_statistics_are_not_parameters(self):
        norm = helper.make_node("BatchNormalization", ["x", "g", "b", "m", "v"], ["y"])
        weights = dict.fromkeys("gbmv", (6,))
        model = small_model([norm], weights, {"x": [1, 6, 2, 2]}, {"y": [1, 6, 2, 2]})
        assert zoo.count(model) == (12, 0)

    def test_transposed_gemm(self):
        gemm = helper.make_node("Gemm", ["x", "w"], ["y"], transA=1, transB=1)
        model = small_model([gemm], {"w": (7, 5)}, {"x": [5, 2]}, {"y": [2, 7]})
        assert zoo.count(model) == (35, 2 * 7 * 5)
