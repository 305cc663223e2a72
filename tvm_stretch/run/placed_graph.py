"""The graph that runs, for other programs to show: Model Explorer and Netron.

    model.report("net.json")   a graph for Model Explorer, coloured by processor, and
                               net.times.json, node data that colours it by time
    model.report("net.onnx")   operators of domains named like processors, for Netron

Both are made of what the page shows (`report.collect`). An ONNX file of this kind is a drawing: it
has no weights, and nothing can run it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from onnx import ModelProto, TensorProto, helper

_COLOURS = ("#cfe0f7", "#fbe0c4", "#cdebdc", "#ead5f0", "#f5d1cf", "#dfe2e7")
_HOT = ("#ffffff", "#e5484d")


def model_explorer_graph(data: Mapping[str, Any]) -> str:
    """A graph collection: nodes are kernels, grouped by the regions of their processors."""
    names = [region["name"] for region in data["regions"]]
    nodes = []
    for index, node in enumerate(data["nodes"]):
        region = data["regions"][node["region"]]
        processor = data["processors"][region["processor"]]
        colour = _COLOURS[region["processor"] % len(_COLOURS)]
        nodes.append(
            {
                "id": str(index),
                "label": node["kind"],
                "namespace": f"{names[node['region']]} on {processor}".replace("/", "_"),
                "attrs": [{"key": k, "value": v} for k, v in _attributes(node, processor).items()],
                "incomingEdges": [{"sourceNodeId": str(source)} for source in node["after"]],
                "outputsMetadata": [
                    {"id": str(i), "attrs": [{"key": "shape", "value": shape}]}
                    for i, shape in enumerate(node["outputs"])
                ],
                "style": {"backgroundColor": colour},
            }
        )
    return json.dumps({"label": data["title"], "graphs": [{"id": data["title"], "nodes": nodes}]})


def model_explorer_times(data: Mapping[str, Any]) -> str:
    """Node data of the graph: the microseconds of each kernel, the longest in red."""
    results = {
        str(index): {"value": node["ns"] / 1e3}
        for index, node in enumerate(data["nodes"])
        if node["ns"] is not None
    }
    gradient = [{"stop": stop, "bgColor": colour} for stop, colour in enumerate(_HOT)]
    return json.dumps({data["title"]: {"results": results, "gradient": gradient}})


def netron_network(data: Mapping[str, Any]) -> ModelProto:
    """An ONNX network whose operators are kernels; Netron shows domain, type and attributes."""
    nodes, read = [], {source for node in data["nodes"] for source in node["after"]}
    ends = [index for index in range(len(data["nodes"])) if index not in read]
    results = {index: f"network's output {place}" for place, index in enumerate(ends)}
    for index, node in enumerate(data["nodes"]):
        processor = data["processors"][data["regions"][node["region"]]["processor"]]
        nodes.append(
            helper.make_node(
                node["kind"],
                [str(source) for source in node["after"]] or ["network's input"],
                [results.get(index, str(index))],
                name=node["name"],
                domain=processor,
                **_attributes(node, processor),
            )
        )
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in names]
        for names in (["network's input"], results.values())
    )
    graph = helper.make_graph(nodes, data["title"], inputs, outputs)
    domains = [helper.make_opsetid(name, 1) for name in dict.fromkeys(["", *data["processors"]])]
    return helper.make_model(graph, opset_imports=domains, producer_name="tvm_stretch")


def _attributes(node: Mapping[str, Any], processor: str) -> dict[str, str]:
    """The known facts of a kernel, as words."""
    facts = {
        "processor": processor,
        "operators": ", ".join(node["operators"]),
        "kernel": node["kernel"],
        "reads": ", ".join(node["inputs"]),
        "weights": ", ".join(node["weights"]),
        "writes": ", ".join(node["outputs"]),
        "microseconds": "" if node["ns"] is None else f"{node['ns'] / 1e3:.1f}",
        "limited_by": node["limit"][0] if node["limit"] else "",
    }
    return {name: value for name, value in facts.items() if value}
