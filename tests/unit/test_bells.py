"""Kernels with bells, read as text; tests/device/test_opencl_runtime_bells.py runs them."""

from __future__ import annotations

import re

import pytest

from tvm_stretch.codegen.bells import BELL_PRELUDE, with_bell

KERNEL = """
#define HELPER 1
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void scale(__global const float* restrict a,
                                                                   int a_first) {
  if (a_first) { HELPER; }
}
"""


def test_the_work_becomes_a_function() -> None:
    text = with_bell(KERNEL)
    assert text.index("#define HELPER") < text.index("static void scale_work(")
    (signature,) = re.findall(r"static void scale_work\(([^)]*)\) \{", text)
    assert signature.split() == ["__global", "const", "float*", "restrict", "a,", "int", "a_first"]
    wrapper = text[text.index("__kernel") :]
    assert wrapper.startswith(
        "__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void scale("
        "volatile __global int* bell, __global const float* restrict a,"
    )
    body = wrapper[wrapper.index("{") :].split("\n")
    assert [line.strip() for line in body[1:4]] == [
        "if (!tvm_stretch_begin(bell)) return;",
        "scale_work(a, a_first);",
        "tvm_stretch_end(bell);",
    ]


def test_pointers_may_stick_to_their_names() -> None:
    assert "f_work(a, b);" in with_bell("__kernel void f(__global float *a, int b) { }")


def test_only_one_kernel_at_a_time() -> None:
    with pytest.raises(ValueError, match="unpack"):
        with_bell(KERNEL + KERNEL)


def test_the_prelude_counts_where_the_executor_looks() -> None:
    # Bell::Memory of native/opencl/bell.h: two ints, each on a cache line of 64 bytes.
    assert "atomic_inc(bell + 16)" in BELL_PRELUDE
