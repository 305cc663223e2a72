"""Scales and zero points for a region's tensors of 8 bits, found from its operators' factors.

    y = add(a, b): round(0.5 a + 0.25 b + 3)
        ->
    scale of y 1, of a 0.5, of b 0.25; zero points with  zero of y = 3 + 0.5 zero of a + ..

Engines want each tensor's scale and zero point, and an integer operator only knows its factors.
`with_copies` repairs regions that no scales fit, because an operator reads a tensor otherwise than
it was written: such an operator reads a copy, the same integers with a scale of their own.

Tables of 8 bits as functions that ONNX has, for engines, which take no tables.

    table[i] = limit(round(f(scale of x * (i - zero of x)) / scale of y) + zero of y)
        ->
    DequantizeLinear, the operator of f, QuantizeLinear

f is found by its results: all 256 have to be the table's, or next to them, since a network may
round between two operators that are one in ONNX. So it does not matter with which operators the
network writes its functions. Concatenations and sums of tensors with different scales have tables
that only change the scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.network.expressions import flat_args, shape_of, with_variables
from tvm_stretch.network.integers import Integer, integer_of, operands_of
from tvm_stretch.network.operators import kind_of

Bindings = Sequence[tuple[relax.Var, relax.Expr]]
"""Variables and what they are bound to, in their order; a variable is bound to what it copies."""

_MOST_OFF = 4e-3
"""Largest relative error of a factor that the scales found give."""


def bindings(function: relax.Function) -> Bindings:
    """The variables of a function, with what they are bound to; parts of a split are slices."""
    bound: list[tuple[relax.Var, relax.Expr]] = []
    splits: dict[relax.Var, relax.Call] = {}
    for binding in (b for block in function.body.blocks for b in block.bindings):
        var, value = binding.var, binding.value
        if isinstance(value, relax.Call) and kind_of(value) == "split":
            splits[var] = value
        elif isinstance(value, relax.TupleGetItem) and value.tuple_value in splits:
            bound.append((var, _part(splits[value.tuple_value], value.index)))
        else:
            bound.append((var, value))
    return bound


def _part(split: relax.Call, index: int) -> relax.Call:
    """A part of a split as a slice."""
    types, axis = list(split.ty.fields), int(split.attrs.axis)
    sizes = [int(ty.shape.values[axis]) for ty in types]
    begin = sum(sizes[:index])
    piece = relax.op.strided_slice(split.args[0], [axis], [begin], [begin + sizes[index]])
    return relax.Call(piece.op, piece.args, piece.attrs, piece.ty_args, ret_ty=types[index])


def with_copies(function: relax.Function) -> tuple[Bindings, dict[relax.Var, tuple[float, int]]]:
    """The bindings, with the copies that they need, and each tensor's scale and zero point.

    Raises:
        UnsupportedError: an operator alone has no scales, or no zero point of its type.
    """
    bound, repaired = bindings(function), set[relax.Var]()
    while True:
        try:
            return bound, QuantisedTensors(function.params, bound).encodings()
        except UnsupportedError:
            place = _first_contradiction(function.params, bound)
            var, value = bound[place]
            if var in repaired or not isinstance(value, relax.Call):
                raise
            repaired.add(var)
            copies, reading = _reading_copies(value)
            bound = [*bound[:place], *copies, (var, reading), *bound[place + 1 :]]


def _first_contradiction(params: Sequence[relax.Var], bound: Bindings) -> int:
    """The place of the first operator that no scales fit which fit all operators before it."""
    good, bad = 0, len(bound)  # numbers of operators
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            QuantisedTensors(params, bound[:middle]).encodings()
            good = middle
        except UnsupportedError:
            bad = middle
    return good


def _reading_copies(call: relax.Call) -> tuple[list[tuple[relax.Var, relax.Expr]], relax.Call]:
    """Copies of a call's operands of 8 bits, one for each, and the call that reads the copies."""
    copies: list[tuple[relax.Var, relax.Expr]] = []

    def copied(var: relax.Var) -> relax.Expr:
        if not _is_of_bytes(var):
            return var
        copies.append((relax.Var(f"{var.name}_as_read", var.ty), var))
        return copies[-1][0]

    reader = with_variables(call, copied)  # fills the list
    return copies, reader


def _is_of_bytes(expr: relax.Expr) -> bool:
    return isinstance(expr.ty, relax.TensorType) and str(expr.ty.dtype) in ("uint8", "int8")


_Sum = tuple[relax.Var, list[tuple[relax.Var, float]], float]
"""The result of an addition, its terms with their factors, and the added offset."""


class QuantisedTensors:
    """Scales and zero points of a region's tensors of 8 bits that give its operators' factors.

    Factors are products and quotients of scales, so logarithms of scales solve linear equations:

        add:       scale of a / scale of y = factor of a
        multiply:  scale of a * scale of b / scale of y = factor
        mean:      scale of x / scale of y = factor * number of pixels
        table:     scale of x and scale of y as the table has them
        moves:     scale of x = scale of y

    A layer's result has any scale, because the weights take the rest of the factor.
    """

    def __init__(self, params: Iterable[relax.Var], bound: Bindings) -> None:
        self.tensors: dict[relax.Var, int] = {}
        self.rows: list[tuple[dict[relax.Var, float], float]] = []
        self.zeros: dict[relax.Var, int] = {}
        self.equal: list[tuple[relax.Var, relax.Var]] = []
        self.sums: list[_Sum] = []
        for param in params:
            self._add(param)
        for var, value in bound:
            self._add(var)
            if isinstance(value, relax.Call):
                self._read(var, value)

    def _add(self, var: relax.Var) -> None:
        if _is_of_bytes(var):
            self.tensors[var] = len(self.tensors)

    def _tensors(self, call: relax.Call) -> list[relax.Var]:
        return [f for f in flat_args(call) if isinstance(f, relax.Var) and f in self.tensors]

    def _read(self, var: relax.Var, call: relax.Call) -> None:
        integer = integer_of(call)
        if integer is None:
            if var in self.tensors:  # it moves numbers
                for source in self._tensors(call):
                    self.rows.append(({source: 1.0, var: -1.0}, 0.0))
                    self.equal.append((source, var))
            return
        sources = [s for s in operands_of(call) if isinstance(s, relax.Var)]
        for source, zero in zip(sources, integer.zeros, strict=False):
            self._know(source, zero)
        kind, factors, rounding = integer.kind, integer.factors, integer.rounding
        if rounding is not None and kind not in ("add", "multiply"):
            self._know(var, rounding.zero)
        elif kind == "table":
            self._know(var, integer.zeros[1])
        if kind == "add" and len(sources) == 2:
            terms: dict[relax.Var, float] = {}
            for source, factor in zip(sources, factors, strict=False):
                self.rows.append(({source: 1.0, var: -1.0}, float(np.log(factor))))
                terms[source] = terms.get(source, 0.0) + factor
            self.sums.append((var, [*terms.items()], factors[-1]))
        elif kind == "multiply" and len(sources) == 2:
            row: dict[relax.Var, float] = {var: -1.0}
            for source in sources:
                row[source] = row.get(source, 0.0) + 1.0
            self.rows.append((row, float(np.log(factors[0]))))
            self._know(var, round(factors[1]))
        elif kind == "mean":
            rows, columns = shape_of(sources[0])[2:4]
            factor = factors[0] * rows * columns
            self.rows.append(({sources[0]: 1.0, var: -1.0}, float(np.log(factor))))
        elif kind in ("average", "table"):
            self.rows.append(({sources[0]: 1.0}, float(np.log(factors[0]))))
            self.rows.append(({var: 1.0}, float(np.log(factors[1]))))

    def _know(self, var: relax.Var, zero: int) -> None:
        if self.zeros.setdefault(var, zero) != zero:
            self._contradicts(var)

    def _contradicts(self, var: relax.Var) -> NoReturn:
        raise UnsupportedError(
            f"expected one zero point for {var.name} in a region of an engine, got contradicting "
            "ones; place its operators elsewhere"
        )

    def encodings(self) -> dict[relax.Var, tuple[float, int]]:
        """Scale and zero point of each tensor."""
        zeros = self._all_zeros()
        for one, other in self.equal:
            if zeros[one] != zeros[other]:
                self._contradicts(other)
        scales = self._solve()
        for result, terms, offset in self.sums:
            total = offset + sum(factor * zeros[term] for term, factor in terms)
            if abs(total - zeros[result]) > _MOST_OFF:
                self._contradicts(result)
        for var, zero in zeros.items():
            limits = np.iinfo(str(var.ty.dtype))
            if var in self.tensors and not limits.min <= zero <= limits.max:
                raise UnsupportedError(
                    f"expected a zero point of {var.ty.dtype} for {var.name} in a region of an "
                    f"engine, got {zero}; place its operator elsewhere"
                )
        return {
            var: (float(np.exp(scales[place])), zeros[var]) for var, place in self.tensors.items()
        }

    def _solve(self) -> np.ndarray:
        matrix = np.zeros((len(self.rows), len(self.tensors)))
        right = np.zeros(len(self.rows))
        for number, (row, value) in enumerate(self.rows):
            right[number] = value
            for var, weight in row.items():
                matrix[number, self.tensors[var]] = weight
        solved = np.linalg.lstsq(matrix, right, rcond=None)[0]
        if len(right) and np.abs(matrix @ solved - right).max() > _MOST_OFF:
            raise UnsupportedError(
                "expected scales that give the factors of all integer operators of a region, got "
                "contradicting ones; place its operators elsewhere"
            )
        return solved

    def _all_zeros(self) -> dict[relax.Var, int]:
        zeros = self.zeros
        while True:
            before = len(zeros)
            for one, other in (*self.equal, *((b, a) for a, b in self.equal)):
                if one in zeros and other not in zeros:
                    zeros[other] = zeros[one]
            for result, terms, offset in self.sums:
                self._complete(result, terms, offset)
            unknown = (s for s in self.sums if self._unknown(s[0], s[1]))
            if len(zeros) == before and not self._choose(next(unknown, None)):
                return {var: zeros.get(var, 0) for var in self.tensors}

    def _choose(self, stuck: _Sum | None) -> bool:
        """Choose all unknown zero points of a sum but the last; False if none is unknown.

        Several are unknown if the region only adds a tensor. The best choice makes the last one a
        whole number of its type.
        """
        if stuck is None:
            return False
        result, terms, offset = stuck
        *others, last = dict.fromkeys(self._unknown(result, terms))
        limits = [np.iinfo(str(var.ty.dtype)) for var in (*others, last)]
        ranges = [np.arange(limit.min, limit.max + 1) for limit in limits[:-1]]
        zeros: dict[relax.Var, np.ndarray | int] = dict(self.zeros)
        zeros.update(zip(others, np.meshgrid(*ranges, indexing="ij"), strict=True))
        rest = sum((f * zeros[t] for t, f in terms if t is not last), offset)
        value = np.asarray((zeros[result] - rest) / sum(f for t, f in terms if t is last))
        outside = (value.round() < limits[-1].min) | (value.round() > limits[-1].max)
        best = np.unravel_index(np.argmin(abs(value - value.round()) + outside), value.shape)
        self.zeros.update((var, int(r[i])) for var, r, i in zip(others, ranges, best, strict=True))
        return True

    def _unknown(
        self, result: relax.Var, terms: Sequence[tuple[relax.Var, float]]
    ) -> list[relax.Var]:
        return [v for v in (result, *(t for t, _ in terms)) if v not in self.zeros]

    def _complete(
        self, result: relax.Var, terms: Sequence[tuple[relax.Var, float]], offset: float
    ) -> None:
        """The last unknown zero point of: zero of result = offset + sum of factor * zero."""
        unknown = set(self._unknown(result, terms))
        if len(unknown) != 1:
            return
        (var,) = unknown
        rest = offset + sum(f * self.zeros[t] for t, f in terms if t is not var)
        if var is result:
            self.zeros[var] = round(rest)
        else:
            own = sum(f for t, f in terms if t is var)
            self.zeros[var] = round((self.zeros[result] - rest) / own)


_MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Function:
    """A function of real numbers, as NumPy computes it and as ONNX writes it."""

    values: Callable[[np.ndarray], np.ndarray]
    operator: str = ""  # of ONNX; none for the number itself
    attributes: Mapping[str, float] = field(default_factory=dict)  # of the operator
    domain: str = ""  # of the operator
    gates: bool = False  # whether the result is multiplied by the number


@dataclass(frozen=True)
class Tabulated:
    """The function of a table, and limits that cut its results."""

    function: Function
    low: int  # the least result
    high: int  # the greatest result


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _hard_sigmoid(x: np.ndarray) -> np.ndarray:
    return np.clip(x / 6 + 0.5, 0, 1)


_erf = np.vectorize(math.erf, otypes=["float64"])

_ITSELF = Function(lambda x: x)
_FUNCTIONS = (
    Function(_sigmoid, "Sigmoid"),
    Function(np.tanh, "Tanh"),
    Function(_hard_sigmoid, "HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
    Function(lambda x: x * _hard_sigmoid(x), "HardSwish"),
    Function(lambda x: x * _sigmoid(x), "Sigmoid", gates=True),
    Function(lambda x: x * (1 + _erf(x * math.sqrt(0.5))) / 2, "Gelu", domain=_MICROSOFT),
    Function(lambda x: np.where(x < 0, np.expm1(x), x), "Elu"),
    Function(lambda x: np.logaddexp(x, 0), "Softplus"),
    Function(np.abs, "Abs"),
    Function(np.negative, "Neg"),
    Function(np.exp, "Exp"),
    Function(np.log, "Log"),
)


def function_of(call: relax.Call) -> Tabulated | None:
    """The function of an integer operator of kind ``table``; None if ONNX has none.

    The nearest one is taken. Only a change of the scale may be cut by limits of the table's own:
    engines join these with the rounding, and have no form for other functions.
    """
    integer, (data, table) = integer_of(call), operands_of(call)
    assert integer is not None
    if not isinstance(table, GenericConst):
        return None
    results, limits = table.value.numpy(), np.iinfo(str(data.ty.dtype))
    places = np.arange(limits.min, limits.max + 1)
    x = (places - integer.zeros[0]) * np.float64(integer.factors[0])
    own = Tabulated(_ITSELF, int(results.min()), int(results.max()))
    type_ = np.iinfo(results.dtype)
    listed = (*_leaky(integer, x, results), *_FUNCTIONS)
    tables = [own, *(Tabulated(one, int(type_.min), int(type_.max)) for one in listed)]
    off = [_most_and_mean_off(one, integer, x, results) for one in tables]
    nearest = min(range(len(tables)), key=lambda place: off[place][1])
    return tables[nearest] if off[nearest][0] <= 1 else None


def _leaky(integer: Integer, x: np.ndarray, results: np.ndarray) -> Iterator[Function]:
    """LeakyRelu with the slope that the result of the least number has."""
    if x[0] < 0:
        result = (int(results[0]) - integer.zeros[1]) * np.float64(integer.factors[1])
        slope = float(result / x[0])
        yield Function(lambda x: np.where(x < 0, slope * x, x), "LeakyRelu", {"alpha": slope})


def _most_and_mean_off(
    tabulated: Tabulated, integer: Integer, x: np.ndarray, results: np.ndarray
) -> tuple[float, float]:
    """By how much a function's results are beside those of a table: at most, and in the mean."""
    with np.errstate(all="ignore"):
        exact = np.rint(tabulated.function.values(x) / integer.factors[1]) + integer.zeros[1]
    exact[np.isnan(exact)] = tabulated.low
    off = np.abs(np.clip(exact, tabulated.low, tabulated.high) - results)
    return float(off.max()), float(off.mean())
