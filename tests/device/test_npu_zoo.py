"""Networks of the zoo in 8 bits on the emulated HTP, beside ONNX Runtime with the same provider.

The HTP cuts bits off its sums (`test_npu_trained.py`), so one to three of a hundred results of a
layer are a step off. A network makes that larger from layer to layer: an answer may differ from our
CPU's as far as that one from float, and a step more than ONNX Runtime's.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from engine_regions import on_the_cpu, on_the_tensor_unit, one_by_one, regions, step_of
from engine_targets import compiled, needs_npu
from onnx_models import random_inputs

import tvm_stretch as ts
from tutorials import zoo
from tvm_stretch.codegen.onnx_operators import onnx_of
from tvm_stretch.ir.expressions import shape_of

pytestmark = [needs_npu, pytest.mark.full, pytest.mark.timeout(1800)]
NETWORKS = (
    *("resnet18", "resnet34", "resnet50", "regnetx_1_6gf", "regnetx_4gf", "inception_v3"),
    *("mobilenet_v1", "mobilenet_v2", "efficientnet_lite0", "efficientnet_lite4", "shufflenet_v2"),
)


@pytest.mark.parametrize("name", NETWORKS)
def test_answers(name: str) -> None:
    network = zoo.build(name, size=224)
    *images, other = (random_inputs(network, seed) for seed in range(5))
    quantised = ts.quantize(network, images)
    model = compiled("npu", quantised, "npu")
    assert [region.processor for region in model.plan.regions] == ["cpu", "npu", "cpu"]
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
    print(f"{name}: {row}; classes { ({key: y.argmax() for key, y in answers.items()}) }")
    assert found["npu to ours"] <= max(2, steps("ours", "float"))
    least = min(found["npu to ours"], found["npu to float"])
    assert least <= max(2, min(found["peer to ours"], found["peer to float"]) + 1)
    assert answers["npu"].argmax() == answers["float"].argmax()


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
