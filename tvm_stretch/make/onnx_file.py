"""A whole network as an ONNX model, with processors and meeting points as metadata.

    model      tvm_stretch.processors = {"cpu": ["conv2d7.p0", ..], "opencl": ["conv2d7.p1", ..]}
               tvm_stretch.meeting_points = ["relu", "relu3", "softmax"]
    each node  tvm_stretch.operator = conv2d7.p1, tvm_stretch.processor = opencl

NN-Stretch ships its networks in this form. Engines that do not know the metadata compute the same.
The model's lists name nodes, because tools that rewrite a file drop the metadata of nodes and keep
their names; `read/onnx/placed.py` reads the lists back. Without a plan they have the branches of a
stretched network.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import onnx
import tvm
from tvm import relax

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.make.lowering.lower import names_of_outputs
from tvm_stretch.network.expressions import results_of
from tvm_stretch.network.operators import Operators
from tvm_stretch.network.properties.meeting_points import detect_meeting_points
from tvm_stretch.passes.duplicate_and_scale import processors_of_branches
from tvm_stretch.plan.plan import Plan
from tvm_stretch.targets.engines.code.onnx_operators import rule_of, why_not_onnx
from tvm_stretch.targets.engines.code.onnx_region import Graph, model_of, written

_IR_VERSION = 10  # the first one whose nodes have metadata
_MOST_BYTES = (1 << 31) - 1  # of a protobuf


def onnx_file(mod: tvm.IRModule, plan: Plan | None) -> bytes:
    """The ONNX file of canonical Relax, to which the plan's shares and splits were applied."""
    main = mod["main"]
    operators = Operators(main)
    _require_forms(operators)
    names = frozenset(operator.name for operator in operators)
    inputs = [param.name for param in main.params]
    outputs = names_of_outputs(main, len(results_of(main)))
    placed = processors_of_branches(mod) if plan is None else plan.processor_of()
    nodes_of: dict[str, list[str]] = {} if plan is None else {name: [] for name in plan.processors}
    graph = Graph(reserved=names.union(inputs, outputs))
    for var, nodes in written(graph, main, inputs, rule_of):
        if var.name in names.difference(outputs):
            _name_result(graph, var, nodes)
        for number, node in enumerate(reversed(nodes)):
            node.name = f"{var.name}.{number}" if number else var.name
            _note(node, "operator", var.name)
            processor = placed.get(var.name)
            if processor is not None:
                _note(node, "processor", processor)
                nodes_of.setdefault(processor, []).append(node.name)
    points = [point.tensor for point in detect_meeting_points(operators).points]
    called = {var.name: value for var, value in graph.names.items()}
    called |= {var.name: name for var, name in zip(results_of(main), outputs, strict=True)}
    model = model_of(graph, main, inputs, outputs, _IR_VERSION)
    _note(model, "meeting_points", json.dumps([called[point] for point in points]))
    if nodes_of:
        _note(model, "processors", json.dumps(nodes_of))
    if model.ByteSize() > _MOST_BYTES:
        raise UnsupportedError(
            f"expected at most 2 GiB for an ONNX file, got {model.ByteSize()} bytes; compile the "
            "network and export the model"
        )
    data: bytes = model.SerializeToString()
    return data


def _require_forms(operators: Operators) -> None:
    for operator in operators:
        value = operator.binding.value
        reason = why_not_onnx(value) if isinstance(value, relax.Call) else None
        if reason is not None:
            raise UnsupportedError(
                f"expected operators that can be written as ONNX, got {operator.name}: {reason}; "
                "compile the network and export the model"
            )


def _name_result(graph: Graph, var: relax.Var, nodes: Sequence[onnx.NodeProto]) -> None:
    """Give the result the operator's name, so that metadata can refer to it."""
    old = graph.names[var]
    if all(old not in node.output for node in nodes):
        return  # another operator's value
    for node in nodes:
        for values in (node.input, node.output):
            values[:] = [var.name if value == old else value for value in values]
    graph.names[var] = var.name


def _note(owner: onnx.NodeProto | onnx.ModelProto, key: str, value: str) -> None:
    owner.metadata_props.add(key=f"tvm_stretch.{key}", value=value)
