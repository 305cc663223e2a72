"""What one core can do: a C++ loop of multiply-adds in registers, and one that only reads."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

_SUMS = 12  # more than latency times multipliers; fits 16 registers

_TURN = f"""
typedef float V __attribute__((vector_size(4 * LANES)));
extern "C" float turn(long count) {{
  V a[{_SUMS}], x, y;
  for (int l = 0; l < LANES; ++l) x[l] = 0.5f, y[l] = count;
  for (auto& v : a) v = y;
  for (long i = 0; i < count; ++i) {{
    asm volatile("" : "+v"(x), "+v"(y));  // in registers: GCC would load y from memory, unaligned
#pragma GCC unroll {_SUMS}
    for (int j = 0; j < {_SUMS}; ++j) a[j] = a[j] * x + y;
  }}
  float sum = 0;
  for (auto& v : a) sum += v[0];
  return sum;
}}
"""
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


def _compiled(source: str, *options: str) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        library = str(Path(folder) / "loop.so")
        command = ["g++", "-O3", "-march=native", *options, "-shared", "-fPIC", "-x", "c++", "-"]
        subprocess.run([*command, "-o", library], input=source, text=True, check=True)
        return ctypes.CDLL(library)


class Peak:
    """Multiply-adds per second of this core, now."""

    def __init__(self, lanes: int) -> None:
        """Compiles the loop."""
        self._each = _SUMS * lanes
        self._turn = _compiled(_TURN, "-ffp-contract=fast", f"-DLANES={lanes}").turn
        self._turn.restype, self._turn.argtypes = ctypes.c_float, [ctypes.c_long]

    def measure(self, count: int = 100_000) -> float:
        """One short look, about a millisecond."""
        begin = time.perf_counter()
        self._turn(count)
        return count * self._each / (time.perf_counter() - begin)


class Reader:
    """A loop that reads bytes and only adds them."""

    def __init__(self, size: int) -> None:
        self._read = _compiled(_READ).read_all
        self._read.restype = ctypes.c_float
        self._read.argtypes = [ctypes.c_void_p, ctypes.c_long]
        self._data = np.ones(size // 4 + 16, "float32")
        self._start = self._data.ctypes.data + -self._data.ctypes.data % 64
        self._count = size // 64

    def run(self) -> None:
        """Read everything once."""
        self._read(self._start, self._count)
