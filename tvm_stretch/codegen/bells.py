"""Kernels that meet other processors without the driver, for devices that are the host's CPU.

    __kernel void scale(__global float* a) {      static void scale_work(__global float* a) {
      …                                             …
    }                                      ->     }
                                                  __kernel void scale(volatile __global int* bell,
                                                                      __global float* a) {
                                                    if (!tvm_stretch_begin(bell)) return;
                                                    scale_work(a);
                                                    tvm_stretch_end(bell);
                                                  }

So a region's kernels can be enqueued before the regions that it waits for are complete: its first
kernel waits for the region's bell, which the executor rings, and all of them return at once if the
run failed meanwhile. Each work-item counts itself when it is done: the executor reads the count
instead of sleeping until the driver reports. Waking a thread takes tens of microseconds on either
way, a bell a fraction of one. See native/opencl/bell.h for the other side.

The work is a function of its own, because its pointers are ``restrict``: within it, nobody else
writes what it reads.
"""

from __future__ import annotations

import re

DOORBELL = "tvm_stretch.doorbell"
"""Name of the launch that only waits and counts, for regions that begin or end with a copy."""

BELL_ARGUMENT = ("bell", 0)
"""First argument of every kernel with a bell, in the JSON of ``opencl_code``."""

BELL_PRELUDE = """\
#if defined(__clang__) && defined(__x86_64__)
#define TVM_STRETCH_PAUSE __builtin_ia32_pause()
#elif defined(__clang__) && defined(__aarch64__)
#define TVM_STRETCH_PAUSE __asm__ volatile("yield")
#else
#define TVM_STRETCH_PAUSE
#endif
static int tvm_stretch_begin(volatile __global int* bell) {
  while (*bell == 0) TVM_STRETCH_PAUSE;
  return atomic_add(bell, 0) == 1;
}
static void tvm_stretch_end(volatile __global int* bell) {
  mem_fence(CLK_GLOBAL_MEM_FENCE);
  atomic_inc(bell + 16);
}
__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void tvm_stretch_doorbell(volatile __global int* bell) {
  if (tvm_stretch_begin(bell)) tvm_stretch_end(bell);
}
"""

_KERNEL = re.compile(
    r"__kernel (?P<attribute>__attribute__\(\(.*?\)\)\) )?void (?P<entry>\w+)"
    r"\((?P<params>[^)]*)\) \{"
)


def with_bell(text: str) -> str:
    """The same kernel with a bell as its first argument."""
    (kernel,) = _KERNEL.finditer(text)
    entry, params = kernel["entry"], kernel["params"]
    names = ", ".join(param.split()[-1].lstrip("*") for param in params.split(","))
    work = f"{text[: kernel.start()]}static void {entry}_work({params}) {{{text[kernel.end() :]}"
    return f"""{work}
__kernel {kernel["attribute"] or ""}void {entry}(volatile __global int* bell, {params}) {{
  if (!tvm_stretch_begin(bell)) return;
  {entry}_work({names});
  tvm_stretch_end(bell);
}}
"""


def doorbell_launch() -> dict[str, object]:
    """How to launch the prelude's kernel."""
    return {
        "entry": "tvm_stretch_doorbell",
        "source": 0,
        "groups": [1, 1, 1],
        "group_size": [1, 1, 1],
        "args": [list(BELL_ARGUMENT)],
    }
