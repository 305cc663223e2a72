"""TVM's own `opencl` device, which the stock wheel lacks: tensors, kernels, modules, RPC."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import opencl_graphs  # noqa: F401  loads the library
import pytest
import tvm
import tvm_ffi
from tvm import relax, te
from tvm.s_tir import dlight
from tvm.target import Target

DEVICE = tvm.opencl(0)
TARGET = Target({"kind": "opencl", "max_num_threads": 256}, host={"kind": "llvm"})

if not DEVICE.exist:
    pytest.skip("no OpenCL device", allow_module_level=True)


def scale(size: int = 1024, dtype: str = "float32") -> tvm.runtime.Module:
    """Built by stock TVM, scheduled by dlight."""
    data = te.placeholder((size,), dtype, name="data")
    out = te.compute((size,), lambda i: data[i] * tvm.tirx.const(2, dtype), name="out")
    function = te.create_prim_func([data, out]).with_attr("global_symbol", "scale")
    with TARGET:
        mod = dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())(tvm.IRModule({"scale": function}))
    return tvm.tirx.build(mod, target=TARGET)


def check(module: tvm.runtime.Module, device: tvm.runtime.Device = DEVICE) -> None:
    x = np.arange(1024, dtype="float32")
    data, out = tvm.runtime.tensor(x, device), tvm.runtime.empty((1024,), "float32", device)
    module["scale"](data, out)
    np.testing.assert_array_equal(out.numpy(), 2 * x)


def test_attributes() -> None:
    assert not tvm.opencl(1000).exist
    assert DEVICE.max_threads_per_block > 0
    assert DEVICE.max_shared_memory_per_block > 0
    assert DEVICE.device_name
    assert DEVICE.multi_processor_count > 0
    assert DEVICE.total_global_memory > 0
    assert len(list(DEVICE.max_thread_dimensions)) == 3


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint8", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5, 7), (0, 4)])
def test_tensors_go_there_and_back(dtype: str, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    there = tvm.runtime.tensor(values, DEVICE)
    assert there.device == DEVICE
    np.testing.assert_array_equal(there.numpy(), values)
    copy = tvm.runtime.empty(shape, dtype, DEVICE)
    there.copyto(copy)
    np.testing.assert_array_equal(copy.numpy(), values)


def test_kernel_of_stock_tvm() -> None:
    module = scale()
    assert [m.kind for m in module.imports] == ["opencl"]
    assert "__kernel" in module.imports[0].inspect_source()
    for _ in range(3):
        check(module)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "float32"])
def test_scalars_as_arguments(dtype: str) -> None:
    data = te.placeholder((64,), dtype, name="data")
    factor = tvm.tirx.Var("factor", dtype)
    out = te.compute((64,), lambda i: data[i] + factor, name="out")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([factor, data, out]))
    (axis,) = schedule.get_loops("out")
    schedule.bind(axis, "threadIdx.x")
    function = schedule.mod["main"].with_attr("global_symbol", "scale")
    module = tvm.tirx.build(tvm.IRModule({"scale": function}), target=TARGET)
    x = np.arange(64).astype(dtype)
    result = tvm.runtime.empty((64,), dtype, DEVICE)
    module["scale"](3, tvm.runtime.tensor(x, DEVICE), result)
    np.testing.assert_array_equal(result.numpy(), x + np.array(3, dtype))


def test_artifact_of_stock_tvm(tmp_path: Path) -> None:
    scale().export_library(str(tmp_path / "scale.so"))
    check(tvm.runtime.load_module(str(tmp_path / "scale.so")))


def test_time_evaluator() -> None:
    data = tvm.runtime.tensor(np.zeros(1024, "float32"), DEVICE)
    out = tvm.runtime.empty((1024,), "float32", DEVICE)
    assert scale().time_evaluator("scale", DEVICE, number=10, repeat=3)(data, out).mean > 0


def network() -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 8, 14, 14), "float32"))
    weight = np.random.default_rng(0).standard_normal((16, 8, 3, 3)).astype("float32")
    with builder.function("main", [x]):
        with builder.dataflow():
            conv = builder.emit(relax.op.nn.conv2d(x, relax.const(weight), padding=1))
            y = builder.emit(relax.op.nn.relu(conv))
            y = builder.emit(relax.op.nn.max_pool2d(y, (2, 2), (2, 2)))
            out = builder.emit_output(relax.op.mean(y, [2, 3]))
        builder.emit_func_output(out)
    return builder.get()


def test_network_by_stock_tvm() -> None:
    x = np.random.default_rng(1).standard_normal((1, 8, 14, 14)).astype("float32")
    host = relax.VirtualMachine(tvm.compile(network(), "llvm"), tvm.cpu())
    want = host["main"](tvm.runtime.tensor(x)).numpy()
    with TARGET:
        compiled = tvm.compile(network(), TARGET)
    machine = relax.VirtualMachine(compiled, DEVICE)
    got = machine["main"](tvm.runtime.tensor(x, DEVICE)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_threads_share_a_kernel() -> None:
    module = scale()
    failures: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(20):
                check(module)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_damaged_modules_are_refused() -> None:
    load = tvm_ffi.get_global_func("ffi.Module.load_from_bytes.opencl")
    for damaged in (b"", bytes(8), b"\xff" * 40, (2).to_bytes(8, "little") + b"cl" + b"\x07" * 20):
        with pytest.raises(ValueError, match="expected"):
            load(damaged)


@pytest.mark.full
def test_over_rpc(tmp_path: Path) -> None:
    from tvm import rpc

    path = tmp_path / "scale.so"
    scale().export_library(str(path))
    server = rpc.Server(host="127.0.0.1", port=19190, port_end=19290)
    try:
        for attempt in range(50):
            try:
                remote = rpc.connect(server.host, server.port)
                break
            except Exception:
                if attempt == 49:
                    raise
                time.sleep(0.2)
        remote.upload(str(path))
        module, device = remote.load_module("scale.so"), remote.device("opencl", 0)
        assert device.exist
        check(module, device)
        data = tvm.runtime.tensor(np.zeros(1024, "float32"), device)
        out = tvm.runtime.empty((1024,), "float32", device)
        assert module.time_evaluator("scale", device, number=5)(data, out).mean > 0
    finally:
        server.terminate()
