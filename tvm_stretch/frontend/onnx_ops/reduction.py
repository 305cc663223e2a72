"""Reductions."""

from __future__ import annotations

from tvm import relax

from tvm_stretch.frontend.onnx_importer import Node, converter

_REDUCE = {
    "ReduceMean": relax.op.mean, "ReduceSum": relax.op.sum, "ReduceMax": relax.op.max,
    "ReduceMin": relax.op.min, "ReduceProd": relax.op.prod,
}  # fmt: skip


@converter(*_REDUCE)
def _reduce(node: Node) -> relax.Expr:
    axes = node.ints(1, "axes")
    if not axes:
        if node.attr("noop_with_empty_axes", 0):
            return node[0]
        axes = list(range(len(node.shape())))
    return _REDUCE[node.op](node[0], axis=axes, keepdims=bool(node.attr("keepdims", 1)))
