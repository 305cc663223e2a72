"""The layers of blocks of any width, for predictions, without building the blocks.

    basic block, 96 -> 32 channels     conv 3x3 96 -> 32, conv 3x3 32 -> 32, conv 1x1 96 -> 32
    depth 3                            and conv 3x3 32 -> 32 four times more

Multiply-adds and parameters are exactly those that passes/duplicate_and_scale.py would build.
Templates choose the kernels for the shapes; the epilogue's cost is proportional to the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import Any

from tvm.ir import GenericConst

from tvm_stretch.network.expressions import shape_of
from tvm_stretch.network.operators import BINARY, Operator, Operators, remember
from tvm_stretch.network.properties.block_widths import BlockWidths, UnequalWidthsError
from tvm_stretch.plan.cost.describe import describe_copy
from tvm_stretch.targets.kernels.features import EpilogueWork, Features
from tvm_stretch.targets.kernels.layers import (
    ConvShape,
    WindowShape,
    conv_shape,
    dense_shape,
    pool_shape,
)
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import choose

Channels = Callable[[str], int]
"""Gives the number of channels of a tensor."""

_ELEMENTWISE_FLOPS = 2.0
"""Elementwise work per element of a convolution's result: an addition and an activation."""

_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Layer:
    """A convolution, pool, matrix product or copy.

    Attributes:
        shape: of a convolution, matrix product or pool; None for a copy.
        bytes: bytes that a copy moves, or that a convolution's epilogue reads.
        has_norm: whether a batch normalisation follows, which has parameters of its own.
        biases: biases, one for each channel.

    Layers with the same kernel are equal, because normalisations and biases are folded into
    weights.
    """

    shape: ConvShape | WindowShape | None = None
    bytes: int = 0
    has_norm: bool = field(default=False, compare=False)
    biases: int = field(default=0, compare=False)

    @property
    def multiply_adds(self) -> int:
        """The multiply-adds of a convolution or matrix product."""
        return self.shape.multiply_adds if isinstance(self.shape, ConvShape) else 0

    @property
    def parameters(self) -> int:
        """Trained numbers: weights, biases, scales and offsets of batch normalisations."""
        if not isinstance(self.shape, ConvShape):
            return self.biases
        norm = 2 * self.shape.out_channels if self.has_norm else 0
        return self.shape.weights + norm + self.biases

    def features(self, machine: VectorMachine) -> Features:
        """The features of its kernel for cost models."""
        return _features(self, machine)


@lru_cache(maxsize=1 << 14)
def _features(layer: Layer, machine: VectorMachine) -> Features:
    shape, epilogue = layer.shape, EpilogueWork()
    if shape is None:
        return describe_copy(layer.bytes, machine)
    if isinstance(shape, WindowShape):
        template = choose(shape, machine)
    else:
        # an image is not blocked yet
        block = 1 if shape.in_channels < 4 and not shape.is_dense else machine.lanes
        template = _template(shape, machine, block)
        flops = _ELEMENTWISE_FLOPS * shape.batch * prod(shape.out_size) * shape.out_channels
        epilogue = EpilogueWork(flops, layer.bytes)
    features: Features = template.work(epilogue, machine, _FLOAT_BYTES)
    return features


def _template(shape: ConvShape, machine: VectorMachine, block: int) -> Any:
    """The template of a convolution, with the tile that suits the next powers of two of channels.

    Choosing a tile takes milliseconds, and a search asks for hundreds of widths.
    """
    channels = (shape.in_channels, shape.out_channels)
    if shape.groups > 1 or min(channels) < machine.lanes or shape.is_dense:
        return choose(shape, machine, block)
    read, written = (1 << (n - 1).bit_length() for n in channels)
    near = choose(replace(shape, in_channels=read, out_channels=written), machine, block)
    return replace(near, in_channels=channels[0], out_channels=channels[1])


def count(layers: Iterable[Layer]) -> tuple[int, int]:
    """Multiply-adds and parameters."""
    listed = list(layers)
    return sum(x.multiply_adds for x in listed), sum(x.parameters for x in listed)


@remember
def has_norms(operators: Operators) -> bool:
    """Whether the network has batch normalisations, so that new layers get one too."""
    return any(operator.kind == "nn.batch_norm" for operator in operators)


def point_conv(shape: Sequence[int], read: int, width: int, norm: bool, stride: int = 1) -> Layer:
    """A 1x1 convolution on an image of this shape."""
    size = (shape[2], shape[3])
    shape_of_conv = ConvShape(shape[0], read, size, width, (1, 1), (stride, stride))
    return Layer(shape_of_conv, has_norm=norm)


@remember
def block_layers(block: BlockWidths, read: int, width: int) -> list[Layer]:
    """The layers of one block.

    Args:
        read: channels of its input.
        width: channels of its result.
    """
    norm = has_norms(block.operators)
    start = block.operators.shape(block.start)
    try:
        sizes = block.sizes(read, width)
    except UnequalWidthsError:
        assert read != width, "a block that reads as many channels as it computes exists"
        return [point_conv(start, read, width, norm), *block_layers(block, width, width)]
    layers: list[Layer] = []
    for member in block.members:
        skip = block.skips.get(member.name)
        if skip is not None and sizes[block.root(skip)] != width:
            layers.append(point_conv(start, sizes[block.root(skip)], width, norm))
        _add_layer(block.operators, member, layers, lambda n: sizes[block.root(n)])
    return layers


def outside_layers(
    operators: Operators, names: Iterable[str], widths: Mapping[str, int]
) -> list[Layer]:
    """The layers of operators that are not scaled."""
    layers: list[Layer] = []
    for name in names:
        _add_layer(operators, operators[name], layers, lambda n: channels_of(operators, n, widths))
    return layers


def channels_of(operators: Operators, name: str, widths: Mapping[str, int]) -> int:
    """Channels of a tensor that is not scaled itself, but may be computed from a scaled one."""
    if name in widths:
        return widths[name]
    shape = operators.shape(name)
    if not widths or name in operators.params:
        return shape[1] if len(shape) > 1 else channels_of(operators, operators[name].inputs[0], {})
    operator = operators[name]
    if operator.kind == "matmul" or not operator.inputs:
        return shape[1]
    if operator.kind == "nn.conv2d" and operator.groups == 1:
        return shape[1]
    if operator.kind == "concat":
        return sum(channels_of(operators, n, widths) for n in operator.inputs)
    read = channels_of(operators, operator.inputs[0], widths)
    before = operators.shape(operator.inputs[0])
    if len(shape) > 1 and len(before) > 1:
        return read * shape[1] // before[1]
    return read


def _add_layer(
    operators: Operators, member: Operator, layers: list[Layer], channels: Channels
) -> None:
    """Append the layer of an operator, or add its cost to the convolution before it."""
    kind, inputs = member.kind, member.inputs
    if kind == "nn.conv2d":
        shape = _shape_of(member)
        if shape is not None:
            changed = _with_channels(shape, channels(inputs[0]), channels(member.name))
            layers.append(Layer(changed))
    elif kind == "matmul" and len(inputs) == 1:
        rows = dense_shape((member.arg_shapes[0][0], channels(inputs[0])), member.shape[-1])
        layers.append(Layer(rows))
    elif kind == "nn.batch_norm" and layers:
        layers[-1] = replace(layers[-1], has_norm=True)
    elif kind in ("nn.max_pool2d", "nn.avg_pool2d"):
        layers.append(Layer(pool_shape(member.call)))
    elif kind in ("mean", "permute_dims"):
        layers.append(Layer(bytes=_bytes(operators, inputs[0], channels)))
    elif kind in BINARY and len(inputs) == 2:
        _add_sum(operators, member, layers, channels)
    elif kind in BINARY and layers and _varies(member):
        layers[-1] = replace(layers[-1], biases=layers[-1].biases + channels(member.name))


@remember
def _shape_of(conv: Operator) -> ConvShape | None:
    return conv_shape(conv.call)


def _with_channels(shape: ConvShape, read: int, width: int) -> ConvShape:
    groups = 1
    if shape.groups > 1:
        groups = width * shape.groups // shape.out_channels
    return replace(shape, in_channels=read, out_channels=width, groups=groups)


def _add_sum(
    operators: Operators, member: Operator, layers: list[Layer], channels: Channels
) -> None:
    """Add a residual to the convolution's epilogue; a gate is a kernel of its own."""
    size = _bytes(operators, member.name, channels)
    is_gate = any(operators.shape(n)[2:] != member.shape[2:] for n in member.inputs)
    if is_gate or not layers:
        layers.append(Layer(bytes=size))
    elif member.kind == "add" and _is_conv(layers[-1].shape):
        layers[-1] = replace(layers[-1], bytes=layers[-1].bytes + size)


def _is_conv(shape: object) -> bool:
    return isinstance(shape, ConvShape) and not shape.is_dense


def _bytes(operators: Operators, name: str, channels: Channels) -> int:
    shape = operators.shape(name)
    pixels = prod(shape[-2:]) if len(shape) > 2 else 1
    return 4 * shape[0] * channels(name) * pixels


def _varies(member: Operator) -> bool:
    """Whether a constant operand has a value for each channel."""
    constants = [arg for arg in member.call.args if isinstance(arg, GenericConst)]
    return any(max(shape_of(arg), default=1) > 1 for arg in constants)
