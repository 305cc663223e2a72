"""Dense layers of any number of rows: their share of a core's peak, or of its memory's speed.

```
python -m benchmarks.products [rows,inputs,outputs ...] [--mcpu haswell] [--turns 15]
```
Layers with different weights stand side by side until these have 200 MB, so that weights come from
memory if there are few rows. By turns with ONNX Runtime, with a loop of multiply-adds in registers
(`peak.py`) and a loop that only reads as many bytes. Medians of the ratios of each turn: the
shortest times of two loops come from different moments of a busy machine.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tvm_stretch as ts
from benchmarks.integers import session
from benchmarks.peak import Peak

SIZES = ("1500,384,1536", "197,768,768", "64,512,512", "7,768,3072", "1,896,4864", "1,384,51864")
_WEIGHTS = 200_000_000
_FEW_ROWS = 8
_READ = """
typedef float V __attribute__((vector_size(64)));
extern "C" float read_all(const V* p, long count) {
  V a[8] = {};
  for (long i = 0; i + 8 <= count; i += 8)
    for (int j = 0; j < 8; ++j) a[j] += p[i + j];
  for (int j = 1; j < 8; ++j) a[0] += a[j];
  return a[0][0];
}
"""


class Reader:
    """A loop that reads bytes and only adds them."""

    def __init__(self, size: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "read.so"
            options = ["-O3", "-march=native", "-shared", "-fPIC", "-x", "c++"]
            command = ["g++", *options, "-", "-o", str(library)]
            subprocess.run(command, input=_READ, text=True, check=True)
            self._read = ctypes.CDLL(str(library)).read_all
        self._read.restype, self._read.argtypes = (
            ctypes.c_float,
            [ctypes.c_void_p, ctypes.c_long],
        )
        self._data = np.ones(size // 4 + 16, "float32")
        self._start = self._data.ctypes.data + -self._data.ctypes.data % 64
        self._count = size // 64

    def run(self) -> None:
        """Read everything once."""
        self._read(self._start, self._count)


def layers(rows: int, inputs: int, outputs: int) -> tuple[onnx.ModelProto, int]:
    """A network of dense layers of the same input, and their number."""
    count = max(1, _WEIGHTS // (4 * inputs * outputs)) if rows <= _FEW_ROWS else 1
    rng, names = np.random.default_rng(0), [f"y{i}" for i in range(count)]
    weights = [
        numpy_helper.from_array(rng.standard_normal((inputs, outputs), "float32"), f"w{i}")
        for i in range(count)
    ]
    nodes = [helper.make_node("MatMul", ["x", f"w{i}"], [f"y{i}"]) for i in range(count)]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, size])
        for name, size in [("x", inputs), *((name, outputs) for name in names)]
    ]
    graph = helper.make_graph(nodes, "layers", values[:1], values[1:], weights)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), count


def measure(size: Sequence[int], mcpu: str, turns: int) -> str:
    """A row of the table."""
    rows, inputs, outputs = size
    network, count = layers(rows, inputs, outputs)
    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": mcpu} if mcpu else "llvm"
    ours, theirs = ts.compile(network, [target], cpu_threads=1), session(network, exact=False)
    x = np.random.default_rng(1).standard_normal((rows, inputs), "float32")
    got, want = ours(x), theirs.run(None, {"x": x})
    for have, right in zip(got if isinstance(got, tuple) else [got], want, strict=True):
        np.testing.assert_allclose(have, right, rtol=1e-3, atol=1e-3 * np.abs(right).max())
    bytes_read, work = 4 * count * inputs * outputs, rows * inputs * outputs * count
    lanes = 8 if mcpu == "haswell" else 16
    reader, peak = Reader(bytes_read), Peak(lanes)
    calls = (lambda: ours(x), lambda: theirs.run(None, {"x": x}), reader.run)
    samples = []
    for _ in range(turns):
        samples.append([_seconds(call, max(1, int(2e8 // work))) for call in calls])
        samples[-1].append(work / peak.measure(1_000_000))
    of_peer = statistics.median(mine / peer for mine, peer, *_ in samples)
    of_read = statistics.median(read / mine for mine, _, read, _ in samples)
    of_peak = statistics.median(least / mine for mine, *_, least in samples)
    return f"| {rows} x {inputs} x {outputs} | {of_peer:.2f} | {of_peak:.0%} | {of_read:.0%} |"


def _seconds(call: Callable[[], object], times: int) -> float:
    call()
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", default=SIZES)
    parser.add_argument("--mcpu", default="")
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args()
    print("| rows x inputs x outputs | ours / ONNX Runtime | of the peak | of a plain read |")
    print("| --- | --- | --- | --- |")
    for text in options.sizes:
        print(measure([int(n) for n in text.split(",")], options.mcpu, options.turns), flush=True)


if __name__ == "__main__":
    main()
