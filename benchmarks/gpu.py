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

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ENGINES = ("ours", "litert", "ncnn", "cudnn")
PHONE_ENGINES = ("litert", "ncnn")
HALF_ENGINES = ("litert_half",)
"""These compute in float16, LiteRT's default; NVIDIA's OpenCL has no float16 for ours."""
_TOLERANCE = {"ours": 1e-4, "litert": 1e-3, "ncnn": 1e-3, "cudnn": 1e-3, "litert_half": 3e-2}
"""As a share of the answer's largest number; LiteRT and ncnn sum in another order."""

Run = Callable[[np.ndarray], np.ndarray]


# --- engines, each in its own process -------------------------------------------------------------


def _ours(name: str, files: Path, batch: int, said: dict[str, Any]) -> Run:
    import tvm_stretch as ts

    from .gpu_models import images, write_onnx

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        write_onnx(name, path, batch)
        start = time.perf_counter()
        model = ts.compile(str(path), targets=["opencl"])
        said["compile_s"] = time.perf_counter() - start
        artifact = Path(folder) / "net.so"
        model.export(str(artifact))
        ts.load(str(artifact))(images(batch))  # the driver compiles
        start = time.perf_counter()
        ts.load(str(artifact))(images(batch))
        said["second_load_s"] = time.perf_counter() - start
    kernels = model.profile()
    said["kernels"] = [(kernel.kernel, 1e6 * kernel.seconds) for kernel in kernels.kernels]
    return lambda x: np.asarray(model(x))


def _litert_half(name: str, files: Path, batch: int, said: dict[str, Any]) -> Run:
    return _litert(name, files, batch, said, in_f32=False)


def _litert(name: str, files: Path, batch: int, said: dict[str, Any], in_f32: bool = True) -> Run:
    from ai_edge_litert.compiled_model import (  # type: ignore[import-not-found]
        CompiledModel,
        GpuOptions,
        HardwareAccelerator,
        Options,
    )

    options = Options(
        hardware_accelerators=HardwareAccelerator.GPU, gpu_options=GpuOptions(enforce_f32=in_f32)
    )
    model = CompiledModel.from_file(str(files / f"{name}.tflite"), options=options)
    said["whole"] = model.is_fully_accelerated()
    inputs, outputs = model.create_input_buffers(0), model.create_output_buffers(0)

    def run(x: np.ndarray) -> np.ndarray:
        inputs[0].write(x)
        model.run_by_index(0, inputs, outputs)
        return np.array(outputs[0].read(1000, np.float32)).reshape(1, -1)

    return run


def _ncnn(name: str, files: Path, batch: int, said: dict[str, Any]) -> Run:
    import ncnn  # type: ignore[import-not-found]

    net = ncnn.Net()
    net.opt.use_vulkan_compute = True
    for option in ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic"):
        setattr(net.opt, option, False)
    net.load_param(str(files / f"{name}.ncnn.param"))
    net.load_model(str(files / f"{name}.ncnn.bin"))
    said["gpus"] = ncnn.get_gpu_count()
    source, result = net.input_names()[0], net.output_names()[0]

    def run(x: np.ndarray) -> np.ndarray:
        extractor = net.create_extractor()
        extractor.input(source, ncnn.Mat(np.ascontiguousarray(x[0])))
        return np.array(extractor.extract(result)[1]).reshape(1, -1)

    return run


def _cudnn(name: str, files: Path, batch: int, said: dict[str, Any]) -> Run:
    import torch

    from .gpu_models import network

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    net, x = network(name).cuda(), torch.zeros(batch, 3, 224, 224, device="cuda")
    said["device"] = torch.cuda.get_device_name()
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


_MAKERS = {
    "ours": _ours,
    "litert": _litert,
    "ncnn": _ncnn,
    "cudnn": _cudnn,
    "litert_half": _litert_half,
}


def _serve(engine: str, name: str, files: Path, batch: int) -> None:
    """Serve one engine in a process: first its answer, then times on request."""
    from .gpu_models import images

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # engines print
    said: dict[str, Any] = {}
    x = images(batch)
    try:
        run = _MAKERS[engine](name, files, batch, said)
        answer = run(x)
    except Exception as error:  # whatever an engine raises is told, and the others go on
        print(json.dumps({"error": repr(error)[:400]}), file=answers, flush=True)
        return
    print(json.dumps({"answer": answer.tolist(), **said}), file=answers, flush=True)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            start = time.perf_counter()
            run(x)
            times.append(1e3 * (time.perf_counter() - start))
        print(json.dumps(times), file=answers, flush=True)


# --- the race -------------------------------------------------------------------------------------


class _Engine:
    """The process of an engine."""

    def __init__(self, engine: str, name: str, files: Path, batch: int) -> None:
        self.name, self.times = engine, list[float]()
        command = [sys.executable, "-m", "benchmarks.gpu", str(files), name]
        self.process = subprocess.Popen(
            [*command, "--batch", str(batch), "--serve", engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "TVM_BIND_THREADS": "0"},
        )

    def said(self) -> Any:
        """Its next answer."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"error": f"ended, code {self.process.wait()}"}

    def turn(self, runs: int) -> None:
        """Some runs."""
        assert self.process.stdin is not None
        print(runs, file=self.process.stdin, flush=True)
        self.times += self.said()

    def end(self) -> None:
        """No more turns."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


def race(
    name: str, files: Path, batch: int, engines: Sequence[str], turns: int
) -> dict[str, dict[str, Any]]:
    """The median of every engine whose answer is right; the error of the others."""
    import torch

    from .gpu_models import images, network

    with torch.no_grad():
        expected = network(name)(torch.from_numpy(images(batch))).numpy()
    found: dict[str, dict[str, Any]] = {}
    running = []
    for engine in [_Engine(one, name, files, batch) for one in engines]:
        said = found[engine.name] = engine.said()
        if "error" in said:
            continue
        answer = np.array(said.pop("answer"), "float32").reshape(expected.shape)
        said["wrong_by"] = float(np.abs(answer - expected).max() / np.abs(expected).max())
        if said["wrong_by"] > _TOLERANCE[engine.name]:
            said["error"] = f"the answer is wrong by {said['wrong_by']:.1e}"
            continue
        running.append(engine)
    for turn in range(turns + 1):
        for engine in running:
            engine.turn(20 if turn else 10)
            if turn == 0:
                engine.times.clear()
    for engine in running:
        found[engine.name]["ms"] = float(np.median(engine.times))
        engine.end()
    return found


def _row(name: str, found: dict[str, dict[str, Any]], engines: Sequence[str]) -> str:
    ms = {engine: said["ms"] for engine, said in found.items() if "ms" in said}
    cells = [f"{ms[engine]:.3f}" if engine in ms else "-" for engine in engines]
    best = min((ms[engine] for engine in PHONE_ENGINES if engine in ms), default=None)
    kernels = sum(us for _, us in found.get("ours", {}).get("kernels", []))
    ratio = f"{ms['ours'] / best:.2f}" if best is not None and "ours" in ms else "-"
    return f"| {name} | {' | '.join(cells)} | {ratio} | {kernels / 1e3:.3f} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Race, and print a table."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.gpu", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("files", type=Path)
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--batch", type=int, default=1)
    every = (*ENGINES, *HALF_ENGINES)
    parser.add_argument("--engines", nargs="+", choices=every, default=ENGINES)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--kernels", action="store_true", help="print what each of ours takes")
    parser.add_argument("--json", type=Path, help="write everything there")
    parser.add_argument("--serve", choices=every, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        _serve(options.serve, options.networks[0], options.files, options.batch)
        return
    everything = {}
    print(f"| network | {' | '.join(options.engines)} | ours / best phone engine | our kernels |")
    print("| --- |" + " --- |" * (len(options.engines) + 2), flush=True)
    for name in options.networks:
        found = everything[name] = race(
            name, options.files, options.batch, options.engines, options.turns
        )
        print(_row(name, found, options.engines), flush=True)
        for engine, said in found.items():
            if "error" in said:
                print(f"    {engine}: {said['error']}", flush=True)
        if options.kernels:
            for kernel, us in found["ours"].get("kernels", []):
                print(f"    {us:8.1f} us  {kernel}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(everything))


if __name__ == "__main__":
    main()
