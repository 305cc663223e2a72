"""What one core can do: a C++ loop of multiply-adds in registers."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import time
from pathlib import Path

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
