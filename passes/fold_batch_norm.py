"""Fold batch normalisation, and a scale per channel, into the layer before it.

    lv = conv2d(x, w)              lv = conv2d(x, w * s)
    lv1 = add(lv, b)         ->    lv1 = add(lv, b * s + t)
    lv2 = batch_norm(lv1, ..)[0]

with ``s = gamma / sqrt(var + epsilon)`` and ``t = beta - mean * s``. The layer may be a
convolution (also grouped, depthwise or transposed) or a matmul with constant weights. A batch
normalisation that follows no such layer, or whose layer has other readers, becomes
``add(multiply(x, s), t)``.

Sums of the network itself are not merged: `(x + 2^23) - 2^23` rounds. A scale goes through such a
sum only if it is a power of two, which rounding does not notice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Op

from tvm_stretch.network.expressions import count_uses, is_float, rewrite_functions, shape_of
from tvm_stretch.network.provenance import same_source
from tvm_stretch.network.rewriting import CallRewriter

_ADD, _MULTIPLY = Op.get("relax.add"), Op.get("relax.multiply")
_BATCH_NORM = Op.get("relax.nn.batch_norm")
_CONVS = [Op.get(f"relax.nn.conv{rank}d") for rank in (1, 2, 3)]
_TRANSPOSED = [Op.get(f"relax.nn.conv{rank}d_transpose") for rank in (1, 2, 3)]
_MATMUL = Op.get("relax.matmul")


def channel_axis(layer: relax.Call) -> int:
    """The axis of the layer's result that holds its output channels."""
    if layer.op == _MATMUL:
        return len(shape_of(layer)) - 1
    return str(layer.attrs.out_layout or layer.attrs.data_layout).index("C")


def per_channel(value: np.ndarray, shape: list[int], axis: int) -> np.ndarray | None:
    """``value`` as one number per channel; None if it varies along another axis.

    (1, 8, 1, 1), (8, 1, 1) or () for a result of shape (2, 8, 4, 4)  ->  (8,)
    """
    if value.ndim > len(shape):
        return None
    full = [1] * (len(shape) - value.ndim) + list(value.shape)
    if value.size != full[axis]:
        return None
    return np.broadcast_to(value.reshape(-1), (shape[axis],))


def scale_weight(layer: relax.Call, weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Multiply the weights of each output channel by ``scale``."""
    if layer.op == _MATMUL:
        return (weight * scale).astype(weight.dtype)
    layout = str(layer.attrs.kernel_layout)
    out = layout.index("O")
    if layer.op in _CONVS:
        shape = [-1 if i == out else 1 for i in range(weight.ndim)]
        return (weight * scale.reshape(shape)).astype(weight.dtype)
    # Weights of a transposed convolution are (in, out / groups, ..): group g is a slice of inputs.
    groups = int(layer.attrs.groups)
    into = layout.index("I")
    moved = np.moveaxis(weight, (into, out), (0, 1))
    split = moved.reshape(groups, -1, *moved.shape[1:])
    factors = scale.reshape(groups, 1, -1, *(1,) * (moved.ndim - 2))
    scaled = (split * factors).reshape(moved.shape)
    return np.moveaxis(scaled, (0, 1), (into, out)).astype(weight.dtype)


@relax.expr_functor.mutator
class _Folder(CallRewriter):
    """Rewrites one function; `uses` counts the readers of each value."""

    def __init__(self, mod: tvm.IRModule, uses: dict[relax.Var, int]) -> None:
        super().__init__(mod)
        self.uses = uses

    def visit_tuple_getitem_(self, item: relax.TupleGetItem) -> relax.Expr:
        item = self.visit_expr_post_order(item)
        call = self.definition(item.tuple_value)
        if item.index != 0 or not isinstance(call, relax.Call) or call.op != _BATCH_NORM:
            return item
        parameters = [self.constant(a) for a in call.args[1:]]
        if call.attrs.training or any(p is None for p in parameters) or not is_float(item):
            return item
        return self.normalise(call, [p.astype("float64") for p in parameters if p is not None])

    def normalise(self, call: relax.Call, parameters: list[np.ndarray]) -> relax.Expr:
        """``batch_norm(x, ..)[0]`` as scale and bias, folded where possible."""
        gamma, beta, mean, var = parameters
        scale = 1 / np.sqrt(var + float(call.attrs.epsilon))
        scale = scale * gamma if call.attrs.scale else scale
        bias = (beta if call.attrs.center else 0) - mean * scale
        shape = [1] * len(shape_of(call.args[0]))
        shape[int(call.attrs.axis)] = -1
        dtype = str(call.args[0].ty.dtype)
        scaled = self.scale(call.args[0], scale.reshape(shape).astype(dtype))
        return self.shift(self.keep(scaled, call.args[0]), bias.reshape(shape).astype(dtype))

    def rewrite(self, call: relax.Call) -> relax.Expr | None:
        if call.op != _MULTIPLY or not is_float(call):
            return None
        value = self.constant(call.args[1])
        if value is None or shape_of(call) != shape_of(call.args[0]):
            return None
        is_power = (np.abs(np.frexp(value.astype("float64"))[0]) == 0.5).all()
        if self.bias(self.private(call.args[0])) is not None and not is_power:
            return None
        return self.scale(call.args[0], value)

    def scale(self, x: relax.Expr, factor: np.ndarray) -> relax.Expr:
        """``x * factor``, folded into the layer that computes ``x`` if that is legal."""
        before = self.private(x)
        bias = self.bias(before)
        layer = before if bias is None else self.private(before.args[0])
        folded = self.scaled_layer(layer, factor)
        if folded is None:
            return relax.op.multiply(x, relax.const(factor, str(factor.dtype)))
        if bias is None:
            return folded
        scale = per_channel(factor, shape_of(layer), channel_axis(layer))
        product = _times(bias, scale, len(shape_of(layer)), channel_axis(layer))
        return relax.op.add(
            self.keep(folded, before.args[0]), relax.const(product, str(product.dtype))
        )

    def shift(self, x: relax.Expr, bias: np.ndarray) -> relax.Expr:
        """``x + bias`` of a normalisation, merged with a constant that was added before."""
        before = self.private(x)
        earlier = self.bias(before)
        if earlier is not None:
            total = (earlier.astype("float64") + bias.astype("float64")).astype(bias.dtype)
            if np.broadcast_shapes(total.shape, shape_of(x)) == tuple(shape_of(x)):
                return relax.op.add(before.args[0], relax.const(total, str(total.dtype)))
        return relax.op.add(x, relax.const(bias, str(bias.dtype)))

    def scaled_layer(self, layer: relax.Call | None, factor: np.ndarray) -> relax.Call | None:
        """``layer`` with scaled weights; None if it is no layer, or no factor per channel."""
        if layer is None or layer.op not in (*_CONVS, *_TRANSPOSED, _MATMUL):
            return None
        weight = self.constant(layer.args[1])
        if weight is None or not np.issubdtype(weight.dtype, np.floating):
            return None
        if layer.op == _MATMUL and weight.ndim != 2:
            return None
        scale = per_channel(factor, shape_of(layer), channel_axis(layer))
        if scale is None:
            return None
        scaled = scale_weight(layer, weight.astype("float64"), scale.astype("float64"))
        constant = relax.const(scaled.astype(weight.dtype), str(weight.dtype))
        return relax.Call(layer.op, [layer.args[0], constant], layer.attrs)

    def bias(self, call: relax.Call | None) -> np.ndarray | None:
        """The constant that ``call`` adds without broadcasting its input."""
        if call is None or call.op != _ADD or shape_of(call) != shape_of(call.args[0]):
            return None
        return self.constant(call.args[1])

    def private(self, x: relax.Expr) -> Any:
        """The call that computes ``x`` if ``x`` has one reader."""
        call = self.definition(x)
        alone = isinstance(x, relax.Var) and self.uses.get(x, 2) == 1
        return call if alone and isinstance(call, relax.Call) else None

    def keep(self, value: relax.Expr, replaced: relax.Expr) -> relax.Var:
        """Bind ``value``, which only the caller reads, in place of ``replaced``."""
        var = self.builder_.emit(value, name_hint=same_source(replaced))
        self.uses[var] = 1
        return var


def _times(bias: np.ndarray, scale: np.ndarray | None, rank: int, axis: int) -> np.ndarray:
    """``bias`` times one factor per channel."""
    aligned = np.asarray(scale, "float64").reshape([-1 if i == axis else 1 for i in range(rank)])
    return (bias.astype("float64") * aligned).astype(bias.dtype)


@tvm.transform.module_pass(opt_level=0, name="FoldBatchNorm")
class FoldBatchNorm:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_functions(
            mod, lambda mod, function: _Folder(mod, count_uses(function)).visit_expr(function)
        )
