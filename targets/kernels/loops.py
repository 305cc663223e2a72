"""A few words for writing TIR loop nests by hand.

TVM's schedule primitives cannot express "this tile has fewer taps than that one", which is what
makes padding free.  The templates therefore write their loops out with these helpers::

    loop(4, lambda i: store(out, load(a, i) + 1.0, i))     # for i in range(4): out[i] = a[i] + 1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tvm import tirx
from tvm.ir import Expr

Index: TypeAlias = int | Expr
Body = Callable[[Expr], tirx.Stmt]

SERIAL, PARALLEL, VECTORIZED, UNROLLED = 0, 1, 2, 3


def const(value: Index) -> Expr:
    """An index expression (64-bit, as Relax shapes are)."""
    return tirx.const(value, "int64") if isinstance(value, int) else value


def f32(value: float) -> Expr:
    """A float32 constant."""
    return tirx.const(value, "float32")


def block(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """Statements one after the other."""
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def span(start: Index, extent: Index, body: Body, name: str = "i", kind: int = SERIAL) -> tirx.Stmt:
    """``for name in range(start, start + extent)``; a loop of one pass leaves no loop behind.

    The loop variable counts from zero: TVM 0.27 miscompiles some nests of loops that do not.
    """
    if isinstance(extent, int) and extent == 1:
        return body(const(start))
    var = tirx.Var(name, "int64")
    value = var if isinstance(start, int) and start == 0 else const(start) + var
    return tirx.For(var, const(0), const(extent), kind, body(value))


def loop(extent: Index, body: Body, name: str = "i", kind: int = SERIAL) -> tirx.Stmt:
    """``for name in range(extent)``."""
    return span(0, extent, body, name, kind)


def lanes(count: int, body: Body) -> tirx.Stmt:
    """One vector operation of ``count`` lanes."""
    return loop(count, body, "lane", VECTORIZED)


def store(buffer: tirx.Buffer, value: Expr, *indices: Index) -> tirx.Stmt:
    """``buffer[indices] = value``."""
    return tirx.BufferStore(buffer, value, [const(i) for i in indices])


def load(buffer: tirx.Buffer, *indices: Index) -> Expr:
    """``buffer[indices]``."""
    return tirx.BufferLoad(buffer, [const(i) for i in indices])


def scratch(name: str, *shape: int, scope: str = "global") -> tirx.Buffer:
    """A temporary float32 buffer; ``scope="local"`` with constant indices becomes registers."""
    return tirx.decl_buffer([const(s) for s in shape], "float32", name, scope=scope)


def balanced(total: int, largest: int) -> list[int]:
    """Cut ``total`` into the fewest parts of at most ``largest``, nearly equal, big ones first.

    >>> balanced(14, 6)
    [5, 5, 4]
    """
    count = -(-total // largest)
    size, extra = divmod(total, count)
    return [size + 1] * extra + [size] * (count - extra)
