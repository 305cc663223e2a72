"""Networks of the zoo in 8 bits on the emulated HTP, beside ONNX Runtime with the same provider.

The zoo's weights are random, so answers are further apart than those of trained networks. The HTP
rounds in other places than a CPU: a region of ours may differ as far as the answer of ONNX Runtime
for the quantised network, and a step more.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from engine_targets import compiled, needs_npu
from onnx import numpy_helper
from onnx_models import random_inputs

import tvm_stretch as ts
from tutorials import zoo

pytestmark = [needs_npu, pytest.mark.full, pytest.mark.timeout(1800)]
NETWORKS = ("resnet18", "resnet50", "regnetx_1_6gf", "mobilenet_v2", "efficientnet_lite4")


def on_the_peer(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """The answer of ONNX Runtime with the provider, for the whole network."""
    import onnxruntime_qnn

    name = "QNNExecutionProvider"
    if not any(device.ep_name == name for device in onnxruntime.get_ep_devices()):
        onnxruntime.register_execution_provider_library(name, onnxruntime_qnn.get_library_path())
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]
    options = onnxruntime.SessionOptions()
    settings = {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "htp_arch": "73"}
    options.add_provider_for_devices(devices[:1], settings)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return np.asarray(session.run(None, inputs)[0])


def step_of(model: onnx.ModelProto) -> float:
    """The scale of the network's result."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    (last,) = (n for n in model.graph.node if model.graph.output[0].name in n.output)
    return float(numpy_helper.to_array(constants[last.input[1]]))


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
        "peer": on_the_peer(quantised, other),
    }
    step = step_of(quantised)

    def steps(one: str, two: str) -> float:
        return float(np.abs(answers[one] - answers[two]).max() / step)

    found = {f"{a} to {b}": steps(a, b) for a in ("npu", "peer") for b in ("ours", "float")}
    row = ", ".join(f"{pair} {distance:.1f} steps" for pair, distance in found.items())
    print(f"{name}: {row}; classes { ({key: y.argmax() for key, y in answers.items()}) }")
    least = min(found["npu to ours"], found["npu to float"])
    assert least <= max(2, min(found["peer to ours"], found["peer to float"]) + 1)
    assert answers["npu"].argmax() == answers["float"].argmax()
