"""Random expressions of floats, compared with NumPy bit by bit.

    python tests/random_expressions.py --count 2500 --batch 40 --jobs 16 --target llvm
    python tests/random_expressions.py --count 100 --dtype bfloat16

A seed is a batch of expressions. A compiler may not treat floats as real numbers: `(x + 1) - x` is
not 1, `x * 0` is not always 0 and `x != x` is true for NaN. Every expression is one output of a
network in ONNX; the operators round once in IEEE 754 (or not at all), so each has exactly one right
answer. NaN equals NaN here, whatever its bits. A wrong expression is cut down to its smallest part
that is wrong by itself.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401 - NumPy knows bfloat16 by it
import numpy as np
from helpers import campaign
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tvm_stretch as ts

VALUES = np.array(
    [
        *(0.0, -0.0, 1.0, -1.0, 1.4, 0.1, -0.3, 3.0, 1e10, -1e10, 12582912.0, 4097.0),
        *(2.0**24 - 1, 2.0**24, 2.0**24 + 2, -(2.0**24) - 2, 0.5, 1.5, 2.5, -2.5),
        *(np.inf, -np.inf, np.nan, 3.4028235e38, -3.4028235e38, 1.1754944e-38, 1e-40, -1e-45),
        *(7.0, -7.5, 1 / 3, 1e-5),
    ],
    dtype="float32",
)
"""Numbers that tell floats from real numbers: every pair of them is tried."""

_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
}
_SINGLE: dict[str, Callable[..., Any]] = {
    "Neg": np.negative,
    "Abs": np.abs,
    "Sqrt": np.sqrt,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.rint,
    "Reciprocal": lambda x: np.float32(1) / x,
    "Sign": np.sign,
    "Identity": lambda x: x,
}
_BEST: dict[str, Callable[..., Any]] = {"Max": np.maximum, "Min": np.minimum}
_COMPARED: dict[str, Callable[..., Any]] = {
    "Equal": np.equal,
    "Less": np.less,
    "Greater": np.greater,
    "LessOrEqual": np.less_equal,
    "GreaterOrEqual": np.greater_equal,
}
_JOINED: dict[str, Callable[..., Any]] = {
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
}
_KINDS: dict[str, Callable[..., Any]] = {"IsNaN": np.isnan, "IsInf": np.isinf}


@dataclass(frozen=True)
class Expression:
    """An operator and its operands; a leaf is ``input``, ``constant`` or ``weights``."""

    op: str
    operands: tuple[Expression, ...] = ()
    value: float = 0.0  # of a constant, the number of an input, the shift of weights

    def __str__(self) -> str:
        if self.op == "input":
            return "xyz"[int(self.value)]
        if self.op == "constant":
            return repr(np.float32(self.value).item())
        if self.op == "weights":
            return f"w{self.value:.0f}"
        return f"{self.op}({', '.join(map(str, self.operands))})"


class Dice:
    """Draws expressions; a seed always gives the same ones."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def one_of(self, choices: Sequence[Any]) -> Any:
        return choices[int(self._random.integers(len(choices)))]

    def number(self, depth: int, used: list[Expression]) -> Expression:
        """An expression of type float; parts that were used before come again, as in x - x."""
        if used and self._random.random() < 0.25:
            return self.one_of(used)
        kind = self._random.random()
        if depth == 0 or kind < 0.1:
            if self._random.random() < 0.3:
                found = Expression("constant", value=float(self.one_of(VALUES)))
            elif self._random.random() < 0.15:
                found = Expression("weights", value=float(self._random.integers(9)))
            else:
                found = Expression("input", value=float(self._random.integers(3)))
        elif kind < 0.65:
            op = self.one_of([*_ARITHMETIC, *_ARITHMETIC, *_BEST])
            found = Expression(op, (self.number(depth - 1, used), self.number(depth - 1, used)))
        elif kind < 0.85:
            found = Expression(self.one_of(list(_SINGLE)), (self.number(depth - 1, used),))
        else:
            condition = self.condition(depth - 1, used)
            both = self.number(depth - 1, used), self.number(depth - 1, used)
            found = Expression("Where", (condition, *both))
        if found.op in (*_BEST, "Sign"):  # IEEE 754 leaves the sign of their zeros open
            found = Expression("Add", (found, Expression("constant")))
        used.append(found)
        return found

    def condition(self, depth: int, used: list[Expression]) -> Expression:
        """An expression of type bool."""
        kind = self._random.random()
        if depth == 0 or kind < 0.6:
            depth = max(depth - 1, 0)
            op = self.one_of(list(_COMPARED))
            return Expression(op, (self.number(depth, used), self.number(depth, used)))
        if kind < 0.7:
            return Expression(self.one_of(list(_KINDS)), (self.number(depth - 1, used),))
        if kind < 0.85:
            return Expression("Not", (self.condition(depth - 1, used),))
        op = self.one_of(list(_JOINED))
        return Expression(op, (self.condition(depth - 1, used), self.condition(depth - 1, used)))


def inputs() -> list[np.ndarray]:
    """Three vectors whose elements meet in every pair."""
    x, y = (grid.ravel() for grid in np.meshgrid(VALUES, VALUES))
    return [x, y, np.roll(x, 5) * np.float32(0.75)]


def expected(expression: Expression, given: Sequence[np.ndarray]) -> np.ndarray:
    """NumPy's answer in the type of the given vectors, in which each operator rounds once."""
    dtype = given[0].dtype
    if expression.op == "input":
        return given[int(expression.value)]
    if expression.op == "constant":
        return np.full_like(given[0], np.float32(expression.value).astype(dtype))
    if expression.op == "weights":
        return _weights(expression).astype(dtype)
    operands = [expected(operand, given) for operand in expression.operands]
    if expression.op == "Where":
        return np.where(*operands)
    if expression.op == "Not":
        return np.logical_not(*operands)
    tables = {**_ARITHMETIC, **_SINGLE, **_BEST, **_COMPARED, **_JOINED, **_KINDS}
    answer = np.asarray(tables[expression.op](*operands))
    return answer if answer.dtype == bool else answer.astype(dtype)


def _weights(expression: Expression) -> np.ndarray:
    """A constant vector of all numbers."""
    return np.roll(inputs()[0], int(expression.value))


def model(expressions: Sequence[Expression], size: int, dtype: str = "float32") -> ModelProto:
    """A network with one output for each expression; equal parts are one node."""
    numbers = np.dtype(dtype)
    kind = helper.np_dtype_to_tensor_dtype(numbers)
    nodes = {name: f"{name}_{dtype}" for name in "xyz"}  # by the expression's text, which tells
    # 0.0 and -0.0 apart
    listed = [helper.make_node("Cast", [name], [nodes[name]], to=kind) for name in "xyz"]
    constants: list[Any] = []

    def name_of(expression: Expression) -> str:
        text = str(expression)
        if text in nodes:
            return nodes[text]
        name = nodes[text] = f"v{len(nodes)}"
        if expression.op in ("constant", "weights"):
            value = _weights(expression) if expression.op == "weights" else expression.value
            constants.append(
                numpy_helper.from_array(np.asarray(value, "float32").astype(numbers), name)
            )
        else:
            operands = [name_of(operand) for operand in expression.operands]
            listed.append(helper.make_node(expression.op, operands, [name]))
        return name

    results = []
    for number, expression in enumerate(expressions):
        floats = helper.make_node("Cast", [name_of(expression)], [f"out{number}"], to=1)
        listed.append(floats)
        shape = () if not reads_input(expression) else (size,)
        results.append(helper.make_tensor_value_info(f"out{number}", TensorProto.FLOAT, shape))
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (size,)) for n in "xyz"]
    graph = helper.make_graph(listed, "expressions", given, results, constants)
    opset = helper.make_opsetid("", 18 if dtype == "float32" else 22)
    return helper.make_model(graph, opset_imports=[opset], ir_version=10)


def reads_input(expression: Expression) -> bool:
    """Whether an expression depends on an input."""
    return expression.op == "input" or any(map(reads_input, expression.operands))


def differences(
    expressions: Sequence[Expression],
    targets: Sequence[Any],
    dtype: str = "float32",
    **options: Any,
) -> dict[Expression, str]:
    """The expressions whose answer is not NumPy's, each with the first place that differs."""
    given = inputs()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        network = model(expressions, given[0].size, dtype)
        compiled = ts.compile(network, list(targets), **options)
        answers = compiled(*given)
        answers = answers if isinstance(answers, tuple) else (answers,)
        found = {}
        for expression, answer in zip(expressions, answers, strict=True):
            rounded = [vector.astype(dtype) for vector in given]
            right = expected(expression, rounded).astype("float32")
            answer = np.broadcast_to(answer, right.shape)
            wrong = ~same(answer, right)
            if wrong.any():
                place = int(np.argmax(wrong))
                x = [vector[place].item() for vector in given]
                found[expression] = f"{answer[place]!r}, not {right[place]!r}, for xyz = {x}"
    return found


def same(answer: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Equal numbers, also zeros of one sign, and NaN for NaN."""
    equal = (answer == right) & (np.signbit(answer) == np.signbit(right))
    return equal | (np.isnan(answer) & np.isnan(right))


def smallest(expression: Expression, targets: Sequence[Any], **options: Any) -> Expression:
    """The smallest part of an expression that is wrong by itself."""
    for operand in expression.operands:
        if reads_input(operand) and operand.operands and differences([operand], targets, **options):
            return smallest(operand, targets, **options)
    return expression


def draw(count: int, seed: int, depth: int = 4) -> list[Expression]:
    """Different expressions that read an input."""
    dice = Dice(seed)
    found: dict[str, Expression] = {}
    while len(found) < count:
        expression = dice.number(depth, [])
        if expression.operands and reads_input(expression):
            found[str(expression)] = expression
    return list(found.values())


def judged(
    batch: Sequence[Expression], targets: Sequence[Any], **options: Any
) -> list[campaign.Line]:
    """The verdicts on a batch: how many are right, and one line for each that is not."""
    try:
        wrong = differences(batch, targets, **options)
    except Exception as error:
        if len(batch) > 1:
            middle = len(batch) // 2
            parts = (judged(part, targets, **options) for part in (batch[:middle], batch[middle:]))
            return [line for part in parts for line in part]
        verdict = "refused" if isinstance(error, ts.StretchError) else "raw"
        return [{"verdict": verdict, "expression": str(batch[0]), "error": str(error)[:300]}]
    lines: list[campaign.Line] = [{"verdict": "right", "count": len(batch) - len(wrong)}]
    for expression, what in wrong.items():
        part = str(smallest(expression, targets, **options))
        lines.append({"verdict": "wrong", "part": part, "got": what, "within": str(expression)})
    return lines


def main() -> int:
    parser = campaign.parser(__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=40, help="expressions of a seed")
    parser.add_argument("--target", action="append", help="a word or JSON; several are allowed")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    args = parser.parse_args()
    named = args.target or ["llvm"]
    targets = [json.loads(name) if name.startswith("{") else name for name in named]

    def check(seed: int) -> list[campaign.Line]:
        return judged(draw(args.batch, seed), targets, dtype=args.dtype, cpu_threads=1)

    return campaign.run(args, check)


if __name__ == "__main__":
    sys.exit(main())
