"""Intel's CPUs, GPUs and NPUs through ONNX Runtime's OpenVINO provider (`onnxruntime-ep-openvino`).

ts.compile(network, ["llvm", "openvino"])                                   # its first device
ts.compile(network, ["llvm", {"kind": "openvino", "hardware": "npu"}])
"""

from __future__ import annotations

from tvm_stretch.targets.engines.code.engine_code import Engine

from .engine import UNKNOWN, Provider

Provider(
    "openvino",
    Engine(
        "OpenVINOExecutionProvider",
        device="OpenVINO",
        package="onnxruntime_ep_openvino",
        library="libonnxruntime_providers_openvino_plugin.so",
        # without, it computes float32 in the 16 bits of an Intel CPU's matrix unit
        options=(("load_config", '{"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}'),),
    ),
    speed=UNKNOWN,
    attributes=("load_config", "num_streams"),
).registered(install="onnxruntime-ep-openvino", cost="53 MB")
