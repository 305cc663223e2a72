"""Flat views of a Relax function: operators by name with their readers, and the tensors of calls.

    lv = R.nn.conv2d(x, w)
    lv1 = R.add(lv, b)        ->   Operators: lv reads (x,), lv1 reads (lv,); x is a parameter

    lv = R.split(x, 2)        ->   Calls: add reads (lv, 0) and (lv, 1)
    lv1 = (lv[0], lv[1])
    add = R.add(lv[0], lv1[1])

Names are those of the binding variables, which are unique in canonical Relax (name_operators.py).
The columns of the table of operators say what the rooms do with each kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, wraps
from math import prod
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from tvm import relax
from tvm.ir import Op

from tvm_stretch.base.errors import InputError, UnsupportedError
from tvm_stretch.network.expressions import bindings_of, shape_of, variables_of
from tvm_stretch.network.integers import integer_of, operands_of
from tvm_stretch.network.steps import is_block_product, kind_of_steps, recurrence_of

PROCESSOR = "processor"
"""Attribute of a region's function: the name of its processor."""


@dataclass(frozen=True)
class Leaf:
    """A parameter or the result of a call: the whole result, or one field of a tuple."""

    var: relax.Var
    index: int | None = None

    @property
    def type(self) -> relax.Type:
        """Its type."""
        return self.var.ty if self.index is None else self.var.ty.fields[self.index]

    @property
    def name(self) -> str:
        """A name for people."""
        return self.var.name if self.index is None else f"{self.var.name}_{self.index}"


class Calls:
    """The calls of ``function`` in program order, also by the names of their variables.

    Names are unique in canonical Relax; in fused functions, where they are not, use ``bound``.
    """

    def __init__(self, function: relax.Function) -> None:
        self.bound: list[tuple[relax.Var, relax.Call]] = []
        self._glue: dict[relax.Var, relax.Expr] = {}
        for binding in bindings_of(function):
            value = getattr(binding, "value", None)
            if isinstance(binding, relax.VarBinding) and isinstance(value, relax.Call):
                self.bound.append((binding.var, value))
            elif isinstance(binding, relax.VarBinding) and not isinstance(value, relax.If):
                self._glue[binding.var] = value
            else:
                raise UnsupportedError(
                    f"expected operators and tuples in the network, got {type(value).__name__} "
                    f"for {binding.var.name}; export it without control flow"
                )
        self.calls = {var.name: call for var, call in self.bound}
        self.variables = {var.name: var for var, _ in self.bound}
        self.result = function.body.body

    def leaves(self, expr: relax.Expr) -> Iterator[Leaf]:
        """The tensors that an expression reads, in order."""
        leaves: list[Leaf] = []

        def note(leaf: Leaf) -> relax.Expr:
            leaves.append(leaf)
            return leaf.var

        self.rebuild(expr, note)
        yield from leaves

    def rebuild(self, expr: relax.Expr, replace: Callable[[Leaf], relax.Expr]) -> relax.Expr:
        """``expr`` with ``replace(leaf)`` for every tensor that it reads."""
        if isinstance(expr, relax.Call):
            args = [self.rebuild(arg, replace) for arg in expr.args]
            return relax.Call(expr.op, args, expr.attrs, expr.ty_args)
        resolved = self._resolve(expr)
        if isinstance(resolved, relax.Tuple):
            return relax.Tuple([self.rebuild(field, replace) for field in resolved.fields])
        if isinstance(resolved, relax.TupleGetItem):
            return replace(Leaf(resolved.tuple_value, resolved.index))
        if isinstance(resolved, relax.Var) and isinstance(resolved.ty, relax.TupleType):
            fields = range(len(resolved.ty.fields))
            return relax.Tuple([replace(Leaf(resolved, index)) for index in fields])
        if isinstance(resolved, relax.Var):
            return replace(Leaf(resolved))
        return resolved  # a constant, a shape, a number

    def _resolve(self, expr: relax.Expr) -> relax.Expr:
        """``expr`` in terms of parameters and results of calls."""
        while expr in self._glue:
            expr = self._glue[expr]
        if isinstance(expr, relax.TupleGetItem):
            whole = self._resolve(expr.tuple_value)
            if isinstance(whole, relax.Tuple):
                return self._resolve(whole.fields[expr.index])
            return relax.TupleGetItem(whole, expr.index)
        return expr


Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])

# Operators that compute each element of the result from the elements at the same position.
UNARY = frozenset(
    {
        *("abs", "ceil", "clip", "cos", "erf", "exp", "floor", "log", "negative", "round"),
        *("rsqrt", "sigmoid", "sign", "sin", "sqrt", "square", "tanh", "astype"),
        *("nn.gelu", "nn.gelu_tanh", "nn.leakyrelu", "nn.relu", "nn.silu", "nn.softplus"),
    }
)
BINARY = frozenset({"add", "divide", "maximum", "minimum", "multiply", "power", "subtract"})
POINTWISE = UNARY | BINARY

# Float and integer operators together; `operands` and `Operator.attributes` give their operands
# and attributes.
CONVOLUTIONS = frozenset({"nn.conv2d", "integer.conv2d"})
OF_ONE = UNARY | {"integer.table"}
OF_TWO = BINARY | {"integer.add", "integer.multiply"}


class Column(dict[str, Any]):
    """A column of the table of operators: for each kind, the function of one room for its calls.

    @LAYOUT("nn.max_pool2d", "nn.avg_pool2d")
    def _pool(layouts, call): ...
    """

    def __call__(self, *kinds: str) -> Callable[[Function], Function]:
        """Register a function for operators of these kinds."""

        def register(function: Function) -> Function:
            self.update(dict.fromkeys(kinds, function))
            return function

        return register


LAYOUT = Column()  # (layouts, call) -> its result in blocks of channels: blocked_values.py
PADDING = Column()  # (uses, calls, args, results) -> what padding does to it: padding_rules.py
INTEGER = Column()  # (former, value, call, result) -> the integers of it: form_integers.py
SCALED = Column()  # (scaler, operator, reads, channels) -> with other ones: scale_operators.py
GRADIENT = Column()  # (*tensors, **attributes) -> its result in torch: torch_functions.py


@dataclass(frozen=True, eq=False)
class Operator:
    """One binding of a function."""

    name: str  # of the binding variable; also the name of the tensor that it holds
    # name of the Relax operator without the dialect (``nn.conv2d``), or of the expression's
    # class if the binding calls no operator
    kind: str
    # names of the tensors that it reads, without repetition and without constants
    inputs: tuple[str, ...]
    shape: tuple[int, ...]  # of its result; empty if the result is no tensor
    binding: relax.Binding

    @property
    def call(self) -> relax.Call:
        """The bound call."""
        return self.binding.value

    @cached_property
    def arg_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the operands; empty for operands that are no tensors."""
        return tuple(
            tuple(shape_of(arg)) if isinstance(arg.ty, relax.TensorType) else ()
            for arg in operands(self.call)
        )

    @cached_property
    def attributes(self) -> Any:
        """Strides, padding, dilation and groups of a convolution."""
        return integer_of(self.call) or self.call.attrs

    @cached_property
    def groups(self) -> int:
        """Groups of a convolution."""
        return int(self.attributes.groups)

    @cached_property
    def multiply_adds(self) -> int:
        """Multiply-adds of convolutions, matrix products and recurrences, 0 for everything else."""
        recurrence = recurrence_of(self.call)
        if recurrence is not None:
            return recurrence.multiply_adds
        if self.kind in ("integer.matmul", "integer.conv2d"):
            weight = shape_of(operands_of(self.call)[1])
            return prod(self.shape) * prod(weight[1:] if len(weight) == 4 else weight[:1])
        if self.kind == "matmul" or is_block_product(self.kind):
            return prod(self.shape) * self.arg_shapes[0][-1]
        if self.kind.startswith("nn.conv") and "transpose" not in self.kind:
            return prod(self.shape) * prod(self.arg_shapes[1][1:])
        return 0


class Operators:
    """The operators of ``function`` in program order."""

    def __init__(self, function: relax.Function) -> None:
        self.params = tuple(param.name for param in function.params)
        self.variables: dict[str, relax.Var] = {p.name: p for p in function.params}
        self._operators: dict[str, Operator] = {}
        for binding in bindings_of(function):
            self._add(binding)
        self._order = tuple(self._operators.values())
        self._position = dict.fromkeys(self.params, -1)
        self._position |= {operator.name: i for i, operator in enumerate(self._order)}
        self.outputs = _variables(function.body.body)
        self.readers = self._readers()
        self._bytes = {name: bytes_of(variable.ty) for name, variable in self.variables.items()}

    def _add(self, binding: relax.Binding) -> None:
        name = binding.var.name
        if name in self.variables:
            raise InputError(
                f"expected unique names of operators, got {name!r} twice; run the pass "
                "NameOperators first"
            )
        self.variables[name] = binding.var
        shape: tuple[int, ...] = ()
        if isinstance(binding.var.ty, relax.TensorType):
            shape = tuple(shape_of(binding.var))
        kind = kind_of(binding.value)
        self._operators[name] = Operator(name, kind, _variables(binding.value), shape, binding)

    def _readers(self) -> dict[str, tuple[str, ...]]:
        readers: dict[str, list[str]] = {name: [] for name in self.variables}
        for operator in self:
            for name in operator.inputs:
                readers[name].append(operator.name)
        return {name: tuple(names) for name, names in readers.items()}

    def __iter__(self) -> Iterator[Operator]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, name: str) -> Operator:
        return self._operators[name]

    def __contains__(self, name: str) -> bool:
        return name in self._operators

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Shape of a parameter or a result."""
        if tensor in self._operators:
            return self._operators[tensor].shape
        return tuple(shape_of(self.variables[tensor]))

    def bytes(self, tensor: str) -> int:
        """Size of a parameter or result; for a tuple the sum of its fields."""
        return self._bytes[tensor]

    def below(self, tensor: str) -> frozenset[str]:
        """The operators whose results depend on a tensor, and the tensor."""
        tensors = {tensor}
        for operator in self._order[self._position[tensor] + 1 :]:
            if not tensors.isdisjoint(operator.inputs):
                tensors.add(operator.name)
        return frozenset(tensors)

    def between(self, start: str, end: str) -> tuple[Operator, ...]:
        """The operators on all paths from tensor ``start`` to tensor ``end``, in program order.

        They include the operator of ``end`` but not that of ``start``.
        """
        for field, name in (("start", start), ("end", end)):
            if name not in self.variables:
                raise InputError(
                    f"expected the name of a tensor for {field}, got {name!r}; "
                    "operators are named by their binding variables"
                )
        # Operators between them come after the one and not after the other.
        first, last = self._position[start] + 1, self._position[end] + 1
        span = self._order[first:last]
        below = {start}
        for operator in span:
            if not below.isdisjoint(operator.inputs):
                below.add(operator.name)
        above = {end}
        for operator in reversed(span):
            if operator.name in above:
                above.update(operator.inputs)
        return tuple(o for o in span if o.name in below and o.name in above)


def remember(function: Callable[..., Result]) -> Callable[..., Result]:
    """Cache results of a function of an operator or of `Operators` while that object lives."""
    cache: WeakKeyDictionary[object, dict[object, Result]] = WeakKeyDictionary()

    @wraps(function)
    def remembering(subject: object, *rest: object) -> Result:
        results = cache.setdefault(subject, {})
        if rest not in results:
            results[rest] = function(subject, *rest)
        return results[rest]

    return remembering


def kind_of(expr: relax.Expr) -> str:
    """``nn.conv2d`` for a call of relax.nn.conv2d, the class name for other expressions.

    Calls of our own kernels get ``integer.conv2d`` for an integer operator and ``recurrent.lstm``
    for a recurrent layer.
    """
    if isinstance(expr, relax.Call) and isinstance(expr.op, Op):
        integer = integer_of(expr)
        if integer is not None:
            return f"integer.{integer.kind}"
        steps = kind_of_steps(expr)
        if steps is not None:
            return steps
        return expr.op.name.removeprefix("relax.")
    return type(expr).__name__


def operands(call: relax.Call) -> list[relax.Expr]:
    """The operands of an operator, without the kernel that defines an operator of ours."""
    is_kernel = integer_of(call) is not None or kind_of_steps(call) is not None
    return operands_of(call) if is_kernel else list(call.args[:])


def _variables(expr: relax.Expr) -> tuple[str, ...]:
    """Names of the variables that ``expr`` reads."""
    return tuple(dict.fromkeys(var.name for var in variables_of(expr)))


def bytes_of(ty: relax.Type) -> int:
    """Size of a tensor of the type; for a tuple the sum of its fields."""
    if isinstance(ty, relax.TupleType):
        return sum(bytes_of(field) for field in ty.fields)
    bits = int(ty.dtype.dtype.bits) if hasattr(ty.dtype, "dtype") else int(ty.dtype.bits)
    return prod([int(dim) for dim in ty.shape.values[:]]) * ((bits + 7) // 8)
