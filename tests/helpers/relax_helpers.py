"""Build small Relax modules and run them on the stock virtual machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tvm
from helpers.relax_numpy import evaluate, knows
from tvm import relax
from tvm.ir import assert_structural_equal

from tvm_stretch.read import load_network

Body = Callable[..., relax.Expr]


def module(
    body: Body, *shapes: Sequence[int | str], dtype: str | Sequence[str] = "float32"
) -> tvm.IRModule:
    """A module whose ``main(x0, x1, ..)`` returns ``body(x0, x1, ..)``."""
    dtypes = [dtype] * len(shapes) if isinstance(dtype, str) else dtype
    bb = relax.BlockBuilder()
    names: dict[str, tvm.tirx.Var] = {}
    params = []
    for index, shape in enumerate(shapes):
        dims = [
            names.setdefault(d, tvm.tirx.Var(d, "int64")) if isinstance(d, str) else d
            for d in shape
        ]
        params.append(relax.Var(f"x{index}", relax.TensorType(dims, dtypes[index])))
    with bb.function("main", params):
        with bb.dataflow():
            result = bb.emit_output(bb.normalize(body(*params)))
        bb.emit_func_output(result)
    return bb.get()


def two_convolutions() -> tvm.IRModule:
    """conv2d -> relu -> conv2d1 -> relu1, of 16 channels and 9x9 pixels, canonical."""
    weights = [random_const(16, 16, 3, 3, seed=seed) for seed in range(2)]

    def body(x: relax.Expr) -> relax.Expr:
        for weight in weights:
            x = relax.op.nn.relu(relax.op.nn.conv2d(x, weight, padding=1))
        return x

    return load_network(module(body, (1, 16, 9, 9)))


def run(mod: tvm.IRModule, *inputs: np.ndarray) -> list[np.ndarray]:
    """Outputs of ``main`` on the CPU, without optimisation."""
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0})
    with target, tvm.transform.PassContext(opt_level=0):
        vm = relax.VirtualMachine(tvm.compile(mod, target), tvm.cpu())
    result = vm["main"](*[tvm.runtime.tensor(value) for value in inputs])
    return [r.numpy() for r in ([result] if hasattr(result, "numpy") else list(result))]


def answers(mod: tvm.IRModule, *inputs: np.ndarray) -> list[np.ndarray]:
    """The same, in NumPy where that is possible: compiling takes longer than all the rest."""
    if not knows(mod):
        return run(mod, *inputs)
    assert relax.analysis.check_well_formed(mod)
    result = evaluate(mod, *inputs)
    return result if isinstance(result, list) else [result]


def random_inputs(mod: tvm.IRModule, seed: int = 0) -> list[np.ndarray]:
    """One random array per parameter of ``main``."""
    rng = np.random.default_rng(seed)
    return [
        rng.standard_normal([int(d) for d in param.ty.shape.values]).astype(str(param.ty.dtype))
        for param in mod["main"].params
    ]


def assert_same_numerics(before: tvm.IRModule, after: tvm.IRModule, rtol: float = 1e-4) -> None:
    """Both modules compute the same from the same inputs.

    Where large numbers cancel, what is left has their rounding errors.
    """
    inputs = random_inputs(before)
    for want, got in zip(answers(before, *inputs), answers(after, *inputs), strict=True):
        largest = np.abs(want[np.isfinite(want)]).max(initial=0)
        np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-5 + 2e-6 * largest)


def assert_rewrites(
    transform: tvm.transform.Pass, before: tvm.IRModule, expected: tvm.IRModule
) -> None:
    """``transform`` turns ``before`` into ``expected``, and both compute the same."""
    after = transform(before)
    assert_structural_equal(after, expected, map_free_vars=True)
    assert_same_numerics(before, after)


def assert_unchanged(transform: tvm.transform.Pass, mod: tvm.IRModule) -> None:
    """``transform`` leaves ``mod`` alone."""
    assert_structural_equal(transform(mod), mod, map_free_vars=True)


def binding_names(mod: tvm.IRModule, function: str = "main") -> list[str]:
    """Names of all that a function binds, in order."""
    return [b.var.name for block in mod[function].body.blocks for b in block.bindings]


def op_names(mod: tvm.IRModule) -> list[str]:
    """Names of the operators that ``main`` calls, in order."""
    names = []
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.Call):
                names.append(getattr(binding.value.op, "name", "call"))
    return names


def random_const(*shape: int, seed: int = 1, positive: bool = False) -> relax.Expr:
    """A random float32 constant."""
    value = np.random.default_rng(seed).standard_normal(shape).astype("float32")
    return relax.const(np.abs(value) + 0.5 if positive else value)
