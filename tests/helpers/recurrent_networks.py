"""Recurrent layers of random shape: their ONNX models, what they compute, and how exactly.

    layer = draw(layers()); model, inputs = layer.model()
    want = reference(layer)            # in float64: values, and how far float32 may be from them

The bound follows the arithmetic: a float32 operation rounds by `EPS` of its result, a sum of n
products by n times `EPS` of the sum of their magnitudes, an activation by `FUNCTION_ERROR`, and
each passes on the errors of what it reads. The reference carries both through all steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper, numpy_helper

EPS = 2.0**-24
"""The largest rounding error of a float32 operation, as a share of its result."""

FUNCTION_ERROR = 4 * 2.0**-23
"""Of sigmoid and tanh as polynomials, here and in ONNX Runtime, which are at most 1: four units in
the last place of 1. (ONNX Runtime's tanh is not more exact near zero: 50 units of 0.02.)"""

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FUNCTIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
OPTIONAL = ("B", "sequence_lens", "initial_h", "initial_c", "P")


@dataclass(frozen=True)
class Layer:
    """An ONNX node and its inputs by name; those in ``computed`` are inputs of the model."""

    op: str
    hidden: int
    inputs: dict[str, np.ndarray]
    direction: str = "forward"
    computed: frozenset[str] = frozenset({"X"})
    attributes: dict[str, object] = field(default_factory=dict)

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    def model(self) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        """The model, and the inputs to run it with."""
        names = [n if n in self.inputs else "" for n in ("X", "W", "R", *OPTIONAL)]
        while not names[-1]:
            names.pop()
        outputs = ["Y", "Y_h", "Y_c"][: 3 if self.op == "LSTM" else 2]
        attributes = {"hidden_size": self.hidden, "direction": self.direction, **self.attributes}
        node = helper.make_node(self.op, names, outputs, name="layer", **attributes)
        given = {n: v for n, v in self.inputs.items() if n in self.computed}
        constants = [
            numpy_helper.from_array(v, n) for n, v in self.inputs.items() if n not in given
        ]
        values = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for n, v in given.items()
        ]
        kind = helper.np_dtype_to_tensor_dtype(self.inputs["X"].dtype)
        results = [helper.make_tensor_value_info(n, kind, None) for n in outputs]
        graph = helper.make_graph([node], "net", values, results, constants)
        opsets = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8), given


def layer_of(
    op: str,
    hidden: int,
    *,
    steps: int = 4,
    batch: int = 1,
    features: int = 3,
    direction: str = "forward",
    given: tuple[str, ...] = ("B",),
    computed: tuple[str, ...] = (),
    seed: int = 0,
    **attributes: object,
) -> Layer:
    """A layer with random numbers, and with those optional inputs that ``given`` names."""
    dice = np.random.default_rng(seed)
    count, gates = (2 if direction == "bidirectional" else 1), GATES[op]
    scale = hidden**-0.5

    def uniform(*shape: int, within: float = scale) -> np.ndarray:
        return dice.uniform(-within, within, shape).astype(np.float32)

    inputs = {
        "X": uniform(steps, batch, features, within=1.0),
        "W": uniform(count, gates * hidden, features, within=features**-0.5),
        "R": uniform(count, gates * hidden, hidden),
    }
    optional = {
        "B": uniform(count, 2 * gates * hidden),
        "sequence_lens": dice.integers(1, steps + 1, batch).astype(np.int32),
        "initial_h": uniform(count, batch, hidden, within=1.0),
        "initial_c": uniform(count, batch, hidden, within=1.0),
        "P": uniform(count, 3 * hidden),
    }
    inputs |= {name: optional[name] for name in given}
    return Layer(op, hidden, inputs, direction, frozenset({"X", *computed}), attributes)


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    """Any layer: each option, constant and computed inputs, sizes that fill vectors or do not."""
    op = draw(st.sampled_from(sorted(GATES)))
    direction = draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    count = 2 if direction == "bidirectional" else 1
    possible = OPTIONAL if op == "LSTM" else OPTIONAL[:3]
    given = tuple(sorted(draw(st.sets(st.sampled_from(possible)))))
    computed = tuple(sorted(draw(st.sets(st.sampled_from(("W", "R", *given))))))
    attributes: dict[str, object] = {}
    if draw(st.booleans()):
        attributes["clip"] = draw(st.sampled_from([0.25, 1.0]))
    if op == "GRU":
        attributes["linear_before_reset"] = draw(st.integers(0, 1))
    if op == "LSTM":
        attributes["input_forget"] = draw(st.integers(0, 1))
    if draw(st.booleans()):
        names = st.sampled_from(["Sigmoid", "Tanh", "Relu", "HardSigmoid", "Softsign"])
        size = count * FUNCTIONS[op]
        attributes["activations"] = draw(st.lists(names, min_size=size, max_size=size))
    return layer_of(
        op,
        draw(st.sampled_from([1, 3, 8, 15, 16, 17, 31, 32, 40])),
        steps=draw(st.integers(1, 5)),
        batch=draw(st.sampled_from([1, 1, 2, 3, 7])),
        features=draw(st.integers(1, 9)),
        direction=direction,
        given=given,
        computed=computed,
        seed=draw(st.integers(0, 2**16)),
        **attributes,
    )


# --- values with the errors that float32 may have -------------------------------------------------


@dataclass(frozen=True)
class Rounded:
    """Numbers in float64, and how far the same in float32 may be from each."""

    value: np.ndarray
    error: np.ndarray

    def __add__(self, other: Rounded) -> Rounded:
        return _rounded(self.value + other.value, self.error + other.error)

    def __mul__(self, other: Rounded) -> Rounded:
        passed = np.abs(self.value) * other.error + np.abs(other.value) * self.error
        return _rounded(self.value * other.value, passed + self.error * other.error)

    def __getitem__(self, place: object) -> Rounded:
        return Rounded(self.value[place], self.error[place])

    def product(self, weight: np.ndarray) -> Rounded:
        """With the rows of a matrix, added up in any order."""
        sizes = np.abs(self.value) @ np.abs(weight.T)
        passed = self.error @ np.abs(weight.T)
        return Rounded(self.value @ weight.T, passed + (len(weight.T) + 1) * EPS * (sizes + passed))

    def through(self, name: str) -> Rounded:
        """An activation, none of which is steeper than 1."""
        value = _ACTIVATIONS[name](self.value)
        return Rounded(value, self.error + (0 if name == "Relu" else FUNCTION_ERROR))

    def clipped(self, most: float) -> Rounded:
        return Rounded(np.clip(self.value, -most, most), self.error) if most else self

    def where(self, condition: np.ndarray, other: Rounded) -> Rounded:
        pairs = ((self.value, other.value), (self.error, other.error))
        return Rounded(*(np.where(condition, a, b) for a, b in pairs))


_ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Tanh": np.tanh,
    "Relu": lambda x: np.maximum(x, 0),
    "HardSigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "Softsign": lambda x: x / (1 + np.abs(x)),
}


def _rounded(value: np.ndarray, passed: np.ndarray) -> Rounded:
    return Rounded(value, passed + EPS * (np.abs(value) + passed))


def exact(value: np.ndarray | float) -> Rounded:
    """What float32 holds as it is."""
    number = np.asarray(value, np.float64)
    return Rounded(number, np.zeros_like(number))


# --- what ONNX says of the layers -----------------------------------------------------------------


def reference(layer: Layer) -> list[Rounded]:
    """Every output of the node, with time in front."""
    parts = [
        _direction(layer, d, backwards=layer.direction == "reverse" or d == 1)
        for d in range(layer.directions)
    ]
    axes = (1, 0, 0)
    return [
        Rounded(*(np.stack([getattr(r, f) for r in results], axis) for f in ("value", "error")))
        for results, axis in zip(zip(*parts, strict=True), axes, strict=False)
    ]


def _direction(layer: Layer, d: int, *, backwards: bool) -> list[Rounded]:
    x, hidden = layer.inputs["X"], layer.hidden
    steps, batch, _ = x.shape
    given = layer.inputs.get
    zeros = np.zeros((layer.directions, batch, hidden))
    h, c = (exact(given(name, zeros)[d]) for name in ("initial_h", "initial_c"))
    lengths = given("sequence_lens", np.full(batch, steps))
    every: list[Rounded] = [exact(zeros[d])] * steps
    for t in reversed(range(steps)) if backwards else range(steps):
        new_h, new_c = _step(layer, d, exact(x[t]), h, c)
        lasts = (t < lengths)[:, None]
        h, c = new_h.where(lasts, h), new_c.where(lasts, c)
        every[t] = new_h.where(lasts, exact(zeros[d]))
    stacked = Rounded(*(np.stack([getattr(y, f) for y in every]) for f in ("value", "error")))
    return [stacked, h, c][: 3 if layer.op == "LSTM" else 2]


def _step(layer: Layer, d: int, x: Rounded, h: Rounded, c: Rounded) -> tuple[Rounded, Rounded]:
    count, hidden, gates = FUNCTIONS[layer.op], layer.hidden, GATES[layer.op]
    names = layer.attributes.get("activations", DEFAULTS[layer.op] * 2)
    f, *more = names[d * count : (d + 1) * count]
    clip = float(layer.attributes.get("clip", 0.0))
    weight = layer.inputs["W"][d].astype(np.float64)
    back = layer.inputs["R"][d].astype(np.float64)
    bias = layer.inputs.get("B", np.zeros((layer.directions, 2 * gates * hidden)))[d]
    own, other = np.split(bias.astype(np.float64), 2)

    def part(number: int) -> slice:
        return slice(number * hidden, (number + 1) * hidden)

    def of_input(number: int) -> Rounded:
        return x.product(weight[part(number)]) + exact(own[part(number)])

    def of_state(number: int, state: Rounded = h) -> Rounded:
        return state.product(back[part(number)]) + exact(other[part(number)])

    def gate(number: int) -> Rounded:
        return of_input(number) + of_state(number)

    if layer.op == "RNN":
        return gate(0).clipped(clip).through(f), c
    if layer.op == "GRU":
        update, reset = (gate(i).clipped(clip).through(f) for i in range(2))
        if layer.attributes.get("linear_before_reset"):
            candidate = of_input(2) + reset * of_state(2)
        else:
            candidate = of_input(2) + of_state(2, reset * h)
        new = candidate.clipped(clip).through(more[0])
        return new + update * (h + exact(-1.0) * new), c
    peepholes = layer.inputs.get("P", np.zeros((layer.directions, 3 * hidden)))[d]

    def peeping(number: int, place: int, state: Rounded) -> Rounded:
        return (gate(number) + exact(peepholes[part(place)]) * state).clipped(clip).through(f)

    entering, staying = peeping(0, 0, c), peeping(2, 2, c)
    if layer.attributes.get("input_forget"):
        staying = exact(1.0) + exact(-1.0) * entering
    cell = staying * c + entering * gate(3).clipped(clip).through(more[0])
    return peeping(1, 1, cell) * cell.through(more[1]), cell
