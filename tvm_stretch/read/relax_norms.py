"""Normalisations of groups and instances as ONNX has them: exact, and of operators with kernels.

    group_norm(x, scale, bias)   ->   g = reshape(x, (N, groups, -1))
                                      c = g - mean(g);  n = c / sqrt(mean(c * c) + epsilon)
                                      reshape(n, shape of x) * scale + bias

TVM's kernels take the variance as ``mean(x * x) - mean(x) ** 2`` from sums of one number after the
other: of 200,000 numbers around 3 that loses 9 bits of 24.
"""

from __future__ import annotations

import tvm
from tvm import relax

from tvm_stretch.network.call_rewriter import CallRewriter
from tvm_stretch.network.operators import kind_of
from tvm_stretch.read.onnx.node import Node, static_shape
from tvm_stretch.read.onnx.operators.elementwise import cast
from tvm_stretch.read.onnx.operators.normalisation import standardise

_NORMS = {"nn.group_norm", "nn.instance_norm"}


def expand_norms(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace the normalisations of groups and instances of ``main``."""
    blocks = mod["main"].body.blocks
    if not any(kind_of(b.value) in _NORMS for block in blocks for b in block.bindings):
        return mod
    return _Expander(mod).rewritten(mod)


@relax.expr_functor.mutator
class _Expander(CallRewriter):
    """Writes each as the converter of its operator in ONNX does."""

    def rewrite(self, call: relax.Call) -> relax.Expr | None:
        if kind_of(call) not in _NORMS:
            return None
        x, attrs = call.args[0], call.attrs
        shape, dtype = static_shape(x), str(x.ty.dtype)
        rank = len(shape)
        axes = [int(axis) % rank for axis in attrs.axes]
        channel = int(attrs.channel_axis) % rank
        node = Node(kind_of(call), "", 18, [x], {}, ["normed"], self.builder_)
        wide = "float32" if dtype in ("float16", "bfloat16") else dtype
        x = node.emit(cast(node, x, wide))
        if kind_of(call) == "nn.group_norm":
            groups = int(attrs.num_groups)
            parts = [*shape[:channel], groups, shape[channel] // groups, *shape[channel + 1 :]]
            axes = [channel + 1, *(axis + (axis > channel) for axis in axes)]
            x = node.emit(relax.op.reshape(x, parts))
            if axes == [*range(channel + 1, rank + 1)]:  # one axis has one loop
                x, axes = node.emit(relax.op.reshape(x, [*parts[: channel + 1], -1])), [channel + 1]
        normed, _, _ = standardise(node, x, axes, float(attrs.epsilon))
        normed = node.emit(cast(node, node.emit(relax.op.reshape(normed, shape)), dtype))
        along = [size if axis == channel else 1 for axis, size in enumerate(shape)]
        for index, used, combine in (
            (1, attrs.scale, relax.op.multiply),
            (2, attrs.center, relax.op.add),
        ):
            if used:
                number = node.emit(relax.op.reshape(call.args[index], along))
                normed = node.emit(combine(normed, number))
        return normed
