"""Pooling."""

from __future__ import annotations

from tvm import relax

from tvm_stretch.frontend.onnx_importer import Node, converter
from tvm_stretch.frontend.onnx_ops.layers import spatial_padding

_POOLS = {
    "MaxPool": (relax.op.nn.max_pool1d, relax.op.nn.max_pool2d, relax.op.nn.max_pool3d),
    "AveragePool": (relax.op.nn.avg_pool1d, relax.op.nn.avg_pool2d, relax.op.nn.avg_pool3d),
}


@converter("MaxPool", "AveragePool")
def _pool(node: Node) -> relax.Expr:
    window = list(node.attr("kernel_shape"))
    rank = len(window)
    if rank > 3:
        raise node.refuse("1 to 3 spatial dimensions", str(rank))
    stride = list(node.attr("strides", [1] * rank))
    dilation = list(node.attr("dilations", [1] * rank))
    return _POOLS[node.op][rank - 1](
        node[0],
        pool_size=window,
        strides=stride,
        padding=spatial_padding(node, node.shape()[2:], window, stride, dilation),
        dilation=dilation,
        ceil_mode=bool(node.attr("ceil_mode", 0)),
        count_include_pad=bool(node.attr("count_include_pad", 0)),
    )


@converter("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(node: Node) -> relax.Expr:
    function = relax.op.mean if node.op == "GlobalAveragePool" else relax.op.max
    return function(node[0], axis=list(range(2, len(node.shape()))), keepdims=True)
