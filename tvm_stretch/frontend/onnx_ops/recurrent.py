"""LSTM, GRU and RNN, unrolled: the number of steps is static.

for each step:  gates = x_t @ W.T + h @ R.T + b
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax

from tvm_stretch.frontend.limits import MOST_ITERATIONS
from tvm_stretch.frontend.onnx_node import Node, Value, as_expr, converter
from tvm_stretch.frontend.onnx_ops.movement import reshape

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ACTIVATIONS: dict[str, Callable[[relax.Expr], relax.Expr]] = {
    "sigmoid": relax.op.sigmoid,
    "tanh": relax.op.tanh,
    "relu": relax.op.nn.relu,
}
_DEFAULTS = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}


@converter("LSTM", "GRU", "RNN")
def _recurrent(node: Node) -> tuple[relax.Expr, ...]:
    if node.attr("layout", 0):
        return _batch_first(node)
    if node.shape()[0] > MOST_ITERATIONS:
        raise node.refuse(f"at most {MOST_ITERATIONS} steps", str(node.shape()[0]))
    if node.has(4):
        lengths = node.const(4, "sequence_lens")
        if (lengths != node.shape()[0]).any():
            raise node.refuse("sequences of full length", f"sequence_lens {lengths.tolist()}")
    if node.attr("clip") is not None or node.attr("input_forget", 0):
        raise node.refuse("no clip and no input_forget", "one of them")
    direction = node.attr("direction", "forward")
    count = 2 if direction == "bidirectional" else 1
    results = [
        _Direction(node, d).run(backwards=direction == "reverse" or d == 1) for d in range(count)
    ]
    steps, batch, hidden = node.shape()[0], node.shape()[1], node.shape(2)[2]
    every = [node.emit(reshape(r[0], [steps, 1, batch, hidden])) for r in results]
    last = [[node.emit(reshape(r[i], [1, batch, hidden])) for r in results] for i in (1, 2)]
    joined = [_join(every, 1), _join(last[0], 0)]
    return (*joined, _join(last[1], 0)) if node.op == "LSTM" else tuple(joined)


def _batch_first(node: Node) -> tuple[relax.Expr, ...]:
    """Layout 1 has the batch in front, also in the states."""

    def swapped(value: Value | None) -> relax.Expr | None:
        return (
            None if value is None else node.emit(relax.op.permute_dims(as_expr(value), [1, 0, 2]))
        )

    node.inputs = [swapped(v) if i in (0, 5, 6) else v for i, v in enumerate(node.inputs)]
    node.attrs = {**node.attrs, "layout": 0}
    every, *last = (node.emit(result) for result in _recurrent(node))
    every = relax.op.permute_dims(every, [2, 0, 1, 3])
    return (every, *(relax.op.permute_dims(state, [1, 0, 2]) for state in last))


def _join(parts: list[relax.Expr], axis: int) -> relax.Expr:
    return parts[0] if len(parts) == 1 else relax.op.concat(parts, axis)


class _Direction:
    """One direction of a recurrent layer."""

    def __init__(self, node: Node, index: int) -> None:
        self.node = node
        self.hidden = node.shape(2)[2]
        names = [bytes(a).decode().lower() for a in node.attrs.get("activations", [])]
        per = len(_DEFAULTS[node.op])
        chosen = names[index * per : (index + 1) * per] or _DEFAULTS[node.op]
        if any(name not in _ACTIVATIONS for name in chosen):
            raise node.refuse(f"activations among {sorted(_ACTIVATIONS)}", str(chosen))
        self.functions = [_ACTIVATIONS[name] for name in chosen]
        gates = _GATES[node.op] * self.hidden
        features = node.shape()[2]
        self.weight = self.transposed(1, index, [gates, features])
        self.recurrence = self.transposed(2, index, [gates, self.hidden])
        self.bias = self.part(3, index, [2, gates]) if node.has(3) else None
        self.h = self.state(5, index)
        self.c = self.state(6, index) if node.op == "LSTM" else None
        self.peepholes = (
            self.part(7, index, [3, self.hidden]) if node.op == "LSTM" and node.has(7) else None
        )

    def part(self, index: int, direction: int, shape: list[int]) -> relax.Expr:
        """The parameters of one direction."""
        value = self.node.inputs[index]
        if isinstance(value, np.ndarray):
            return as_expr(value[direction].reshape(shape))
        taken = relax.op.strided_slice(value, [0], [direction], [direction + 1])
        return self.node.emit(reshape(taken, shape))

    def transposed(self, index: int, direction: int, shape: list[int]) -> relax.Expr:
        """Weights as matmul wants them; constants are transposed here."""
        value = self.node.inputs[index]
        if isinstance(value, np.ndarray):
            return as_expr(np.ascontiguousarray(value[direction].T))
        return self.node.emit(relax.op.permute_dims(self.part(index, direction, shape)))

    def state(self, index: int, direction: int) -> relax.Expr:
        shape = [self.node.shape()[1], self.hidden]
        if self.node.has(index):
            return self.part(index, direction, shape)
        return as_expr(np.zeros(shape, self.node.dtype()))

    def row(self, matrix: relax.Expr, index: int, length: int) -> relax.Expr:
        taken = relax.op.strided_slice(matrix, [0], [index], [index + 1])
        return self.node.emit(reshape(taken, [1, length]))

    def gate(self, gates: relax.Expr, index: int) -> relax.Expr:
        first = index * self.hidden
        return relax.op.strided_slice(gates, [1], [first], [first + self.hidden])

    def run(self, *, backwards: bool) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
        """Every hidden state, the last one and the last cell state."""
        node = self.node
        steps, batch, features = node.shape()
        states: list[relax.Expr] = []
        width = _GATES[node.op] * self.hidden
        for step in reversed(range(steps)) if backwards else range(steps):
            x = relax.op.strided_slice(node[0], [0], [step], [step + 1])
            x = node.emit(reshape(x, [batch, features]))
            given = relax.op.matmul(x, self.weight)
            if self.bias is not None:
                given = relax.op.add(given, self.row(self.bias, 0, width))
            getattr(self, f"step_{node.op.lower()}")(node.emit(given), width)
            states.append(self.h)
        if backwards:
            states.reverse()
        every = relax.op.concat(states, 0) if len(states) > 1 else states[0]
        return every, self.h, self.c if self.c is not None else self.h

    def recurrent(self, width: int) -> relax.Expr:
        """``h @ R.T + Rb``."""
        result = relax.op.matmul(self.h, self.recurrence)
        if self.bias is not None:
            result = relax.op.add(result, self.row(self.bias, 1, width))
        return self.node.emit(result)

    def step_rnn(self, given: relax.Expr, width: int) -> None:
        """``h = f(x + h)``."""
        self.h = self.node.emit(self.functions[0](relax.op.add(given, self.recurrent(width))))

    def step_gru(self, given: relax.Expr, width: int) -> None:
        """Gates z, r, h; the new state is ``(1 - z) * n + z * h``."""
        f, g = self.functions
        back = self.recurrent(width)
        z = self.node.emit(f(relax.op.add(self.gate(given, 0), self.gate(back, 0))))
        r = self.node.emit(f(relax.op.add(self.gate(given, 1), self.gate(back, 1))))
        if self.node.attr("linear_before_reset", 0):
            candidate = relax.op.multiply(r, self.gate(back, 2))
        else:
            first = 2 * self.hidden
            weight = relax.op.strided_slice(self.recurrence, [1], [first], [first + self.hidden])
            candidate = relax.op.matmul(relax.op.multiply(r, self.h), weight)
            if self.bias is not None:
                candidate = relax.op.add(candidate, self.gate(self.row(self.bias, 1, width), 2))
        n = self.node.emit(g(relax.op.add(self.gate(given, 2), candidate)))
        kept = relax.op.multiply(z, relax.op.subtract(self.h, n))
        self.h = self.node.emit(relax.op.add(n, kept))

    def step_lstm(self, given: relax.Expr, width: int) -> None:
        """Gates i, o, f, c; peepholes look at the cell state."""
        f, g, h = self.functions
        gates = self.node.emit(relax.op.add(given, self.recurrent(width)))
        i = self.node.emit(f(self.peep(self.gate(gates, 0), 0)))
        forget = self.node.emit(f(self.peep(self.gate(gates, 2), 2)))
        new = relax.op.multiply(i, g(self.gate(gates, 3)))
        self.c = self.node.emit(relax.op.add(relax.op.multiply(forget, self.c), new))
        o = self.node.emit(f(self.peep(self.gate(gates, 1), 1)))
        self.h = self.node.emit(relax.op.multiply(o, h(self.c)))

    def peep(self, gate: relax.Expr, index: int) -> relax.Expr:
        if self.peepholes is None:
            return gate
        return relax.op.add(
            gate, relax.op.multiply(self.row(self.peepholes, index, self.hidden), self.c)
        )
