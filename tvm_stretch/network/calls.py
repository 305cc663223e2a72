"""The calls of a function and the tensors that each reads, without the bindings in between.

lv = R.split(x, 2)
lv1 = lv[0]                   calls: lv reads x; add reads (lv, 0) and (lv, 1)
lv2 = (lv1, lv[1])
add = R.add(lv1, lv2[1])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tvm import relax

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.network.expressions import bindings_of

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

    Raises:
        UnsupportedError: a binding is neither a call nor a tuple nor a variable.
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
        found: list[Leaf] = []

        def note(leaf: Leaf) -> relax.Expr:
            found.append(leaf)
            return leaf.var

        self.rebuild(expr, note)
        yield from found

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
