"""Which taps of a window lie inside the image, and what a window without taps gives."""

from __future__ import annotations

from math import inf

from tvm import tirx
from tvm.ir import Expr

from .layers import WindowShape
from .loops import Index, const


def least(dtype: str) -> Expr:
    """The maximum of no numbers; for floats minus infinity, unlike `te.max`."""
    return tirx.const(-inf, dtype) if "float" in str(dtype) else tirx.min_value(dtype)


def window_count(cfg: WindowShape, y: Expr, x: Expr, dtype: str) -> Expr:
    """The divisor of the average at output pixel ``(y, x)``."""
    if cfg.count_include_pad:
        rows, columns = (_taps_padded(cfg, axis, place) for axis, place in enumerate((y, x)))
    else:
        rows, columns = (taps_inside(cfg, axis, place)[1] for axis, place in enumerate((y, x)))
    return tirx.max(const(rows * columns), const(1)).astype(dtype)


def _taps_padded(cfg: WindowShape, axis: int, place: Expr) -> Index:
    """Number of taps in the image or its padding, without the border that ``ceil_mode`` adds."""
    size = cfg.padding[axis] + cfg.in_size[axis] + cfg.padding[axis + 2]
    kernel, step, stride = cfg.kernel[axis], cfg.dilation[axis], cfg.stride[axis]
    if (cfg.out_size[axis] - 1) * stride + cfg.spans[axis] <= size:
        return kernel
    return tirx.min(const(kernel), tirx.floordiv(size - place * stride + (step - 1), step))


def taps_inside(cfg: WindowShape, axis: int, place: Expr) -> tuple[Index, Index]:
    """First tap inside the image for output row or column ``place``, and the number of taps."""
    kernel, size, step = cfg.kernel[axis], cfg.in_size[axis], cfg.dilation[axis]
    above = const(cfg.padding[axis]) - place * cfg.stride[axis]
    low = tirx.max(const(0), tirx.floordiv(above + (step - 1), step))
    end = tirx.min(const(kernel), tirx.floordiv(above + (size + step - 1), step))
    return low, tirx.max(const(0), end - low)
