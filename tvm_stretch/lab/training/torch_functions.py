"""The operators of a graph, computed in torch.

Each function takes the tensors that an operator reads, and the attributes that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tvm_stretch.lab.training.torch_graph import Node
from tvm_stretch.network.operators import GRADIENT


def _padded(x: Tensor, padding: Sequence[int], value: float = 0.0) -> tuple[Tensor, Any]:
    """Pad explicitly if the sides differ, because torch's layers pad both sides alike."""
    rank = len(padding) // 2
    before, after = padding[:rank], padding[rank:]
    if tuple(before) == tuple(after):
        return x, tuple(before)
    sides = [side for pair in zip(before, after, strict=True) for side in pair]
    pairs = [sides[i : i + 2] for i in range(0, len(sides), 2)]
    flat = [side for pair in reversed(pairs) for side in pair]
    return functional.pad(x, flat, value=value), (0,) * rank


@GRADIENT("nn.conv1d", "nn.conv2d")
def _conv(
    x: Tensor, weight: Tensor, *, strides: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    x, padding = _padded(x, padding)
    conv = functional.conv1d if weight.ndim == 3 else functional.conv2d
    return conv(x, weight, None, strides, padding, dilation, groups)


@GRADIENT("nn.conv2d_transpose")
def _conv_transpose(
    x: Tensor, weight: Tensor, *,
    strides: Any, padding: Any, dilation: Any, groups: int, output_padding: Any,
) -> Tensor:  # fmt: skip
    top, left, bottom, right = padding
    result = functional.conv_transpose2d(x, weight, None, strides, 0, 0, groups, dilation)
    rows, columns = output_padding
    result = functional.pad(result, (0, columns, 0, rows))
    return result[:, :, top : result.shape[2] - bottom, left : result.shape[3] - right]


@GRADIENT("nn.max_pool2d")
def _max_pool(
    x: Tensor, *, pool_size: Any, strides: Any, padding: Any, dilation: Any,
    ceil_mode: bool, count_include_pad: bool,
) -> Tensor:  # fmt: skip
    x, padding = _padded(x, padding, -torch.inf)
    if any(2 * p > k for p, k in zip(padding, pool_size, strict=True)):
        x = functional.pad(x, (padding[1],) * 2 + (padding[0],) * 2, value=-torch.inf)
        padding = (0, 0)
    return functional.max_pool2d(x, pool_size, strides, padding, dilation, ceil_mode=ceil_mode)


@GRADIENT("nn.avg_pool2d")
def _avg_pool(
    x: Tensor, *, pool_size: Any, strides: Any, padding: Any, dilation: Any,
    ceil_mode: bool, count_include_pad: bool,
) -> Tensor:  # fmt: skip
    top, left, bottom, right = padding
    if (top, left) == (bottom, right):
        return functional.avg_pool2d(
            x, pool_size, strides, (top, left), ceil_mode, count_include_pad
        )
    sides = (left, right, top, bottom)
    total = functional.avg_pool2d(functional.pad(x, sides), pool_size, strides, 0, ceil_mode)
    if count_include_pad:
        return total
    ones = functional.pad(torch.ones_like(x[:1, :1]), sides)
    return total / functional.avg_pool2d(ones, pool_size, strides, 0, ceil_mode)


@GRADIENT("nn.layer_norm")
def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, *, axes: Any, epsilon: float) -> Tensor:
    axes = [int(axis) % x.ndim for axis in axes]
    if axes != list(range(x.ndim - len(axes), x.ndim)):
        mean = x.mean(axes, keepdim=True)
        variance = x.var(axes, unbiased=False, keepdim=True)
        shape = [x.shape[axis] if axis in axes else 1 for axis in range(x.ndim)]
        scaled = (x - mean) / torch.sqrt(variance + epsilon)
        return scaled * weight.reshape(shape) + bias.reshape(shape)
    return functional.layer_norm(x, [x.shape[axis] for axis in axes], weight, bias, epsilon)


@GRADIENT("nn.pad")
def _pad(x: Tensor, *, pad_width: Any, pad_value: float | None, pad_mode: str) -> Tensor:
    pairs = [pad_width[i : i + 2] for i in range(0, len(pad_width), 2)]
    flat = [side for pair in reversed(pairs) for side in pair]
    if pad_mode == "constant":
        return functional.pad(x, flat, value=float(pad_value or 0.0))
    mode = {"edge": "replicate"}.get(pad_mode, pad_mode)
    return functional.pad(x, flat[: 2 * (x.ndim - 2)], mode=mode)


def _reduction(kind: str, method: Callable[..., Tensor]) -> None:
    def reduced(x: Tensor, *, axis: Any, keepdims: bool) -> Tensor:
        axes = list(range(x.ndim)) if axis is None else [int(one) for one in axis]
        return method(x, axes, keepdim=keepdims)

    GRADIENT(kind)(reduced)


for _name in ("mean", "sum", "max", "min"):
    _reduction(_name, getattr(torch, {"max": "amax", "min": "amin"}.get(_name, _name)))


@GRADIENT("strided_slice")
def _slice(x: Tensor, *, axes: Any, begin: Any, end: Any, strides: Any) -> Tensor:
    index = [slice(None)] * x.ndim
    for axis, *limits in zip(axes, begin, end, strides, strict=True):
        index[axis] = slice(*limits)
    return x[tuple(index)]


GRADIENT("reshape", "expand_dims", "squeeze")(lambda x, *, shape: x.reshape(shape))
GRADIENT("broadcast_to")(lambda x, *, shape: x.expand(shape))
GRADIENT("take")(lambda x, places, *, axis: x.index_select(axis, places.long()))
GRADIENT("clip")(lambda x, *, numbers: x.clamp(*numbers))
GRADIENT("nn.leakyrelu")(lambda x, *, alpha: functional.leaky_relu(x, alpha))
GRADIENT("nn.softmax")(lambda x, *, axis: functional.softmax(x, axis))
GRADIENT("nn.adaptive_avg_pool2d")(
    lambda x, *, output_size: functional.adaptive_avg_pool2d(x, output_size or tuple(x.shape[2:]))
)
GRADIENT("concat")(lambda *parts, axis: torch.cat(parts, axis or 0))
GRADIENT("split")(lambda x, *, axis, sizes: x.split(sizes, axis))
GRADIENT("TupleGetItem")(lambda parts, *, index: parts[index])
GRADIENT("permute_dims")(lambda x, *, axes: x.permute(axes or tuple(reversed(range(x.ndim)))))
GRADIENT("astype")(lambda x, *, dtype: x.to(getattr(torch, dtype)))
for _name in (
    *("abs", "ceil", "cos", "erf", "exp", "floor", "log", "negative", "rsqrt", "sigmoid", "sign"),
    *("sin", "sqrt", "square", "tanh"),
    *("add", "divide", "maximum", "minimum", "multiply", "subtract", "matmul"),
):
    GRADIENT(_name)(getattr(torch, _name))
GRADIENT("power")(torch.pow)
for _name in ("relu", "silu", "softplus", "gelu"):
    GRADIENT(f"nn.{_name}")(getattr(functional, _name))
GRADIENT("nn.gelu_tanh")(lambda x: functional.gelu(x, approximate="tanh"))


def attributes_of(kind: str) -> tuple[str, ...]:
    """The attributes that the function of an operator takes: its keyword-only parameters."""
    code = getattr(GRADIENT.get(kind), "__code__", None)
    return () if code is None else code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]


def compute(node: Node, times: int, *tensors: Any) -> Any:
    """What an operator computes of a batch that is ``times`` the one that it was written for."""
    attrs = node.attrs
    if "shape" in attributes_of(node.kind):
        batch, *rest = node.shape or (1,)
        attrs = {**attrs, "shape": (batch * times, *rest) if node.shape else ()}
    return GRADIENT[node.kind](*tensors, **attrs)
