"""Fourier transforms, as products with tables of sines.

    DFT(x: (B, n, 1))                      ->   matmul(x: (B, n), table: (n, 2 * bins))
    STFT(x: (B, L, 1), step, window: n)    ->   conv1d(x: (B, 1, L), table * window, strides=step)

Signals of networks are short (256 to 2,048 numbers), and products of matrices are the fastest that
a processor has: a fast transform needs fewer multiplications, but of single numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from tvm import relax

from tvm_stretch.read.onnx.node import Node, as_expr, converter, numpy_dtype

_REAL, _COMPLEX = 1, 2
"""Numbers of an element: the last dimension of a signal."""

_AXIS_IS_INPUT = 20
"""The operator set from which the axis of a DFT is an input."""


@dataclass(frozen=True)
class _Transform:
    """A transform of ``size`` elements to ``results``; ``length`` is its period."""

    length: int
    size: int
    parts: int
    results: int
    result_parts: int
    inverse: bool = False

    @property
    def table(self) -> np.ndarray:
        """What each number of a signal (real parts first) adds to each of the result."""
        places = np.outer(np.arange(self.size), np.arange(self.results)) % self.length
        turns = 2 * np.pi * places / self.length
        real, imaginary = np.cos(turns), np.sin(turns)
        if self.inverse:
            share = np.full(self.size, 1 / self.length)
            if self.result_parts == _REAL:  # elements that are left out are conjugates of others
                share[1 : (self.length + 1) // 2] *= 2
            real, imaginary = share[:, None] * real, share[:, None] * imaginary
        else:
            imaginary = -imaginary
        rows = [[real, imaginary], [-imaginary, real]]
        return np.block([row[: self.result_parts] for row in rows[: self.parts]])


def _transform(node: Node, length: int, parts: int, *, inverse: bool, onesided: bool) -> _Transform:
    """The transform of signals of this length."""
    if length < 1:
        raise node.refuse("a signal of one number or more", str(length))
    half = length // 2 + 1
    if not onesided:
        found = _Transform(length, length, parts, length, _COMPLEX, inverse)
    elif inverse and parts == _COMPLEX:
        found = _Transform(length, half, parts, length, _REAL, inverse)
    elif not inverse and parts == _REAL:
        found = _Transform(length, length, parts, half, _COMPLEX)
    else:
        wanted, got = ("complex", "real") if inverse else ("real", "complex")
        raise node.refuse(f"{wanted} numbers, since it is onesided,", f"{got} ones")
    node.check_table(found.parts * found.size, found.result_parts * found.results)
    return found


@converter("DFT")
def _dft(node: Node) -> relax.Expr:
    shape, parts, axis = node.shape(), _parts(node), _dft_axis(node)
    inverse, onesided = bool(node.attr("inverse", 0)), bool(node.attr("onesided", 0))
    usual = 2 * (shape[axis] - 1) if inverse and onesided else shape[axis]
    length = (node.optional_ints(1, "dft_length") or [usual])[0]
    transform = _transform(node, length, parts, inverse=inverse, onesided=onesided)
    x = _of_length(node, axis, transform.size)
    # (.., axis, .., part) -> (.., .., part, axis)
    last = len(shape) - 1
    rest = [i for i in range(last) if i != axis]
    others = [shape[i] for i in rest]
    x = node.emit(relax.op.permute_dims(x, [*rest, last, axis]))
    x = node.emit(relax.op.reshape(x, (prod(others), parts * transform.size)))
    table = as_expr(transform.table.astype(numpy_dtype(node.dtype())))
    product = node.emit(relax.op.matmul(x, table))
    result = (*others, transform.result_parts, transform.results)
    apart = node.emit(relax.op.reshape(product, result))
    back = [rest.index(i) if i in rest else last for i in range(last)]
    return relax.op.permute_dims(apart, [*back, last - 1])


def _dft_axis(node: Node) -> int:
    """The axis of the signal, which is not that of the parts."""
    if node.opset < _AXIS_IS_INPUT:
        axis = int(node.attr("axis", 1))
    else:
        axis = (node.optional_ints(2, "axis") or [-2])[0]
    rank = node.rank()
    if not -rank <= axis < rank or axis % rank == rank - 1:
        raise node.refuse(f"an axis of {rank - 1} before that of the parts", str(axis))
    return axis % rank


def _parts(node: Node) -> int:
    """How many numbers an element has."""
    shape = node.shape()
    if len(shape) <= 1 or shape[-1] not in (_REAL, _COMPLEX):
        raise node.refuse("a last dimension of 1 (real) or 2 (complex)", f"shape {shape}")
    return shape[-1]


def _of_length(node: Node, axis: int, length: int) -> relax.Expr:
    """The signal cut to a length, or followed by zeros."""
    size, x = node.shape()[axis], node[0]
    if length < size:
        return node.emit(relax.op.strided_slice(x, [axis], [0], [length]))
    if length == size:
        return x
    widths = [0] * 2 * node.rank()
    widths[2 * axis + 1] = length - size
    return node.emit(relax.op.nn.pad(x, widths))


@converter("STFT")
def _stft(node: Node) -> relax.Expr:
    parts, (batch, size, *_) = _parts(node), node.shape()
    step, window = node.ints(1, "frame_step")[0], node.optional_const(2, "window")
    usual = size if window is None else len(window)
    length = (node.optional_ints(3, "frame_length") or [usual])[0]
    if window is not None and window.shape != (length,):
        raise node.refuse(f"a window of {length} numbers", f"shape {list(window.shape)}")
    if step < 1 or length > size:
        raise node.refuse("a step, and a frame within the signal", f"{step}, {length} of {size}")
    onesided = bool(node.attr("onesided", 1))
    transform = _transform(node, length, parts, inverse=False, onesided=onesided)
    table = transform.table.reshape(parts, length, -1)
    if window is not None:
        table *= window.astype(np.float64)[:, None]
    signal = node.emit(relax.op.permute_dims(node[0], [0, 2, 1]))
    weight = np.ascontiguousarray(table.transpose(2, 0, 1), numpy_dtype(node.dtype()))
    frames = node.emit(relax.op.nn.conv1d(signal, as_expr(weight), strides=step))
    apart = node.emit(relax.op.reshape(frames, (batch, _COMPLEX, transform.results, -1)))
    return relax.op.permute_dims(apart, [0, 3, 2, 1])
