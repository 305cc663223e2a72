"""Whatever TVM legalises and fuses, the generic schedule computes the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import tvm
from helpers.cpu_targets import built
from helpers.lowered import heap_buffers
from tvm import relax, te, tirx
from tvm.relax import op

from tvm_stretch.passes.keep_nan import KeepNan
from tvm_stretch.targets.kernels import generic
from tvm_stretch.targets.kernels.generic import schedule_generic
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.schedule import schedule_kernel

MACHINE = VectorMachine(lanes=8, registers=16, broadcast_operand=False, l2_bytes=2**19, threads=1)
IMAGE, BLOCKED = (1, 20, 13, 13), (1, 12, 7, 7, 8)
LONG, BOOL = "int64", "bool"


def scalar(value):
    return relax.const(value, "float32")


# name -> (expression, input shapes, dtypes of inputs that are not float32)
CASES: dict[str, tuple] = {
    "relu": (op.nn.relu, [BLOCKED]),
    "add_relu": (lambda x, y: op.nn.relu(op.add(x, y)), [IMAGE, IMAGE]),
    "bias_blocked": (lambda x, y: op.nn.relu(op.add(x, y)), [BLOCKED, (1, 12, 1, 1, 8)]),
    "bias": (op.add, [IMAGE, (1, 20, 1, 1)]),
    "broadcast_row": (op.multiply, [(3, 5, 7), (7,)]),
    "broadcast_both": (op.subtract, [(5, 1, 7), (1, 9, 1)]),
    "silu": (op.nn.silu, [BLOCKED]),
    "odd_rows": (op.add, [(2, 8, 5), (2, 8, 5)]),
    "squeeze_excite": (lambda x, s: op.multiply(x, op.sigmoid(s)), [BLOCKED, (1, 12, 1, 1, 8)]),
    "mean_blocked": (lambda x: op.mean(x, [2, 3], keepdims=True), [BLOCKED]),
    "mean": (lambda x: op.mean(x, [2, 3]), [IMAGE]),
    "mean_of_relu": (lambda x: op.mean(op.nn.relu(x), [2, 3]), [BLOCKED]),
    "sum_last": (lambda x: op.sum(x, [-1]), [(7, 1000)]),
    "sum_all": (op.sum, [IMAGE]),
    "sum_first": (lambda x: op.sum(x, [0]), [(50, 33)]),
    "sum_of_squares": (lambda x: op.sum(op.multiply(x, x), [1]), [IMAGE]),
    "max_last": (lambda x: op.max(x, [-1]), [(7, 128)]),
    "min_all": (op.min, [(7, 128)]),
    "max_odd": (lambda x: op.max(x, [-1]), [(2, 3, 83)]),
    "min_image": (op.min, [IMAGE]),
    "sum_odd": (lambda x: op.sum(x, [1, 2], keepdims=True), [(5, 3, 59)]),
    "sum_of_six_vectors": (lambda x: op.sum(x, [1]), [(3, 55)]),
    "max_of_six_vectors": (lambda x: op.max(x, [1]), [(3, 50)]),
    "sum_long": (lambda x: op.sum(x, [1]), [(3, 1021)]),
    "sum_integers": (lambda x: op.sum(x, [1]), [(3, 101)], [LONG]),
    "max_of_difference": (lambda x, y: op.max(op.subtract(x, y), [1]), [(3, 101), (3, 1)]),
    "max_of_channels": (lambda x: op.max(x, [1]), [(1, 20, 12, 12)]),
    "sum_of_channels": (lambda x: op.sum(x, [1]), [(2, 5, 24, 3, 8)]),
    "product_odd": (lambda x: op.prod(x, [1]), [(3, 37)]),
    "min_middle": (lambda x: op.min(x, [1]), [(3, 17, 16)]),
    "product": (lambda x: op.prod(x, [1]), [(3, 17, 16)]),
    "variance": (lambda x: op.variance(x, [1]), [(3, 40)]),
    "argmax": (lambda x: op.argmax(x, 1), [(3, 40)]),
    "softmax": (lambda x: op.nn.softmax(x, -1), [(1, 1000)]),
    "softmax_channel": (lambda x: op.nn.softmax(x, 1), [(2, 10, 7, 7)]),
    "softmax_prime": (lambda x: op.nn.softmax(x, -1), [(3, 97)]),
    "layer_norm": (lambda x, g, b: op.nn.layer_norm(x, g, b, [-1]), [(3, 5, 96), (96,), (96,)]),
    "instance_norm": (
        lambda x, g, b: op.nn.instance_norm(x, g, b, 1, [2, 3]), [IMAGE, (20,), (20,)],
    ),
    "matmul": (op.matmul, [(37, 64), (64, 48)]),
    "matmul_batch": (lambda x, y: op.nn.relu(op.matmul(x, y)), [(2, 36, 20), (2, 20, 50)]),
    "matmul_vector": (op.matmul, [(64,), (64,)]),
    "linear": (op.linear, [(4, 96), (100, 96)]),
    "conv": (
        lambda x, w: op.nn.relu(op.nn.conv2d(x, w, padding=1)), [(1, 8, 14, 14), (16, 8, 3, 3)],
    ),
    "conv_grouped": (
        lambda x, w: op.nn.conv2d(x, w, strides=2, groups=3), [(1, 6, 13, 13), (9, 2, 3, 3)],
    ),
    "conv_transpose": (
        lambda x, w: op.nn.conv2d_transpose(x, w, strides=(2, 2)), [(1, 6, 7, 7), (6, 5, 4, 4)],
    ),
    "conv1d": (lambda x, w: op.nn.conv1d(x, w, padding=1), [(1, 6, 40), (8, 6, 3)]),
    "max_pool": (lambda x: op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1)), [IMAGE]),
    "average_pool": (lambda x: op.nn.avg_pool2d(x, (3, 3), (1, 1), (1, 1)), [IMAGE]),
    "to_channels_last": (lambda x: op.permute_dims(x, [0, 2, 3, 1]), [IMAGE]),
    "transpose": (op.permute_dims, [(160, 144)]),
    "channel_shuffle": (
        lambda x: op.reshape(
            op.permute_dims(op.reshape(x, (1, 4, 5, 13, 13)), [0, 2, 1, 3, 4]), IMAGE
        ),
        [IMAGE],
    ),
    "reshape": (lambda x: op.reshape(x, (20, 169)), [IMAGE]),
    "broadcast_to": (lambda x: op.broadcast_to(x, (4, 20, 7)), [(20, 1)]),
    "concat_blocked": (lambda x, y: op.concat([x, y], 1), [(1, 3, 7, 7, 8), (1, 5, 7, 7, 8)]),
    "concat_relu": (
        lambda x, y: op.nn.relu(op.concat([x, y], 1)), [(1, 3, 7, 7), (1, 5, 7, 7)],
    ),
    "concat_last": (lambda x, y: op.concat([x, y], -1), [(3, 5), (3, 9)]),
    "split": (lambda x: op.split(x, 2, 1), [IMAGE]),
    "strided_slice": (lambda x: op.strided_slice(x, [2, 3], [1, 2], [13, 12], [2, 1]), [IMAGE]),
    "flip": (lambda x: op.flip(x, 1), [(3, 8)]),
    "pad": (lambda x: op.nn.pad(x, [0, 0, 0, 0, 1, 2, 3, 1]), [IMAGE]),
    "pad_blocked": (lambda x: op.nn.pad(x, [0, 0, 0, 0, 1, 2, 3, 1, 0, 0]), [BLOCKED]),
    "pad_reflect": (lambda x: op.nn.pad(x, [0, 0, 0, 0, 1, 2, 3, 1], "reflect"), [IMAGE]),
    "take": (lambda x, i: op.take(x, i, 0), [(40, 16), (5,)], [None, LONG]),
    "gather": (lambda x, i: op.gather_elements(x, i, 1), [(4, 9), (4, 5)], [None, LONG]),
    "scatter": (
        lambda x, i, u: op.scatter_elements(x, i, u, 0), [(4, 9), (2, 9), (2, 9)],
        [None, LONG, None],
    ),
    "resize": (lambda x: op.image.resize2d(x, (27, 20), layout="NCHW", method="linear"), [IMAGE]),
    "where": (op.where, [(3, 40), (3, 40), (3, 40)], [BOOL, None, None]),
    "less": (op.less, [(3, 40), (3, 40)]),
    "to_int8": (lambda x: op.astype(x, "int8"), [(3, 64)]),
    "to_float16": (lambda x: op.astype(x, "float16"), [(3, 64)]),
    "floor_divide": (op.floor_divide, [(3, 40), (3, 40)], ["int32", "int32"]),
    "cumulative_sum": (lambda x: op.cumsum(x, 1), [(3, 40)]),
    "running": (lambda x: added(added(added(x, 1), 2), 4), [(2, 9, 67)]),
    "topk": (lambda x: op.topk(x, 3, -1, "both", True), [(3, 40)]),
    "attention": (op.nn.attention, [(1, 16, 2, 8)] * 3),
    "of_one_element": (lambda x: op.sum(op.multiply(x, scalar(2.0))), [(1, 1)]),
}  # fmt: skip


def added(x, by: int):
    """A step of a running sum along the last axis."""
    emit = relax.BlockBuilder.current().emit
    x = x if isinstance(x, relax.Var) else emit(x)
    padded = emit(op.nn.pad(x, [0, 0, 0, 0, by, 0]))
    return op.add(x, emit(op.strided_slice(padded, [2], [0], [67])))


def prim_funcs(expression: Callable, shapes, dtypes=None) -> list[tirx.PrimFunc]:
    """The kernels of an expression by TVM's own legalisation and fusion."""
    dtypes = [d or "float32" for d in dtypes or [None] * len(shapes)]
    args = [
        relax.Var(f"x{i}", relax.TensorType(s, d))
        for i, (s, d) in enumerate(zip(shapes, dtypes, strict=True))
    ]
    bb = relax.BlockBuilder()
    with bb.function("main", args):
        with bb.dataflow():
            out = bb.emit_output(bb.normalize(expression(*args)))
        bb.emit_func_output(out)
    t = relax.transform
    passes = [
        t.DecomposeOpsForInference(), t.LegalizeOps(), t.AnnotateTIROpPattern(),
        t.FuseOps(), t.FuseTIR(), t.DeadCodeElimination(),
    ]  # fmt: skip
    mod = tvm.transform.Sequential(passes)(bb.get())
    return [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]


def random_arguments(func: tirx.PrimFunc) -> list[np.ndarray]:
    rng = np.random.default_rng(0)

    def array(shape, dtype):
        if dtype == "bool":
            return rng.integers(0, 2, shape).astype(bool)
        if "int" in dtype:
            return rng.integers(1, 4, shape).astype(dtype)
        return rng.standard_normal(shape).astype(dtype)

    return [array([int(d) for d in p.shape], str(p.dtype)) for p in func.params]


def run(func: tirx.PrimFunc, arrays) -> list[np.ndarray]:
    tensors = [tvm.runtime.tensor(a) for a in arrays]
    built(func.with_attr("tirx.noalias", True))["kernel"](*tensors)
    return [t.numpy() for t in tensors]


@pytest.mark.variants(3)
@pytest.mark.parametrize("name", CASES)
def test_result_does_not_change(name, monkeypatch):
    monkeypatch.setattr(generic, "_WORTH_THREADS", 0)
    for func in prim_funcs(*CASES[name]):
        arrays = random_arguments(func)
        expected = run(func, arrays)
        for threads in (1, 3):
            actual = run(schedule_generic(func, replace(MACHINE, threads=threads)), arrays)
            for a, e in zip(actual, expected, strict=True):
                np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5)


@pytest.mark.variants(2)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["softmax", "mean_blocked", "sum_last", "layer_norm", "add_relu"])
def test_special_values_are_kept(name, value):
    (func,) = prim_funcs(*CASES[name])
    arrays = random_arguments(func)
    arrays[0].flat[5] = value
    expected, actual = run(func, arrays), run(schedule_generic(func, MACHINE), arrays)
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["max_last", "min_all"])
def test_a_running_maximum_is_vectorized_and_keeps_special_values(name, value):
    (func,) = prim_funcs(*CASES[name])
    kept = KeepNan()(tvm.IRModule({"main": func}))["main"]
    scheduled = schedule_kernel(kept, MACHINE)
    assert "T.vectorized" in scheduled.script()
    arrays = random_arguments(func)
    arrays[0][-1] = value  # all of a row, so that nothing hides where a maximum starts
    arrays[0].flat[5] = np.nan
    actual = run(scheduled, arrays)[-1]
    reduce = np.max if name == "max_last" else np.min
    np.testing.assert_array_equal(actual, reduce(arrays[0], -1 if name == "max_last" else None))


def scheduled_text(name, **changes) -> str:
    (func,) = prim_funcs(*CASES[name])
    return schedule_generic(func, replace(MACHINE, **changes)).script()


def test_contiguous_loops_become_one_vectorized_loop():
    text = scheduled_text("add_relu")  # 1 x 20 x 13 x 13 is no multiple of 8 but in one piece
    assert text.count("T.grid(") == 0
    assert text.count("for ") == 1
    assert scheduled_text("relu").count("T.vectorized(T.int64(8))") == 1


def test_rounding_is_left_to_llvm():
    (func,) = prim_funcs(op.round, [(1, 64, 56, 56)])
    assert "T.vectorized" not in schedule_generic(func, MACHINE).script()


def test_merged_loops_that_tvm_cannot_see_through_are_left_to_llvm():
    text = scheduled_text("odd_rows")  # 8 divides 40, so TVM simplifies // 40 but not % 5
    assert "T.vectorized" not in text and text.count("for ") == 1


@pytest.mark.variants(2)
@pytest.mark.parametrize("lanes, registers", [(4, 32), (8, 16), (16, 32)])
@pytest.mark.parametrize("name", ["mean_blocked", "sum_last", "matmul", "conv", "layer_norm"])
def test_reductions_accumulate_in_registers(name, lanes, registers):
    machine = replace(MACHINE, lanes=lanes, registers=registers)
    (func,) = prim_funcs(*CASES[name])
    scheduled = schedule_generic(func, machine)
    assert "T.vectorized" in scheduled.script()
    assert heap_buffers(scheduled) <= heap_buffers(func)


def test_steps_of_a_running_sum_go_row_by_row():
    funcs = prim_funcs(*CASES["running"])
    scheduled = [schedule_generic(func, replace(MACHINE, threads=3)) for func in funcs]
    assert len(funcs) == 1 and heap_buffers(funcs[0]) > 0
    assert heap_buffers(scheduled[0]) == 0


def test_an_exponential_is_not_computed_twice():
    assert scheduled_text("softmax").count("T.exp(") == 1


def test_threads_only_where_the_work_is_worth_it():
    assert "T.parallel" not in scheduled_text("add_relu", threads=4)
    (large,) = prim_funcs(op.nn.relu, [(1, 64, 56, 56)])
    assert "T.parallel" in schedule_generic(large, replace(MACHINE, threads=4)).script()
    assert "T.parallel" not in schedule_generic(large, MACHINE).script()


@pytest.mark.parametrize("threads", [1, 4])
def test_loops_of_tvm_wake_no_threads_inside_others(threads):
    shapes, dtypes = [(128, 64), (16, 1), (16, 64)], [None, "int64", None]
    (func,) = prim_funcs(lambda *given: op.scatter_nd(*given, "update"), shapes, dtypes)
    assert "T.parallel" in func.script()
    scheduled = schedule_kernel(func, replace(MACHINE, threads=threads))
    assert "T.parallel" not in scheduled.script()
    arrays = random_arguments(func)
    for expected, got in zip(run(func, arrays), run(scheduled, arrays), strict=True):
        np.testing.assert_array_equal(expected, got)


def test_a_transposition_that_thrashes_the_cache_is_walked_in_squares():
    (func,) = prim_funcs(op.permute_dims, [(160, 144)], ["float64"])
    loops = schedule_generic(func, MACHINE).script()
    assert "T.grid(T.int64(9), T.int64(10), T.int64(16), T.int64(16))" in loops


def test_unblocking_reads_each_cache_line_once():
    blocked = te.placeholder((1, 3, 7, 7, 8), name="x")
    plain = te.compute((1, 24, 7, 7), lambda n, c, h, w: blocked[n, c // 8, h, w, c % 8])
    func = te.create_prim_func([blocked, plain])
    scheduled = schedule_generic(func, MACHINE)
    assert "in T.grid(3, 49)" in scheduled.script()
    assert "in T.unroll(8)" in scheduled.script()
    arrays = random_arguments(func)
    np.testing.assert_array_equal(run(func, arrays)[1], run(scheduled, arrays)[1])


def test_what_is_scheduled_already_stays():
    x = te.placeholder((4, 8), name="x")
    func = te.create_prim_func([x, te.compute((4, 8), lambda i, j: x[i, j] + 1.0)])
    (once,) = [schedule_generic(func, MACHINE)]
    twice = schedule_generic(once, MACHINE)
    tvm.ir.assert_structural_equal(once, twice)
    lowered = tirx.PrimFunc(func.params, tirx.Evaluate(0)).with_attrs({"s_tir": True})
    tvm.ir.assert_structural_equal(schedule_generic(lowered, MACHINE), lowered)
