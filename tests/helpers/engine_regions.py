"""Regions of quantised networks as engines get them, and their operators one by one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime
import tvm
from onnx import ModelProto, ValueInfoProto, numpy_helper
from tvm import relax

from tvm_stretch.network.expressions import tensor_types
from tvm_stretch.network.integers import integer_of
from tvm_stretch.network.operators import Calls
from tvm_stretch.passes.partition_regions import PartitionRegions
from tvm_stretch.passes.tag import TagOperators
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.read import load_network
from tvm_stretch.targets.engines.code.onnx_operators import why_not_onnx
from tvm_stretch.targets.engines.code.onnx_scales import bindings


def regions(network: ModelProto) -> tuple[tvm.IRModule, list[relax.Function]]:
    """A quantised network's module, and its longest runs of operators of 8 bits."""
    mod = load_network(network)
    runs: list[list[str]] = [[]]
    for name, call in Calls(mod["main"]).calls.items():
        eight = all(
            str(ty.dtype) in ("uint8", "int8")
            for e in (call, *call.args)
            if isinstance(e, relax.Var) or e is call
            for ty in tensor_types(e)
        )
        if eight and why_not_onnx(call) is None:
            runs[-1].append(name)
        else:
            runs += [[name], []]
    listed = tuple(PlannedRegion(f"r{n}", "cpu", tuple(r)) for n, r in enumerate(runs) if r)
    cut = PartitionRegions()(TagOperators(Plan(("cpu",), listed))(mod))
    return cut, [f for v, f in cut.functions.items() if v.name_hint[:1] == "r" and _is_long(f)]


def _is_long(function: object) -> bool:
    """Whether it is a region with several integer operators."""
    if not isinstance(function, relax.Function):
        return False
    return sum(integer_of(value) is not None for _, value in bindings(function)) > 1


def one_by_one(model: ModelProto) -> tuple[ModelProto, dict[str, str]]:
    """A region whose operators read inputs of the model, and the tensors that these stand for.

    Every quantised tensor is a result.
    """
    whole = onnx.shape_inference.infer_shapes(model)
    listed = (*whole.graph.value_info, *whole.graph.output)
    types = {value.name: value for value in listed}
    quantised = [n.output[0] for n in whole.graph.node if n.op_type == "QuantizeLinear"]
    there = {value.name for value in whole.graph.output}
    whole.graph.output.extend(types[name] for name in quantised if name not in there)
    stands_for = {}
    for node in whole.graph.node:
        name = node.input[0]
        if node.op_type == "DequantizeLinear" and name in quantised:
            stands_for[f"{name}_read"] = name
            node.input[0] = f"{name}_read"
    for read, name in stands_for.items():
        value = ValueInfoProto()
        value.CopyFrom(types[name])
        value.name = read
        whole.graph.input.append(value)
    return whole, stands_for


def on_the_cpu(model: ModelProto, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The results of a model in ONNX Runtime, in exact integers."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return _named(session, inputs)


def on_the_tensor_unit(
    model: ModelProto, inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The results of a model in ONNX Runtime with the HTP's emulator."""
    import onnxruntime_qnn

    name = "QNNExecutionProvider"
    if not any(device.ep_name == name for device in onnxruntime.get_ep_devices()):
        onnxruntime.register_execution_provider_library(name, onnxruntime_qnn.get_library_path())
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]
    options = onnxruntime.SessionOptions()
    settings = {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "htp_arch": "73"}
    options.add_provider_for_devices(devices[:1], settings)
    return _named(onnxruntime.InferenceSession(model.SerializeToString(), options), inputs)


def _named(
    session: onnxruntime.InferenceSession, inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def step_of(model: ModelProto) -> float:
    """The scale of the network's result."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    (last,) = (n for n in model.graph.node if model.graph.output[0].name in n.output)
    return float(numpy_helper.to_array(constants[last.input[1]]))
