"""Latency on a GPU: ours (OpenCL), LiteRT (ML Drift) and ncnn (Vulkan), cuDNN as a graph.

    python -m benchmarks.gpu FILES resnet18 mobilenet_v2          # FILES: of benchmarks.gpu_models
    python -m benchmarks.gpu FILES resnet50 --batch 16 --engines ours cudnn
    python -m benchmarks.gpu FILES resnet18 --kernels             # ours: what its kernels take

Every engine has a process of its own and computes in float32, from NumPy to NumPy; the answer is
compared with PyTorch's on the CPU before anything is timed; then all take turns.  `litert_half`
computes in float16, and only if it is named.  Printed are
medians, the ratio to the best of LiteRT and ncnn, and the sum of our kernels by the device's clock.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import Rows, Table, options
from benchmarks.engines import SAID
from benchmarks.gpu_models import GpuModel, images, network, write_onnx
from benchmarks.worker import Worker

PHONE_ENGINES = ("litert", "ncnn")
_TOLERANCE = {"ours": 1e-4, "litert": 1e-3, "ncnn": 1e-3, "cudnn": 1e-3, "litert_half": 3e-2}
"""As a share of the answer's largest number; LiteRT and ncnn sum in another order."""

Run = Callable[[np.ndarray], np.ndarray]


# --- engines, each in its own process -------------------------------------------------------------


def _ours(model: GpuModel) -> Run:
    import tvm_stretch as ts

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        write_onnx(model.name, path, model.batch)
        start = time.perf_counter()
        made = ts.compile(str(path), targets=["opencl"])
        SAID["compile_s"] = time.perf_counter() - start
        artifact = Path(folder) / "net.so"
        made.export(str(artifact))
        ts.load(str(artifact))(images(model.batch))  # the driver compiles
        start = time.perf_counter()
        ts.load(str(artifact))(images(model.batch))
        SAID["second_load_s"] = time.perf_counter() - start
    kernels = made.profile()
    SAID["kernels"] = [(kernel.kernel, 1e6 * kernel.seconds) for kernel in kernels.kernels]
    return lambda x: np.asarray(made(x))


def _litert(model: GpuModel, in_f32: bool = True) -> Run:
    from ai_edge_litert.compiled_model import (  # type: ignore[import-not-found]
        CompiledModel,
        GpuOptions,
        HardwareAccelerator,
        Options,
    )

    options = Options(
        hardware_accelerators=HardwareAccelerator.GPU, gpu_options=GpuOptions(enforce_f32=in_f32)
    )
    net = CompiledModel.from_file(str(model.files / f"{model.name}.tflite"), options=options)
    SAID["whole"] = net.is_fully_accelerated()
    inputs, outputs = net.create_input_buffers(0), net.create_output_buffers(0)

    def run(x: np.ndarray) -> np.ndarray:
        inputs[0].write(x)
        net.run_by_index(0, inputs, outputs)
        return np.array(outputs[0].read(1000, np.float32)).reshape(1, -1)

    return run


def _ncnn(model: GpuModel) -> Run:
    import ncnn  # type: ignore[import-not-found]

    net = ncnn.Net()
    net.opt.use_vulkan_compute = True
    for option in ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic"):
        setattr(net.opt, option, False)
    net.load_param(str(model.files / f"{model.name}.ncnn.param"))
    net.load_model(str(model.files / f"{model.name}.ncnn.bin"))
    SAID["gpus"] = ncnn.get_gpu_count()
    source, result = net.input_names()[0], net.output_names()[0]

    def run(x: np.ndarray) -> np.ndarray:
        extractor = net.create_extractor()
        extractor.input(source, ncnn.Mat(np.ascontiguousarray(x[0])))
        return np.array(extractor.extract(result)[1]).reshape(1, -1)

    return run


def _cudnn(model: GpuModel) -> Run:
    import torch

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    net, x = network(model.name).cuda(), torch.zeros(model.batch, 3, 224, 224, device="cuda")
    SAID["device"] = torch.cuda.get_device_name()
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(5):
                net(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = net(x)

    def run(image: np.ndarray) -> np.ndarray:
        x.copy_(torch.from_numpy(image))
        graph.replay()
        return y.cpu().numpy()

    return run


ENGINES: dict[str, Callable[[GpuModel], Run]] = {
    "ours": _ours,
    "litert": _litert,
    "ncnn": _ncnn,
    "cudnn": _cudnn,
    "litert_half": partial(_litert, in_f32=False),
}
"""The last one computes in float16, LiteRT's default; NVIDIA's OpenCL has no float16 for ours."""


# --- the race -------------------------------------------------------------------------------------


def race(model: GpuModel, engines: Sequence[str], turns: int) -> dict[str, dict[str, Any]]:
    """The median of every engine whose answer is right; the error of the others."""
    import torch

    with torch.no_grad():
        expected = network(model.name)(torch.from_numpy(images(model.batch))).numpy()
    found: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        running: dict[str, Worker] = {}
        for engine in engines:
            try:
                worker = Worker(f"gpu-{engine}", model, os.cpu_count() or 1, [])
                (answer,) = stack.enter_context(worker).outputs()
            except RuntimeError as error:
                found[engine] = {"error": str(error)}
                continue
            wrong_by = np.abs(answer.reshape(expected.shape) - expected).max()
            said = found[engine] = {
                **worker.said,
                "wrong_by": float(wrong_by / np.abs(expected).max()),
            }
            if not said["wrong_by"] <= _TOLERANCE[engine]:
                said["error"] = f"the answer is wrong by {said['wrong_by']:.1e}"
                continue
            running[engine] = worker
        times: dict[str, list[float]] = {engine: [] for engine in running}
        for turn in range(turns):
            for engine, worker in running.items():
                times[engine] += worker.times(0 if turn else 10, 20)
    for engine, taken in times.items():
        found[engine]["ms"] = float(np.median(taken))
    return found


def _cells(found: dict[str, dict[str, Any]], engines: Sequence[str]) -> list[str]:
    ms = {engine: said["ms"] for engine, said in found.items() if "ms" in said}
    best = min((ms[engine] for engine in PHONE_ENGINES if engine in ms), default=None)
    kernels = sum(us for _, us in found.get("ours", {}).get("kernels", []))
    ratio = f"{ms['ours'] / best:.2f}" if best is not None and "ours" in ms else "-"
    cells = [f"{ms[engine]:.3f}" if engine in ms else "-" for engine in engines]
    return [*cells, ratio, f"{kernels / 1e3:.3f}"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Race, and print a table."""
    args = options(
        *(__doc__, arguments, ("files", Path), ("networks+", str), ("--batch", 1), ("--turns", 5)),
        ("--engines", tuple(ENGINES)[:-1]),
        ("--kernels", False, "print what each of ours takes"),
        ("--json", Path, "write everything there"),
        engines=ENGINES,
    )
    rows = Rows(args.json)
    table = Table("network", *args.engines, "ours / best phone engine", "our kernels")
    for name in args.networks:
        model = GpuModel(name, args.files, args.batch)
        answers = rows.record(name, race(model, args.engines, args.turns))
        table.row(name, *_cells(answers, args.engines))
        for engine, answer in answers.items():
            if "error" in answer:
                print(f"    {engine}: {answer['error']}", flush=True)
        if args.kernels:
            for kernel, us in answers["ours"].get("kernels", []):
                print(f"    {us:8.1f} us  {kernel}", flush=True)


if __name__ == "__main__":
    main()
