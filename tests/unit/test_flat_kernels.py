"""Bytes whose rows fill no vectors: one loop through memory, the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from helpers.cpu_targets import TARGET
from tvm import te, tirx

from tvm_stretch.make.assemble import with_strides
from tvm_stretch.targets.kernels.generic import schedule_generic
from tvm_stretch.targets.kernels.machine import KIB, VectorMachine

HVX = VectorMachine(
    lanes=32,
    registers=32,
    broadcast_operand=False,
    l2_bytes=1024 * KIB,
    threads=1,
    dot="vrmpybusv",
    dsp=True,
)


def halved_sums(shape: tuple[int, ...], beside: tuple[int, ...]) -> tirx.PrimFunc:
    """(a + b) / 2; `beside` is b's shape."""
    a, b = te.placeholder(shape, "uint8", name="a"), te.placeholder(beside, "uint8", name="b")

    def element(*i: tirx.Var) -> tirx.Expr:
        other = b[tuple(v if size > 1 else 0 for v, size in zip(i, beside, strict=True))]
        total = a[i].astype("int32") + other.astype("int32")
        return tirx.shift_right(total, tirx.const(1, "int32")).astype("uint8")

    out = te.compute(shape, element, name="out")
    return te.create_prim_func([a, b, out], "int64").with_attr("global_symbol", "main")


@pytest.mark.parametrize(
    "shape", [(1, 3, 14, 14, 32), (1, 2, 7, 7, 32), (2, 3, 5, 5, 32), (1, 7, 31, 1, 3)]
)
def test_the_same_numbers(shape: tuple[int, ...]) -> None:
    func = schedule_generic(halved_sums(shape, shape), HVX)
    assert "vectorized(T.int64(128))" in func.script() or "vectorized(128)" in func.script()
    a, b = (np.random.default_rng(seed).integers(0, 256, shape, "uint8") for seed in (0, 1))
    out = tvm.runtime.empty(shape, "uint8")
    code = tvm.compile(tvm.IRModule({"main": func}), target=TARGET)
    code["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
    np.testing.assert_array_equal(out.numpy(), (a.astype(int) + b) >> 1)


def test_views_with_gaps_keep_to_their_rows() -> None:
    """Bands of a larger image: four rows of eight."""
    shape, whole = (1, 2, 4, 7, 32), (1, 2, 8, 7, 32)
    gaps = tuple(int(np.prod(whole[i + 1 :])) for i in range(5))
    func = schedule_generic(with_strides(halved_sums(shape, shape), [gaps, gaps, gaps]), HVX)
    a, b = (np.random.default_rng(seed).integers(0, 256, whole, "uint8") for seed in (0, 1))
    images = [tvm.runtime.tensor(image) for image in (a, b, np.full(whole, 9, "uint8"))]
    bands = [tvm_ffi.from_dlpack(np.from_dlpack(image)[:, :, :4]) for image in images]
    code = tvm.compile(tvm.IRModule({"main": func}), target=TARGET)
    code["main"](*bands)
    want = np.full(whole, 9)
    want[:, :, :4] = (a.astype(int) + b)[:, :, :4] >> 1
    np.testing.assert_array_equal(images[2].numpy(), want)


@pytest.mark.parametrize(
    ("shape", "beside"),
    [
        ((1, 3, 28, 28, 32), (1, 3, 28, 28, 32)),  # TVM makes vectors of these
        ((1, 3, 14, 14, 32), (1, 3, 1, 14, 32)),  # the same in all rows, of which one is no vector
        ((1, 3, 14, 1, 12), (1, 3, 1, 1, 12)),  # of twelve numbers, no vector
        ((1, 3, 1, 3, 32), (1, 3, 1, 1, 32)),  # three pixels
        ((1, 1, 1, 3, 32), (1, 1, 1, 3, 32)),  # less than a vector
    ],
)
def test_others_stay_as_they_were(shape: tuple[int, ...], beside: tuple[int, ...]) -> None:
    text = schedule_generic(halved_sums(shape, beside), HVX).script()
    assert "sblock" in text


@pytest.mark.parametrize(("pixel", "words"), [((32,), 8), ((2, 4), 2)])
def test_what_all_pixels_share_fills_a_vector(pixel: tuple[int, ...], words: int) -> None:
    """`tests/device/test_hexagon_tables.py` has the numbers."""
    text = schedule_generic(halved_sums((1, 3, 7, 7, *pixel), (1, 3, 1, 1, *pixel)), HVX).script()
    assert text.count("vinsertwr") % words == 0 < text.count("vinsertwr")
    assert "vectorized(T.int64(128))" in text or "vectorized(128)" in text


def test_words_are_read_of_bytes_alone() -> None:
    """A number of 32 bits for each channel."""
    a = te.placeholder((1, 3, 7, 7, 32), "uint8", name="a")
    b = te.placeholder((1, 3, 1, 1, 32), "int32", name="b")
    out = te.compute(a.shape, lambda *i: (b[i[0], i[1], 0, 0, i[4]] >> 1).astype("uint8") + a[i])
    func = te.create_prim_func([a, b, out], "int64").with_attr("global_symbol", "main")
    assert "vinsertwr" not in schedule_generic(func, HVX).script()
