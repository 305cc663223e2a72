"""Find the operator that is to blame when TVM refuses a network.

    with blaming(mod):                # lv1 = R.negative(lv), of booleans
        mod = phases(mod)             # InternalError of TVM, without a name
            ->   UnsupportedError: expected an operator that TVM can compile, got negative 'lv1' ..

Operators are tried one by one, and only after TVM has raised an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tvm
from tvm import relax

from tvm_stretch.base.errors import StretchError, UnsupportedError, last_line
from tvm_stretch.network.operators import kind_of


@contextlib.contextmanager
def blaming(mod: tvm.IRModule) -> Iterator[None]:
    """Turn errors that TVM raises because of one operator of ``main`` into errors that name it.

    Raises:
        UnsupportedError: an operator is to blame. Otherwise the original error is raised.
    """
    try:
        yield
    except (StretchError, MemoryError):
        raise
    except Exception as error:
        for block in mod["main"].body.blocks:
            for binding in block.bindings:
                _blame(binding, error)
        raise


def _blame(binding: relax.Binding, error: Exception) -> None:
    """Raise if TVM cannot compile this operator alone."""
    call = getattr(binding, "value", None)
    kind = kind_of(call)
    if not isinstance(call, relax.Call) or not isinstance(call.op, tvm.ir.Op):
        return
    what = f"{kind} {binding.var.name!r} of {' and '.join(_types(call))}"
    if not _is_static(binding.var.ty):
        raise UnsupportedError(
            f"expected results whose shapes are known, got {what}; replace it, or export it with "
            "fixed shapes"
        ) from error
    reason = _refusal(call)
    if reason is not None:
        raise UnsupportedError(
            f"expected an operator that TVM can compile, got {what} ({reason}); convert its "
            "operands to another type, or replace it"
        ) from error


def _types(call: relax.Call) -> list[str]:
    """Element types of its operands."""
    found = {str(arg.ty.dtype): None for arg in call.args if isinstance(arg.ty, relax.TensorType)}
    return list(found) or ["no tensors"]


def _is_static(kind: object) -> bool:
    if isinstance(kind, relax.TupleType):
        return all(map(_is_static, kind.fields))
    if not isinstance(kind, relax.TensorType):
        return True
    shape = kind.shape.values if isinstance(kind.shape, relax.ShapeExpr) else [None]
    return all(isinstance(size, tvm.tirx.IntImm) for size in shape)


def _refusal(call: relax.Call) -> str | None:
    """TVM's error for a network of this one call; None if it makes a kernel of the call."""
    params: dict[relax.Var, None] = {}

    def read(arg: relax.Expr) -> None:
        if isinstance(arg, relax.Tuple):
            for field in arg.fields:
                read(field)
        elif isinstance(arg, relax.Var):
            params[arg] = None

    for arg in call.args:
        read(arg)
    result = relax.Var("result", call.ty)
    block = relax.BindingBlock([relax.VarBinding(result, call)])
    alone = relax.Function(list(params), relax.SeqExpr([block], result), call.ty)
    mod = tvm.IRModule({"main": alone.with_attr("global_symbol", "main")})
    try:
        relax.transform.LegalizeOps()(mod)
    except Exception as error:  # any error of TVM is a refusal
        return last_line(error)
    return None
