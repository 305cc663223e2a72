"""The processors of branches, as `make/onnx_file.py` writes them into an ONNX file.

    tvm_stretch.processors = {"cpu": ["conv.b0"], "opencl": ["conv.b1"]}
        ->
    main, attribute `BRANCHES` = the same, whose operators the search leaves where they are

Nodes that are gone, because a tool joined them with others, are ignored. Meeting points are not
read, because they follow from the graph.
"""

from __future__ import annotations

import json

import onnx
import tvm

from tvm_stretch.base.errors import ModelError, last_line
from tvm_stretch.network.attributes import BRANCHES
from tvm_stretch.network.codec import from_text

_KEY = "tvm_stretch.processors"


def with_branches(mod: tvm.IRModule, model: onnx.ModelProto) -> tvm.IRModule:
    """The module with the branches that the file names, if it names any.

    Raises:
        ModelError: the file has something else there.
    """
    text = next((entry.value for entry in model.metadata_props if entry.key == _KEY), None)
    if text is None:
        return mod
    try:
        named = from_text(dict[str, tuple[str, ...]], text)
    except (ModelError, ValueError, RecursionError) as error:
        raise ModelError(
            f"expected lists of nodes by processor for {_KEY} of the ONNX model, got "
            f"{text!r:.100} ({last_line(error)}); write it again with ts.to_onnx, or remove that"
        ) from error
    nodes = {node.name for node in model.graph.node}
    kept = {who: [name for name in names if name in nodes] for who, names in named.items()}
    kept = {who: names for who, names in kept.items() if names}
    if kept:
        mod["main"] = mod["main"].with_attr(BRANCHES, json.dumps(kept))
    return mod
