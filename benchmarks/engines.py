"""One small adapter per engine: load a model once, then call `run()` again and again.

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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models import Model, converted

Run = Callable[[], list[np.ndarray]]
"""The answer to the model's own inputs."""
Target = str | dict[str, Any]


def _load_onnxruntime(model: Model, threads: int, exact: bool = False) -> Run:
    session, feed = model.session(exact, threads), dict(model.inputs)
    return lambda: session.run(None, feed)


def _load_openvino(model: Model, threads: int, as_it_comes: bool = False) -> Run:
    """OpenVINO in float32, or in the precision that it chooses by itself."""
    import openvino as ov

    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # the worker process is pinned already
    }
    settings |= {} if as_it_comes else {"INFERENCE_PRECISION_HINT": "f32"}
    core = ov.Core()
    network = core.read_model(model.onnx)
    network.reshape({name: list(shape) for name, shape in model.shapes.items()})
    compiled = core.compile_model(network, "CPU", settings)
    request = compiled.create_infer_request()

    feed = dict(model.inputs)

    def run() -> list[np.ndarray]:
        result = request.infer(feed, share_inputs=True, share_outputs=True)
        return [result[port] for port in compiled.outputs]

    return run


def add_openvino(options: Any, load_config: str) -> None:
    """Let a session of ONNX Runtime compute with OpenVINO on the CPU."""
    import onnxruntime as ort
    import onnxruntime_ep_openvino as plugin

    name = plugin.get_ep_name()
    if not any(device.ep_name == name for device in ort.get_ep_devices()):
        ort.register_execution_provider_library(name, plugin.get_library_path())
    devices = [device for device in ort.get_ep_devices() if device.ep_name == name]
    options.add_provider_for_devices(devices[:1], {"load_config": load_config})


def _load_ort_openvino(model: Model, threads: int) -> Run:
    """OpenVINO as ONNX Runtime's provider, which our processor ``openvino`` uses too."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    add_openvino(options, _openvino(threads)["load_config"])
    session, feed = ort.InferenceSession(model.onnx, options), dict(model.inputs)
    return lambda: session.run(None, feed)


def _load_ncnn(model: Model, threads: int, vulkan: bool = False) -> Run:
    import ncnn

    param, weights = converted(model, "ncnn")
    net = ncnn.Net()
    if vulkan and not ncnn.get_gpu_count():
        raise RuntimeError("expected a GPU with a Vulkan driver, got none")
    net.opt.use_vulkan_compute = vulkan
    for option in ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic"):
        setattr(net.opt, option, False)
    net.opt.use_bf16_packed = net.opt.use_bf16_storage = False
    net.opt.num_threads = threads
    if net.load_param(str(param)) or net.load_model(str(weights)):
        raise RuntimeError(f"ncnn could not load {param.name}")
    out_names = net.output_names()
    names = dict(zip(model.inputs, net.input_names(), strict=True))

    def run() -> list[np.ndarray]:
        extractor = net.create_extractor()
        for name, value in model.inputs.items():
            extractor.input(names[name], ncnn.Mat(value[0]))  # ncnn has no batch axis
        return [np.array(extractor.extract(name)[1])[None] for name in out_names]

    return run


def _load_mnn(model: Model, threads: int) -> Run:
    import MNN
    import onnx

    outputs = [o.name for o in onnx.load_from_string(model.onnx).graph.output]
    net = MNN.Interpreter(str(*converted(model, "mnn")))
    settings = {"backend": "CPU", "precision": "high", "numThread": threads}
    session = net.createSession(settings)
    for name, shape in model.shapes.items():
        net.resizeTensor(net.getSessionInput(session, name), shape)
    net.resizeSession(session)

    def run() -> list[np.ndarray]:
        for name, value in model.inputs.items():
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


def _load_executorch(model: Model, threads: int) -> Run:
    import torch
    from executorch.extension.pybindings.portable_lib import _unsafe_reset_threadpool
    from executorch.runtime import Runtime

    _unsafe_reset_threadpool(threads)
    method = Runtime.get().load_program(*converted(model, "executorch")).load_method("forward")

    def run() -> list[np.ndarray]:
        result = method.execute([torch.from_numpy(model.inputs[name]) for name in model.inputs])
        return [tensor.numpy() for tensor in result]

    return run


def _load_litert(model: Model, threads: int) -> Run:
    from ai_edge_litert.interpreter import Interpreter

    # its default kernels are those of XNNPACK
    interpreter = Interpreter(str(*converted(model, "litert")), num_threads=threads)
    call = interpreter.get_signature_runner()
    arguments = {f"args_{i}": name for i, name in enumerate(model.inputs)}

    def run() -> list[np.ndarray]:
        result = call(**{theirs: model.inputs[name] for theirs, name in arguments.items()})
        return [result[f"output_{i}"] for i in range(len(result))]

    return run


def _load_litert_gpu(model: Model, threads: int, in_f32: bool = True) -> Run:
    """Image networks of 1000 classes."""
    from ai_edge_litert.compiled_model import (
        CompiledModel,
        GpuOptions,
        HardwareAccelerator,
        Options,
    )

    gpu = GpuOptions(enforce_f32=in_f32)
    options = Options(hardware_accelerators=HardwareAccelerator.GPU, gpu_options=gpu)
    net = CompiledModel.from_file(str(*converted(model, "litert")), options=options)
    if not net.is_fully_accelerated():
        raise RuntimeError("expected all operators on the GPU, got some on the CPU")
    sources, results = net.create_input_buffers(0), net.create_output_buffers(0)

    def run() -> list[np.ndarray]:
        for source, name in zip(sources, model.inputs, strict=True):
            source.write(model.inputs[name])
        net.run_by_index(0, sources, results)
        return [np.array(results[0].read(1000, np.float32)).reshape(1, -1)]

    return run


def _load_cudnn(model: Model, threads: int) -> Run:
    """PyTorch with cuDNN, as a CUDA graph."""
    import onnx
    import torch
    from onnx2torch import convert

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    net = convert(onnx.load_from_string(model.onnx)).eval().cuda()
    tensors = {name: torch.zeros(*shape, device="cuda") for name, shape in model.shapes.items()}
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(5):
                net(*tensors.values())
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = net(*tensors.values())

    def run() -> list[np.ndarray]:
        for name, value in model.inputs.items():
            tensors[name].copy_(torch.from_numpy(value))
        graph.replay()
        return [y.cpu().numpy()]

    return run


def _openvino(threads: int) -> dict[str, Any]:
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
    return {"kind": "openvino", "load_config": json.dumps({"CPU": settings}), "spin_us": 10_000}


def own_cpu(mcpu: str | None) -> Target:
    """The target of our kernels: this machine, or another core whose code it can run."""
    return {"kind": "llvm", "mcpu": mcpu} if mcpu else "llvm"


@dataclass(frozen=True)
class Engine:
    """A row of the table of engines; ours also get the name of a core."""

    load: Callable[..., Run]
    package: str
    is_ours: bool = False
    is_for_pairs: bool = False  # it runs on two cores or not at all
    is_for_phones: bool = False  # it lives in a separate environment
    is_on_gpu: bool = False  # neither pinned nor stopped: its threads wait for a GPU


def _ours(
    targets: Callable[[str, int], list[Target]],
    is_threaded: bool = False,
    in_one_region: bool = False,
    **more: Any,
) -> Engine:
    """Our executor on the targets for a core's name and a number of threads.

    The CPU has one core beside other processors, and all threads if it is alone.
    """

    def load(model: Model, threads: int, mcpu: str) -> Run:
        from benchmarks.harness import compiled
        from tvm_stretch import Plan
        from tvm_stretch.targets.processors import drop_absent

        chosen = targets(mcpu, threads)
        if more.get("is_for_pairs") and threads != 2:
            raise RuntimeError("runs on two cores: one for each processor")
        if "opencl" in chosen and (missing := drop_absent(["opencl", "llvm"])[1]):
            raise RuntimeError(missing)  # the compiler would go on without it
        how = {"plan": Plan(("openvino", "cpu"), ()) if in_one_region else None}
        network = compiled(model, chosen, cpu_threads=threads if is_threaded else 1, **how)
        return lambda: as_list(network(**model.inputs))

    return Engine(load, **{"package": "tvm_stretch", **more}, is_ours=True)


def as_list(result: Any) -> list[np.ndarray]:
    """The answer of a model of ours as engines give theirs."""
    return list(result) if isinstance(result, tuple) else [result]


def _on_phones(load: Callable[..., Run], package: str, **more: bool) -> Engine:
    return Engine(load, package, is_for_phones=True, **more)


REFERENCE, OURS, BOTH = "ort", "ours", "both"
"""`both`: the CPU and OpenCL (PoCL on the second core) instead of two threads."""

_EP = "onnxruntime-ep-openvino"
ENGINES: dict[str, Engine] = {
    REFERENCE: Engine(_load_onnxruntime, "onnxruntime"),
    "ort-exact": Engine(partial(_load_onnxruntime, exact=True), "onnxruntime"),
    "openvino": Engine(_load_openvino, "openvino"),
    "openvino-own": Engine(partial(_load_openvino, as_it_comes=True), "openvino"),
    "ort-openvino": Engine(_load_ort_openvino, _EP),
    "ncnn": Engine(_load_ncnn, "ncnn"),
    "mnn": Engine(_load_mnn, "MNN"),
    "executorch": _on_phones(_load_executorch, "executorch"),
    "litert": _on_phones(_load_litert, "ai-edge-litert"),
    OURS: _ours(lambda mcpu, _: [own_cpu(mcpu)], is_threaded=True),
    BOTH: _ours(lambda mcpu, _: [own_cpu(mcpu), "opencl"], is_for_pairs=True),
    "ours-openvino": _ours(
        lambda mcpu, threads: [_openvino(threads), own_cpu(mcpu)],
        in_one_region=True,
        package=_EP,
    ),
    "both-openvino": _ours(
        lambda mcpu, _: [own_cpu(mcpu), _openvino(1)], package=_EP, is_for_pairs=True
    ),
    "gpu": _ours(lambda *_: ["opencl"], is_on_gpu=True),
    "gpu-litert": _on_phones(_load_litert_gpu, "ai-edge-litert", is_on_gpu=True),
    "gpu-litert-half": _on_phones(
        partial(_load_litert_gpu, in_f32=False), "ai-edge-litert", is_on_gpu=True
    ),
    "gpu-ncnn": Engine(partial(_load_ncnn, vulkan=True), "ncnn", is_on_gpu=True),
    "gpu-cudnn": Engine(_load_cudnn, "onnx2torch", is_on_gpu=True),
}
"""LiteRT's own choice on a GPU is float16; NVIDIA's OpenCL has no float16 for ours."""

ON_CPU = tuple(
    name
    for name, engine in ENGINES.items()
    if not engine.is_on_gpu and name not in ("ort-exact", "openvino-own")
)
"""In float32, by the fast kernels of each."""


def load(engine: str, model: Model, threads: int = 1, mcpu: str = "") -> Run:
    """The model in an engine; peers use what the machine has, ours the code of ``mcpu``."""
    row = ENGINES[engine]
    return row.load(model, threads, *((mcpu,) if row.is_ours else ()))


def python_of(engine: str) -> str:
    """The interpreter of the engine's environment."""
    if not ENGINES[engine].is_for_phones:
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
    if not ENGINES[engine].is_for_phones:
        return "run `make setup`"
    return "run `make setup-phone-peers`, or set TVM_STRETCH_PHONE_PYTHON"


def installed_version(engine: str) -> str | None:
    """The engine's version, or None where it is not installed."""
    package = ENGINES[engine].package
    if ENGINES[engine].is_for_phones:
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
