"""What a region of an engine costs beyond the session of ONNX Runtime that computes it.

    python -m benchmarks.providers [--turns 400] [--size 32] [--provider cpu]

A small network is one region on OpenVINO's CPU provider, or on ONNX Runtime's own. Calls take
turns, in another order each time, four at once; medians and first deciles in microseconds:

    session.run         the bare session in Python
    run                 our executor as an app in C++ calls it, with inputs that are set
    invoke              the same with tensors of the caller, which are copied
    model(x)            our Python call
    hand-over           of the executor: from the start of a region until its answer is seen,
                        without the session's own time
"""

from __future__ import annotations

import json
import os
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tvm

import tvm_stretch as ts
from benchmarks.commands import options
from tutorials.zoo.builder import Builder

_PLUGIN = "OpenVINOExecutionProvider"
_CONFIG = json.dumps({"CPU": {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}})
_TARGETS: dict[str, dict[str, Any]] = {
    "openvino": {"kind": "openvino", "load_config": _CONFIG, "spin_us": 10_000},
    "cpu": {"kind": "engine", "provider": "CPUExecutionProvider", "spin_us": 10_000},
}


def network(size: int) -> onnx.ModelProto:
    """Two convolutions."""
    builder = Builder(0)
    x = builder.input("x", (1, 3, size, size))
    for _ in range(2):
        x = builder.conv_bn(x, 16, 3, act="relu")
    return builder.finish("net", x)


def session(model: onnx.ModelProto, provider: str) -> onnxruntime.InferenceSession:
    """The bare session, with the settings of ours."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    if provider == "openvino":
        import onnxruntime_ep_openvino

        path = onnxruntime_ep_openvino.get_library_path()
        onnxruntime.register_execution_provider_library(_PLUGIN, path)
        devices = [one for one in onnxruntime.get_ep_devices() if one.ep_name == _PLUGIN]
        options.add_provider_for_devices(devices[:1], {"load_config": _CONFIG})
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def overheads(turns: int, size: int, provider: str) -> dict[str, list[float]]:
    """Microseconds of every call."""
    proto = network(size)
    bare = session(proto, provider)
    target = _TARGETS[provider]
    plan = ts.Plan((target["kind"], "cpu"), ())
    model = ts.compile(proto, [target, "llvm"], plan=plan, cpu_threads=1)
    x = np.random.default_rng(0).standard_normal((1, 3, size, size), dtype="float32")
    expected = bare.run(None, {"x": x})[0]
    np.testing.assert_allclose(model(x), expected, rtol=1e-3, atol=1e-4)
    given, taken = tvm.runtime.tensor(x), tvm.runtime.tensor(expected)
    invoke, run = model.module["invoke"], model.module["run"]
    model.module["set_input"]("x", given)
    ways: dict[str, Callable[[], object]] = {
        "session.run": lambda: bare.run(None, {"x": x}),
        "run": run,
        "invoke": lambda: invoke(given, taken),
        "model(x)": lambda: model(x),
    }
    found: dict[str, list[float]] = {name: [] for name in [*ways, "hand-over"]}
    order, dice = [*ways], random.Random(0)
    for _ in range(turns):
        dice.shuffle(order)
        for name in order:
            for _ in range(2):
                ways[name]()
            for _ in range(4):
                start = time.perf_counter_ns()
                ways[name]()
                found[name].append((time.perf_counter_ns() - start) / 1000)
        (state,) = model.health().values()
        found["hand-over"].append(state["handover_ns"] / 1000)
    return found


def main() -> None:
    """See the module docstring."""
    args = options(
        __doc__,
        None,
        ("--turns", 400),
        ("--size", 32),
        ("--provider", "openvino"),
        provider=[*_TARGETS],
    )
    found = overheads(args.turns, args.size, args.provider)
    base = statistics.median(found["session.run"])
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    for name, samples in found.items():
        middle, low = statistics.median(samples), statistics.quantiles(samples, n=10)[0]
        beyond = "" if name == "hand-over" else f", {middle - base:+.1f} beyond session.run"
        print(f"{name:12} {middle:7.1f} µs, first decile {low:.1f}{beyond}")


if __name__ == "__main__":
    main()
