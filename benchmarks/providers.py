"""What a region of an engine costs beyond the session of ONNX Runtime that computes it.

    python -m benchmarks.providers [--turns 400] [--size 32] [--provider cpu]

A small network is one region on OpenVINO's CPU provider, or on ONNX Runtime's own. Calls take
turns, four at once; medians and first deciles in microseconds:

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
import statistics
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tvm

import tvm_stretch as ts
from benchmarks.commands import Run, options, turns
from benchmarks.engines import add_openvino
from benchmarks.harness import check
from tutorials.zoo.builder import Builder

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
        add_openvino(options, _CONFIG)
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def overheads(rounds: int, size: int, provider: str) -> dict[str, list[float]]:
    """Microseconds of every call."""
    proto = network(size)
    bare = session(proto, provider)
    target = _TARGETS[provider]
    plan = ts.Plan((target["kind"], "cpu"), ())
    model = ts.compile(proto, [target, "llvm"], plan=plan, cpu_threads=1)
    x = np.random.default_rng(0).standard_normal((1, 3, size, size), dtype="float32")
    expected = bare.run(None, {"x": x})
    check("ours", model(x), expected)
    given, taken = tvm.runtime.tensor(x), tvm.runtime.tensor(expected[0])
    invoke, run = model.module["invoke"], model.module["run"]
    model.module["set_input"]("x", given)
    handed = []

    def run_and_look() -> None:
        run()
        handed.append(next(iter(model.health().values()))["handover_ns"] / 1000)

    ways: dict[str, Run] = {
        "session.run": lambda: bare.run(None, {"x": x}),
        "run": run,
        "invoke": lambda: invoke(given, taken),
        "model(x)": lambda: model(x),
    }
    found = turns(ways, rounds, warm_up=2, times=4).of
    turns({"hand-over": run_and_look}, rounds)
    return {name: [1e3 * ms for ms in own] for name, own in found.items()} | {"hand-over": handed}


def main() -> None:
    """See the module docstring."""
    args = options(
        *(__doc__, None, ("--turns", 400), ("--size", 32), ("--provider", "openvino")),
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
