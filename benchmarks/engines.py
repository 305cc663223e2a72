"""One small adapter per engine: load a model once, then call `run(inputs)` again and again.

Each gets its best fair setting: float32 arithmetic, the given number of threads, its own graph
optimiser at full strength. Adapters import their engine inside `load`, so that a missing one is
only a message. Two live in an environment of their own, whose interpreter may have neither TVM nor
ONNX: this module must not need them.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models import BenchModel, Tensors

Run = Callable[[Tensors], list[np.ndarray]]
Target = str | dict[str, Any]
SAID: dict[str, Any] = {}
"""What an engine tells of its model beside answers and times."""


def _load_onnxruntime(model: BenchModel, threads: int) -> Run:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model.path, options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)


def _load_openvino(model: BenchModel, threads: int) -> Run:
    import openvino as ov

    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # the worker process is pinned already
    }
    compiled = ov.Core().compile_model(str(model.path), "CPU", settings)
    request = compiled.create_infer_request()

    def run(inputs: Tensors) -> list[np.ndarray]:
        result = request.infer(inputs, share_inputs=True, share_outputs=True)
        return [result[port] for port in compiled.outputs]

    return run


def _load_ort_openvino(model: BenchModel, threads: int) -> Run:
    """OpenVINO as ONNX Runtime's provider, which our processor ``openvino`` uses too."""
    import onnxruntime as ort
    import onnxruntime_ep_openvino as plugin

    name = plugin.get_ep_name()
    if not any(device.ep_name == name for device in ort.get_ep_devices()):
        ort.register_execution_provider_library(name, plugin.get_library_path())
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    devices = [device for device in ort.get_ep_devices() if device.ep_name == name]
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
    load_config = json.dumps({"CPU": settings})
    options.add_provider_for_devices(devices[:1], {"load_config": load_config})
    session = ort.InferenceSession(model.path, options)
    return lambda inputs: session.run(None, inputs)


def _load_ncnn(model: BenchModel, threads: int) -> Run:
    import ncnn

    from benchmarks.models import ncnn_files

    param, weights = ncnn_files(model)
    net = ncnn.Net()
    for option in ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic"):
        setattr(net.opt, option, False)
    net.opt.use_bf16_packed = net.opt.use_bf16_storage = False
    net.opt.num_threads = threads
    if net.load_param(str(param)) or net.load_model(str(weights)):
        raise RuntimeError(f"ncnn could not load {param.name}")
    out_names = net.output_names()
    names = dict(zip((name for name, _ in model.inputs), net.input_names(), strict=True))

    def run(inputs: Tensors) -> list[np.ndarray]:
        extractor = net.create_extractor()
        for name, value in inputs.items():
            extractor.input(names[name], ncnn.Mat(value[0]))  # ncnn has no batch axis
        return [np.array(extractor.extract(name)[1])[None] for name in out_names]

    return run


def _load_mnn(model: BenchModel, threads: int) -> Run:
    import MNN
    import onnx

    from benchmarks.models import mnn_file

    outputs = [o.name for o in onnx.load(model.path, load_external_data=False).graph.output]
    net = MNN.Interpreter(str(mnn_file(model)))
    settings = {"backend": "CPU", "precision": "high", "numThread": threads}
    session = net.createSession(settings)
    for name, shape in model.inputs:
        net.resizeTensor(net.getSessionInput(session, name), shape)
    net.resizeSession(session)

    def run(inputs: Tensors) -> list[np.ndarray]:
        for name, value in inputs.items():
            plain = MNN.Tensor(
                value.shape, MNN.Halide_Type_Float, value, MNN.Tensor_DimensionType_Caffe
            )
            net.getSessionInput(session, name).copyFrom(plain)
        net.runSession(session)
        return [_mnn_to_numpy(net.getSessionOutput(session, name)) for name in outputs]

    def _mnn_to_numpy(tensor: MNN.Tensor) -> np.ndarray:
        shape = tensor.getShape()
        result = np.empty(shape, np.float32)
        plain = MNN.Tensor(shape, MNN.Halide_Type_Float, result, MNN.Tensor_DimensionType_Caffe)
        tensor.copyToHostTensor(plain)
        return np.array(plain.getNumpyData()).reshape(shape)

    return run


def _load_executorch(model: BenchModel, threads: int) -> Run:
    import torch
    from executorch.extension.pybindings.portable_lib import _unsafe_reset_threadpool
    from executorch.runtime import Runtime

    from benchmarks.models import executorch_file

    _unsafe_reset_threadpool(threads)
    method = Runtime.get().load_program(executorch_file(model)).load_method("forward")

    def run(inputs: Tensors) -> list[np.ndarray]:
        result = method.execute([torch.from_numpy(inputs[name]) for name, _ in model.inputs])
        return [tensor.numpy() for tensor in result]

    return run


def _load_litert(model: BenchModel, threads: int) -> Run:
    from ai_edge_litert.interpreter import Interpreter

    from benchmarks.models import litert_file

    # its default kernels are those of XNNPACK
    interpreter = Interpreter(str(litert_file(model)), num_threads=threads)
    call = interpreter.get_signature_runner()
    arguments = {f"args_{i}": name for i, (name, _) in enumerate(model.inputs)}

    def run(inputs: Tensors) -> list[np.ndarray]:
        result = call(**{theirs: inputs[name] for theirs, name in arguments.items()})
        return [result[f"output_{i}"] for i in range(len(result))]

    return run


def _load_ours(model: BenchModel, threads: int, mcpu: str) -> Run:
    return _compile(model, [own_cpu(mcpu)], threads)


def _load_both(model: BenchModel, threads: int, mcpu: str) -> Run:
    if threads != 2:
        raise RuntimeError("runs on two cores: one for the CPU, one for OpenCL")
    from tvm_stretch.targets.processors import drop_absent

    _, missing = drop_absent(["opencl", "llvm"])
    if missing:  # the compiler would go on without it
        raise RuntimeError(missing)
    return _compile(model, [own_cpu(mcpu), "opencl"], 1)


def _load_on_openvino(model: BenchModel, threads: int, mcpu: str) -> Run:
    """Our executor with all of the network in one region on OpenVINO."""
    from tvm_stretch import Plan

    targets = [_openvino(threads), own_cpu(mcpu)]
    return _compile(model, targets, 1, Plan(("openvino", "cpu"), ()))


def _load_with_openvino(model: BenchModel, threads: int, mcpu: str) -> Run:
    """A plan that our search chose for the CPU and OpenVINO, one core each."""
    if threads != 2:
        raise RuntimeError("runs on two cores: one for the CPU, one for OpenVINO")
    return _compile(model, [own_cpu(mcpu), _openvino(1)], 1)


def _openvino(threads: int) -> Target:
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
    return {"kind": "openvino", "load_config": json.dumps({"CPU": settings}), "spin_us": 10_000}


def own_cpu(mcpu: str) -> Target:
    """The target of our kernels: this machine, or another core whose code it can run."""
    return {"kind": "llvm", "mcpu": mcpu} if mcpu else "llvm"


def _compile(
    model: BenchModel, targets: list[Target], cpu_threads: int, plan: object = None
) -> Run:
    import tvm_stretch as ts

    compiled = ts.compile(Path(model.path), targets, cpu_threads=cpu_threads, plan=plan)

    def run(inputs: Tensors) -> list[np.ndarray]:
        result = compiled(**inputs)
        return list(result) if isinstance(result, tuple) else [result]

    return run


REFERENCE = "ort"
OURS = "ours"
BOTH = "both"
"""The CPU and OpenCL (PoCL on the second core) instead of two threads."""
_PEERS: dict[str, Callable[[BenchModel, int], Run]] = {
    REFERENCE: _load_onnxruntime,
    "openvino": _load_openvino,
    "ort-openvino": _load_ort_openvino,
    "ncnn": _load_ncnn,
    "mnn": _load_mnn,
    "executorch": _load_executorch,
    "litert": _load_litert,
}
ON_OPENVINO = "ours-openvino"
WITH_OPENVINO = "both-openvino"
"""The CPU and OpenVINO, one core each."""
_OWN = {
    OURS: _load_ours,
    BOTH: _load_both,
    ON_OPENVINO: _load_on_openvino,
    WITH_OPENVINO: _load_with_openvino,
}
OWN = tuple(_OWN)
PAIRS = (BOTH, WITH_OPENVINO)
"""Engines for two cores."""
ENGINES = (*_PEERS, *OWN)
PACKAGES = {
    REFERENCE: "onnxruntime",
    "openvino": "openvino",
    "ort-openvino": "onnxruntime-ep-openvino",
    "ncnn": "ncnn",
    "mnn": "MNN",
    "executorch": "executorch",
    "litert": "ai-edge-litert",
    OURS: "tvm_stretch",
    BOTH: "tvm_stretch",
    ON_OPENVINO: "onnxruntime-ep-openvino",
    WITH_OPENVINO: "onnxruntime-ep-openvino",
}


PHONES = ("executorch", "litert")
"""Engines for phones; these two have a separate environment."""


def load(engine: str, model: Any, threads: int, mcpu: str) -> Run:
    """The model in an engine; peers use what the machine has, ours the code of ``mcpu``."""
    if engine.startswith("gpu-"):
        from benchmarks.gpu import ENGINES as ON_GPUS

        run = ON_GPUS[engine.removeprefix("gpu-")](model)
        return lambda inputs: [run(inputs["x"])]
    if engine in _OWN:
        return _OWN[engine](model, threads, mcpu)
    return _PEERS[engine](model, threads)


def python_of(engine: str) -> str:
    """The interpreter of the engine's environment."""
    if engine not in PHONES:
        return sys.executable
    beside = Path(__file__).parents[1] / ".venv-phone" / "bin" / "python"
    python = Path(os.environ.get("TVM_STRETCH_PHONE_PYTHON") or beside)
    if not python.exists():
        raise RuntimeError(
            f"expected {engine} in the environment of {python}, found none; {setup_of(engine)}"
        )
    return str(python)


def setup_of(engine: str) -> str:
    """The command that installs a missing engine."""
    if engine not in PHONES:
        return "run `make setup`"
    return "run `make setup-phone-peers`, or set TVM_STRETCH_PHONE_PYTHON"


def installed_version(engine: str) -> str | None:
    """The engine's version, or None where it is not installed."""
    package = PACKAGES[engine]
    if engine in PHONES:
        return _version_there(engine, package)
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _version_there(engine: str, package: str) -> str | None:
    code = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    try:
        command = [python_of(engine), "-I", "-c", code]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (RuntimeError, subprocess.CalledProcessError):
        return None
