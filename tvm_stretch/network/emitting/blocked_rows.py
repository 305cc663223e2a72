"""Layouts of products, attention and normalisations: templates that read and write plain rows.

y = R.matmul(x, w)   ->   y = R.call_tir(rows, (x, w'))     # where blocks of channels are slower
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.network.emitting.attention import AttentionReader, normalised
from tvm_stretch.network.emitting.blocked_layouts import (
    Made,
    Value,
    becomes_image,
    is_f32,
    static_shape,
)
from tvm_stretch.network.expressions import shape_of
from tvm_stretch.network.operators import LAYOUT, kind_of
from tvm_stretch.targets.kernels.layers import (
    BfloatShape,
    MatmulShape,
    NormShape,
    SoftmaxShape,
    dense_shape,
)
from tvm_stretch.targets.kernels.template import choose

if TYPE_CHECKING:
    from tvm_stretch.network.emitting.blocked_values import Rewriter

_COLLIDING = 8192
"""If blocks of a pixel are a multiple of this number apart, they share few sets of the caches;
then dense layers are faster in rows (1,024 pixels, 1,536 inputs: 0.68 of the time)."""
_WAYS = 12
"""Blocks that a set of the first cache holds."""


@LAYOUT("matmul")
def _matmul(r: Rewriter, call: relax.Call) -> Made:
    data, weight = call.args
    if not isinstance(weight, GenericConst):
        if not is_f32(call):
            return None
        if (attention := _attention(r, call)) is not None:
            return attention
        template = choose(
            MatmulShape(*(tuple(shape_of(arg)) for arg in call.args)), r.machine.plain
        )
        if template is None:
            return None
        plain = template.call(r.bb, *r.plain(call).args)
        return Value(static_shape(call), plain=plain)
    shape = tuple(shape_of(data))
    if len(shape) != 2 or len(shape_of(weight)) != 2 or not isinstance(data, relax.Var):
        return None
    if not r.is_float(call):
        return None
    sums = str(call.ty.dtype)
    weight = r.half(call) or weight
    bfloat = choose(BfloatShape(*shape, shape_of(weight)[1]), r.machine)
    if bfloat is not None:
        result = bfloat.call(r.bb, r.plain(call).args[0], weight)
        r.rows.add(result)
        return Value(static_shape(call), plain=result)
    layer = dense_shape(shape, shape_of(weight)[1])
    template = choose(layer, r.machine.summing(sums), r.lanes)
    pixels = r.is_blocked(data) or becomes_image(call, r.readers)
    collide = shape[0] * r.lanes % _COLLIDING == 0
    collide = collide and max(shape_of(weight)) > _WAYS * r.lanes
    in_blocks = r.machine.kind == "dsp" or (pixels and not collide)
    rows = None if in_blocks else template.in_rows()
    if rows is not None:
        result = rows.call(r.bb, r.plain(call).args[0], weight, name="dense", sums=sums)
        r.rows.add(result)
        return Value(static_shape(call), plain=result)
    return template.call(r.bb, r.blocked(data), weight, name="dense", sums=sums)


def _attention(r: Rewriter, call: relax.Call) -> Made:
    """An attention whose last product is ``call``, where a template computes all of it."""
    attention = AttentionReader(r.definitions, r.uses).read(call)
    template = None if attention is None else choose(attention.shape, r.machine.plain)
    if attention is None or template is None:
        return None
    operands = r.plain(relax.Tuple(attention.operands)).fields
    shapes = attention.shapes
    if attention.is_turned:
        *stack, depth, keys = shapes[1]
        shapes[1] = (*stack, keys, depth)
    views = [r.view(x, shape) for x, shape in zip(operands, shapes, strict=True)]
    if attention.is_turned:
        axes = [*range(len(stack)), len(stack) + 1, len(stack)]
        views[1] = r.bb.emit(relax.op.permute_dims(views[1], axes))
    attended = template.call(r.bb, *views)
    shape = tuple(shape_of(call))
    return Value(shape, plain=r.view(attended, shape), named=attended)


@LAYOUT("nn.softmax")
def _softmax(r: Rewriter, call: relax.Call) -> Made:
    """The template expects one axis after the softmax axis, so several are merged by views."""
    if not is_f32(call):
        return None
    data, denormals = r.plain(call).args[0], call not in r.weights
    shape, axis = tuple(shape_of(call)), int(call.attrs.axis) % len(shape_of(call))
    merged = (*shape[: axis + 1], int(np.prod(shape[axis + 1 :])))
    several = len(shape) - axis > 2
    layer = SoftmaxShape(merged if several else shape, axis, denormals)
    template = choose(layer, r.machine.plain)
    if template is None:
        return None
    if several:
        data = r.bb.emit(relax.op.reshape(data, merged))
    weights = template.call(r.bb, data)
    if not several:
        return Value(shape, plain=weights)
    view = r.bb.emit(relax.op.reshape(weights, shape))
    return Value(shape, plain=view, named=weights)


def normalised_rows(r: Rewriter, call: relax.Call) -> Made:
    """A normalisation of rows, where a template computes all of it."""
    norm = normalised(call, r.definitions) if is_f32(call) else None
    if norm is None:
        return None
    (x, epsilon, is_centred), shape = norm, tuple(shape_of(call))
    template = choose(NormShape(shape, epsilon, is_centred), r.machine.plain)
    if template is None:
        return None
    return Value(shape, plain=template.call(r.bb, r.plain(relax.Tuple([x])).fields[0]))


def on_rows(r: Rewriter, call: relax.Call) -> Made:
    """An operator of a reshaped matrix, on the matrix itself, so that its kernel includes it.

    add(reshape(dense), x)   ->   reshape(add(dense, reshape(x)))
    """
    shape = tuple(shape_of(call))
    if any(tuple(shape_of(arg)) != shape for arg in call.args):
        return None
    for place, arg in enumerate(call.args):
        move = r.moves.get(arg)
        if move is None or kind_of(move) != "reshape" or r.uses.get(arg) != 1:
            continue
        value = r.values.get(move.args[0])
        if value is None or value.plain not in r.rows or r.uses[move.args[0]] != 1:
            continue
        operands = [
            value.plain if i == place else r.bb.emit(relax.op.reshape(other, value.shape))
            for i, other in enumerate(r.plain(call).args)
        ]
        on_matrix = r.bb.emit(relax.Call(call.op, operands, call.attrs, call.ty_args))
        r.rows.add(on_matrix)
        return Value(shape, plain=r.bb.emit(relax.op.reshape(on_matrix, shape)), named=on_matrix)
    return None
