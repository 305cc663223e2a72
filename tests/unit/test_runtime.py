"""The model handle and the executor behind it: calls, bad input, threads."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType

import ml_dtypes
import numpy as np
import pytest
import tvm
from helpers.cpu_targets import TARGET
from helpers.small_models import (
    SHAPE,
    build,
    build_model,
    kernel_ir,
    parallel_ir,
    random_input,
    scaled_model,
    scaled_reference,
)
from tvm import relax, topi

from tvm_stretch.base.errors import ArtifactError, InputError, TargetError
from tvm_stretch.run.benchmark import KernelTime, ProfileResult
from tvm_stretch.run.model import Model
from tvm_stretch.run.values import TensorInfo


@pytest.fixture(scope="module")
def model() -> Model:
    return scaled_model()


def check(model: Model, x: object, expected_for: np.ndarray) -> None:
    np.testing.assert_allclose(np.from_dlpack(model(x)), scaled_reference(expected_for), rtol=1e-5)


def test_call_by_position_and_by_name(model: Model) -> None:
    x = random_input()
    check(model, x, x)
    np.testing.assert_array_equal(model(x=x), model(x))


def shifted(x: np.ndarray, offset: int) -> np.ndarray:
    """A copy that starts `offset` bytes after a 64-byte boundary."""
    raw = np.zeros(x.nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 64 + offset
    copy = raw[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def readonly(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.flags.writeable = False
    return x


@pytest.mark.parametrize(
    "arrange",
    [
        lambda x: shifted(x, 0),
        lambda x: shifted(x, 4),
        readonly,
        np.asfortranarray,
        lambda x: np.repeat(x, 2, axis=3)[..., ::2],
        lambda x: x[:, ::-1].copy()[:, ::-1],
        lambda x: tvm.runtime.tensor(x),
    ],
    ids=["aligned", "unaligned", "read-only", "fortran", "strided", "reversed", "tvm"],
)
def test_any_memory_layout(model: Model, arrange: object) -> None:
    x = random_input(1)
    check(model, arrange(x), x)


def test_torch_tensors(model: Model) -> None:
    torch = pytest.importorskip("torch")
    x = random_input(2)
    check(model, torch.from_numpy(x), x)
    check(model, torch.from_numpy(x).permute(0, 1, 3, 2).contiguous().permute(0, 1, 3, 2), x)
    flipped = torch._neg_view(torch.from_numpy(-x))  # the sign is a bit of the view
    y = model(flipped)
    assert isinstance(y, torch.Tensor)
    np.testing.assert_allclose(y.numpy(), scaled_reference(x), rtol=1e-5)


def test_numpy_in_numpy_out(model: Model) -> None:
    x = random_input(6)
    y = model(x)
    assert isinstance(y, np.ndarray)
    assert np.argmax(y) == np.argmax(scaled_reference(x))
    assert ((y > 0) == (x > 0)).all()
    y += 1  # it is the caller's own
    assert isinstance(model.run_async(x).result(), np.ndarray)
    assert isinstance(model(tvm.runtime.tensor(x)), tvm.runtime.Tensor)


def test_numbers_that_numpy_does_not_know() -> None:
    bfloat16 = build(lambda b, p: [b.emit_te(topi.add, p[0], p[0])], {"x": ((4,), "bfloat16")})
    x = np.arange(4).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(bfloat16(x), 2 * x)


def test_inputs_are_not_changed_and_outputs_are_fresh(model: Model) -> None:
    x = shifted(random_input(3), 0)
    before = x.copy()
    first = model(x)
    kept = first.copy()
    model(shifted(random_input(4), 0))
    np.testing.assert_array_equal(x, before)
    np.testing.assert_array_equal(first, kept)


def test_nan_and_infinity_pass_through(model: Model) -> None:
    x = random_input(5)
    x[0, 0, 0, :3] = np.nan, np.inf, -np.inf
    check(model, x, x)
    assert np.isnan(model(x)[0, 0, 0, 0])


def test_several_outputs_dtypes_and_names() -> None:
    def emit(b: relax.BlockBuilder, p: list[relax.Var]) -> list[relax.Expr]:
        return [b.emit_te(topi.add, p[0], p[0]), b.emit_te(topi.equal, p[1], p[1]), p[1]]

    two = build(
        emit, {"a": ((2, 3), "int64"), "b": ((4,), "float32")}, output_names=["s", "e", "c:0"]
    )
    a, b = np.arange(6, dtype="int64").reshape(2, 3), np.array([1, np.nan, 3, 4], "float32")
    outputs = two(b=b, a=a)
    assert outputs._fields == ("s", "e", "c_0")
    assert two.inputs == (TensorInfo("a", (2, 3), "int64"), TensorInfo("b", (4,), "float32"))
    assert [str(info) for info in two.outputs] == [
        "s: int64[2, 3]",
        "e: bool[4]",
        "c:0: float32[4]",
    ]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(outputs))[0], outputs.s)
    np.testing.assert_array_equal(outputs[0], 2 * a)
    np.testing.assert_array_equal(outputs[1], b == b)
    np.testing.assert_array_equal(outputs[2], b)
    assert [port.name for port in two.graph.outputs] == ["s", "e", "c:0"]
    np.testing.assert_array_equal(two(a, b=b)[0], 2 * a)
    np.testing.assert_array_equal(two({"b": b, "a": a})[0], 2 * a)
    np.testing.assert_array_equal(two(MappingProxyType({"b": b}), a=a)[0], 2 * a)
    np.testing.assert_array_equal(two.run_async({"b": b, "a": a}).result()[0], 2 * a)


X = random_input()


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, r"got none for \['x'\]"),
        ((X, X), {}, "expected 1 inputs"),
        ((), {"y": X}, "unknown"),
        ((X,), {"x": X}, "twice"),
        (({},), {}, r"got none for \['x'\]"),
        (({"x": X, "y": X},), {}, r"got 'y' \(an unknown one\)"),
        (({1: X},), {}, r"got 1 \(an unknown one\)"),
        (({"x": X},), {"x": X}, r"got 'x' \(twice\)"),
        (({"x": None},), {}, "got NoneType"),
        ((X[:, :4],), {}, r"float32\[1, 8, 16, 16\] for input 'x', got float32\[1, 4, 16, 16\]"),
        ((X[0],), {}, r"got float32\[8, 16, 16\]"),
        ((X.astype("float64"),), {}, r"got float64\["),
        ((X.astype(">f4"),), {}, r"got >f4\["),
        ((X.tolist(),), {}, "got list"),
        ((None,), {}, "got NoneType"),
        ((tvm.runtime.tensor(X[0]),), {}, r"got float32\[8, 16, 16\]"),
    ],
)
def test_bad_calls_are_refused(model: Model, args: tuple, kwargs: dict, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        model(*args, **kwargs)
    assert str(caught.value).startswith("expected ")
    check(model, X, X)  # and the model still works


@pytest.mark.parametrize(
    ("method", "args", "said"),
    [
        ("set_input", ("y", X), "expected one of 'x'"),
        ("set_input", (1, X), "expected one of 'x'"),
        ("set_input", ("x",), "expected 2 to 2 arguments"),
        ("set_input", ("x", X[0]), "got float32"),
        ("get_output", (1,), "expected a position below 1"),
        ("get_output", (-1,), "expected a position below 1"),
        ("invoke", (X, X, X), "expected 2 to 2 arguments"),
        ("run", (), "before run"),
        *(
            ("set_affinity", (text,), f"a list of cores like .* got '{text}'")
            for text in ("0-", "0,", ",0", "-1", "1-0", "0--1", " 0", "0x", "9999999999999")
        ),
        ("trace", (), "before run"),
    ],
)
def test_executor_refuses_bad_arguments(model: Model, method: str, args: tuple, said: str) -> None:
    module = model.create_instance().module
    args = tuple(tvm.runtime.tensor(a) if isinstance(a, np.ndarray) else a for a in args)
    with pytest.raises((ValueError, TypeError), match=said):
        module[method](*args)


def test_executor_methods(model: Model) -> None:
    module = model.create_instance().module
    module["set_input"]("x", tvm.runtime.tensor(X))
    module["run"]()
    expected = scaled_reference(X)
    np.testing.assert_allclose(module["get_output"](0).numpy(), expected, rtol=1e-5)
    target = tvm.runtime.empty(SHAPE, "float32")
    module["get_output"](0, target)
    np.testing.assert_allclose(target.numpy(), expected, rtol=1e-5)
    assert (module["num_inputs"](), module["num_outputs"]()) == (1, 1)
    # A call with borrowed memory in between must not be seen by the next run.
    model.create_instance()(random_input(8))
    module["run"]()
    np.testing.assert_allclose(module["get_output"](0).numpy(), expected, rtol=1e-5)


def test_invoke_does_not_keep_borrowed_memory(model: Model) -> None:
    module = model.create_instance().module
    module["set_input"](0, tvm.runtime.tensor(X))
    other = tvm.runtime.tensor(random_input(9))
    result = tvm.runtime.empty(SHAPE, "float32")
    module["invoke"](other, result)
    kept = result.numpy().copy()
    module["run"]()
    np.testing.assert_allclose(module["get_output"](0).numpy(), scaled_reference(X), rtol=1e-5)
    np.testing.assert_array_equal(result.numpy(), kept)


def test_outputs_have_memory_of_their_own() -> None:
    def emit(b: relax.BlockBuilder, p: list[relax.Var]) -> list[relax.Expr]:
        return [b.emit_te(topi.flip, p[0], 0), b.emit_te(topi.negative, p[0])]

    module = build(emit, {"x": ((64,), "float32")}).module
    x = tvm.runtime.tensor(np.arange(64, dtype="float32"))
    y = tvm.runtime.empty((64,), "float32")
    with pytest.raises(ValueError, match=r"memory of its own for each output, got .* 0 and 1"):
        module["invoke"](x, y, y)
    module["invoke"](x, x, y)  # the memory of an input is taken when it is not needed any more
    np.testing.assert_array_equal(x.numpy(), np.arange(64, dtype="float32")[::-1])
    np.testing.assert_array_equal(y.numpy(), -np.arange(64, dtype="float32"))


def test_instances_run_at_the_same_time(model: Model) -> None:
    inputs = [random_input(seed) for seed in range(4)]
    start = threading.Barrier(4)

    def work(x: np.ndarray) -> bool:
        mine = model.create_instance()
        start.wait()
        return all(np.allclose(mine(x), scaled_reference(x)) for _ in range(50))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, inputs))


def test_threads_may_share_one_instance(model: Model) -> None:
    inputs = [random_input(seed) for seed in range(4)]

    def work(x: np.ndarray) -> bool:
        return all(np.allclose(model(x), scaled_reference(x)) for _ in range(50))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, inputs))


def test_parallel_kernels() -> None:
    two = build_model(parallel_ir(), TARGET, threads=2)
    x = np.random.default_rng(0).standard_normal((64, 4096)).astype("float32")
    with ThreadPoolExecutor(2) as pool:
        for y in pool.map(lambda _: two.create_instance()(x), range(4)):
            np.testing.assert_allclose(y, np.exp(x), rtol=1e-5)


def test_benchmark_and_profile(model: Model) -> None:
    result = model.benchmark(repeat=7)
    assert len(result.samples) == 7
    assert min(result.samples) <= result.median <= max(result.samples)
    assert 0 <= result.spread <= max(result.samples) - min(result.samples)
    assert "7 runs" in repr(result)
    profile = model.profile(repeat=3)
    assert [k.kernel.split("_")[0] for k in profile.kernels] == ["add", "multiply"]
    assert sum(k.share for k in profile.kernels) == pytest.approx(1)
    assert profile.total == pytest.approx(sum(k.seconds for k in profile.kernels))
    assert repr(profile).splitlines()[0].split() == ["µs", "share", "kernel", "output", "node"]
    assert "x: float32[1, 8, 16, 16]" in repr(model)


@pytest.mark.parametrize("measure", [Model.benchmark, Model.profile, Model.timeline])
def test_nothing_is_measured_in_no_runs(model: Model, measure: Callable[..., object]) -> None:
    with pytest.raises(InputError, match="expected at least 1 for repeat, got 0"):
        measure(model, repeat=0)


def test_model_for_another_processor_is_refused_when_called() -> None:
    arm = tvm.target.Target(
        {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon", "+sve"]}
    )
    mod = kernel_ir(lambda b, p: [b.emit_te(topi.exp, p[0])], {"x": ((4,), "float32")})
    with pytest.raises(ArtifactError, match="expected a processor with"):
        build_model(mod, arm)(np.zeros(4, "float32"))


def test_other_targets_are_refused() -> None:
    mod = kernel_ir(lambda b, p: [b.emit_te(topi.exp, p[0])], {"x": ((4,), "float32")})
    with pytest.raises(TargetError, match="expected an llvm target"):
        build_model(mod, tvm.target.Target("c"))


def test_a_profile_prints_the_slowest_kernels_and_the_sum_of_the_others() -> None:
    kernels = tuple(
        KernelTime(f"n{i}", f"k{i}", "float32[1]", i * 1e-6, i / 210) for i in range(21)
    )
    profile = ProfileResult(kernels)
    lines = repr(profile).splitlines()
    assert len(lines) == 1 + 15 + 2
    assert lines[1].split()[2] == "k20" and lines[-3].split()[2] == "k6"
    assert lines[-2].split()[:2] == ["15.0", "7.1%"] and "6 others" in lines[-2]
    assert len(profile.table().splitlines()) == 1 + 21 + 1 and "others" not in profile.table()
    assert "others" not in repr(ProfileResult(kernels[:15]))
