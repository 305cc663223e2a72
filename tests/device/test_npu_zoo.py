"""Networks of the zoo in 8 bits on the emulated HTP, beside ONNX Runtime with the same provider.

The HTP cuts bits off its sums (`test_npu_trained.py`), so one to three of a hundred results of a
layer are a step off. A network makes that larger from layer to layer: an answer may differ from our
CPU's as far as that one from float, and two steps more than ONNX Runtime's.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.engine_regions import on_the_cpu, on_the_tensor_unit, one_by_one, regions, step_of
from helpers.engine_targets import compiled, needs_npu
from helpers.onnx_models import random_inputs

import tvm_stretch as ts
from tutorials import zoo
from tvm_stretch.network.expressions import shape_of
from tvm_stretch.targets.engines.code.onnx_operators import onnx_of

pytestmark = [needs_npu, pytest.mark.full, pytest.mark.timeout(1800)]
CLASSES = {  # networks with classes, and the size of their images: the emulator is slow
    **dict.fromkeys(
        (
            *("resnet18", "resnet34", "resnet50", "regnetx_1_6gf", "regnetx_4gf", "inception_v3"),
            *("mobilenet_v1", "mobilenet_v2", "mobilenet_v3_large", "efficientnet_lite0"),
            *("efficientnet_lite4", "efficientnet_b5", "shufflenet_v2", "squeezenet1_0"),
            *("squeezenet1_1", "pnasnet_mobile"),
        ),
        224,
    ),
    **{"resnet56": 32, "vgg16": 128, "nasnet_large": 96, "pnasnet_large": 96},
}
OTHERS = {  # without classes, or with random weights of which no class stands out
    **{"fast_style_transfer": 128, "inception_v4": 224, "lstm": None, "mobilenet_v3_small": 224},
    **{"posenet": 224, "retinaface": 128, "yolov2": 224},
}
SEVERAL = ("fast_style_transfer", "lstm", "yolov2")
"""Networks with several regions: the HTP refuses floats and tensors of six dimensions."""


def test_all_networks_are_here() -> None:
    assert sorted([*CLASSES, *OTHERS]) == sorted(zoo.names())


@pytest.mark.parametrize("name", [*CLASSES, *OTHERS])
def test_answers(name: str) -> None:
    network = zoo.build(name, size=(CLASSES | OTHERS)[name])
    *images, other = (random_inputs(network, seed) for seed in range(5))
    quantised = ts.quantize(network, images)
    model = compiled("npu", quantised, "npu")
    placed = [region.processor for region in model.plan.regions]
    assert (placed[0], placed[-1]) == ("cpu", "cpu")
    assert set(placed[1:-1]) == {"npu"} or name in SEVERAL
    answers = {
        "npu": model(**other),
        "ours": ts.compile(quantised, "llvm", cpu_threads=1)(**other),
        "float": onnxruntime.InferenceSession(network.SerializeToString()).run(None, other)[0],
        "peer": next(iter(on_the_tensor_unit(quantised, other).values())),
    }
    step = step_of(quantised)

    def steps(one: str, two: str) -> float:
        return float(np.abs(answers[one] - answers[two]).max() / step)

    found = {f"{a} to {b}": steps(a, b) for a in ("npu", "peer") for b in ("ours", "float")}
    row = ", ".join(f"{pair} {distance:.1f} steps" for pair, distance in found.items())
    own = f"ours to float {steps('ours', 'float'):.1f}, {len(placed)} regions"
    print(f"{name}: {row}, {own}; classes { ({key: y.argmax() for key, y in answers.items()}) }")
    least = min(found["npu to ours"], found["npu to float"])
    peer = min(found["peer to ours"], found["peer to float"])
    assert least <= max(peer + 2, 1.25 * peer)
    assert answers["npu"].argmax() == answers["float"].argmax() or name in OTHERS


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2"])
def test_each_operator(name: str) -> None:
    """Given the same integers, an operator of a region is a step off at most, and seldom."""
    network = zoo.build(name, size=224)
    _, found = regions(ts.quantize(network, [random_inputs(network, seed) for seed in range(4)]))
    (region,) = found
    model, stands_for = one_by_one(onnx.load_model_from_string(onnx_of(region)))
    (image,) = region.params
    dice = np.random.default_rng(0)
    x = dice.integers(0, 256, shape_of(image)).astype(str(image.ty.dtype))
    tensors = exact_tensors(model, stands_for, x)
    inputs = {read: tensors[tensor] for read, tensor in stands_for.items()}
    got = on_the_tensor_unit(model, {"i0": x, **inputs})
    for tensor, values in got.items():
        off = values.astype(int) - tensors[tensor].astype(int)
        assert np.abs(off).max() <= 1, tensor
        assert (off != 0).mean() < 0.05, tensor


def exact_tensors(
    model: onnx.ModelProto, stands_for: dict[str, str], x: np.ndarray
) -> dict[str, np.ndarray]:
    """Every tensor of a region whose operators were taken apart, on a CPU."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    for node in whole.graph.node:
        node.input[0] = stands_for.get(node.input[0], node.input[0])
    del whole.graph.input[1:]
    return on_the_cpu(whole, {"i0": x})
