"""The values of a function in plain layout and in blocks of channels, each converted at most once.

x: (1, 64, 56, 56)   <->   x5: (1, 8, 56, 56, 8)
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.network.expressions import shape_of, with_variables
from tvm_stretch.targets.kernels import blocks
from tvm_stretch.targets.kernels.machine import VectorMachine


@dataclass
class Value:
    """One tensor of the network in the layouts it exists in.

    ``named`` is the result of the operator's kernel, if the other layouts are views of it.
    """

    shape: tuple[int, ...]
    plain: relax.Expr | None = None
    blocked: relax.Expr | None = None
    named: relax.Expr | None = None


class Layouts:
    """Holds the layouts of each value, and emits a conversion where one is missing."""

    def __init__(self, machine: VectorMachine, bb: relax.BlockBuilder) -> None:
        self.machine = machine
        self.lanes = machine.lanes
        self.values: dict[relax.Var, Value] = {}
        self.bb = bb

    def blocked_parameter(self, param: relax.Var) -> relax.Var:
        """A parameter that receives the value of ``param`` in the blocked layout."""
        shape = blocks.blocked_shape(static_shape(param), self.lanes)
        return relax.Var(param.name, relax.TensorType(shape, str(param.ty.dtype)))

    def bind_parameter(self, param: relax.Var, new: relax.Var) -> None:
        """Record that parameter ``new`` replaces ``param``, in either layout."""
        shape = static_shape(param)
        is_plain = static_shape(new) == shape
        value = Value(shape, plain=new) if is_plain else Value(shape, blocked=new)
        self.values[param] = value

    def plain(self, expr: relax.Expr) -> relax.Expr:
        """``expr`` with every operand in plain layout."""
        return with_variables(expr, self._plain_value)

    def _plain_value(self, var: relax.Var) -> relax.Expr:
        if var not in self.values:
            return var
        value = self.values[var]
        if value.plain is None:
            value.plain = blocks.unblock(self.bb, value.blocked, value.shape)
        return value.plain

    def blocked(self, expr: relax.Expr) -> relax.Expr:
        """A value or constant in blocked layout."""
        if isinstance(expr, GenericConst):
            return self.blocked_constant(expr, tuple(shape_of(expr)))
        value = self.values[expr]
        if value.blocked is None:
            value.blocked = blocks.block(self.bb, value.plain, value.shape, self.lanes)
        return value.blocked

    def is_blocked(self, expr: relax.Expr) -> bool:
        """Whether the value exists in blocked layout already."""
        return isinstance(expr, relax.Var) and self.values[expr].blocked is not None

    def blocked_constant(self, constant: GenericConst, shape: tuple[int, ...]) -> relax.Expr:
        """A constant in blocks of channels, after it was given ``shape``."""
        array = constant.value.numpy().reshape(shape)
        if len(shape) == 2:
            array = array.T
        return relax.const(blocks.block_array(array.reshape(blocks.image_shape(shape)), self.lanes))


def static_shape(expr: relax.Expr) -> tuple[int, ...]:
    """The shape of a tensor; none for a tuple."""
    return tuple(shape_of(expr)) if isinstance(expr.ty, relax.TensorType) else ()
