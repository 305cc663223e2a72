"""Check the rules that hold between any two phases after partitioning.

* the module is well-formed Relax,
* ``main`` only calls regions, each exactly once, and builds and reads tuples,
* a region names a processor, calls no other function, and each of its operators runs there,
* a module without ``main`` holds the regions of one processor,
* so data passes between processors only as parameters and results of regions.

And find the operator that is to blame when TVM refuses a network:

    with blaming(mod):                # lv1 = R.negative(lv), of booleans
        mod = phases(mod)             # InternalError of TVM, without a name
            ->   UnsupportedError: expected an operator that TVM can compile, got negative 'lv1' ..

Operators are tried one by one, and only after TVM has raised an error.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import tvm
from tvm import relax, tirx
from tvm.ir import GlobalVar

from tvm_stretch.base.errors import StretchError, UnsupportedError, last_line
from tvm_stretch.network.expressions import bindings_of
from tvm_stretch.network.operators import PROCESSOR, Calls, kind_of
from tvm_stretch.targets.processor import Processor


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
        for binding in bindings_of(mod["main"]):
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
    dtypes = {str(arg.ty.dtype): None for arg in call.args if isinstance(arg.ty, relax.TensorType)}
    return list(dtypes) or ["no tensors"]


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


class VerifyError(StretchError):
    """A pass broke a rule on which later passes rely."""


def verify(mod: tvm.IRModule, processors: Sequence[Processor]) -> None:
    """Check the rules of the module docstring.

    This is a function and no pass, because an error that leaves a pass loses its type.
    """
    by_name = {processor.name: processor for processor in processors}
    problems = list(_check_regions(mod, by_name))
    if "main" in {var.name_hint for var in mod.functions}:
        problems += _check_main(mod)
    if not relax.analysis.check_well_formed(mod):
        problems.append("the module is not well-formed")
    if problems:
        raise VerifyError(
            f"expected a partitioned network, got broken rules: {'; '.join(problems)}; "
            "correct the pass that ran last"
        )


def _check_regions(mod: tvm.IRModule, processors: Mapping[str, Processor]) -> Iterator[str]:
    for var, function in mod.functions.items():
        if _is_region(var, function):
            name = str((function.attrs or {}).get(PROCESSOR, ""))
            if name not in processors:
                yield f"region {var.name_hint} is for {name or 'no processor'}"
                continue
            for problem in _check_region(mod, function, processors[name]):
                yield f"region {var.name_hint}: {problem}"


def _check_main(mod: tvm.IRModule) -> Iterator[str]:
    called: Counter[str] = Counter()
    for var, call in Calls(mod["main"]).bound:
        if not isinstance(call.op, GlobalVar):
            yield f"main calls {call.op} for {var.name}"
        elif call.op not in mod.functions:
            yield f"main calls {call.op.name_hint}, which is not there"
        else:
            called[call.op.name_hint] += 1
    for var, function in mod.functions.items():
        if _is_region(var, function):
            count = called[var.name_hint]
            if count != 1:
                yield f"region {var.name_hint} is called {count} times"


def _check_region(
    mod: tvm.IRModule, function: relax.Function, processor: Processor
) -> Iterator[str]:
    for var, call in Calls(function).bound:
        if isinstance(call.op, GlobalVar):
            if _is_region(call.op, mod.functions.get(call.op)):
                yield f"{var.name} calls region {call.op.name_hint}"
        elif str(getattr(call.op, "name", "")) == "relax.call_tir":
            if not isinstance(mod.functions.get(call.args[0]), tirx.PrimFunc):
                yield f"{var.name} calls the kernel {call.args[0].name_hint}, which is not there"
        elif (reason := processor.why_not(call)) is not None:
            yield f"{var.name} does not run on {processor.name}: {reason}"


def _is_region(var: GlobalVar, function: object) -> bool:
    """Whether it is a region: not ``main``, no kernel, and no group that FuseOps made."""
    if not isinstance(function, relax.Function) or var.name_hint == "main":
        return False
    return "Primitive" not in (function.attrs or {})
