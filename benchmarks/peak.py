"""The peak of one core: a C++ loop of multiply-adds of vectors in registers."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import time
from pathlib import Path

_SUMS = 12  # more than latency times multipliers; fits 16 registers

_SOURCE = f"""
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


class Peak:
    """Multiply-adds per second of this core, now."""

    def __init__(self, lanes: int) -> None:
        """Compiles the loop."""
        self._each = _SUMS * lanes
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "peak.so"
            options = ["-O3", "-march=native", "-ffp-contract=fast", f"-DLANES={lanes}"]
            command = ["g++", *options, "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library)]
            subprocess.run(command, input=_SOURCE, text=True, check=True)
            self._turn = ctypes.CDLL(str(library)).turn
        self._turn.restype, self._turn.argtypes = ctypes.c_float, [ctypes.c_long]

    def measure(self, count: int = 100_000) -> float:
        """One short look, about a millisecond."""
        begin = time.perf_counter()
        self._turn(count)
        return count * self._each / (time.perf_counter() - begin)
