"""Layers over time: LSTM, GRU and RNN, and Fourier transforms as products with tables of sines.

    given = x @ W.T + b                     # (steps * batch, features) @ (features, gates)
    y = R.call_tir(lstm, (given, R, ..))    # `targets/cpu/kernels/recurrent.py`

One product takes the inputs of all steps, one kernel the steps, also of bidirectional layers.

    DFT(x: (B, n, 1))                      ->   matmul(x: (B, n), table: (n, 2 * bins))
    STFT(x: (B, L, 1), step, window: n)    ->   conv1d(x: (B, 1, L), table * window, strides=step)

Signals of networks are short (256 to 2,048 numbers), and products of matrices are the fastest that
a processor has: a fast transform needs fewer multiplications, but of single numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from tvm import relax

from tvm_stretch.network.steps import UNITS, Recurrence
from tvm_stretch.read.onnx.node import Node, Value, as_expr, converter, numpy_dtype, static_shape
from tvm_stretch.read.onnx.operators.movement import reshape
from tvm_stretch.targets.cpu.kernels.recurrent import FUNCTIONS, MIDDLE, SLOPE, recurrent_call

_DEFAULTS = {"lstm": ["sigmoid", "tanh", "tanh"], "gru": ["sigmoid", "tanh"], "rnn": ["tanh"]}
_BACKWARDS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_WIDENED = ("float16", "bfloat16")
"""Types that are computed in float32, because states lose digits at every step."""


@converter("LSTM", "GRU", "RNN")
def _recurrent(node: Node) -> tuple[relax.Expr, ...]:
    batch_first = bool(node.attr("layout", 0))
    inputs = {i: node.inputs[i] for i in range(len(node.inputs)) if node.has(i)}
    dtype = node.dtype()
    for i in inputs.keys() - {4}:
        if batch_first and i in (0, 5, 6):
            inputs[i] = _permuted(node, inputs[i], (1, 0, 2))
        if dtype in _WIDENED:
            inputs[i] = _widened(node, inputs[i])
    every, *states = _Layer(node, inputs).results()
    if batch_first:
        every = relax.op.permute_dims(every, [2, 0, 1, 3])
        states = [relax.op.permute_dims(state, [1, 0, 2]) for state in states]
    results = (every, *states)
    if dtype in _WIDENED:
        results = tuple(relax.op.astype(node.emit(result), dtype) for result in results)
    return results


class _Layer:
    """One node. ``inputs`` holds its given inputs by position, with time as the first axis."""

    def __init__(self, node: Node, inputs: dict[int, Value]) -> None:
        self.node, self.inputs = node, inputs
        shape = self.steps, self.batch, self.features = _shape(node, inputs, 0)
        if 0 in shape:
            raise node.refuse("a sequence that is not empty", f"the shape {shape}")
        self.layer = self._described()
        self.directions = len(self.layer.backwards)

    def _described(self) -> Recurrence:
        node, kind = self.node, self.node.op.lower()
        backwards = _BACKWARDS.get(direction := node.attr("direction", "forward"))
        if backwards is None:
            raise node.refuse(f"one of {', '.join(_BACKWARDS)} for direction", repr(direction))
        return Recurrence(
            kind,
            self.steps,
            self.batch,
            _shape(node, self.inputs, 2)[2],
            backwards,
            _activations(node, kind, len(backwards)),
            clip=float(node.attr("clip", 0.0)),
            reset_after=kind == "gru" and bool(node.attr("linear_before_reset", 0)),
            input_forget=kind == "lstm" and bool(node.attr("input_forget", 0)),
            peepholes=kind == "lstm" and 7 in self.inputs,
            lengths=self._has_lengths(),
        )

    def _has_lengths(self) -> bool:
        """Whether a sequence may be shorter than the number of steps."""
        lengths = self.inputs.get(4)
        if not isinstance(lengths, np.ndarray):
            return lengths is not None
        if ((lengths < 0) | (lengths > self.steps)).any():
            most = f"at most {self.steps}, the number of steps, for sequence_lens"
            raise self.node.refuse(most, str(lengths.tolist()))
        return bool((lengths != self.steps).any())

    def results(self) -> list[relax.Expr]:
        """The hidden states of all steps, the last one and, for LSTM, the last cell state."""
        layer, node = self.layer, self.node
        states = node.emit(recurrent_call(node.bb, layer, *map(as_expr, self.operands())))

        def steps(begin: int, end: int) -> relax.Expr:
            taken = relax.op.strided_slice(states, [0, 3], [begin, 0], [end, layer.hidden])
            return node.emit(taken)

        state = [self.directions, self.batch, layer.hidden]
        last = range(self.steps, self.steps + layer.states)
        return [steps(0, self.steps), *(reshape(steps(i, i + 1), state) for i in last)]

    def operands(self) -> list[Value]:
        """The operands of the kernel, in the order of `Recurrence.operands`."""
        layer, directions = self.layer, self.directions
        gates = (directions, layer.gates, layer.hidden)
        bias = self.padded(3, (directions, 2, *gates[1:]), 3)
        blocks = (directions, layer.gates, layer.padded // UNITS, UNITS, layer.hidden)
        weight = self.padded(2, (*gates, layer.hidden), 2)
        weight = _permuted(self.node, _reshaped(self.node, weight, blocks), (0, 2, 4, 1, 3))
        state = (directions, self.batch, layer.hidden)
        operands = [self.given(bias), weight, self.padded(5, state, 2)]
        if layer.kind == "lstm":
            operands.append(self.padded(6, state, 2))
        if layer.peepholes:
            operands.append(self.padded(7, (directions, 3, layer.hidden), 2))
        if layer.reset_after:
            own = _taken(self.node, _taken(self.node, bias, 1, 1), 2, 2)
            operands.append(_reshaped(self.node, own, (directions, layer.padded)))
        if layer.lengths:
            operands.append(self.inputs[4])
        return operands

    def given(self, bias: Value) -> relax.Expr:
        """The product of all steps' inputs with W, plus biases."""
        layer, node, features = self.layer, self.node, self.features
        columns = self.directions * layer.gates * layer.padded
        weight = self.padded(1, (self.directions, layer.gates, layer.hidden, features), 2)
        weight = _reshaped(node, _permuted(node, weight, (3, 0, 1, 2)), (features, columns))
        rows = node.emit(reshape(as_expr(self.inputs[0]), [self.steps * self.batch, features]))
        product = node.emit(relax.op.matmul(rows, as_expr(weight)))
        if 3 in self.inputs:
            added = _reshaped(node, self.added(bias), (1, columns))
            product = node.emit(relax.op.add(product, as_expr(added)))
        shape = [self.steps, self.batch, self.directions, layer.gates, layer.padded]
        return node.emit(reshape(product, shape))

    def added(self, bias: Value) -> Value:
        """The sum of the biases, without those that a GRU's reset gate multiplies."""
        node, kept = self.node, np.ones((1, 1, self.layer.gates, 1), self.dtype)
        if self.layer.reset_after:
            kept[:, :, 2] = 0
        own, back = (_taken(node, bias, 1, i) for i in (0, 1))
        if isinstance(own, np.ndarray) and isinstance(back, np.ndarray):
            return own + back * kept
        return node.emit(
            relax.op.add(as_expr(own), relax.op.multiply(as_expr(back), as_expr(kept)))
        )

    def padded(self, index: int, shape: tuple[int, ...], axis: int) -> Value:
        """An input with this shape, padded along the axis of hidden units; zeros if left out."""
        missing = self.layer.padded - self.layer.hidden
        widths = [(0, missing if i == axis else 0) for i in range(len(shape))]
        value = self.inputs.get(index)
        if value is None:
            value = np.zeros(shape, self.dtype)
        value = _reshaped(self.node, value, shape)
        if isinstance(value, np.ndarray):
            return np.pad(value, widths)
        flat = [width for pair in widths for width in pair]
        return self.node.emit(relax.op.nn.pad(value, flat)) if missing else value

    @property
    def dtype(self) -> str:
        value = self.inputs[0]
        return str(value.dtype if isinstance(value, np.ndarray) else value.ty.dtype)


def _activations(node: Node, kind: str, directions: int) -> tuple[tuple[str, ...], ...]:
    """The names of the functions of each direction."""
    default = _DEFAULTS[kind]
    given = [bytes(name).decode().lower() for name in node.attrs.get("activations", [])]
    chosen = given or default * directions
    if len(chosen) != directions * len(default) or any(name not in FUNCTIONS for name in chosen):
        expected = f"{len(default)} activations for each direction, of {', '.join(FUNCTIONS)}"
        raise node.refuse(expected, str(chosen))
    if "hardsigmoid" in chosen:
        for attribute, number in (("activation_alpha", SLOPE), ("activation_beta", MIDDLE)):
            given = node.attrs.get(attribute, [])
            if not np.allclose(given, number, rtol=0, atol=1e-6):
                raise node.refuse(f"{attribute} {number} of HardSigmoid", str(list(given)))
    per = len(default)
    return tuple(tuple(chosen[i * per : (i + 1) * per]) for i in range(directions))


# --- the same for constants, in NumPy, and for computed tensors, as operators ---


def _shape(node: Node, inputs: dict[int, Value], index: int) -> list[int]:
    """The shape of an input, which must have three dimensions."""
    value = inputs[index]
    shape = list(value.shape) if isinstance(value, np.ndarray) else static_shape(value)
    if len(shape) != 3:
        raise node.refuse(f"three dimensions for input {index}", str(shape))
    return shape


def _reshaped(node: Node, value: Value, shape: Sequence[int]) -> Value:
    if isinstance(value, np.ndarray):
        return value.reshape(shape)
    return node.emit(reshape(value, list(shape)))


def _permuted(node: Node, value: Value, order: Sequence[int]) -> Value:
    if isinstance(value, np.ndarray):
        return value.transpose(order)
    return node.emit(relax.op.permute_dims(value, list(order)))


def _widened(node: Node, value: Value) -> Value:
    if isinstance(value, np.ndarray):
        return value.astype("float32")
    return node.emit(relax.op.astype(value, "float32"))


def _taken(node: Node, value: Value, axis: int, index: int) -> Value:
    """The slice of size 1 at an index of an axis."""
    if isinstance(value, np.ndarray):
        return value.take([index], axis)
    return node.emit(relax.op.strided_slice(value, [axis], [index], [index + 1]))


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
        transform = _Transform(length, length, parts, length, _COMPLEX, inverse)
    elif inverse and parts == _COMPLEX:
        transform = _Transform(length, half, parts, length, _REAL, inverse)
    elif not inverse and parts == _REAL:
        transform = _Transform(length, length, parts, half, _COMPLEX)
    else:
        wanted, got = ("complex", "real") if inverse else ("real", "complex")
        raise node.refuse(f"{wanted} numbers, since it is onesided,", f"{got} ones")
    node.check_table(transform.parts * transform.size, transform.result_parts * transform.results)
    return transform


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
