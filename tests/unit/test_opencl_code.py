"""OpenCL C and launches of scheduled kernels, read as text; devices run them in tests/device."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tvm import s_tir, te, tirx
from tvm.script import tirx as T
from tvm.target import Target

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.targets.opencl.code.opencl_code import compile_opencl


def launches(function: tirx.PrimFunc, *, wide: bool = True) -> list[dict[str, Any]]:
    """The launches of one kernel."""
    kernels = {"kernel": function.with_attr("global_symbol", "kernel")}
    code = json.loads(compile_opencl(kernels, Target("opencl"), on_cpu=wide))
    (source,) = code["sources"]
    assert all(launch["source"] == 0 for launch in code["kernels"]["kernel"])
    return [{**launch, "source": source} for launch in code["kernels"]["kernel"]]


def doubled(size: int = 64) -> tirx.PrimFunc:
    """``out = 2 * data``, as a plain loop."""
    data = te.placeholder((tirx.const(size, "int64"),), name="data")
    return te.create_prim_func([data, te.compute(data.shape, lambda i: data[i] * 2.0, name="out")])


def test_a_plain_loop_is_one_work_item() -> None:
    (launch,) = launches(doubled())
    assert (launch["groups"], launch["group_size"]) == ([1, 1, 1], [1, 1, 1])
    assert launch["entry"] in launch["source"]
    assert "for (long" in launch["source"]


def test_indices_are_narrow_for_gpus() -> None:
    (launch,) = launches(doubled(), wide=False)
    assert "long" not in launch["source"]


def test_constants_of_more_than_seven_digits_are_exact() -> None:
    data = te.placeholder((tirx.const(4, "int64"),), name="data")
    number = tirx.const(12582912.0, "float32")
    (launch,) = launches(
        te.create_prim_func([data, te.compute(data.shape, lambda i: data[i] * number, name="out")])
    )
    assert f"as_float({0x4B400000})" in launch["source"]


def test_parallel_loops_are_work_groups() -> None:
    schedule = s_tir.Schedule(doubled())
    (axis,) = schedule.get_loops("out")
    outer, inner = schedule.split(axis, [8, None])
    schedule.parallel(outer)
    schedule.vectorize(inner)
    (launch,) = launches(schedule.mod["main"])
    assert launch["groups"] == [8, 1, 1]
    assert "vload8" in launch["source"]


def test_bound_loops_keep_their_launch() -> None:
    schedule = s_tir.Schedule(doubled())
    (axis,) = schedule.get_loops("out")
    outer, inner = schedule.split(axis, [None, 16])
    schedule.bind(outer, "blockIdx.x")
    schedule.bind(inner, "threadIdx.x")
    (launch,) = launches(schedule.mod["main"])
    assert (launch["groups"], launch["group_size"]) == ([4, 1, 1], [16, 1, 1])


def test_every_tensor_has_memory_and_a_first_element() -> None:
    (launch,) = launches(doubled(), wide=False)
    kinds = [(kind, number) for kind, number in launch["args"]]
    assert sorted(kinds) == [("buffer", 0), ("buffer", 1), ("offset", 0), ("offset", 1)]
    signature = re.findall(r"void \w+\(([^)]*)\) \{", launch["source"])[-1]
    assert signature.split(", ") == [
        *("__global char* memory0", "int first0", "__global char* memory1", "int first1"),
    ]
    assert "work((__global void*)(memory0 + (size_t)first0 * 4), " in launch["source"]


def two_stages(size: int) -> tirx.PrimFunc:
    """A temporary between two loops that run one after the other."""
    data = te.placeholder((tirx.const(size, "int64"),), name="data")
    middle = te.compute(data.shape, lambda i: data[i] + 1.0, name="middle")
    out = te.compute(data.shape, lambda i: middle[size - 1 - i] * 2.0, name="out")
    return te.create_prim_func([data, out])


def test_small_temporaries_are_private() -> None:
    (launch,) = launches(two_stages(64))
    assert all(kind != "scratch" for kind, _ in launch["args"])
    assert re.search(r"^\s*float middle\w*\[64\];", launch["source"], re.MULTILINE)


def test_large_temporaries_are_arguments() -> None:
    (launch,) = launches(two_stages(2**20))
    assert ["scratch", 2**22] in launch["args"]


def test_temporaries_between_launches_are_arguments_of_both() -> None:
    schedule = s_tir.Schedule(two_stages(64))
    for name in ("middle", "out"):
        (axis,) = schedule.get_loops(name)
        schedule.parallel(axis)
    first, second = launches(schedule.mod["main"])
    assert ["scratch", 256] in first["args"]
    assert ["scratch", 256] in second["args"]
    assert ["buffer", 1] not in first["args"]


def test_launches_find_each_of_several_temporaries_where_it_was_written() -> None:
    data = te.placeholder((tirx.const(64, "int64"),), name="data")
    first = te.compute(data.shape, lambda i: data[i] + 1.0, name="first")
    second = te.compute(data.shape, lambda i: data[i] + 2.0, name="second")
    out = te.compute(data.shape, lambda i: first[63 - i] + second[63 - i], name="out")
    last = te.compute(data.shape, lambda i: second[63 - i] * out[i], name="last")
    schedule = s_tir.Schedule(te.create_prim_func([data, out, last]))
    for name in ("first", "second", "out", "last"):
        (axis,) = schedule.get_loops(name)
        schedule.parallel(axis)
    listed = launches(schedule.mod["main"])
    assert all(launch["args"].count(["scratch", 512]) == 1 for launch in listed)
    kernels = [
        re.search(rf"void {one['entry']}\(.*?^}}", one["source"], re.S | re.M) for one in listed
    ]
    places = [re.findall(r"\(scratch \+ (\d+)\)", kernel[0]) for kernel in kernels if kernel]
    assert [sorted(map(int, found)) for found in places] == [[0], [256], [0, 256], [256]]


def test_temporaries_of_vectors_have_room_for_them() -> None:
    """TVM makes vectors of a tensor that is only read and written sixteen elements at a time."""
    data = te.placeholder((tirx.const(64, "int64"),), name="data")
    middle = te.compute(data.shape, lambda i: data[i] + 1.0, name="middle")
    out = te.compute(data.shape, lambda i: middle[i] * 2.0, name="out")
    schedule = s_tir.Schedule(te.create_prim_func([data, out]))
    for name in ("middle", "out"):
        (axis,) = schedule.get_loops(name)
        outer, inner = schedule.split(axis, [None, 16])
        schedule.parallel(outer)
        schedule.vectorize(inner)
    listed = launches(schedule.mod["main"])
    assert "float16* restrict middle" in listed[0]["source"]
    assert all(["scratch", 256] in launch["args"] for launch in listed)


def test_vectors_share_no_temporary_with_numbers_that_follow() -> None:
    """TVM would let them share one, and drivers promote only arrays of vectors to registers."""
    data = te.placeholder((tirx.const(64, "int64"),), name="data")
    sums = te.compute((tirx.const(32, "int64"),), lambda i: data[i] + data[i + 32], name="sums")
    used = te.compute(sums.shape, lambda i: sums[i] * 2.0, name="used")
    numbers = te.compute(sums.shape, lambda i: used[i] * data[i], name="numbers")
    out = te.compute(sums.shape, lambda i: numbers[31 - i], name="out")
    schedule = s_tir.Schedule(te.create_prim_func([data, used, out]))
    for name in ("sums", "used"):
        schedule.vectorize(schedule.split(*schedule.get_loops(name), [None, 8])[1])
    (launch,) = launches(schedule.mod["main"])
    assert re.search(r"float8 sums\w*\[4\]", launch["source"])


def test_a_kernel_without_work_is_refused() -> None:
    nothing = tirx.PrimFunc([], tirx.Evaluate(tirx.const(0, "int32"))).with_attr("s_tir", True)
    with pytest.raises(UnsupportedError, match="expected work for kernel kernel"):
        launches(nothing)


def own_temporary(size: int) -> tirx.PrimFunc:
    """Each of 4 groups has a temporary of its own."""
    schedule = s_tir.Schedule(two_stages(size))
    (axis,) = schedule.get_loops("out")
    outer, _ = schedule.split(axis, [4, None])
    schedule.parallel(outer)
    schedule.compute_at("middle", outer)
    return schedule.mod["main"]


def test_work_groups_share_no_temporary() -> None:
    (launch,) = launches(own_temporary(2**15))
    assert launch["groups"] == [4, 1, 1]
    assert ["scratch", 4 * 2**17] in launch["args"]
    assert re.search(r"scratch \+ 0 \+ tvm_stretch_work_item\(\) \* 131072\)", launch["source"])


def test_vectors_of_one_value_say_it_once() -> None:
    schedule = s_tir.Schedule(doubled())
    (axis,) = schedule.get_loops("out")
    schedule.vectorize(schedule.split(axis, [8, None])[1])
    (launch,) = launches(schedule.mod["main"])
    assert "* (float8)(2.000000e+00f)" in launch["source"]


def test_vectors_of_lanes_are_vectors_of_opencl() -> None:
    """Templates for machines with four lanes multiply by one element of a vector."""
    four = (tirx.const(4, "int64"),)
    data, out = (tirx.decl_buffer(four, "float32", name) for name in ("data", "out"))
    lanes = tirx.Ramp(tirx.const(0, "int64"), tirx.const(1, "int64"), 4)
    third = tirx.Shuffle([tirx.BufferLoad(data, [lanes])], [2, 2, 2, 2])
    (launch,) = launches(tirx.PrimFunc([data, out], tirx.BufferStore(out, third, [lanes])))
    assert "(float4)((" in launch["source"] and " float4(" not in launch["source"]


def test_bytes_of_a_table_are_a_vector() -> None:
    """TVM would shift them into one number; more than four have no room there."""
    n = (tirx.const(16, "int64"),)
    table, at, out = (tirx.decl_buffer(n, "uint8", name) for name in ("table", "at", "out"))
    lanes = tirx.Ramp(tirx.const(0, "int64"), tirx.const(1, "int64"), 16)
    found = tirx.BufferLoad(table, [tirx.BufferLoad(at, [lanes]).astype("int64x16")])
    (launch,) = launches(tirx.PrimFunc([table, at, out], tirx.BufferStore(out, found, [lanes])))
    assert "(uchar16)(" in launch["source"] and "<<" not in launch["source"]


def chosen(condition: str, value: str) -> tirx.PrimFunc:
    """16 lanes that a condition of some type chooses: of booleans that are read, or compared."""
    n = (tirx.const(16, "int64"),)
    mask, a, b = te.placeholder(n, condition), te.placeholder(n, value), te.placeholder(n, value)

    def picked(i: tirx.Var) -> tirx.Select:
        truth = mask[i] if condition == "bool" else mask[i] > tirx.const(0, condition)
        return tirx.Select(truth, a[i], b[i])

    out = te.compute(n, picked, name="out")
    schedule = s_tir.Schedule(te.create_prim_func([mask, a, b, out]))
    schedule.vectorize(*schedule.get_loops("out"))
    return schedule.mod["main"]


@pytest.mark.parametrize(
    ("condition", "value", "vectors"),
    [
        ("int32", "float32", True),
        ("int64", "float64", True),
        ("int64", "float32", False),
        ("int8", "float32", False),
        ("bool", "float32", False),
    ],
)
def test_vectors_are_chosen_by_what_is_as_wide(condition: str, value: str, vectors: bool) -> None:
    (launch,) = launches(chosen(condition, value))
    assert ("vload16" in launch["source"]) == vectors


def test_what_all_lanes_choose_alike_is_a_condition() -> None:
    """TVM makes a vector of 1 of it, and `select` of OpenCL C asks the highest bit of each lane."""
    rows = (tirx.const(4, "int64"), tirx.const(16, "int64"))
    ends, data = te.placeholder(rows[:1], "int32"), te.placeholder(rows, "float32")
    zero = tirx.const(0, "float32")
    out = te.compute(rows, lambda i, j: tirx.Select(ends[i] > 0, data[i, j], zero), name="out")
    schedule = s_tir.Schedule(te.create_prim_func([ends, data, out]))
    schedule.vectorize(schedule.get_loops("out")[-1])
    (launch,) = launches(schedule.mod["main"])
    assert "vload16" in launch["source"] and "select(" not in launch["source"]


@pytest.mark.parametrize(
    ("dtype", "uniform", "vectors"),
    [("int32", False, True), ("int32", True, False), ("int64", False, False)],
)
def test_vectors_of_several_conditions(dtype: str, uniform: bool, vectors: bool) -> None:
    """TVM writes "or" between integers of two widths, or of two signs; drivers refuse that."""
    n, zero = (tirx.const(16, "int64"),), tirx.const(0, dtype)
    a, b = te.placeholder(n, dtype), te.placeholder(n, dtype)

    def picked(i: tirx.Var) -> tirx.Select:
        first = b[0] if uniform else b[i]
        both = tirx.all(first == tirx.const(-1, dtype), a[i] == zero)
        return tirx.Select(tirx.any(first == zero, both), zero, a[i])

    schedule = s_tir.Schedule(te.create_prim_func([a, b, te.compute(n, picked, name="out")]))
    schedule.vectorize(*schedule.get_loops("out"))
    (launch,) = launches(schedule.mod["main"])
    assert ("vload16" in launch["source"]) == vectors


@pytest.mark.parametrize("given", ["float32", "bool"])
def test_truth_of_a_vector_is_no_number(given: str) -> None:
    """True is -1 in vectors of OpenCL."""
    data = te.placeholder((tirx.const(16, "int64"),), given)
    truth = te.compute(data.shape, lambda i: (data[i] > 0).astype("float32"), name="out")
    if given == "bool":
        truth = te.compute(data.shape, lambda i: data[i].astype("float32"), name="out")
    schedule = s_tir.Schedule(te.create_prim_func([data, truth]))
    schedule.vectorize(*schedule.get_loops("out"))
    (launch,) = launches(schedule.mod["main"])
    assert "vload" not in launch["source"] and "vstore" not in launch["source"]


def images(write: str) -> tirx.PrimFunc:
    """A loop over 3 images, a parallel one over their 8 rows inside, and a statement beside it."""
    if write == "own row":

        @T.prim_func(s_tir=True)
        def rows(data: T.Buffer((3, 8), "float32"), out: T.Buffer((3, 9), "float32")):
            for n in range(3):
                for t in T.parallel(8):
                    out[n, t] = data[n, t] + T.float32(1)
                out[n, 8] = data[n, 0]

        return rows

    @T.prim_func(s_tir=True)
    def chain(data: T.Buffer((3, 8), "float32"), out: T.Buffer((3, 9), "float32")):
        for n in range(3):
            for t in T.parallel(8):
                out[0, t] = data[n, t] + out[0, t]

    return chain


def test_images_are_spread_over_work_groups() -> None:
    first, second = launches(images("own row"))
    assert (first["groups"], second["groups"]) == ([24, 1, 1], [3, 1, 1])


def test_passes_that_need_each_other_stay_in_order() -> None:
    (launch,) = launches(images("one row"))
    assert launch["groups"] == [1, 1, 1]


def test_rows_that_are_counted_from_where_a_group_starts() -> None:
    """As in convolutions that add up in several passes, four groups over two blocks of channels."""

    @T.prim_func(s_tir=True)
    def rows(out: T.Buffer((T.int64(14),), "float32")):
        for task in T.parallel(T.int64(8)):
            partial = T.alloc_buffer((T.int64(7), T.int64(14)))
            for y, x in T.grid(T.int64(7), T.int64(14)):
                partial[
                    task // T.int64(4) * T.int64(7) + y - task // T.int64(4) * T.int64(7), x
                ] = T.float32(0)
            for y in range(T.int64(7)):
                out[task // T.int64(4) * T.int64(7) + y] = partial[y, T.int64(3)]

    (launch,) = launches(rows)
    assert launch["groups"] == [8, 1, 1]
