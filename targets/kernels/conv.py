"""Direct convolution in blocked layout: configuration, packed weights, meaning.

    out[n, o, y, x, lane] = sum of data[n, ic, y', x', ii] * weight[group, ic, ky, kx, ii, lane']

The loop nest is in `conv_nest.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import gcd
from typing import Any, ClassVar

from tvm import te, tirx, topi
from tvm.ir import Expr

from .loops import const


@dataclass(frozen=True)
class ConvConfig:
    """A convolution and its register tile.

    ``data_block`` is 1 if the input is plain NCHW (the first layer, dense layers), otherwise the
    machine's lanes; ``merged_groups`` groups are computed as one so that each starts on a block.
    """

    batch: int
    in_channels: int
    in_size: tuple[int, int]
    out_channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int
    lanes: int
    data_block: int
    oc_blocks: int
    pixels: int
    merged_groups: int = 1

    template: ClassVar[str] = "conv"

    @property
    def out_size(self) -> tuple[int, int]:
        """Height and width of the output."""
        top, left, bottom, right = self.padding
        spans = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]
        pads = (top + bottom, left + right)
        h, w = (
            (i + p - s) // t + 1
            for i, p, s, t in zip(self.in_size, pads, spans, self.stride, strict=True)
        )
        return h, w

    @property
    def pointwise(self) -> bool:
        """Every output pixel reads exactly the input pixel at its own position."""
        return self.kernel == (1, 1) and self.stride == (1, 1) and not any(self.padding)

    @property
    def out_blocks(self) -> int:
        """Vectors of output channels, the last one perhaps partly empty."""
        return -(-self.out_channels // self.lanes)

    @property
    def out_groups(self) -> int:
        """Register tiles over the output channels."""
        return -(-self.out_blocks // self.oc_blocks)

    @property
    def reduce_blocks(self) -> int:
        """Input channel blocks that one output channel reads."""
        per_group = self.in_channels // self.groups * self.merged_groups
        return -(-min(per_group, self.in_channels) // self.data_block)

    @property
    def in_blocks(self) -> int:
        """Input channel blocks of the whole input."""
        return -(-self.in_channels // self.data_block)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Packed weights, in the order in which the inner loops read them."""
        width = self.oc_blocks * self.lanes
        return (self.out_groups, self.reduce_blocks, *self.kernel, self.data_block, width)

    def first_block(self, out_block: int | Expr) -> int | Expr:
        """First input channel block that the given output block reads."""
        if self.groups == self.merged_groups:
            return 0
        width = self.out_channels // self.groups * self.merged_groups // self.lanes
        return out_block // width * self.reduce_blocks


def layer_of(cfg: ConvConfig) -> dict[str, Any]:
    """The fields of a convolution, without those that subclasses add."""
    return {field.name: getattr(cfg, field.name) for field in fields(ConvConfig)}


def merged_groups(in_channels: int, out_channels: int, groups: int, lanes: int) -> int:
    """How many groups must be merged so that each merged group begins on a channel block."""
    if groups == 1:
        return 1
    merge = 1
    for width in (in_channels // groups, out_channels // groups):
        need = lanes // gcd(width, lanes)
        merge = merge * need // gcd(merge, need)
    return min(merge, groups)


# --- packing: OIHW weights -> weight_shape, run once when the artifact is loaded -----------------


def pack_weight(cfg: ConvConfig, weight: te.Tensor, sums: str = "") -> te.Tensor:
    """OIHW -> [oc group][ic block][ky][kx][ic lane][oc lane], zero for channels that do not exist.

    In the type of the sums, by default the weights' own, so that the loops convert nothing.
    """
    dtype = sums or str(weight.dtype)
    in_group, out_group = cfg.in_channels // cfg.groups, cfg.out_channels // cfg.groups

    def element(g: Expr, b: Expr, y: Expr, x: Expr, i: Expr, o: Expr) -> Expr:
        out = (g * cfg.oc_blocks) * cfg.lanes + o
        channel = (cfg.first_block(g * cfg.oc_blocks + o // cfg.lanes) + b) * cfg.data_block + i
        row = channel - out // out_group * in_group  # channel within its own group
        exists = tirx.all(out < cfg.out_channels, row >= 0, row < in_group)
        value = weight[out, row, y, x]
        value = value if dtype == str(weight.dtype) else value.astype(dtype)
        return tirx.if_then_else(exists, value, tirx.const(0, dtype))

    return te.compute(cfg.weight_shape, element, name="pack_weight")


# --- meaning: plain loops for the stock VM, which the template recognises by their annotation -----


def conv_compute(
    cfg: ConvConfig,
    data: te.Tensor,
    weight: te.Tensor,
    annotation: dict[str, str],
    sums: str = "",
) -> te.Tensor:
    """The convolution as a plain reduction over packed operands, in the type of its sums."""
    sums = sums or str(data.dtype)

    def pixel(*place: Expr) -> Expr:
        value = padded[place]
        return value if str(data.dtype) == sums else value.astype(sums)

    top, left, bottom, right = cfg.padding
    spatial = 2
    before, after = [0] * len(data.shape), [0] * len(data.shape)
    before[spatial : spatial + 2], after[spatial : spatial + 2] = (top, left), (bottom, right)
    padded = topi.nn.pad(data, before, after, 0.0) if any(cfg.padding) else data
    blocks = te.reduce_axis((0, cfg.reduce_blocks), "ic")
    inner = te.reduce_axis((0, cfg.data_block), "ii")
    ky, kx = (te.reduce_axis((0, k), n) for k, n in zip(cfg.kernel, ("ky", "kx"), strict=True))
    last = cfg.in_blocks - 1

    def element(n: Expr, o: Expr, y: Expr, x: Expr, lane: Expr) -> Expr:
        row, column = (
            y * cfg.stride[0] + ky * cfg.dilation[0],
            x * cfg.stride[1] + kx * cfg.dilation[1],
        )
        # a partly empty last merged group must not read past the input; its weights are zero there
        channel = tirx.min(cfg.first_block(o) + blocks, const(last))
        where = (n, channel, row, column) + ((inner,) if cfg.data_block > 1 else ())
        width = (o % cfg.oc_blocks) * cfg.lanes + lane
        return te.sum(
            pixel(*where) * weight[o // cfg.oc_blocks, blocks, ky, kx, inner, width],
            axis=[blocks, ky, kx, inner],
        )

    shape = (cfg.batch, cfg.out_blocks, *cfg.out_size, cfg.lanes)
    return te.compute(shape, element, name="conv2d", attrs=annotation)
