"""Kernels that synchronise with other processors without the driver, on the host's own CPU.

    __kernel void scale(__global float* a) {      __kernel void scale(volatile __global int* bell,
      scale_work(a);                                                  __global float* a) {
    }                                      ->       if (!tvm_stretch_begin(bell)) return;
                                                    scale_work(a);
                                                    tvm_stretch_end(bell);
                                                  }

So the kernels of a region can be enqueued before the regions that it waits for are complete: its
first kernel waits until the executor rings the region's bell, and all kernels return at once if the
run has failed. Each work-item increments a counter when it is done, which the executor reads
instead of sleeping until the driver reports. Waking a thread takes tens of microseconds in either
direction, a bell a fraction of one. See native/opencl/bell.h for the other side.

The work is a separate function because its pointers are ``restrict``: nothing else may write what
it reads while it runs.
"""

from __future__ import annotations

from collections.abc import Sequence

DOORBELL = "tvm_stretch.doorbell"
"""Name of a launch that only waits and counts, for regions that begin or end with a copy."""

BELL_ARGUMENT = ("bell", 0)
"""First argument of every kernel with a bell, as in the JSON of ``opencl_code``."""

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


def kernel_text(
    entry: str,
    params: Sequence[str],
    work: str,
    group_size: tuple[int, int, int] = (1, 1, 1),
    *,
    bells: bool,
) -> str:
    """The kernel that does ``work``, with a bell as its first argument if ``bells``."""
    lines = [work]
    if bells:
        params = ["volatile __global int* bell", *params]
        lines = ["if (!tvm_stretch_begin(bell)) return;", work, "tvm_stretch_end(bell);"]
    body = "".join(f"  {line}\n" for line in lines)
    attribute = f"__attribute__((reqd_work_group_size{group_size}))"
    return f"__kernel {attribute} void {entry}({', '.join(params)}) {{\n{body}}}\n"


def doorbell_launch() -> dict[str, object]:
    """The launch of the prelude's kernel."""
    return {
        "entry": "tvm_stretch_doorbell",
        "source": 0,
        "groups": [1, 1, 1],
        "group_size": [1, 1, 1],
        "args": [list(BELL_ARGUMENT)],
    }
