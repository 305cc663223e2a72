"""Networks on a machine without the compiler: as phones run them, and as rented GPUs do.

    python -m benchmarks.runtime_only bundle squeezenet1_1 --python 3.12    # here
    cd bundle && python run.py --json results.json                          # there

The bundle holds the artifacts, inputs with the answers of ONNX Runtime, and the runtime part of the
TVM wheel: 30 MB instead of 280. There, each network runs on the CPU, on the OpenCL device, and on
both with shares of its layers; answers are compared first, times are medians of turns, and the
overlap comes from the device's own profiling events.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx

import tvm_stretch as ts
from benchmarks.commands import options
from benchmarks.harness import model_of
from benchmarks.pack import RUNTIME, install
from tutorials import zoo
from tvm_stretch.plan.search import search
from tvm_stretch.plan.search.costs import planning_costs
from tvm_stretch.read import load_network
from tvm_stretch.targets.processors import make_processors

_COMPILER_ONLY = ("tvm/lib/libtvm_compiler*", "tvm/include", "tvm_ffi/include", "tvm/3rdparty")
_RUN = Path(__file__).with_name("runtime_only_run.py")


def write_bundle(
    folder: Path, models: Sequence[str], size: int, cpu: str, device: str, python: str
) -> None:
    """Everything that the other machine needs but Python and NumPy."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in models:
        network = zoo.build(name, size=size)
        _write_answers(folder / f"{name}.npz", network)
        _write_artifacts(folder, name, network, cpu, device)
    _write_runtime(folder / "python", python)
    shutil.copy(_RUN, folder / "run.py")
    total = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"{folder}: {total / 1e6:.0f} MB")


def _write_answers(path: Path, network: onnx.ModelProto) -> None:
    model = model_of(network)
    (x,) = model.inputs.values()
    np.savez(path, x=x, expected=model.expected[0])


def _write_artifacts(
    folder: Path, name: str, network: onnx.ModelProto, cpu: str, device: str
) -> None:
    """One for each processor, and one for both; nothing is measured here, so the plan is given."""
    host = {"kind": "llvm", "mcpu": cpu}
    gpu = {"kind": "opencl", "device": device}
    ts.compile(network, [host], cpu_threads=1).export(folder / f"{name}.cpu.so")
    ts.compile(network, [gpu], cpu_threads=1).export(folder / f"{name}.opencl.so")
    processors, _ = make_processors([host, gpu], 1)
    found = search(load_network(network, None), planning_costs(processors))
    if not found.rivals:
        print(f"{name}: no plan for both is predicted to be faster")
        return
    plan = found.rivals[0].plan
    ts.compile(network, [host, gpu], cpu_threads=1, plan=plan).export(folder / f"{name}.both.so")


def _write_runtime(folder: Path, python: str) -> None:
    """Our package, and TVM's without the compiler, for another version of Python."""
    install(folder, RUNTIME, python)
    for pattern in _COMPILER_ONLY:
        for path in folder.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def main(arguments: Sequence[str] | None = None) -> None:
    """Make a bundle."""
    args = options(
        __doc__,
        arguments,
        ("folder", Path),
        ("models+", str),
        ("--size", 224),
        ("--cpu", "x86-64-v3", "LLVM's name of the processor there"),
        ("--device", "gpu", "kind of OpenCL device: gpu, adreno, cpu"),
        ("--python", f"{sys.version_info.major}.{sys.version_info.minor}"),
    )
    write_bundle(args.folder, args.models, args.size, args.cpu, args.device, args.python)


if __name__ == "__main__":
    main()
