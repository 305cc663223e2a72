"""Kernels that meet other processors without the driver, for devices that are the host's CPU.

    __kernel void scale(__global float* a) {      __kernel void scale(volatile __global int* bell,
      scale_work(a);                                                  __global float* a) {
    }                                      ->       if (!tvm_stretch_begin(bell)) return;
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

from collections.abc import Sequence

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


def kernel_text(
    entry: str,
    params: Sequence[str],
    work: str,
    group_size: tuple[int, int, int] = (1, 1, 1),
    *,
    bells: bool,
) -> str:
    """The kernel that does ``work``, with a bell as its first argument or without one."""
    lines = [work]
    if bells:
        params = ["volatile __global int* bell", *params]
        lines = ["if (!tvm_stretch_begin(bell)) return;", work, "tvm_stretch_end(bell);"]
    body = "".join(f"  {line}\n" for line in lines)
    attribute = f"__attribute__((reqd_work_group_size{group_size}))"
    return f"__kernel {attribute} void {entry}({', '.join(params)}) {{\n{body}}}\n"


def doorbell_launch() -> dict[str, object]:
    """How to launch the prelude's kernel."""
    return {
        "entry": "tvm_stretch_doorbell",
        "source": 0,
        "groups": [1, 1, 1],
        "group_size": [1, 1, 1],
        "args": [list(BELL_ARGUMENT)],
    }
