"""How a machine adds products of 8-bit numbers to int32 sums, a word of four channels at a time.

    sums[lane] += x[0] * w[lane][0] + x[1] * w[lane][1] + x[2] * w[lane][2] + x[3] * w[lane][3]

Differences between instructions are data here: the type in which they take pixels, and the order of
weights that they expect.  None of them saturates: ``vpmaddubsw`` would, so AVX2 multiplies
int16.

| instruction | weights of a word |
| --- | --- |
| ``vpdpbusd``, ``sdot``, ``usdot``, ``vrmpybusv``, ``vrmpybv`` | int8 ``[lane][channel]`` |
| ``smmla``, ``usmmla`` | int8 ``[pair of lanes][lane][channel of two words]`` |
| ``vrmpyub``, ``vrmpybus`` | weight + 128 as uint8 ``[lane][channel]`` |
| ``vpmaddwd`` | int16 ``[channels 0 and 2, 1 and 3][lane][channel]`` |
| ``vpmaddwd``, pixels of int16 | int16 ``[channels 0 and 1, 2 and 3][lane][channel]`` |
| none | int8 ``[channel][lane]`` |

Instructions that multiply small matrices take pairs of pixels: `matrix_conv.py`.

In a packet, HVX multiplies two vectors once, but a vector by the word of a general register twice,
and then a pixel's word need not be copied to all lanes. These instructions take unsigned vectors,
so weights are stored with 128 added, and 128 times the sum of the pixels is subtracted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from tvm import te, tirx
from tvm.ir import Expr

from .loops import const
from .loops import lanes as vector_loop

WORD = 4
"""Channels that are multiplied together."""

FLIP = -0x7F7F7F80
"""0x80808080: xor with it turns four uint8 of a word into int8 minus 128, and back."""

Pixel = Callable[[Expr | int], Expr]
"""One channel of a word; with a ramp, several."""


@dataclass(frozen=True)
class Dot:
    """One way to add products of words."""

    intrinsic: str  # LLVM's name; empty for plain arithmetic
    pixel: str  # the type in which it takes pixels
    weight: str  # the type of packed weights
    parts: int  # pieces of a word that are multiplied one after the other
    words: bool = False  # whether LLVM declares its operands as int32
    offset: int = 0  # added to packed weights; if not 0, pixels are words of general registers
    # whether it multiplies two pixels by two lanes, eight channels at a time
    is_matrix: bool = False
    # by type of pixels, another way for convolutions without groups
    dense: tuple[tuple[str, str], ...] = ()
    signed: str = ""  # the way for int8 pixels, if this one does not take them
    wide: str = ""  # the way for pixels that were made int16 before

    @property
    def together(self) -> int:
        """Channels of one piece, whose weights are neighbours in memory."""
        return WORD // self.parts

    def channel(self, part: Expr, place: Expr) -> Expr:
        """The channel of its word at ``place`` of a piece."""
        return part * self.together + place if self.takes_pairs else place * self.parts + part

    def place(self, channel: Expr) -> tuple[Expr, Expr]:
        """The piece of a channel of a word, and its place there."""
        size = self.together if self.takes_pairs else self.parts
        indices = channel // size, channel % size
        return indices if self.takes_pairs else indices[::-1]

    @property
    def takes_pairs(self) -> bool:
        """Whether a piece is two neighbouring channels of int16, loaded as they are."""
        return self.pixel == "int16"

    def shift(self, dtype: str) -> int:
        """The number to add to pixels of ``dtype`` to convert them to the instruction's type."""
        if self.pixel == dtype:
            return 0
        return 128 if self.pixel == "uint8" else -128

    def packed(self, weight: Expr) -> Expr:
        """An int8 weight in its packed form."""
        if not self.offset:
            return weight.astype(self.weight)
        return (weight.astype("int32") + tirx.const(self.offset, "int32")).astype(self.weight)

    def apply(self, lanes: int, statement: Callable[[Expr, int], tirx.Stmt]) -> tirx.Stmt:
        """``statement(lane, count)`` for all lanes: at once if there is an instruction."""
        if self.intrinsic:
            return statement(tirx.Ramp(const(0), const(1), lanes), lanes)
        return vector_loop(lanes, lambda v: statement(v, 1))

    def weights(self, lane: Expr, first: Expr, count: int) -> Expr:
        """The place of the weights of ``count`` lanes, from ``lane`` of a vector on."""
        if count == 1:
            return lane + first
        return tirx.Ramp(first * self.together, const(1), count * self.together)

    def pieces(self, pixel: Pixel, dtype: str, lanes: int) -> list[Expr]:
        """The operands of each piece: a word of the pixel, for ``lanes`` lanes."""
        if not self.intrinsic:
            shift = tirx.const(self.shift(dtype), "int32")
            return [pixel(channel).astype("int32") + shift for channel in range(WORD)]
        if self.takes_pairs:
            pairs = [tirx.Ramp(const(first), const(1), 2) for first in range(0, WORD, 2)]
            words = [every(tirx.reinterpret("int32", pixel(pair)), lanes) for pair in pairs]
            return [tirx.reinterpret(f"int16x{2 * lanes}", word) for word in words]
        word = tirx.reinterpret("int32", pixel(tirx.Ramp(const(0), const(1), WORD)))
        if self.offset:
            return [word]
        if self.shift(dtype):
            word = tirx.bitwise_xor(word, tirx.const(FLIP, "int32"))
        return self.split(every(word, lanes), lanes)

    def split(self, words: Expr, lanes: int) -> list[Expr]:
        """The pieces of words that differ between lanes and already have the instruction's type."""
        if not self.intrinsic:
            return [
                tirx.bitwise_and(_right(words, 8 * byte, lanes), number(0xFF, lanes))
                for byte in range(WORD)
            ]
        if self.parts == 1:
            return [tirx.reinterpret(f"{self.pixel}x{WORD * lanes}", words)]
        low = number(0x00FF00FF, lanes)
        pieces = (words, _right(words, 8, lanes))
        return [
            tirx.reinterpret(f"int16x{2 * lanes}", tirx.bitwise_and(piece, low)) for piece in pieces
        ]

    def add(self, sums: Expr, piece: Expr, weight: Expr, lanes: int) -> Expr:
        """The sums of all lanes plus the products of one piece."""
        kind = f"int32x{lanes}"
        if not self.intrinsic:
            return sums + piece * weight.astype("int32")
        if self.offset:
            weight = tirx.reinterpret(kind, weight)
            return tirx.call_llvm_pure_intrin(kind, self.intrinsic, sums, weight, piece)
        if self.words:
            piece, weight = tirx.reinterpret(kind, piece), tirx.reinterpret(kind, weight)
        if self.parts == 1:
            return tirx.call_llvm_pure_intrin(kind, self.intrinsic, sums, piece, weight)
        return in_order(sums + tirx.call_llvm_pure_intrin(kind, self.intrinsic, piece, weight))

    def product(self, words: Expr, weights: Expr) -> Expr:
        """The product of two HVX vectors, without an addend."""
        kind = str(words.ty.dtype)
        name = self.intrinsic.replace(".acc.", ".")
        return tirx.call_llvm_pure_intrin(kind, name, words, tirx.reinterpret(kind, weights))


def in_order(sums: Expr) -> Expr:
    """Sums in this order: LLVM would add products of several words first, and spill them.

    The fence exists for floats only; it is no instruction.
    """
    kind = str(sums.ty.dtype)
    floats = kind.replace("int", "float")
    bits = tirx.reinterpret(floats, sums)
    fenced = tirx.call_llvm_pure_intrin(floats, "llvm.arithmetic.fence.f32", bits)
    return tirx.reinterpret(kind, fenced)


def every(value: Expr, lanes: int) -> Expr:
    """The same value for all lanes."""
    return value if lanes == 1 else tirx.Broadcast(value, lanes)


def number(value: int, lanes: int) -> Expr:
    """An int32 constant for all lanes."""
    return every(tirx.const(value, "int32"), lanes)


def _right(words: Expr, bits: int, lanes: int) -> Expr:
    return tirx.shift_right(words, number(bits, lanes)) if bits else words


DOTS = {
    "": Dot("", "uint8", "int8", 4),
    "vpdpbusd.512": Dot("llvm.x86.avx512.vpdpbusd.512", "uint8", "int8", 1),
    "vpdpbusd.256": Dot("llvm.x86.avx512.vpdpbusd.256", "uint8", "int8", 1),
    "vpmaddwd.512": Dot(
        "llvm.x86.avx512.pmaddw.d.512", "uint8", "int16", 2, wide="vpmaddwd.512.pairs"
    ),
    "vpmaddwd.256": Dot("llvm.x86.avx2.pmadd.wd", "uint8", "int16", 2, wide="vpmaddwd.256.pairs"),
    "vpmaddwd.512.pairs": Dot("llvm.x86.avx512.pmaddw.d.512", "int16", "int16", 2),
    "vpmaddwd.256.pairs": Dot("llvm.x86.avx2.pmadd.wd", "int16", "int16", 2),
    "vrmpybusv": Dot(
        "llvm.hexagon.V6.vrmpybusv.acc.128B",
        "uint8",
        "int8",
        1,
        words=True,
        dense=(("uint8", "vrmpyub"), ("int8", "vrmpybus")),
        signed="vrmpybv",
    ),
    "vrmpybv": Dot("llvm.hexagon.V6.vrmpybv.acc.128B", "int8", "int8", 1, words=True),
    "vrmpyub": Dot("llvm.hexagon.V6.vrmpyub.acc.128B", "uint8", "uint8", 1, True, 128),
    "vrmpybus": Dot("llvm.hexagon.V6.vrmpybus.acc.128B", "int8", "uint8", 1, True, 128),
    "sdot": Dot("llvm.aarch64.neon.sdot", "int8", "int8", 1),
    "usdot": Dot(
        "llvm.aarch64.neon.usdot",
        "uint8",
        "int8",
        1,
        dense=(("uint8", "usmmla"), ("int8", "smmla")),
    ),
    "smmla": Dot("llvm.aarch64.neon.smmla", "int8", "int8", 1, is_matrix=True),
    "usmmla": Dot("llvm.aarch64.neon.usmmla", "uint8", "int8", 1, is_matrix=True),
}
"""By the names that `VectorMachine.dot` uses."""


def by_vectors(dot: str, dtype: str) -> str:
    """The way to multiply vectors of pixels by vectors of weights, for a type of pixels."""
    if dtype == "int16":
        return DOTS[dot].wide
    return (dtype == "int8" and DOTS[dot].signed) or dot


def shifted(data: te.Tensor, shift: int) -> te.Tensor:
    """Pixels as int32, shifted to the range of the instruction's type."""
    return te.compute(
        data.shape, lambda *i: data[i].astype("int32") + tirx.const(shift, "int32"), name="shifted"
    )


@dataclass(frozen=True, kw_only=True)
class OfWords:
    """Additional fields of configurations of kernels that multiply words."""

    # whether the kernel reads an image without its padding, whatever the zero point is
    pads: ClassVar[bool] = False
    # whether the kernel reads an image with its padding, even of zeros
    reads_padding: ClassVar[bool] = False

    dtype: str = "uint8"  # of the pixels
    dot: str = ""  # the way in which products are added; a key of `DOTS`

    @property
    def way(self) -> Dot:
        """The way in which products are added."""
        return DOTS[self.dot]
