"""Operators with kernels of their own, most of them for CPUs, and their Relax calls.

    y = R.call_tir(lstm, (given, ..))          # attrs: {"kind": "recurrent.lstm", ..}
    places = R.call_tir(top_k, (x,))           # attrs: {"kind": "ordering.top_k"}

The PrimFunc consists of plain loops, which stock TVM can run. In most of them each step depends on
the previous one, so few work-items of a GPU compute all (`targets/opencl/kernels/in_order.py`).
LSTM, GRU and RNN layers are here as data; `targets/cpu/kernels/recurrent.py` writes their kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx

from tvm_stretch.network.codec import from_text

KIND = "kind"
"""The attribute of a `relax.call_tir` call that `ir.operators.kind_of` returns."""

BACKWARDS = "backwards"
"""The attribute of running sums: not empty if they begin at the end."""


def steps_call(
    bb: relax.BlockBuilder,
    kind: str,
    kernel: tirx.PrimFunc,
    operands: Sequence[relax.Expr],
    result: relax.TensorType,
    **described: str,
) -> relax.Call:
    """Calls a sequential kernel, which is added to ``bb``; ``described`` are further attributes."""
    var = bb.add_func(kernel, kind.rpartition(".")[2])
    call = relax.call_tir(var, list(operands), result)
    attrs = tvm.ir.make_node("ir.DictAttrs", **{KIND: kind, **described})
    return relax.Call(call.op, call.args, attrs, call.ty_args)


def is_block_product(kind: str) -> bool:
    """Whether the operator of this kind is a product of rows with weights of 4 or 8 bits in blocks.

    These have kernels for the work-groups of a GPU, too.
    """
    return kind.startswith("matmul.")


def why_not_on_a_dsp(kind: str) -> str:
    """Why the operator of this kind runs on no DSP."""
    if is_block_product(kind):
        return f"{kind}: its kernels are written for CPUs and GPUs"
    return f"{kind}: its steps need each other, which no kernel of a DSP computes"


def kind_of_steps(call: Any) -> str | None:
    """The kind of a call of a sequential kernel; None for other calls."""
    attrs = getattr(call, "attrs", None)
    return str(attrs[KIND]) if isinstance(attrs, tvm.ir.DictAttrs) and KIND in attrs else None


ATTRIBUTE = "recurrent"
"""The attribute of a `relax.call_tir` call that holds its `Recurrence` as text."""

UNITS = 16
"""Hidden units or outputs per block of weights: a multiple of every vector width."""

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
"""The number of gates. Their order is ONNX's: i, o, f, c for LSTM; z, r, h for GRU."""


@dataclass(frozen=True)
class Recurrence:
    """One recurrent layer, of one direction or two."""

    kind: str  # ``lstm``, ``gru`` or ``rnn``
    # steps, batch, hidden: the sizes of the layer; ``hidden`` excludes padding
    steps: int
    batch: int
    hidden: int
    backwards: tuple[bool, ...]  # for each direction, whether it starts at the last step
    # for each direction, the names of its functions in ONNX's order
    activations: tuple[tuple[str, ...], ...]
    # bounds the inputs of the gates' activations to [-clip, clip]; 0 means no bound
    clip: float = 0.0
    # the reset gate of a GRU multiplies the product with the state instead of the state (ONNX's
    # ``linear_before_reset``)
    reset_after: bool = False
    input_forget: bool = False  # the forget gate of an LSTM is one minus the input gate
    peepholes: bool = False  # the gates of an LSTM also read the cell state
    lengths: bool = False  # an operand gives the length of each sequence

    @property
    def gates(self) -> int:
        """The number of gates."""
        return GATES[self.kind]

    @property
    def padded(self) -> int:
        """The number of hidden units with padding."""
        return -(-self.hidden // UNITS) * UNITS

    @property
    def states(self) -> int:
        """The number of states that one step passes to the next: two for LSTM."""
        return 2 if self.kind == "lstm" else 1

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of the products with the hidden state."""
        return self.steps * self.batch * len(self.backwards) * self.gates * self.hidden**2

    def operands(self, dtype: str) -> dict[str, tuple[tuple[int, ...], str]]:
        """The shape and type of each operand by name, in order."""
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
        """The shape of the result: hidden states of all steps, then the last states."""
        return (self.steps + self.states, len(self.backwards), self.batch, self.padded)


def recurrence_of(call: Any) -> Recurrence | None:
    """The recurrent layer that a call computes; None for other calls."""
    attrs = getattr(call, "attrs", None)
    if not isinstance(attrs, tvm.ir.DictAttrs) or ATTRIBUTE not in attrs:
        return None
    return from_text(Recurrence, str(attrs[ATTRIBUTE]))
