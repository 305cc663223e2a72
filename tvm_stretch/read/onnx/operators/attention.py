"""ONNX's attention where no mask is given: one query of grouped heads reads keys as they are.

ONNX's own function scales keys, which keeps them from being read where they lie. With a mask it
also finds rows that are hidden completely, so masks are left to it.
"""

from __future__ import annotations

from tvm_stretch.network.expressions import shape_of
from tvm_stretch.read.onnx.node import Node, Value, converter
from tvm_stretch.read.onnx.operators.heads import (
    Scores,
    after_past,
    attend,
    earlier,
    lowest,
    merge_heads,
    split_heads,
)

_NEEDS_FUNCTION = (3, 6)
"""Inputs: a mask, and the number of keys of each row."""


@converter("Attention")
def _attention(node: Node) -> tuple[Value, ...]:
    dtype = node.dtype()
    if any(node.has(i) for i in _NEEDS_FUNCTION) or any(node.outputs[3:]) or dtype != "float32":
        return ()
    operands = [
        split_heads(node, node[i], int(node.attr(name, 0))) if node.rank(i) == 3 else node[i]
        for i, name in enumerate(("q_num_heads", "kv_num_heads", "kv_num_heads"))
    ]
    query = operands[0]
    past, both = after_past(node, (4, 5), operands[1:])
    summands = []
    steps, keys = shape_of(query)[2], shape_of(both[0])[2]
    if node.attr("is_causal", 0) and steps + past > 1:
        if steps + past != keys:
            return ()
        summands = [earlier(steps, past, dtype, lowest(dtype))]
    scores = Scores(node.attr("scale", 0.0), summands, node.attr("softcap", 0.0))
    result = attend(node, query, both[0], both[1], scores)
    merged = result if node.rank() == 4 else merge_heads(node, result)
    return merged, *(both if any(node.outputs[1:]) else [])
