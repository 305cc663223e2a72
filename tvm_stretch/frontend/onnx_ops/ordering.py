"""Running sums and products, and the largest elements, out of operators that every target has.

TVM's own need routines of its runtime, which a network that runs alone on a phone does not carry.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvm_stretch.frontend.onnx_node import Node, as_expr, converter
from tvm_stretch.frontend.onnx_ops.elementwise import constant

MOST_SORTED = 4096
"""Every element is compared with every other."""


@converter("CumSum", "CumProd")
def _cumulate(node: Node) -> relax.Expr:
    """Add what lies 1, 2, 4, .. elements before: after k steps each holds 2^k of them."""
    combine, unit = (relax.op.add, 0) if node.op == "CumSum" else (relax.op.multiply, 1)
    axis = int(node.const(1, "axis").item()) % node.rank()
    extent = node.shape()[axis]
    backwards = bool(node.attr("reverse", 0))

    def shifted(x: relax.Expr, by: int) -> relax.Expr:
        width = [0] * 2 * node.rank()
        width[2 * axis + backwards] = by
        padded = node.emit(relax.op.nn.pad(x, width, "constant", unit))
        begin = by if backwards else 0
        return node.emit(relax.op.strided_slice(padded, [axis], [begin], [begin + extent]))

    x = shifted(node[0], 1) if node.attr("exclusive", 0) else node[0]
    distance = 1
    while distance < extent:
        x = node.emit(combine(x, shifted(x, distance)))
        distance *= 2
    return x


@converter("TopK")
def _top_k(node: Node) -> tuple[relax.Expr, ...]:
    """An element's place is the number of elements that come before it: larger, or equal and left.

    x = [3, 9, 5], k = 2   ->   places [2, 0, 1]   ->   indices [1, 2], values [9, 5]
    """
    k = int(node.const(1, "K").item()) if node.opset >= 10 else int(node.attr("k"))
    axis, rank = node.axis(-1), node.rank()
    extent = node.shape()[axis]
    if extent > MOST_SORTED:
        raise node.refuse(f"at most {MOST_SORTED} elements to sort", str(extent))
    last = [*(i for i in range(rank) if i != axis), axis]
    x = node.emit(relax.op.permute_dims(node[0], last))
    this, other = relax.op.expand_dims(x, rank), relax.op.expand_dims(x, rank - 1)
    this, other = node.emit(this), node.emit(other)
    before = relax.op.greater if node.attr("largest", 1) else relax.op.less
    left = as_expr(np.tri(extent, extent, -1, dtype="bool"))
    tie = relax.op.logical_and(relax.op.equal(other, this), left)
    beats = node.emit(relax.op.logical_or(before(other, this), tie))
    place = node.emit(relax.op.sum(relax.op.astype(beats, "int64"), [rank]))
    wanted = constant(np.arange(k)[:, None], "int64")
    hit = node.emit(relax.op.equal(relax.op.expand_dims(place, rank - 1), wanted))
    found = relax.op.where(hit, constant(np.arange(extent), "int64"), constant(0, "int64"))
    back = [last.index(i) for i in range(rank)]
    indices = node.emit(relax.op.permute_dims(node.emit(relax.op.sum(found, [rank])), back))
    indices = node.emit(relax.op.clip(indices, 0, extent - 1))  # nobody has to check them again
    return node.emit(relax.op.gather_elements(node[0], indices, axis)), indices
