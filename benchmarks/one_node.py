"""A line of a table of operators becomes an ONNX model and its inputs.

    TopK  300x80~0,1 =[5]  axis=1 outputs=2

A line has an operator, its operands and its attributes, which `=` separates from their names.
`opset` and `outputs` are no attributes: they give the operator set and the number of outputs.
An operand is `[=][type:]shape[~least,most]` or `=[type:]literal`; `-` leaves it out:

    1x64x56x56      an input of float32, standard normal
    i64:5~0,100     an input of integers from 0 to 99; i64, i32, i8, u8, f16, f64 and bool
    boxes:9x4~0,1   an input of boxes, two corners each
    =64x64x3x3      a constant
    =[1,2]          a constant vector of int64, =f:[1,2] of float32; =(5) is a scalar
"""

from __future__ import annotations

import ast
import re
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.defs
from onnx import helper, numpy_helper

from benchmarks.harness import Model

TYPES = {
    "f": "float32", "f16": "float16", "f64": "float64", "i64": "int64", "i32": "int32",
    "i8": "int8", "u8": "uint8", "bool": "bool", "boxes": "float32",
}  # fmt: skip
OPSET = 20
_ATTRIBUTE = re.compile(r"[A-Za-z_]\w*=")
_ALIGNMENT = 64


@dataclass(frozen=True)
class Operator:
    """A line of a table."""

    op: str
    operands: tuple[str, ...]
    attributes: dict[str, Any]

    @property
    def line(self) -> str:
        """The operands and attributes as the table has them."""
        return " ".join((*self.operands, *(f"{k}={v}" for k, v in self.attributes.items())))


def operators(table: str) -> list[Operator]:
    """The lines of a table."""
    return [_operator(line) for line in table.splitlines() if line.strip()]


def _operator(line: str) -> Operator:
    op, *words = line.split()
    named = [word.partition("=") for word in words if _ATTRIBUTE.match(word)]
    operands = tuple(word for word in words if not _ATTRIBUTE.match(word))
    return Operator(op, operands, {name: _literal(text) for name, _, text in named})


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def model_of(operator: Operator) -> Model:
    """The operator as a model, and random inputs that are the same in each run."""
    rng = np.random.default_rng(zlib.crc32(f"{operator.op} {operator.line}".encode()))
    inputs: dict[str, np.ndarray] = {}
    constants: list[onnx.TensorProto] = []
    names = []
    for number, text in enumerate(operator.operands):
        names.append("" if text == "-" else f"x{number}")
        if text.startswith("="):
            constants.append(numpy_helper.from_array(_values(text[1:], rng), names[-1]))
        elif text != "-":
            inputs[names[-1]] = aligned(_values(text, rng))
    attributes = dict(operator.attributes)
    domain, _, op = operator.op.rpartition(".")
    opset = attributes.pop("opset", OPSET)
    outputs = attributes.pop("outputs", 0) or (
        1 if domain else onnx.defs.get_schema(op, opset).min_output
    )
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, names, results, domain=domain, **attributes)
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(domain, 1)] if domain else []

    def written(ports: list[onnx.ValueInfoProto]) -> bytes:
        given = [_port(name, value) for name, value in inputs.items()]
        graph = helper.make_graph([node], op, given, ports, constants)
        whole = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        return bytes(whole.SerializeToString())

    open_ports = [helper.make_empty_tensor_value_info(name) for name in results]
    found = Model(written(open_ports), inputs).session().run(None, inputs)
    return Model(written(list(map(_port, results, found))), inputs)


def _port(name: str, value: np.ndarray) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(value.dtype)
    return helper.make_tensor_value_info(name, kind, value.shape)


def _values(text: str, rng: np.random.Generator) -> np.ndarray:
    kind, separator, rest = text.partition(":")
    if not separator:
        kind, rest = ("i64" if text[0] in "[(" else "f"), text
    dtype = TYPES[kind]
    if rest[0] in "[(":
        return np.array(ast.literal_eval(rest), dtype)
    dims, _, limits = rest.partition("~")
    shape = tuple(map(int, dims.split("x")))
    least, most = map(float, limits.split(",")) if limits else (0.0, 0.0)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype.startswith("float"):
        values = rng.uniform(least, most, shape) if limits else rng.standard_normal(shape)
        if kind == "boxes":
            values = np.sort(values.reshape(-1, 2, 2), axis=1).reshape(shape)
        return values.astype(dtype)
    bounds = np.iinfo(dtype)
    low, high = (int(least), int(most)) if limits else (max(bounds.min, -999), min(bounds.max, 999))
    return rng.integers(low, high, shape, dtype)


def aligned(value: np.ndarray) -> np.ndarray:
    """The same numbers at an address that needs no copy."""
    memory = np.empty(value.nbytes + _ALIGNMENT, "uint8")
    start = -memory.ctypes.data % _ALIGNMENT
    whole = memory[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
    whole[...] = value
    return whole
