"""LSTM, GRU and RNN: one kernel that steps through time, and how it stands in Relax.

    y = R.call_tir(lstm, (given, weight, h0, c0))      # attrs: {"recurrent": "{..}"}

    for step:                                          # given[t] = x[t] @ W + bias, made before
      gates = given[t] + h @ weight                    # a plain sum over the hidden units
      c = sigmoid(gates[forget]) * c + sigmoid(gates[input]) * tanh(gates[cell])
      h = y[t] = sigmoid(gates[output]) * tanh(c)

The kernel says this in plain loops, which stock TVM can run; `recurrent_nest.py` makes vectors of
the sums and of the arithmetic behind them. The call's attribute holds the `Recurrence`, for passes
that look for operators.

Hidden units are padded to whole blocks of `UNITS` with weights of zero, so that vectors of 4, 8 and
16 lanes divide them. The padding stays finite, and no real unit reads it. The weights of a block
lie in the order in which they are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import Expr
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from .steps import steps_call

ATTRIBUTE = "recurrent"
"""Of a call of `relax.call_tir`: JSON of the `Recurrence` that it computes."""

STEPS = "tvm_stretch.steps"
"""Attribute of kernels that step through time, which `recurrent_nest.py` schedules."""

UNITS = 16
"""Hidden units whose weights lie beside each other: a multiple of all widths of float vectors."""

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
"""In ONNX's order: i, o, f, c; z, r, h; one."""

FUNCTIONS: dict[str, Callable[[Expr], Expr]] = {
    "sigmoid": tirx.sigmoid,
    "tanh": tirx.tanh,
    "relu": lambda x: tirx.max(x, tirx.const(0, str(x.ty.dtype))),
}
"""Activations by their names in ONNX, in lower case."""


@dataclass(frozen=True)
class Recurrence:
    """One recurrent layer, of one direction or two.

    Attributes:
        kind: ``lstm``, ``gru`` or ``rnn``.
        steps, batch, hidden: its sizes; ``hidden`` without padding.
        backwards: for each direction, whether it begins with the last step.
        activations: for each direction, the names of its functions in ONNX's order.
        clip: the largest magnitude of what goes into activations of gates; 0 for any.
        reset_after: of a GRU, the reset gate multiplies the product and not the state before it
            (ONNX's ``linear_before_reset``).
        input_forget: of an LSTM, the forget gate is one minus the input gate.
        peepholes: of an LSTM, gates also see the cell state.
        lengths: each sequence has a length of its own.
    """

    kind: str
    steps: int
    batch: int
    hidden: int
    backwards: tuple[bool, ...]
    activations: tuple[tuple[str, ...], ...]
    clip: float = 0.0
    reset_after: bool = False
    input_forget: bool = False
    peepholes: bool = False
    lengths: bool = False

    @property
    def gates(self) -> int:
        """Sums for each hidden unit and step."""
        return GATES[self.kind]

    @property
    def padded(self) -> int:
        """Hidden units with padding."""
        return -(-self.hidden // UNITS) * UNITS

    @property
    def states(self) -> int:
        """Tensors that a step hands to the next one."""
        return 2 if self.kind == "lstm" else 1

    @property
    def multiply_adds(self) -> int:
        """Of the products with states."""
        return self.steps * self.batch * len(self.backwards) * self.gates * self.hidden**2

    def operands(self, dtype: str) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and type of each operand by its name, in order."""
        directions, units = len(self.backwards), self.padded
        state = (directions, self.batch, units)
        shapes: dict[str, tuple[tuple[int, ...], str]] = {
            "given": ((self.steps, self.batch, directions, self.gates, units), dtype),
            "weight": ((directions, units // UNITS, self.hidden, self.gates, UNITS), dtype),
            "h0": (state, dtype),
        }
        if self.kind == "lstm":
            shapes["c0"] = (state, dtype)
        if self.peepholes:
            shapes["peepholes"] = ((directions, 3, units), dtype)
        if self.reset_after:
            shapes["bias"] = ((directions, units), dtype)
        if self.lengths:
            shapes["lengths"] = ((self.batch,), "int32")
        return shapes

    @property
    def result(self) -> tuple[int, ...]:
        """Of the result: every step's hidden state, then the last one, then the cell state."""
        return (self.steps + self.states, len(self.backwards), self.batch, self.padded)

    def to_json(self) -> str:
        """For `ATTRIBUTE`."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Recurrence:
        """What `to_json` wrote."""
        data: dict[str, Any] = json.loads(text)
        activations = tuple(map(tuple, data.pop("activations")))
        return Recurrence(
            **{**data, "backwards": tuple(data["backwards"])}, activations=activations
        )


def recurrence_of(call: Any) -> Recurrence | None:
    """Which recurrent layer a call is; None for everything else."""
    attrs = getattr(call, "attrs", None)
    if not isinstance(attrs, tvm.ir.DictAttrs) or ATTRIBUTE not in attrs:
        return None
    return Recurrence.from_json(str(attrs[ATTRIBUTE]))


def recurrent_call(bb: relax.BlockBuilder, layer: Recurrence, *operands: relax.Expr) -> relax.Call:
    """The call of a recurrent layer on what `Recurrence.operands` names; ``bb`` gets the kernel."""
    dtype = str(operands[0].ty.dtype)
    kernel, result = recurrent_kernel(layer, dtype), relax.TensorType(layer.result, dtype)
    described = {ATTRIBUTE: layer.to_json()}
    return steps_call(bb, f"recurrent.{layer.kind}", kernel, operands, result, **described)


# --- meaning: what the kernel computes ------------------------------------------------------------


def recurrent_kernel(layer: Recurrence, dtype: str) -> tirx.PrimFunc:
    """The layer in plain loops, one nest for each statement of a step."""
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
    return builder.get().with_attr(STEPS, True)


def _long(shape: Sequence[int]) -> list[Expr]:
    return [tirx.const(size, "int64") for size in shape]


@dataclass(frozen=True)
class _At:
    """Where a statement is: the number of its step in the sequence, its sequence and its unit."""

    t: Expr
    b: Expr
    j: Expr


_Value = Callable[[_At], Expr]


@dataclass(frozen=True)
class _Direction:
    """Writes the loops of one direction with the builder that is open.

    While they step, ``y[steps]`` is the hidden state and ``y[steps + 1]`` the cell state.
    """

    layer: Recurrence
    index: int
    tensors: dict[str, tirx.Buffer]
    sums: tirx.Buffer
    reset: tirx.Buffer | None

    def write(self) -> None:
        """The first states, then all steps."""
        layer = self.layer
        first = {"h0": self.h, "c0": self.c}
        for name in ("h0", "c0")[: layer.states]:
            given = self.tensors[name]
            self.each(
                f"first_{name}", None, first[name], lambda at, g=given: g[self.index, at.b, at.j]
            )
        with T.serial(*_long((0, layer.steps))) as step:
            t = layer.steps - 1 - step if layer.backwards[self.index] else step
            getattr(self, layer.kind)(t)
            self.each("keep", t, self.h, self.y, self.lasts)
            if layer.lengths:
                nothing = tirx.const(0, self.dtype)
                self.each("end", t, self.y, lambda _: nothing, lambda at: tirx.Not(self.lasts(at)))

    # --- the tensors ---

    @property
    def dtype(self) -> str:
        return str(self.sums.dtype)

    def y(self, at: _At) -> Expr:
        """The hidden state of this step."""
        return self.tensors["y"][at.t, self.index, at.b, at.j]

    def h(self, at: _At) -> Expr:
        """The hidden state of the step before."""
        return self.tensors["y"][self.layer.steps, self.index, at.b, at.j]

    def c(self, at: _At) -> Expr:
        """The cell state."""
        return self.tensors["y"][self.layer.steps + 1, self.index, at.b, at.j]

    def gate(self, number: int) -> _Value:
        """What goes into the activation of a gate."""
        return lambda at: self.clipped(self.sums[at.b, number, at.j])

    def clipped(self, value: Expr) -> Expr:
        if not self.layer.clip:
            return value
        low, high = (tirx.const(s * self.layer.clip, self.dtype) for s in (-1, 1))
        return tirx.max(tirx.min(value, high), low)

    def function(self, number: int) -> Callable[[Expr], Expr]:
        return FUNCTIONS[self.layer.activations[self.index][number]]

    def lasts(self, at: _At) -> Expr | None:
        """Whether the step is within the length of its sequence; None if every one is."""
        if not self.layer.lengths:
            return None
        return at.t < self.tensors["lengths"][at.b].astype("int64")

    # --- statements ---

    def each(
        self,
        name: str,
        t: Expr | None,
        target: _Value,
        value: _Value,
        condition: Callable[[_At], Expr | None] = lambda _: None,
    ) -> None:
        """``target = value`` for every unit of every sequence, where a condition holds."""
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
        """The sums of some gates: what they start with and the product with a state."""
        layer, weight = self.layer, self.tensors["weight"]
        blocks = layer.padded // UNITS
        extents = _long((layer.batch, len(gates), blocks, UNITS, layer.hidden))
        with T.grid(*extents) as loops, T.sblock("products"):
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
        self.each("hidden", t, self.y, lambda at: self.function(0)(self.gate(0)(at)))

    def lstm(self, t: Expr) -> None:
        """Gates i, o, f, c; peepholes look at the cell state."""
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

        self.each("cell", t, self.c, cell, self.lasts)
        self.each("hidden", t, self.y, lambda at: f(peeping(1, 1)(at)) * h(self.c(at)))

    def gru(self, t: Expr) -> None:
        """Gates z, r, h; the new state is ``(1 - z) * n + z * h``."""
        f, g = map(self.function, range(2))
        reset = self.reset
        if reset is None:  # the product's own bias takes part in the reset

            def start(at: _At, gate: Expr) -> Expr:
                own = self.tensors["bias"][self.index, at.j]
                return tirx.if_then_else(gate < 2, self.given(at, gate), own)

            self.products(t, range(3), self.h, start)
        else:

            def kept(at: _At) -> Expr:
                return reset[at.b, at.j]

            self.products(t, range(2), self.h, self.given)
            self.each("reset", t, kept, lambda at: f(self.gate(1)(at)) * self.h(at))
            self.products(t, range(2, 3), kept, self.given)

        def hidden(at: _At) -> Expr:
            candidate = self.sums[at.b, 2, at.j]
            if reset is None:
                candidate = self.given(at, 2) + f(self.gate(1)(at)) * candidate
            new = g(self.clipped(candidate))
            return new + f(self.gate(0)(at)) * (self.h(at) - new)

        self.each("hidden", t, self.y, hidden)
