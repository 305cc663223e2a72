"""An NPU: from a float network to an artifact for CPU, GPU and NPU, and what an app has to bring.

Run it: `python tutorials/10_an_npu.py [folder]`.  With `pip install onnxruntime-qnn` (Linux x86-64,
Python 3.11 and later) the NPU is the emulator of Qualcomm's Hexagon HTP, and the artifact holds a
binary for a Snapdragon 8 Gen 2.  Without, ONNX Runtime's own provider for CPUs takes its place:
everything but the answer's last digit looks the same.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tvm_stretch as ts
from tvm_stretch.targets.opencl.opencl import local_device

HAS_NPU = importlib.util.find_spec("onnxruntime_qnn") is not None
NPU = "npu" if HAS_NPU else "engine"
TARGET: object = "npu" if HAS_NPU else {"kind": "engine", "provider": "CPUExecutionProvider"}
SIZE = 32


def section(title: str) -> None:
    """Print a heading."""
    print(f"\n{'=' * 8} {title}")


def network() -> onnx.ModelProto:
    """Four convolutions, one of them beside a shortcut, and a dense layer."""
    dice = np.random.default_rng(0)
    weights, nodes = [], []

    def weight(name: str, *shape: int) -> str:
        values = dice.standard_normal(shape).astype("float32") / np.sqrt(np.prod(shape[1:]))
        weights.append(numpy_helper.from_array(values.astype("float32"), name))
        return name

    def node(op: str, inputs: list[str], name: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def conv(x: str, out: int, channels: int, name: str, stride: int = 1) -> str:
        kernel = weight(f"{name}_w", out, channels, 3, 3)
        made = node("Conv", [x, kernel], name, pads=[1] * 4, strides=[stride] * 2)
        return node("Relu", [made], f"{name}_relu")

    stem = conv("x", 16, 3, "stem")
    left = conv(conv(stem, 16, 16, "first"), 16, 16, "second")
    both = node("Add", [left, stem], "both")
    last = conv(both, 32, 16, "last", 2)
    row = node("Flatten", [node("GlobalAveragePool", [last], "mean")], "row")
    node("Gemm", [row, weight("dense_w", 10, 32)], "logits", transB=1)
    shape = (1, 3, SIZE, SIZE)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("logits", TensorProto.FLOAT, (1, 10))
    graph = helper.make_graph(nodes, "net", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def main(folder: Path) -> None:
    """Every step prints its result and fails if an assertion does not hold."""
    dice = np.random.default_rng(1)
    images = [dice.standard_normal((1, 3, SIZE, SIZE)).astype("float32") for _ in range(4)]
    x = images.pop()

    section("1. Eight bits: NPUs compute integers")
    quantised = ts.quantize(network(), images)
    alone = ts.compile(quantised, "llvm", cpu_threads=1)
    expected = alone(x)
    print(alone.plan.explain())

    section("2. What the NPU takes, and why it refuses the rest")
    # A plan without regions: each operator goes to the first processor that takes it.  The provider
    # is asked about each operator, with every fallback switched off.
    model = ts.compile(quantised, [TARGET, "llvm"], plan=ts.Plan((NPU, "cpu"), ()), cpu_threads=1)
    print(model.plan.explain())
    owners = model.plan.processor_of()
    assert sum(owner == NPU for owner in owners.values()) >= 8

    section("3. The same answer, to a step of eight bits")
    answer = model(x)
    step = (expected.max() - expected.min()) / 255
    error = float(np.abs(answer - expected).max() / step)
    print(f"{error:.1f} steps, the same class: {answer.argmax() == expected.argmax()}")
    assert error <= 2 and answer.argmax() == expected.argmax()

    section("4. A crash of the vendor's library costs one run")
    os.kill(model.health()[NPU]["pid"], signal.SIGKILL)
    try:
        model(x)
    except ts.DeviceError as lost:
        print(lost)
    np.testing.assert_array_equal(model(x), answer)
    print({key: model.health()[NPU][key] for key in ("state", "starts", "failures")})

    section("5. CPU, GPU and NPU in one plan")
    # On a phone the search decides by measured times. An emulator is no clock, so here the plan is
    # given: of what the NPU takes, the GPU computes the second half, and the CPU the last operator.
    taken = [name for name, owner in owners.items() if owner == NPU]
    gpu = "opencl" if local_device() else "cpu"
    placed = {**owners, **dict.fromkeys(taken[len(taken) // 2 :], gpu), taken[-1]: "cpu"}
    runs = [list(run) for _, run in itertools.groupby(placed, key=placed.__getitem__)]
    plan = {
        "format": "tvm_stretch.plan",
        "version": 1,
        "processors": list(dict.fromkeys(["cpu", gpu, NPU])),
        "regions": [
            {"name": f"part{i}", "processor": placed[run[0]], "operators": run}
            for i, run in enumerate(runs)
        ],
    }
    where: list[object] = ["llvm", *(["opencl"] if gpu == "opencl" else []), TARGET]
    together = ts.compile(quantised, where, plan=plan, cpu_threads=1)
    print(together.plan.explain())
    assert {*together.plan.processor_of().values()} == {"cpu", gpu, NPU}
    error = float(np.abs(together(x) - expected).max() / step)
    print(f"{error:.1f} steps")
    assert error <= 2

    section("6. What the artifact holds, and what an app brings")
    path = folder / "net.so"
    together.export(path)
    np.testing.assert_array_equal(ts.load(path)(x), together(x))
    print(f"{path.stat().st_size / 1e6:.1f} MB: kernels of CPU and GPU, weights, the NPU's binary")
    print("beside it: the executor, libtvm_stretch_engine.so, libonnxruntime.so,")
    print("libonnxruntime_providers_qnn.so, libQnnHtp.so, libQnnSystem.so,")
    print("libQnnHtpV73Stub.so, libQnnHtpV73Skel.so (docs/engines.md)")

    section("7. A plan for a phone that is not here")
    # An emulator is no clock: times come from a profile, fitted to published latencies.
    phone = ts.plan_for(quantised, device="snapdragon-8-gen-2")
    print(phone.explain())
    assert "nothing was measured here" in phone.explain()


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="tvm_stretch_"))
    place.mkdir(parents=True, exist_ok=True)
    main(place)
