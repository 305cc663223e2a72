"""Kernels with bells, read as text; tests/device/test_opencl_runtime_bells.py runs them."""

from __future__ import annotations

from tvm_stretch.targets.opencl.code.opencl_code import BELL_PRELUDE, kernel_text


def test_work_between_two_bells() -> None:
    text = kernel_text("scale", ["int a"], "scale_work(a);", bells=True)
    head, *body = text.split("\n")
    assert head == (
        "__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void scale("
        "volatile __global int* bell, int a) {"
    )
    assert [line.strip() for line in body[:3]] == [
        "if (!tvm_stretch_begin(bell)) return;",
        "scale_work(a);",
        "tvm_stretch_end(bell);",
    ]


def test_without_bells() -> None:
    text = kernel_text("f", ["int a"], "f_work(a);", (8, 4, 1), bells=False)
    assert text == (
        "__kernel __attribute__((reqd_work_group_size(8, 4, 1))) void f(int a) {\n  f_work(a);\n}\n"
    )


def test_the_prelude_counts_where_the_executor_looks() -> None:
    # Bell::Memory of opencl/native/task.h: two ints, each on a cache line of 64 bytes.
    assert "atomic_inc(bell + 16)" in BELL_PRELUDE
