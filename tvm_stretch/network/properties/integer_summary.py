"""Summarise which operators of a quantised network compute in integers, which do not, and why.

12 integer operators; in float: resize1; in float for weights of int4: 3 (conv1, conv2, fc)

`FormIntegers` leaves the first two in the attribute ``integers`` of ``main``. The frontend that
read the network leaves the third in ``floats``: weights that are not integers of 8 bits become
floats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.network.codec import from_text, to_text
from tvm_stretch.network.expressions import bindings_of
from tvm_stretch.network.integers import integer_of
from tvm_stretch.network.operators import kind_of
from tvm_stretch.network.provenance import source_of

INTEGERS = "integers"
"""Attribute of ``main``: text of the number of integer operators, and the names left in float."""

FLOATS = "floats"
"""Attribute of ``main``: text of operators in float, by the reason, which the file gives."""

_MOST_NAMES = 8


def with_floats(mod: tvm.IRModule, floats: Mapping[str, Sequence[str]]) -> tvm.IRModule:
    """Record in the module which operators are in float, by the reason, if there are any."""
    by_reason = {reason: list(names) for reason, names in floats.items()}
    return _with_attr(mod, FLOATS, by_reason) if floats else mod


def with_integers(mod: tvm.IRModule) -> tvm.IRModule:
    """Record in the module how many integer operators it has."""
    return _with_attr(mod, INTEGERS, _summary(mod["main"]))


def _with_attr(mod: tvm.IRModule, name: str, data: object) -> tvm.IRModule:
    changed = mod.clone()
    changed["main"] = mod["main"].with_attr(name, to_text(data))
    return changed


def has_integers(main: relax.Function) -> bool:
    """Whether values of the network are quantised; weights alone have become floats."""
    return INTEGERS in (main.attrs or {})


def describe_integers(main: relax.Function) -> str:
    """The number of integer operators and the operators in float, as text for people."""
    attrs = main.attrs or {}
    formed, rest = from_text(tuple[int, tuple[str, ...]], str(attrs.get(INTEGERS, "[0, []]")))
    reasons = from_text(dict[str, tuple[str, ...]], str(attrs.get(FLOATS, "{}")))
    if not has_integers(main) and not reasons:
        return ""
    in_float = {name for names in reasons.values() for name in names}
    rest = tuple(name for name in rest if name not in in_float)
    texts = [f"{formed} integer operators", *([f"in float: {_listed(rest)}"] if rest else [])]
    texts += [f"in float for {why}: {len(of)} ({_listed(of)})" for why, of in reasons.items()]
    return "; ".join(texts)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _summary(main: relax.Function) -> tuple[int, list[str]]:
    formed, dequantised, floats = 0, set(), []
    results = {main.body.body, *(getattr(main.body.body, "fields", ()))}
    for kind, binding in calls_of(main):
        call = binding.value
        formed += integer_of(call) is not None
        if kind == "dequantize" and not isinstance(call.args[0], GenericConst):
            dequantised.add(binding.var)
        elif kind != "quantize" and binding.var not in results:
            reads = relax.analysis.free_vars(call)
            if any(var in dequantised for var in reads):
                floats.append(source_of(binding.var.name))
    return formed, list(dict.fromkeys(floats))


def calls_of(function: relax.Function) -> list[tuple[str, relax.Binding]]:
    """Every binding of a call, with the call's kind."""
    bindings = bindings_of(function)
    return [(kind_of(b.value), b) for b in bindings if isinstance(b.value, relax.Call)]
