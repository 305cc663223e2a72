"""Small networks for tests of the runtime: kernel-level Relax, built in well under a second."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import tvm
from helpers.cpu_targets import TARGET
from helpers.relax_helpers import module, random_const
from tvm import relax, te, topi

import tvm_stretch as ts
from tvm_stretch.make.assemble import Planned, assemble
from tvm_stretch.run.model import Model
from tvm_stretch.targets.cpu.cpu import cpu_processor

SHAPE = (1, 8, 16, 16)
WEIGHT = np.random.default_rng(7).standard_normal((8, 16)).astype("float32")


def build(
    emit: Callable[[relax.BlockBuilder, list[relax.Var]], list[relax.Expr]],
    inputs: dict[str, tuple[tuple[int, ...], str]],
    output_names: Sequence[str] = (),
) -> Model:
    """A model of the function that `emit` writes."""
    mod = kernel_ir(emit, inputs)
    mod["main"] = mod["main"].with_attr("output_names", [*output_names])
    return build_model(mod, TARGET)


def build_model(mod: tvm.IRModule, target: tvm.target.Target, threads: int = 1) -> Model:
    """A model of kernels that have their loop nests; those for one thread must be serial."""
    host = cpu_processor(tvm.target.Target("llvm"), threads)
    code = dataclasses.replace(host.code, schedule=None)  # type: ignore[arg-type]
    host = dataclasses.replace(host, target=target, code=code)
    return Model.from_parts(assemble([Planned(mod)], [host]))


def kernel_ir(
    emit: Callable[[relax.BlockBuilder, list[relax.Var]], list[relax.Expr]],
    inputs: dict[str, tuple[tuple[int, ...], str]],
) -> tvm.IRModule:
    """The module that `build` compiles."""
    builder = relax.BlockBuilder()
    params = [relax.Var(name, relax.TensorType(*type_)) for name, type_ in inputs.items()]
    with builder.function("main", params):
        with builder.dataflow():
            outputs = [builder.emit_output(item) for item in emit(builder, params)]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else outputs)
    return builder.get()


def parallel_ir() -> tvm.IRModule:
    """One kernel whose outer loop is parallel."""
    a = te.placeholder((64, 4096), name="a")
    b = te.compute(a.shape, lambda i, j: te.exp(a[i, j]), name="b")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([a, b]))
    schedule.parallel(schedule.get_loops(schedule.get_sblock("b"))[0])
    builder = relax.BlockBuilder()
    kernel = builder.add_func(schedule.mod["main"], "exp")
    x = relax.Var("x", relax.TensorType((64, 4096), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            call = relax.call_tir(kernel, [x], relax.TensorType((64, 4096), "float32"))
            out = builder.emit_output(builder.emit(call))
        builder.emit_func_output(out)
    return builder.get()


def emit_scaled(builder: relax.BlockBuilder, params: list[relax.Var]) -> list[relax.Expr]:
    """(x + x) * exp(weight): the exponential of the weights is `prepare` work."""
    scale = builder.emit_te(topi.exp, relax.const(WEIGHT))
    scale = builder.emit(relax.op.reshape(scale, (1, 8, 16, 1)))
    hidden = builder.emit_te(topi.add, params[0], params[0])
    return [builder.emit_te(topi.multiply, hidden, scale)]


def scaled_reference(x: np.ndarray) -> np.ndarray:
    """What `emit_scaled` computes."""
    return (x + x) * np.exp(WEIGHT).reshape(1, 8, 16, 1)


def random_input(seed: int = 0) -> np.ndarray:
    """An input of `emit_scaled`."""
    return np.random.default_rng(seed).standard_normal(SHAPE).astype("float32")


def scaled_model(**options: object) -> Model:
    """The model of `emit_scaled`, with the input `x`."""
    return build(emit_scaled, {"x": (SHAPE, "float32")}, **options)


def compiled(size: int) -> ts.Model:
    """A model whose kernels no other size has."""

    def body(x: relax.Expr) -> relax.Expr:
        x = relax.op.nn.relu(relax.op.nn.conv2d(x, random_const(8, 8, 3, 3, seed=1), padding=1))
        return relax.op.nn.max_pool2d(x, (2, 2), (2, 2))

    return ts.compile(module(body, (1, 8, size, 8)), TARGET, cpu_threads=1)


def answer(model: ts.Model) -> np.ndarray:
    """From an input that only depends on its shape."""
    shape = model.inputs[0].shape
    return model(np.random.default_rng(0).standard_normal(shape).astype("float32"))


def copied(model: Model) -> int:
    """Bytes that runs of a model copy, once with each plan."""
    graph = model.graph
    copies = [node for node in graph.nodes if node.kernel == "tvm_stretch.copy"]
    return sum(graph.tensors[node.outputs[0]].bytes for node in copies)
