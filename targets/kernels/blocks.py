"""Relax calls of the kernel templates, and the conversions into and out of the blocked layout."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import Expr, GenericConst

from .choose import ConvShape, choose_conv
from .concat import ConcatConfig, shuffles
from .conv import ConvConfig, conv_compute, pack_weight
from .fused import ANNOTATION, ONCE
from .layer_configs import (
    Config,
    convolution_config,
    dense_shape,
    gathers_pixels,
    pool_config,
)
from .machine import VectorMachine
from .matmul import MatmulConfig, choose_matmul, matmul_compute
from .softmax import SoftmaxConfig, choose_softmax, softmax_compute
from .window import WindowConfig, pack_depthwise_weight, window_compute
from .winograd import (
    WinogradConfig,
    multiply_planes,
    transform_input,
    transform_weight,
    winograd_compute,
)


def annotation(
    template: str, config: Config | ConcatConfig | MatmulConfig | SoftmaxConfig
) -> dict[str, str]:
    """The annotation of a template's block: its name and configuration."""
    return {ANNOTATION: json.dumps({"template": template, **asdict(config)})}


_MADE: dict[Hashable, tuple[tirx.PrimFunc, relax.TensorType]] = {}
"""Kernels of this process: making one takes milliseconds, and layers repeat within networks."""


def kernel_call(
    bb: relax.BlockBuilder,
    name: str,
    what: Hashable,
    compute: Callable[..., te.Tensor],
    *operands: Expr,
) -> relax.Call:
    """``compute`` of the operands, as a call of a kernel.

    Args:
        bb: receives the kernel.
        name: of the kernel.
        what: identifies the computation, together with the name and the operands' types.
        compute: the tensor expression.
        operands: with static shapes.
    """
    types = [(tuple(map(int, op.ty.shape.values)), str(op.ty.dtype)) for op in operands]
    once = all(isinstance(op, GenericConst) for op in operands)
    key = (name, what, once, *types)
    if key not in _MADE:
        inputs = [te.placeholder(op.ty.shape.values, op.ty.dtype.dtype) for op in operands]
        out = compute(*inputs)
        kernel = te.create_prim_func([*inputs, out], "int64").without_attr("global_symbol")
        kernel = kernel.with_attr(ONCE, True) if once else kernel
        _MADE[key] = kernel, relax.TensorType(out.shape, out.dtype)
    kernel, ty = _MADE[key]
    return relax.call_tir(bb.add_func(kernel, name), list(operands), ty)


# --- layouts --------------------------------------------------------------------------------------


def image_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The NCHW shape of a feature map; a matrix (M, C) counts as M pixels: (1, C, M, 1)."""
    if len(shape) != 2:
        return tuple(shape)
    rows, channels = shape
    return (1, channels, rows, 1)


def blocked_shape(shape: Sequence[int], lanes: int) -> tuple[int, ...]:
    """NCHW[c] of an image or matrix."""
    n, c, h, w = image_shape(shape)
    return (n, -(-c // lanes), h, w, lanes)


def block_array(array: np.ndarray, lanes: int) -> np.ndarray:
    """A constant image in the blocked layout, padded with zeros."""
    n, c, h, w = array.shape
    padded = np.pad(array, ((0, 0), (0, -c % lanes), (0, 0), (0, 0)))
    return np.ascontiguousarray(padded.reshape(n, -1, lanes, h, w).transpose(0, 1, 3, 4, 2))


def _same_bytes(shape: Sequence[int], lanes: int) -> bool:
    """Whether plain and blocked layout hold the same bytes in the same order."""
    image = image_shape(shape)
    return image[1] % lanes == 0 and image[2:] == (1, 1)


def block(bb: relax.BlockBuilder, data: Expr, shape: Sequence[int], lanes: int) -> relax.Var:
    """Plain -> blocked."""
    out = blocked_shape(shape, lanes)
    if _same_bytes(shape, lanes):
        return bb.emit(relax.op.reshape(data, out))
    channels = image_shape(shape)[1]

    def convert(x: te.Tensor) -> te.Tensor:
        def element(n: Expr, b: Expr, h: Expr, w: Expr, lane: Expr) -> Expr:
            c = b * lanes + lane
            place = (h, c) if len(shape) == 2 else (n, c, h, w)
            if channels % lanes == 0:
                return x[place]
            return tirx.if_then_else(c < channels, x[place], tirx.const(0, x.dtype))

        return te.compute(out, element, name="block_channels")

    return bb.emit(kernel_call(bb, "block_channels", lanes, convert, data))


def unblock(bb: relax.BlockBuilder, data: Expr, shape: Sequence[int]) -> relax.Var:
    """Blocked -> plain."""
    lanes = int(data.ty.shape.values[-1])
    if _same_bytes(shape, lanes):
        return bb.emit(relax.op.reshape(data, tuple(shape)))

    def convert(x: te.Tensor) -> te.Tensor:
        def element(*i: Expr) -> Expr:
            n, c, h, w = (0, i[1], i[0], 0) if len(shape) == 2 else i
            return x[n, c // lanes, h, w, c % lanes]

        return te.compute(tuple(shape), element, name="unblock_channels")

    return bb.emit(kernel_call(bb, "unblock_channels", tuple(shape), convert, data))


def interleave(
    bb: relax.BlockBuilder, data: Expr, shape: Sequence[int], between: tuple[int, int]
) -> relax.Var:
    """Interleave the pixels of blocked images that come one after the other: NCHW ``shape``.

    The result is blocked if each image's channels fill blocks, otherwise plain.
    """
    (rows, columns), lanes = between, int(data.ty.shape.values[-1])
    blocks, rest = divmod(int(shape[1]), lanes)

    def convert(x: te.Tensor) -> te.Tensor:
        def plain(n: Expr, o: Expr, h: Expr, w: Expr) -> Expr:
            c = (h % rows * columns + w % columns) * int(shape[1]) + o
            place = (n, c // lanes, h // rows, w // columns, c % lanes)
            return x[place]

        def blocked(n: Expr, b: Expr, h: Expr, w: Expr, lane: Expr) -> Expr:
            image = h % rows * columns + w % columns
            place = (n, image * blocks + b, h // rows, w // columns, lane)
            return x[place]

        out = tuple(shape) if rest else blocked_shape(shape, lanes)
        return te.compute(out, plain if rest else blocked, name="interleave")

    return bb.emit(kernel_call(bb, "interleave", (tuple(shape), between), convert, data))


def concat(
    bb: relax.BlockBuilder,
    machine: VectorMachine,
    parts: Sequence[Expr],
    widths: Sequence[int],
) -> relax.Var:
    """Concatenate channels; a view if all parts but the last fill their blocks."""
    lanes = machine.lanes
    if all(width % lanes == 0 for width in widths[:-1]):
        return bb.emit(relax.op.concat(list(parts), axis=1))
    starts = [sum(widths[:i]) for i in range(len(widths))]
    total = sum(widths)
    mark = annotation("concat", ConcatConfig(tuple(widths), lanes)) if shuffles(machine) else {}

    def merge(*tensors: te.Tensor) -> te.Tensor:
        n, _, h, w, _ = tensors[0].shape

        def element(i: Expr, b: Expr, y: Expr, x: Expr, lane: Expr) -> Expr:
            c = b * lanes + lane
            value: Expr = tirx.const(0, tensors[0].dtype)
            end = total
            for tensor, start in reversed(list(zip(tensors, starts, strict=True))):
                at = c - start
                inside = tirx.all(at >= 0, c < end)
                value = tirx.if_then_else(inside, tensor[i, at // lanes, y, x, at % lanes], value)
                end = start
            return value

        out = (n, -(-total // lanes), h, w, lanes)
        return te.compute(out, element, name="concat_channels", attrs=mark)

    return bb.emit(kernel_call(bb, "concat_channels", (tuple(widths), bool(mark)), merge, *parts))


# --- operators ------------------------------------------------------------------------------------


def convolution(
    bb: relax.BlockBuilder,
    machine: VectorMachine,
    shape: ConvShape,
    data: Expr,
    weight: GenericConst,
    data_block: int,
    *,
    exact: bool = False,
    sums: str = "float32",
) -> relax.Var:
    """A convolution with the template that `choose_conv` selects, in the type of its sums.

    ``exact`` as for `choose_conv`.
    """
    if gathers_pixels(shape, machine):
        data = subsample(bb, shape.stride, data)
    config = convolution_config(shape, machine.summing(sums), data_block, exact=exact)
    if isinstance(config, WindowConfig):
        return _depthwise(bb, config, data, weight)
    if isinstance(config, WinogradConfig):
        packed = _winograd_weight(bb, config, weight)
        return _template(bb, "winograd_conv2d", "winograd", config, winograd_compute, data, packed)
    packed = kernel_call(
        bb, "pack_weight", (config, sums), lambda w: pack_weight(config, w, sums), weight
    )
    return _convolved(bb, "conv2d", config, data, packed, sums)


def _convolved(
    bb: relax.BlockBuilder, name: str, config: ConvConfig, data: Expr, packed: Expr, sums: str
) -> relax.Var:
    mark = annotation(config.template, config)
    call = kernel_call(
        bb,
        name,
        (config, sums),
        lambda x, w: conv_compute(config, x, w, mark, sums),
        data,
        bb.emit(packed),
    )
    return bb.emit(call)


def _winograd_weight(
    bb: relax.BlockBuilder, config: WinogradConfig, weight: GenericConst
) -> relax.Call:
    mark = annotation("winograd_weight", config)
    return kernel_call(
        bb, "winograd_weight", config, lambda w: transform_weight(config, w, mark), weight
    )


def winograd_input(bb: relax.BlockBuilder, config: WinogradConfig, data: Expr) -> relax.Var:
    """The first stage of a Winograd convolution: its planes as an image in blocks of channels."""
    mark = annotation("winograd_input", config)
    return bb.emit(
        kernel_call(bb, "winograd_input", config, lambda x: transform_input(config, x, mark), data)
    )


def winograd_product(
    bb: relax.BlockBuilder, config: WinogradConfig, planes: Expr, weight: GenericConst
) -> relax.Var:
    """A Winograd convolution of planes that are already computed."""
    packed = _winograd_weight(bb, config, weight)
    return _template(
        bb, "winograd_product", "winograd_product", config, multiply_planes, planes, packed
    )


def _template(
    bb: relax.BlockBuilder,
    name: str,
    template: str,
    config: Config,
    compute: Callable[..., te.Tensor],
    data: Expr,
    packed: Expr,
) -> relax.Var:
    """Emit the call of a template's kernel with packed weights."""
    mark = annotation(template, config)
    call = kernel_call(
        bb, name, config, lambda x, w: compute(config, x, w, mark), data, bb.emit(packed)
    )
    return bb.emit(call)


def subsample(bb: relax.BlockBuilder, stride: tuple[int, int], data: Expr) -> relax.Var:
    """The pixels that a strided 1x1 window reads, copied next to each other.

    Otherwise a convolution's channel blocks lie at multiples of the cache's set size: measured
    0.5x.
    """
    rows, columns = stride

    def pick(x: te.Tensor) -> te.Tensor:
        n, c, h, w, *lane = x.shape
        size = (n, c, -(-int(h) // rows), -(-int(w) // columns), *lane)

        def pixel(i: Expr, b: Expr, y: Expr, z: Expr, *v: Expr) -> Expr:
            place = (i, b, y * rows, z * columns, *v)
            return x[place]

        return te.compute(size, pixel, name="subsample")

    return bb.emit(kernel_call(bb, "subsample", stride, pick, data))


def _depthwise(
    bb: relax.BlockBuilder, config: WindowConfig, data: Expr, weight: GenericConst
) -> relax.Var:
    packed = kernel_call(
        bb, "pack_depthwise", config, lambda w: pack_depthwise_weight(config, w), weight
    )
    return _template(bb, "depthwise_conv2d", config.template, config, window_compute, data, packed)


def dense(
    bb: relax.BlockBuilder,
    machine: VectorMachine,
    shape: tuple[int, int],
    data: Expr,
    weight: GenericConst,
    sums: str = "float32",
) -> relax.Var:
    """A matrix product with constant weights (K, N): a pointwise convolution of M pixels."""
    conv = dense_shape(shape, int(weight.ty.shape.values[1]))
    config = choose_conv(conv, machine.summing(sums), machine.lanes)
    assert isinstance(config, ConvConfig)
    packed = kernel_call(
        bb, "pack_weight", (config, sums), lambda w: pack_weight(config, _as_oihw(w), sums), weight
    )
    return _convolved(bb, "dense", config, data, packed, sums)


def _as_oihw(weight: te.Tensor) -> te.Tensor:
    k, n = weight.shape
    return te.compute((n, k, 1, 1), lambda o, i, _y, _x: weight[i, o], name="transpose")


def matmul(bb: relax.BlockBuilder, machine: VectorMachine, a: Expr, b: Expr) -> relax.Var | None:
    """A product of computed matrices; None if the template does not fit."""
    left, right = (tuple(int(d) for d in x.ty.shape.values) for x in (a, b))
    config = choose_matmul(left, right, machine) if min(len(left), len(right)) > 1 else None
    if config is None:
        return None
    mark = annotation("matmul", config)
    return bb.emit(
        kernel_call(bb, "matmul", config, lambda x, y: matmul_compute(config, x, y, mark), a, b)
    )


def softmax(
    bb: relax.BlockBuilder, machine: VectorMachine, data: Expr, axis: int, denormals: bool
) -> relax.Var | None:
    """Softmax; None if the template does not fit."""
    shape = tuple(int(d) for d in data.ty.shape.values)
    config = choose_softmax(shape, axis, machine, denormals)
    if config is None:
        return None
    mark = annotation("softmax", config)
    return bb.emit(
        kernel_call(bb, "softmax", config, lambda x: softmax_compute(config, x, mark), data)
    )


def pool(bb: relax.BlockBuilder, machine: VectorMachine, call: relax.Call, data: Expr) -> relax.Var:
    """Max or average pooling."""
    config = pool_config(machine, call)
    mark = annotation(config.template, config)
    return bb.emit(
        kernel_call(
            bb,
            f"{config.kind}_pool2d",
            config,
            lambda x: window_compute(config, x, None, mark),
            data,
        )
    )
