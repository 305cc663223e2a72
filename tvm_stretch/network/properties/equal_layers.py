"""Find equal layers that follow each other, and make the network with three of them.

    tokens -> [norm, attention, norm, products] x 30 -> scores
        ->
    tokens -> [the first one] -> [one for all between] -> [the last one] -> scores

Layers are equal if only their constants and the parameters that they read, such as caches, differ,
and if each one reads the layer before it, or what comes before all layers, like the others. A plan
for three of them is a plan for all (`plan/search/fewer_layers.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from tvm_stretch.network.codec import to_text
from tvm_stretch.network.expressions import bindings_of, variables_of, with_variables
from tvm_stretch.network.operators import kind_of
from tvm_stretch.network.states import GUARDS, STATES, read_guards, read_states, write_states

KEPT = 3
"""The first layer, one for all between, and the last one."""
_LEAST = 6


@dataclass(frozen=True)
class EqualLayers:
    """A run of layers, by positions of bindings of ``main``."""

    start: int
    period: int  # bindings of a layer
    count: int

    @property
    def end(self) -> int:
        """The position after the last layer."""
        return self.start + self.period * self.count

    @property
    def removed(self) -> int:
        """How many bindings a network with fewer layers does without."""
        return self.period * (self.count - KEPT)

    def layer_of(self, position: int) -> int:
        """The layer of a binding: -1 before the first one, `count` after the last one."""
        layer = (position - self.start) // self.period
        return min(max(layer, -1), self.count)


def find_equal_layers(main: relax.Function) -> EqualLayers | None:
    """The run of at least six layers that covers most bindings of canonical ``main``."""
    lines = list(_lines(main))
    places: dict[str, list[int]] = {}
    for position, line in enumerate(lines):
        places.setdefault(line.what, []).append(position)
    # an operator that a layer has once is as far from its like in the next one as layers are long
    periods = {b - a for own in places.values() if len(own) >= _LEAST for a, b in pairwise(own)}
    runs = [run for period in periods for run in _runs(lines, period)]
    return max(runs, key=lambda run: (run.period * run.count, -run.period), default=None)


@dataclass(frozen=True)
class _Line:
    """A binding without names."""

    what: str
    reads: tuple[int, ...]  # positions of the bindings that it reads

    def repeats(self, other: _Line, period: int, start: int) -> bool:
        """Whether it does in the next layer what another one does, if layers begin at `start`."""
        if self.what != other.what:
            return False
        apart = [(a, a - b) for a, b in zip(self.reads, other.reads, strict=True)]
        return all(by == period or (by == 0 and a < start) for a, by in apart)


def _lines(main: relax.Function) -> Iterator[_Line]:
    positions: dict[relax.Var, int] = {}
    for position, binding in enumerate(bindings_of(main)):
        reads: list[int] = []
        yield _Line(_text(binding.value, positions, reads), tuple(reads))
        positions[binding.var] = position


def _text(expr: Any, positions: dict[relax.Var, int], reads: list[int]) -> str:
    """An expression without the names of variables and the values of constants."""
    if isinstance(expr, relax.Var):
        if expr not in positions:
            return str(expr.ty)  # of a parameter
        reads.append(positions[expr])
        return "read"
    if isinstance(expr, relax.Tuple):
        return f"({', '.join(_text(field, positions, reads) for field in expr.fields)})"
    if isinstance(expr, relax.TupleGetItem):
        return f"{_text(expr.tuple_value, positions, reads)}[{expr.index}]"
    if isinstance(expr, relax.Call):
        args = ", ".join(_text(arg, positions, reads) for arg in expr.args)
        attrs = "" if expr.attrs is None else tvm_ffi.structural_hash(expr.attrs)
        return f"{kind_of(expr)}({args}) {attrs}: {expr.ty}"
    return str(expr.ty) if isinstance(expr, tvm.ir.GenericConst) else str(expr)


def _runs(lines: Sequence[_Line], period: int) -> Iterator[EqualLayers]:
    """All runs of layers of this length."""
    start = 0
    for position in range(period, len(lines) + 1):
        goes_on = position < len(lines) and lines[position].repeats(
            lines[position - period], period, start
        )
        if goes_on:
            continue
        if position - start >= _LEAST * period:
            yield _apart(lines, start, position, period)
        start = position - period + 1


def _apart(lines: Sequence[_Line], start: int, stop: int, period: int) -> EqualLayers:
    """Layers that begin where the fewest tensors go from one to the next."""

    def handed_over(begin: int) -> int:
        inside = range(begin + period, begin + 2 * period)
        read = {r for i in inside for r in lines[i].reads}
        return len([r for r in read if begin <= r < begin + period])

    begin = min(range(start, min(start + period, stop - 2 * period + 1)), key=handed_over)
    return EqualLayers(begin, period, (stop - begin) // period)


def with_fewer_layers(mod: tvm.IRModule, run: EqualLayers) -> tvm.IRModule | None:
    """The network with three of the layers; None if more than the next layer reads one of them."""
    main = mod["main"]
    bindings = [*bindings_of(main)]
    position = {binding.var: index for index, binding in enumerate(bindings)}
    last = range(run.end - run.period, run.end)

    def moved(var: relax.Var) -> relax.Var:
        """What stands for a variable: the third layer is the last one."""
        index = position.get(var, -1)
        return bindings[index - run.removed].var if index in last else var

    kept = bindings[: run.start + KEPT * run.period]
    for binding in bindings[run.end :]:
        value = with_variables(binding.value, moved)
        kept.append(type(binding)(binding.var, value))
    kept_vars = {*main.params, *(binding.var for binding in kept)}
    used = {var for binding in kept for var in variables_of(binding.value)}
    body = main.body.body
    results = [*body.fields] if isinstance(body, relax.Tuple) else [body]
    if not used <= kept_vars or not all(isinstance(result, relax.Var) for result in results):
        return None
    chosen: dict[int, relax.Var] = {}
    for index, result in enumerate(results):
        stands = moved(result)
        if stands in kept_vars and stands not in chosen.values():
            chosen[index] = stands
    params = [param for param in main.params if param in used or param in chosen.values()]
    fields = [*chosen.values()]
    body = relax.SeqExpr([relax.DataflowBlock(kept)], relax.Tuple(fields))
    body = relax.BlockBuilder().normalize(body)
    types = relax.TupleType([field.ty for field in fields])
    function = relax.Function(params, body, types, main.is_pure)
    fewer = mod.clone()
    fewer["main"] = function.with_attrs(_attributes(main, params, [*chosen]))
    return fewer


def _attributes(
    main: relax.Function, params: Sequence[relax.Var], chosen: Sequence[int]
) -> dict[str, Any]:
    """The attributes of `main` with these of its parameters and results."""
    attrs: dict[str, Any] = dict(main.attrs or {})
    place = {old: new for new, old in enumerate(chosen)}
    if "output_names" in attrs:
        names = [str(name) for name in attrs["output_names"]]
        attrs["output_names"] = [names[old] for old in chosen if old < len(names)]
    if STATES in attrs:
        shown, states = read_states(main)
        held = [*zip(main.params[len(main.params) - len(states) :], states, strict=True)]
        attrs[STATES] = write_states(
            sum(old < (shown or 0) for old in chosen),
            [
                replace(kept, result=place[kept.result], scores=place.get(kept.scores, -1))
                for param, kept in held
                if param in params
            ],
        )
    if GUARDS in attrs:
        count, guards = read_guards(main)
        given = {param.name for param in params}
        left = [
            guard if guard.input else replace(guard, result=place[guard.result])
            for guard in guards
            if (guard.input in given if guard.input else guard.result in place)
        ]
        attrs[GUARDS] = to_text((sum(old < (count or 0) for old in chosen), left))
    return attrs
