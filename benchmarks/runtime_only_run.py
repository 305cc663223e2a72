"""Run the artifacts of a bundle (see `benchmarks/runtime_only.py`, which puts this file there)."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "python"))

import numpy as np  # noqa: E402
import tvm  # noqa: E402

import tvm_stretch as ts  # noqa: E402

_TOLERANCE = 1e-3  # of the largest value, as in the other benchmarks


def measure_network(name: str, rounds: int) -> dict[str, dict[str, float]]:
    """Error, latency and overlap of each artifact of a network."""
    data = np.load(HERE / f"{name}.npz")
    results: dict[str, dict[str, float]] = {}
    models = {}
    for kind in ("cpu", "opencl", "both"):
        path = HERE / f"{name}.{kind}.so"
        if not path.exists():
            continue
        start = time.perf_counter()
        model = ts.load(path)
        got = model(data["x"])
        seconds = time.perf_counter() - start
        error = float(np.abs(got - data["expected"]).max() / np.abs(data["expected"]).max())
        if not error < _TOLERANCE:
            raise SystemExit(f"{name} on {kind}: wrong answer, error {error:.1e}")
        models[kind] = model
        results[kind] = {"load_s": seconds, "error": error}
    runs = {kind: model.random_run() for kind, model in models.items()}
    samples: dict[str, list[float]] = {kind: [] for kind in runs}
    for turn in range(rounds + 1):
        for kind, run in runs.items():
            run()
            start = time.perf_counter()
            run()
            if turn:
                samples[kind].append(1e3 * (time.perf_counter() - start))
    for kind, model in models.items():
        results[kind]["ms"] = median(samples[kind])
        if kind == "both":
            model.timeline(HERE / f"{name}.trace.json")
            results[kind]["overlap"] = median(model.timeline().overlap for _ in range(5))
    for kind, row in results.items():
        text = ", ".join(f"{key} {value:.3g}" for key, value in row.items())
        print(f"{name:20} {kind:7} {text}", flush=True)
    return results


def main() -> None:
    """Measure every network of the bundle."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    names = sorted(path.stem for path in HERE.glob("*.npz"))
    has_compiler = any(Path(tvm.__file__).parent.glob("lib/libtvm_compiler*"))
    print(f"tvm {tvm.__version__}, {'with' if has_compiler else 'without'} the compiler library")
    (device, *_) = json.loads(tvm.get_global_func("tvm_stretch.opencl_devices")())
    print(f"{device['platform']}, {device['name']}, driver {device['driver']}")
    results = {name: measure_network(name, options.rounds) for name in names}
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
