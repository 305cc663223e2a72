"""The operators of a graph, computed in torch.

Each function reads the node, the batch factor (how many times the batch that the network was
written for) and the tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tvm_stretch.lab.training.torch_graph import Node

Compute = Callable[..., Any]


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


def _conv(node: Node, _: int, x: Tensor, weight: Tensor) -> Tensor:
    attrs = node.attrs
    x, padding = _padded(x, attrs["padding"])
    conv = functional.conv1d if weight.ndim == 3 else functional.conv2d
    return conv(x, weight, None, attrs["strides"], padding, attrs["dilation"], attrs["groups"])


def _conv_transpose(node: Node, _: int, x: Tensor, weight: Tensor) -> Tensor:
    attrs = node.attrs
    top, left, bottom, right = attrs["padding"]
    found = functional.conv_transpose2d(
        x, weight, None, attrs["strides"], 0, 0, attrs["groups"], attrs["dilation"]
    )
    rows, columns = attrs["output_padding"]
    found = functional.pad(found, (0, columns, 0, rows))
    return found[:, :, top : found.shape[2] - bottom, left : found.shape[3] - right]


def _max_pool(node: Node, _: int, x: Tensor) -> Tensor:
    attrs = node.attrs
    x, padding = _padded(x, attrs["padding"], -torch.inf)
    size, strides = attrs["pool_size"], attrs["strides"]
    if any(2 * p > k for p, k in zip(padding, size, strict=True)):
        x = functional.pad(x, (padding[1],) * 2 + (padding[0],) * 2, value=-torch.inf)
        padding = (0, 0)
    return functional.max_pool2d(
        x, size, strides, padding, attrs["dilation"], ceil_mode=attrs["ceil_mode"]
    )


def _avg_pool(node: Node, _: int, x: Tensor) -> Tensor:
    attrs = node.attrs
    size, strides, padding = attrs["pool_size"], attrs["strides"], attrs["padding"]
    symmetric = tuple(padding[:2]) == tuple(padding[2:])
    if symmetric:
        return functional.avg_pool2d(
            x, size, strides, padding[:2], attrs["ceil_mode"], attrs["count_include_pad"]
        )
    top, left, bottom, right = padding
    sides = (left, right, top, bottom)
    total = functional.avg_pool2d(functional.pad(x, sides), size, strides, 0, attrs["ceil_mode"])
    if attrs["count_include_pad"]:
        return total
    ones = functional.pad(torch.ones_like(x[:1, :1]), sides)
    return total / functional.avg_pool2d(ones, size, strides, 0, attrs["ceil_mode"])


def _layer_norm(node: Node, _: int, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    axes = [int(axis) % x.ndim for axis in node.attrs["axes"]]
    if axes != list(range(x.ndim - len(axes), x.ndim)):
        mean = x.mean(axes, keepdim=True)
        variance = x.var(axes, unbiased=False, keepdim=True)
        shape = [x.shape[axis] if axis in axes else 1 for axis in range(x.ndim)]
        scaled = (x - mean) / torch.sqrt(variance + node.attrs["epsilon"])
        return scaled * weight.reshape(shape) + bias.reshape(shape)
    shape = [x.shape[axis] for axis in axes]
    return functional.layer_norm(x, shape, weight, bias, node.attrs["epsilon"])


def _pad(node: Node, _: int, x: Tensor) -> Tensor:
    width = node.attrs["pad_width"]
    pairs = [width[i : i + 2] for i in range(0, len(width), 2)]
    flat = [side for pair in reversed(pairs) for side in pair]
    mode, value = node.attrs["pad_mode"], float(node.attrs["pad_value"] or 0.0)
    if mode == "constant":
        return functional.pad(x, flat, value=value)
    return functional.pad(x, flat[: 2 * (x.ndim - 2)], mode={"edge": "replicate"}.get(mode, mode))


def _axes(node: Node, x: Tensor) -> list[int]:
    axes = node.attrs["axis"]
    return list(range(x.ndim)) if axes is None else [int(axis) for axis in axes]


def _mean(node: Node, _: int, x: Tensor) -> Tensor:
    return x.mean(_axes(node, x), keepdim=node.attrs["keepdims"])


def _sum(node: Node, _: int, x: Tensor) -> Tensor:
    return x.sum(_axes(node, x), keepdim=node.attrs["keepdims"])


def _max(node: Node, _: int, x: Tensor) -> Tensor:
    return x.amax(_axes(node, x), keepdim=node.attrs["keepdims"])


def _min(node: Node, _: int, x: Tensor) -> Tensor:
    return x.amin(_axes(node, x), keepdim=node.attrs["keepdims"])


def _reshape(node: Node, times: int, x: Tensor) -> Tensor:
    return x.reshape(_resized(node.shape, times))


def _broadcast(node: Node, times: int, x: Tensor) -> Tensor:
    return x.expand(_resized(node.shape, times))


def _resized(shape: tuple[int, ...], times: int) -> tuple[int, ...]:
    """A shape with its batch multiplied by ``times``."""
    return (shape[0] * times, *shape[1:]) if shape else shape


def _slice(node: Node, _: int, x: Tensor) -> Tensor:
    attrs = node.attrs
    index = [slice(None)] * x.ndim
    ranges = zip(attrs["axes"], attrs["begin"], attrs["end"], attrs["strides"], strict=True)
    for axis, begin, end, stride in ranges:
        index[axis] = slice(begin, end, stride)
    return x[tuple(index)]


def _take(node: Node, _: int, x: Tensor, places: Tensor) -> Tensor:
    return x.index_select(node.attrs["axis"], places.long())


def _clip(node: Node, _: int, x: Tensor) -> Tensor:
    low, high = node.attrs["numbers"]
    return x.clamp(low, high)


def _leaky(node: Node, _: int, x: Tensor) -> Tensor:
    return functional.leaky_relu(x, node.attrs["alpha"])


def _softmax(node: Node, _: int, x: Tensor) -> Tensor:
    return functional.softmax(x, node.attrs["axis"])


def _adaptive(node: Node, _: int, x: Tensor) -> Tensor:
    return functional.adaptive_avg_pool2d(x, node.attrs["output_size"] or tuple(x.shape[2:]))


def _concat(node: Node, _: int, *parts: Tensor) -> Tensor:
    return torch.cat(parts, node.attrs["axis"] or 0)


def _split(node: Node, _: int, x: Tensor) -> tuple[Tensor, ...]:
    return x.split(node.attrs["sizes"], node.attrs["axis"])


def _item(node: Node, _: int, parts: Sequence[Tensor]) -> Tensor:
    return parts[node.attrs["index"]]


def _permute(node: Node, _: int, x: Tensor) -> Tensor:
    return x.permute(node.attrs["axes"] or tuple(reversed(range(x.ndim))))


def _astype(node: Node, _: int, x: Tensor) -> Tensor:
    return x.to(getattr(torch, node.attrs["dtype"]))


def _tensors_only(function: Callable[..., Tensor]) -> Compute:
    """Adapt a torch function that takes only tensors."""
    return lambda _node, _times, *tensors: function(*tensors)


_SAME_NAME = (
    *("abs", "ceil", "cos", "erf", "exp", "floor", "log", "negative", "rsqrt", "sigmoid", "sign"),
    *("sin", "sqrt", "square", "tanh"),
    *("add", "divide", "maximum", "minimum", "multiply", "subtract", "matmul"),
)

OPERATORS: Mapping[str, Compute] = {
    **{name: _tensors_only(getattr(torch, name)) for name in _SAME_NAME},
    "power": _tensors_only(torch.pow),
    "nn.relu": _tensors_only(functional.relu),
    "nn.relu6": _tensors_only(functional.relu6),
    "nn.silu": _tensors_only(functional.silu),
    "nn.softplus": _tensors_only(functional.softplus),
    "nn.gelu": _tensors_only(functional.gelu),
    "nn.gelu_tanh": _tensors_only(lambda x: functional.gelu(x, approximate="tanh")),
    "nn.leakyrelu": _leaky,
    "nn.softmax": _softmax,
    "nn.conv1d": _conv,
    "nn.conv2d": _conv,
    "nn.conv2d_transpose": _conv_transpose,
    "nn.max_pool2d": _max_pool,
    "nn.avg_pool2d": _avg_pool,
    "nn.adaptive_avg_pool2d": _adaptive,
    "nn.layer_norm": _layer_norm,
    "nn.pad": _pad,
    "mean": _mean,
    "sum": _sum,
    "max": _max,
    "min": _min,
    "reshape": _reshape,
    "expand_dims": _reshape,
    "squeeze": _reshape,
    "broadcast_to": _broadcast,
    "strided_slice": _slice,
    "take": _take,
    "clip": _clip,
    "astype": _astype,
    "concat": _concat,
    "split": _split,
    "TupleGetItem": _item,
    "permute_dims": _permute,
}
