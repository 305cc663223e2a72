"""Integer convolutions computed in float32, for processors without products of 8-bit numbers.

    y = integer_conv2d(x, w, bias, factor)
        ->  a = float(x - zero)                    # behind whatever makes x
            s = conv2d(a, float(w))                # the templates of float32
            y = round((s + bias) * factor) + zero'

It is what NN-Stretch's GPU does with a quantised network: other arithmetic, the same weights. Whole
numbers below 2**24 are exact in float32, whatever order they are added in, so the answers are those
of integers; sums beyond lose their last bit, which 8 bits nearly never show. Winograd's transforms
have fractions, and are not used.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import Expr

from .blocks import convolution, kernel_call
from .choose import ConvShape
from .integer_blocks import by_channel
from .integers import Integer
from .machine import VectorMachine


def float_convolution(
    bb: relax.BlockBuilder,
    machine: VectorMachine,
    integer: Integer,
    shape: ConvShape,
    data: Expr,
    constants: Sequence[np.ndarray],
    data_block: int,
) -> relax.Var:
    """A convolution, or a dense layer as one of pixels.

    Args:
        bb: gets the kernels.
        machine: for which they are.
        integer: what to compute.
        shape: of the convolution.
        data: integers in blocked layout, or plain where ``data_block`` is 1.
        constants: weights as OIHW, bias and, unless sums are wanted, factor.
        data_block: channels of a block of the data.
    """
    weight, *per_channel = constants
    zero, rounding = float(integer.zeros[0]), integer.rounding

    def as_float(x: te.Tensor) -> te.Tensor:
        offset = tirx.const(zero, "float32")
        return te.compute(x.shape, lambda *i: x[i].astype("float32") - offset, name="as_float")

    def finished(sums: te.Tensor, bias: te.Tensor, *factor: te.Tensor) -> te.Tensor:
        def element(n: Expr, b: Expr, y: Expr, x: Expr, lane: Expr) -> Expr:
            value = sums[n, b, y, x, lane] + bias[0, b, 0, 0, lane]
            if rounding is None:
                return value.astype("int32")
            return rounding.of(value * factor[0][0, b, 0, 0, lane])

        return te.compute(sums.shape, element, name="finished")

    floats = bb.emit(kernel_call(bb, "as_float", zero, as_float, data))
    weights = relax.const(weight.astype("float32"))
    sums = convolution(bb, machine, shape, floats, weights, data_block, exact=True)
    blocks = [by_channel(v.astype("float32"), machine.lanes) for v in per_channel]
    return bb.emit(kernel_call(bb, "finished", rounding, finished, sums, *blocks))
