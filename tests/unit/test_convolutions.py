"""Convolutions like others have the types that Relax works out."""

from __future__ import annotations

import tvm
from helpers.relax_helpers import random_const
from hypothesis import assume, given
from hypothesis import strategies as st
from tvm import relax

from tvm_stretch.network.convolutions import conv2d_like

SMALL = st.tuples(st.integers(1, 3), st.integers(1, 3))


@given(
    SMALL,
    SMALL,
    SMALL,
    st.tuples(*[st.integers(0, 2)] * 4),
    st.sampled_from([1, 2, 8]),
    st.sampled_from(["NCHW", "NHWC"]),
)
def test_types(kernel, strides, dilation, padding, groups, layout) -> None:
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    assume(9 + padding[0] + padding[2] >= extents[0] and 7 + padding[1] + padding[3] >= extents[1])
    shape = (2, 8, 9, 7) if layout == "NCHW" else (2, 9, 7, 8)
    data = relax.Var("x", relax.TensorType(shape, "float32"))
    call = relax.op.nn.conv2d(
        data,
        random_const(16, 8 // groups, *kernel),
        strides=list(strides),
        padding=list(padding),
        dilation=list(dilation),
        groups=groups,
        data_layout=layout,
    )
    want = relax.BlockBuilder().normalize(call)
    fewer = random_const(8, 8 // groups, *kernel)
    got = relax.BlockBuilder().normalize(conv2d_like(relax.BlockBuilder(), want, [data, fewer]))
    plain = relax.op.nn.conv2d(
        data,
        fewer,
        strides=list(strides),
        padding=list(padding),
        dilation=list(dilation),
        groups=groups,
        data_layout=layout,
    )
    tvm.ir.assert_structural_equal(got, relax.BlockBuilder().normalize(plain))
