"""Small networks of every kind whose artifacts Android has to load, with inputs for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import onnx
from helpers.onnx_models import every_template
from helpers.quantised_networks import IMAGES, excited, grouped, residual
from onnx import numpy_helper, parser

import tvm_stretch as ts
from tvm_stretch.plan.plan import Plan


class Small(NamedTuple):
    """A network and how it is compiled."""

    make: Callable[[], onnx.ModelProto]
    options: dict[str, Any] = {}  # noqa: RUF012  nobody writes to it
    gpu: bool = False  # planned for OpenCL, with kernels of the CPU to spare

    def compile(self, core: dict[str, Any]) -> ts.Model:
        """The model for a CPU."""
        targets = [core, "opencl"] if self.gpu else [core]
        plan = Plan(("cpu", "opencl"), ()) if self.gpu else None
        options = {"cpu_threads": 1, "plan": plan, "spare": self.gpu, **self.options}
        return ts.compile(self.make(), targets, **options)

    def inputs(self, model: ts.Model) -> dict[str, np.ndarray]:
        """Numbers for each input: whole ones are places in a table of 12 rows."""
        rng = np.random.default_rng(5)
        return {
            info.name: rng.standard_normal(info.shape).astype(info.dtype)
            if info.dtype.startswith("float")
            else rng.integers(0, 12, info.shape).astype(info.dtype)
            for info in model.inputs
        }


def text(body: str, inputs: str, outputs: str = "float[N] y", **weights: Any) -> onnx.ModelProto:
    """A network in ONNX's own text."""
    domains = '<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>'
    model = parser.parse_model(f"{domains} net ({inputs}) => ({outputs}) {{ {body} }}")
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return onnx.shape_inference.infer_shapes(model)


def quantised(make: Callable[[], onnx.ModelProto]) -> Callable[[], onnx.ModelProto]:
    return lambda: ts.quantize(make(), IMAGES)


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) / 4).astype("float32")


def unary(*operators: str) -> Callable[[], onnx.ModelProto]:
    """A sum of functions of one element, which are a C library's where LLVM has none."""
    terms = "".join(
        f"t{i} = {name}(x) s{i + 1} = Add(s{i}, t{i}) " for i, name in enumerate(operators)
    )
    body = f"s0 = Identity(x) {terms} y = Identity(s{len(operators)})"
    return lambda: text(body, "float[3, 37] x")


def nibbles(rows: int) -> Callable[[], onnx.ModelProto]:
    rng = np.random.default_rng(4)
    packed, scales = rng.integers(0, 256, (24, 2, 16), dtype="uint8"), np.abs(floats(48)) + 1
    node = "y = com.microsoft.MatMulNBits <K = 64, N = 24, bits = 4, block_size = 32> (x, w, s)"
    return lambda: text(node, f"float[1, {rows}, 64] x", w=packed, s=scales)


def attention() -> onnx.ModelProto:
    node = "y = com.microsoft.Attention <num_heads = 2> (x, w, b)"
    return text(node, "float[1, 9, 16] x", w=floats(16, 48), b=floats(48))


def recurrent(kind: str, gates: int) -> Callable[[], onnx.ModelProto]:
    node = f"h, y = {kind} <hidden_size = 8> (x, w, r)"
    weights = {"w": floats(1, gates * 8, 6), "r": floats(1, gates * 8, 8, seed=1)}
    return lambda: text(node, "float[5, 1, 6] x", **weights)


def normalised() -> onnx.ModelProto:
    body = """n = LayerNormalization(x, g) e = MatMul(n, w) h = Erf(e) m = Mul(h, e)
              p = Softmax(m) y = Pow(p, two)"""
    return text(body, "float[1, 7, 24] x", g=floats(24), w=floats(24, 24), two=np.float32(1.5))


def sorted_rows() -> onnx.ModelProto:
    body = """v, i = TopK(x, k) c = CumSum(v, axis) g = GatherElements <axis = 1> (x, i)
              y = Where(b, c, g)"""
    many = {
        "k": np.array([5]),
        "axis": np.array(1),
        "b": np.array([True, False, True, True, False]),
    }
    return text(body, "float[3, 11] x", **many)


def looked_up() -> onnx.ModelProto:
    body = """r = Gather(table, i) o = OneHot(i, depth, onoff) z = Concat <axis = 2> (r, o)
              y = ReduceL2 <keepdims = 0> (z)"""
    many = {"table": floats(12, 6), "depth": np.array(12), "onoff": np.float32([0, 1])}
    return text(body, "int64[1, 4] i", "float y", **many)


def stateful() -> onnx.ModelProto:
    body = "a = MatMul(past, w) s = Add(a, x) present = Tanh(s) y = MatMul(present, w)"
    return text(
        body,
        "float[1, 8] x, float[1, 8] past",
        "float[1, 8] y, float[1, 8] present",
        w=floats(8, 8),
    )


STATES = {"states": {"past": "present"}}
NETWORKS = {
    "floats": Small(residual),
    "groups": Small(grouped),
    "gate": Small(excited),
    "every template": Small(every_template),
    "two threads": Small(every_template, {"cpu_threads": 2}),
    "8 bits": Small(quantised(residual)),
    "8 bits, groups": Small(quantised(grouped)),
    "8 bits, gate": Small(quantised(excited)),
    "4 bits, a row": Small(nibbles(1)),
    "4 bits, rows": Small(nibbles(5)),
    "attention": Small(attention),
    "normalised": Small(normalised),
    "lstm": Small(recurrent("LSTM", 4)),
    "gru": Small(recurrent("GRU", 3)),
    "states": Small(stateful, STATES),
    "functions": Small(unary("Exp", "Tanh", "Sigmoid", "Erf", "Softplus", "Sqrt", "Mish", "Floor")),
    "angles": Small(unary("Sin", "Cos", "Tan", "Atan", "Sinh", "Cosh", "Asinh", "Round")),
    "sorted": Small(sorted_rows),
    "table": Small(looked_up),
    "OpenCL, spare": Small(residual, gpu=True),
    "8 bits, OpenCL, spare": Small(quantised(residual), gpu=True),
}
SAMPLE = ("8 bits", "functions", "lstm")
"""What `make test` takes of them."""
