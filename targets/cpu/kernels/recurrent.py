"""LSTM, GRU and RNN: one kernel computes all steps of a layer; this file defines it as a PrimFunc.

    y = R.call_tir(lstm, (given, weight, h0, c0))      # attrs: {"recurrent": "{..}"}

    for step:                                          # given[t] = x[t] @ W + bias, computed before
      gates = given[t] + h @ weight                    # a plain sum over the hidden units
      c = sigmoid(gates[forget]) * c + sigmoid(gates[input]) * tanh(gates[cell])
      h = y[t] = sigmoid(gates[output]) * tanh(c)

The PrimFunc consists of plain loops, which stock TVM can run. `recurrent_nest.py` schedules it: it
vectorises the sums and the arithmetic that follows them. The call carries the `Recurrence` as an
attribute, so that passes recognise the operator.

Hidden units are padded with zero weights to a multiple of `UNITS`, so that vectors of 4, 8 and 16
lanes divide them. Nothing reads padded units, so schedules may leave them out. The weights of each
block of units are stored in the order in which the kernel reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from tvm import relax, tirx
from tvm.ir import Expr
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_stretch.network.codec import to_text
from tvm_stretch.network.steps import ATTRIBUTE, UNITS, Recurrence, steps_call

from .recurrent_nest import Steps

FUNCTIONS: dict[str, Callable[[Expr], Expr]] = {
    "sigmoid": tirx.sigmoid,
    "tanh": tirx.tanh,
    "relu": lambda x: tirx.max(x, _like(x, 0)),
    "hardsigmoid": lambda x: _between(x * _like(x, SLOPE) + _like(x, MIDDLE), 0, 1),
    "softsign": lambda x: x / (_like(x, 1) + tirx.abs(x)),
}
"""Activations by their ONNX names in lower case."""

SLOPE, MIDDLE = 0.2, 0.5
"""Alpha and beta of hardsigmoid: ONNX's defaults, which Keras has, too."""


def _like(x: Expr, number: float) -> Expr:
    return tirx.const(number, str(x.ty.dtype))


def _between(x: Expr, low: float, high: float) -> Expr:
    return tirx.max(tirx.min(x, _like(x, high)), _like(x, low))


def recurrent_call(bb: relax.BlockBuilder, layer: Recurrence, *operands: relax.Expr) -> relax.Call:
    """Calls the layer's kernel, which is added to ``bb``, with `Recurrence.operands`."""
    dtype = str(operands[0].ty.dtype)
    kernel, result = recurrent_kernel(layer, dtype), relax.TensorType(layer.result, dtype)
    described = {ATTRIBUTE: to_text(layer)}
    return steps_call(bb, f"recurrent.{layer.kind}", kernel, operands, result, **described)


# --- the PrimFunc ---------------------------------------------------------------------------------


def recurrent_kernel(layer: Recurrence, dtype: str) -> tirx.PrimFunc:
    """The layer as plain loops: each statement of a step has its own loop nest."""
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        tensors = {
            name: T.arg(name, tirx.decl_buffer(_long(shape), kind, name))
            for name, (shape, kind) in layer.operands(dtype).items()
        }
        tensors["y"] = T.arg("y", tirx.decl_buffer(_long(layer.result), dtype, "y"))
        sums = T.sblock_alloc_buffer(_long((layer.batch, layer.gates, layer.padded)), dtype)
        reset = None
        if layer.kind == "gru" and not layer.reset_after:
            reset = T.sblock_alloc_buffer(_long((layer.batch, layer.padded)), dtype)
        for direction in range(len(layer.backwards)):
            _Direction(layer, direction, tensors, sums, reset).write()
    return builder.get()


def _long(shape: Sequence[int]) -> list[Expr]:
    return [tirx.const(size, "int64") for size in shape]


@dataclass(frozen=True)
class _At:
    """The position of a statement: time step, sequence and hidden unit."""

    t: Expr
    b: Expr
    j: Expr


_Value = Callable[[_At], Expr]


@dataclass(frozen=True)
class _Direction:
    """Emits the loops of one direction into the current IRBuilder.

    The loops keep the hidden state in ``y[steps]`` and the cell state in ``y[steps + 1]``.
    """

    layer: Recurrence
    index: int
    tensors: dict[str, tirx.Buffer]
    sums: tirx.Buffer
    reset: tirx.Buffer | None

    def write(self) -> None:
        """Initialise the states, then loop over the steps."""
        layer = self.layer
        first = {"h0": self.h, "c0": self.c}
        for name in ("h0", "c0")[: layer.states]:
            given = self.tensors[name]
            self.emit(
                f"first_{name}", None, first[name], lambda at, g=given: g[self.index, at.b, at.j]
            )
        with T.serial(*_long((0, layer.steps))) as step:
            t = layer.steps - 1 - step if layer.backwards[self.index] else step
            getattr(self, layer.kind)(t)
            self.emit("keep", t, self.h, self.y, self.lasts)
            if layer.lengths:
                nothing = tirx.const(0, self.dtype)
                self.emit("end", t, self.y, lambda _: nothing, lambda at: tirx.Not(self.lasts(at)))

    # --- the tensors ---

    @property
    def dtype(self) -> str:
        return str(self.sums.dtype)

    def y(self, at: _At) -> Expr:
        """The hidden state that this step computes."""
        return self.tensors["y"][at.t, self.index, at.b, at.j]

    def h(self, at: _At) -> Expr:
        """The hidden state that the previous step computed."""
        return self.tensors["y"][self.layer.steps, self.index, at.b, at.j]

    def c(self, at: _At) -> Expr:
        """The cell state."""
        return self.tensors["y"][self.layer.steps + 1, self.index, at.b, at.j]

    def gate(self, number: int) -> _Value:
        """The input of a gate's activation."""
        return lambda at: self.clipped(self.sums[at.b, number, at.j])

    def clipped(self, value: Expr) -> Expr:
        if not self.layer.clip:
            return value
        return _between(value, -self.layer.clip, self.layer.clip)

    def function(self, number: int) -> Callable[[Expr], Expr]:
        return FUNCTIONS[self.layer.activations[self.index][number]]

    def lasts(self, at: _At) -> Expr | None:
        """Whether the step is within the sequence; None if all sequences have full length."""
        if not self.layer.lengths:
            return None
        return at.t < self.tensors["lengths"][at.b].astype("int64")

    # --- statements ---

    def emit(
        self,
        name: str,
        t: Expr | None,
        target: _Value,
        value: _Value,
        condition: Callable[[_At], Expr | None] = lambda _: None,
    ) -> None:
        """Emit ``target = value`` for every unit of every sequence that meets the condition."""
        layer = self.layer
        with T.grid(*_long((layer.batch, layer.padded))) as (b, j), T.sblock(name):
            step = t if t is None else T.axis.opaque(*_long((layer.steps,)), t)
            b, j = T.axis.remap("SS", [b, j])
            at = _At(step, b, j)
            place, holds = target(at), condition(at)
            with ExitStack() as stack:
                if holds is not None:
                    stack.enter_context(T.If(holds))
                    stack.enter_context(T.Then())
                T.buffer_store(place.source, value(at), place.indices)

    def products(
        self, t: Expr, gates: range, state: _Value, start: Callable[[_At, Expr], Expr]
    ) -> None:
        """Emit ``sums = start + state @ weight`` for some of the gates."""
        layer, weight = self.layer, self.tensors["weight"]
        blocks = layer.padded // UNITS
        extents = _long((layer.batch, len(gates), blocks, UNITS, layer.hidden))
        with T.grid(*extents) as loops, T.sblock("products"):
            T.sblock_attr(Steps(layer.hidden).annotation)
            step = T.axis.opaque(*_long((layer.steps,)), t)
            b, g, block, lane, k = T.axis.remap("SSSSR", list(loops))
            gate, at = g + gates.start, _At(step, b, block * UNITS + lane)
            place = [b, gate, at.j]
            with T.init():
                T.buffer_store(self.sums, start(at, gate), place)
            product = state(_At(step, b, k)) * weight[self.index, block, k, gate, lane]
            T.buffer_store(self.sums, self.sums[place] + product, place)

    def given(self, at: _At, gate: Expr | int) -> Expr:
        return self.tensors["given"][at.t, at.b, self.index, gate, at.j]

    # --- layers ---

    def rnn(self, t: Expr) -> None:
        """``h = f(x + h R)``."""
        self.products(t, range(1), self.h, self.given)
        self.emit("hidden", t, self.y, lambda at: self.function(0)(self.gate(0)(at)))

    def lstm(self, t: Expr) -> None:
        """Gates i, o, f, c; peepholes read the cell state."""
        f, g, h = map(self.function, range(3))
        self.products(t, range(4), self.h, self.given)

        def peeping(gate: int, peephole: int) -> _Value:
            if not self.layer.peepholes:
                return self.gate(gate)
            weight = self.tensors["peepholes"]

            def seen(at: _At) -> Expr:
                state = weight[self.index, peephole, at.j] * self.c(at)
                return self.clipped(self.sums[at.b, gate, at.j] + state)

            return seen

        def cell(at: _At) -> Expr:
            entering = f(peeping(0, 0)(at))
            one = tirx.const(1, self.dtype)
            staying = one - entering if self.layer.input_forget else f(peeping(2, 2)(at))
            return staying * self.c(at) + entering * g(self.gate(3)(at))

        self.emit("cell", t, self.c, cell, self.lasts)
        self.emit("hidden", t, self.y, lambda at: f(peeping(1, 1)(at)) * h(self.c(at)))

    def gru(self, t: Expr) -> None:
        """Gates z, r, h; the new state is ``(1 - z) * n + z * h``."""
        f, g = map(self.function, range(2))
        reset = self.reset
        if reset is None:  # the reset gate also multiplies the bias of the product

            def start(at: _At, gate: Expr) -> Expr:
                own = self.tensors["bias"][self.index, at.j]
                return tirx.if_then_else(gate < 2, self.given(at, gate), own)

            self.products(t, range(3), self.h, start)
        else:

            def kept(at: _At) -> Expr:
                return reset[at.b, at.j]

            self.products(t, range(2), self.h, self.given)
            self.emit("reset", t, kept, lambda at: f(self.gate(1)(at)) * self.h(at))
            self.products(t, range(2, 3), kept, self.given)

        def hidden(at: _At) -> Expr:
            candidate = self.sums[at.b, 2, at.j]
            if reset is None:
                candidate = self.given(at, 2) + f(self.gate(1)(at)) * candidate
            new = g(self.clipped(candidate))
            return new + f(self.gate(0)(at)) * (self.h(at) - new)

        self.emit("hidden", t, self.y, hidden)
