"""Let inputs hold what outputs had after the last run.

    main(token, past, position)                       main(token, past, position)
      logits, present = …(token, past, position)  ->    logits, present = …
      return logits, present                            next_token = argmax(logits)
                                                        return logits, next_token, present,
    states={"past": "present",                                 add(position, 1)
            "token": Greedy("logits"),
            "position": Counter()}

States become the last parameters, and the results that only become states come after the caller's,
so that the executor can keep both. An output that is longer than its input along one dimension is
a cache that was exported without a place for the new token; its last places are kept:

    main(past: (1, 2, 128, 64), …)           main(held: (1, 2, 129, 64), …)
      present = concat((past, new), 2)  ->     past = held[:, :, 1:]
                                               present = concat((past, new), 2)
                                               return …, present

So the result is a state as it is, and where `held` may lie a row before `present`, the executor
copies nothing (``make/lowering/states.py``). Lengths share their states, so each of them
holds as many rows as the longest one appends, here 8:

    main(held: (1, 2, 136, 64), …)
      past = held[:, :, 8:]
      present = concat((past, new), 2)
      return …, concat((held[:, :, 1:8], present), 2)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.base.errors import InputError
from tvm_stretch.network.expressions import bindings_of, constant, constant_value, shape_of
from tvm_stretch.network.operators import kind_of
from tvm_stretch.network.rewriting import Bindings
from tvm_stretch.network.states import (
    CARRIED,
    STATES,
    Counter,
    Greedy,
    Kept,
    Sample,
    Source,
    next_name,
    write_states,
)
from tvm_stretch.passes.guard_operators import returned_tensors

States = Mapping[str, Source]
Rooms = Mapping[str, tuple[int, int]]
"""For states that a run of the longest length makes longer: the dimension, and by how much."""


def carry_states(
    mod: tvm.IRModule,
    states: States,
    rooms: Rooms | None = None,
    sizes: Mapping[str, int] | None = None,  # of the dimensions of `lengths=`
) -> tvm.IRModule:
    """See the module docstring; an ``*`` in two names stands for the same text.

    Buffers that the network itself changes are states, too. Without `rooms`, a state has room for
    what this network appends.

    Raises:
        InputError: a name is none of the network, or an output does not fit its input.
    """
    main = mod["main"]
    results = returned_tensors(main)
    names = [str(name) for name in (main.attrs or {}).get("output_names", [])]
    names = names or [f"output{place}" for place in range(len(results))]
    params = {param.name: param for param in main.params}
    declared = {str(name): next_name(str(name)) for name in (main.attrs or {}).get(CARRIED, ())}
    wanted = _expand({**declared, **states}, list(params), names)
    outputs = dict(zip(names, results, strict=True))
    shown = [name for name in names if name not in wanted.values()]
    body = _Body(main, sizes or {})
    following: dict[str, relax.Expr] = {}
    held, growth = dict(params), {}
    for name, source in wanted.items():
        param = params[name]
        value = body.following(param, source, outputs)
        own = (0, 0) if isinstance(source, Greedy) else _growth(value, param)
        growth[name] = axis, room = own if rooms is None else rooms.get(name, (own[0], 0))
        if room:
            held[name] = body.hold(param, axis, room)
        if own[1] > room:
            value = body.last(value, axis, shape_of(param)[axis] + room)
        elif own[1] < room:
            value = body.after(held[name], own[1], value, axis, room)
        following[name] = value
    greedy = [name for name, source in wanted.items() if isinstance(source, Greedy)]
    hidden = [name for name in wanted if name not in greedy]
    order = [*greedy, *hidden]
    fields = [*(outputs[name] for name in shown), *(following[name] for name in order)]
    values_read = {math.prod(shape_of(params[name])) for name in greedy}
    bound = {binding.var: binding.value for binding in body.bindings}
    kept = [
        Kept(
            len(shown) + order.index(name),
            *growth[name],
            *_drawing(name, source, outputs, shown),
            rewind=-1
            if growth[name][1]
            else _rewind(bound, params[name], following[name], values_read),
        )
        for name, source in wanted.items()
    ]
    shown += [f"next_{name}" for name in greedy]
    attrs: dict[str, Any] = dict(main.attrs or {})
    attrs["output_names"] = shown
    attrs[STATES] = write_states(len(shown), kept)
    given = [param for name, param in params.items() if name not in wanted]
    updated = mod.clone()
    function = body.returning([*given, *(held[name] for name in wanted)], fields)
    updated["main"] = function.with_attrs(attrs)
    return updated


@tvm.transform.module_pass(opt_level=0, name="CarryStates")
class CarryStates:
    """`carry_states` as a pass."""

    def __init__(self, states: States, rooms: Rooms | None = None) -> None:
        self.states, self.rooms = states, rooms

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return carry_states(mod, self.states, self.rooms)


def _expand(states: States, inputs: list[str], outputs: list[str]) -> dict[str, Source]:
    """What each state's input gets, patterns expanded and checked; in the order of the inputs."""
    attributes: dict[str, Source] = {}
    for pattern, source in states.items():
        if not isinstance(pattern, str):
            raise _refuse("names of inputs", "states", repr(pattern))
        before, star, after = pattern.partition("*")
        matching = [
            name
            for name in inputs
            if (name.startswith(before) and name[len(before) :].endswith(after) if star else 0)
            or name == pattern
        ]
        if not matching:
            raise _refuse(f"one of the inputs {inputs}", "states", repr(pattern))
        for name in matching:
            middle = name[len(before) : len(name) - len(after)]
            if not isinstance(source, str | Greedy | Counter):
                raise _refuse(
                    "an output's name, Greedy or Counter", f"state {name!r}", repr(source)
                )
            own = source.replace("*", middle) if isinstance(source, str) else source
            needed = own.output if isinstance(own, Greedy) else own
            if isinstance(needed, str) and needed not in outputs:
                raise _refuse(f"one of the outputs {outputs}", f"state {name!r}", repr(needed))
            if name in attributes:
                raise _refuse("one output", f"state {name!r}", "two")
            attributes[name] = own
    return {name: attributes[name] for name in inputs if name in attributes}


class _Body(Bindings):
    """The bindings of ``main``, to which those of states are added."""

    def __init__(self, main: relax.Function, sizes: Mapping[str, int]) -> None:
        super().__init__()
        self._main = main
        self._sizes = sizes
        self.bindings = [*bindings_of(main)]

    def _emit(self, value: relax.Expr) -> relax.Var:
        return self.bind_new("state", value)

    def following(
        self, param: relax.Var, source: Source, outputs: Mapping[str, relax.Expr]
    ) -> relax.Expr:
        """The state after a run, perhaps longer than the state."""
        if isinstance(source, str):
            return outputs[source]
        dtype, shape = str(param.ty.dtype), shape_of(param)
        if dtype not in ("int32", "int64"):
            raise _refuse("an input of int32 or int64", f"state {param.name!r}", dtype)
        if isinstance(source, Counter):
            step = self._size(param, source.step) if isinstance(source.step, str) else source.step
            return self._emit(relax.op.add(param, constant(np.asarray(step, dtype))))
        if source.length:
            shape = self._resting(param, source.length)
        before, count = shape_of(outputs[source.output]), math.prod(shape)
        rows = math.prod(before[:-1])
        if not before or rows < count or rows % count:
            raise _refuse(f"scores of {count} rows", f"state {param.name!r}", f"shape {before}")
        scores = relax.op.reshape(outputs[source.output], (count, rows // count, before[-1]))
        scores = self.last(self._emit(scores), 1, 1)  # of several positions, the last one counts
        best = self._emit(relax.op.reshape(self.greatest(scores), shape))
        return self._emit(relax.op.astype(best, dtype))

    def _size(self, param: relax.Var, name: str) -> int:
        """The size of a dimension of `lengths=`."""
        if name not in self._sizes:
            expected = f"the name of one of the lengths {[*self._sizes]}"
            raise _refuse(expected, f"state {param.name!r}", repr(name))
        return self._sizes[name]

    def _resting(self, param: relax.Var, name: str) -> list[int]:
        """The shape of a state with one value along the last axis of this length."""
        shape, size = [*shape_of(param)], self._size(param, name)
        if size not in shape:
            raise _refuse(f"an axis of the length {name!r}", f"state {param.name!r}", f"{shape}")
        shape[len(shape) - 1 - shape[::-1].index(size)] = 1
        return shape

    def greatest(self, scores: relax.Expr) -> relax.Expr:
        """The first place of the greatest score in the last dimension, as of ``R.argmax``.

        That compares one score after the other; these passes over a row are vectors. After a NaN it
        begins anew, so places up to the last NaN do not count, unless that is the last place.
        """
        dtype, width = str(scores.ty.dtype), shape_of(scores)[-1]
        if dtype in ("float16", "bfloat16"):
            scores, dtype = self._emit(relax.op.astype(scores, "float32")), "float32"
        places, none = constant(np.arange(width, dtype="int32")), constant(np.int32(width))
        if "float" not in dtype:
            hits = relax.op.equal(scores, self._emit(relax.op.max(scores, -1, keepdims=True)))
        else:
            lowest = constant(np.asarray(-np.inf, dtype))
            is_number = self._emit(relax.op.less_equal(scores, constant(np.asarray(np.inf, dtype))))
            nan = self._emit(relax.op.where(is_number, constant(np.int32(-1)), places))
            last = self._emit(relax.op.max(nan, -1, keepdims=True))
            counts = self._emit(relax.op.greater(places, last))
            rest = self._emit(relax.op.where(counts, scores, lowest))
            best = self._emit(relax.op.max(rest, -1, keepdims=True))
            hits = relax.op.logical_and(counts, self._emit(relax.op.equal(scores, best)))
        found = self._emit(relax.op.where(self._emit(hits), places, none))
        first = self._emit(relax.op.min(found, -1))
        return self._emit(relax.op.minimum(first, constant(np.int32(width - 1))))

    def hold(self, param: relax.Var, axis: int, room: int) -> relax.Var:
        """A parameter with `room` more places, whose last part is what `param` was."""
        shape = [*shape_of(param)]
        shape[axis] += room
        held = relax.Var(param.name, relax.TensorType(shape, str(param.ty.dtype)))
        part = relax.op.strided_slice(held, [axis], [room], [shape[axis]])
        self.bindings.insert(0, relax.VarBinding(param, self.builder.normalize(part)))
        return held

    def after(
        self, held: relax.Var, begin: int, value: relax.Expr, axis: int, end: int
    ) -> relax.Expr:
        """The places `begin` to `end` of a state, and a value."""
        dropped = self._emit(relax.op.strided_slice(held, [axis], [begin], [end]))
        return self._emit(relax.op.concat([dropped, value], axis))

    def last(self, value: relax.Expr, axis: int, count: int) -> relax.Expr:
        """The last positions of one dimension."""
        size = shape_of(value)[axis]
        return self._emit(relax.op.strided_slice(value, [axis], [size - count], [size]))

    def returning(self, params: list[relax.Var], fields: list[relax.Expr]) -> relax.Function:
        """``main`` with these parameters and results."""
        results = [self.bind_new("state", field, relax.Var) for field in fields]
        types = relax.TupleType([result.ty for result in results])
        body = relax.SeqExpr([relax.DataflowBlock(self.bindings)], relax.Tuple(results))
        return relax.Function(params, self.builder.normalize(body), types, self._main.is_pure)


def _rewind(
    bound: Mapping[relax.Var, relax.Expr],
    param: relax.Var,
    following: relax.Expr,
    values_read: set[int],  # by each chosen state
) -> int:
    """By how much a state falls for each value that is taken back, or -1; see `Kept`."""

    def source(expr: relax.Expr) -> relax.Expr:
        value = bound.get(expr)
        while isinstance(value, relax.Var) or (value is not None and kind_of(value) == "reshape"):
            expr = value if isinstance(value, relax.Var) else value.args[0]
            value = bound.get(expr)
        return expr

    call = bound.get(source(following))
    if call is None or kind_of(call) not in ("add", "scatter_nd"):
        return -1
    operands = [source(arg) for arg in call.args[:2]]
    if kind_of(call) == "scatter_nd":
        return 0 if operands[0] == param else -1
    values = (constant_value(arg, lambda expr: bound.get(expr, expr)) for arg in operands)
    steps = {int(value.item()) for value in values if value is not None and value.size == 1}
    counts = "int" in str(param.ty.dtype)  # the executor takes back steps of integers only
    return 1 if counts and param in operands and steps == values_read else -1


def _drawing(
    name: str, source: Source, outputs: Mapping[str, relax.Expr], shown: list[str]
) -> tuple[int, dict[str, float]]:
    """The result from which a state is drawn, and how; -1 if the network computes it."""
    if not isinstance(source, Sample):
        return -1, {}
    dtype = str(outputs[source.output].ty.dtype)
    if dtype != "float32" or source.output not in shown:
        got = "one that is a state" if dtype == "float32" else dtype
        raise _refuse("scores of float32 that are an output", f"state {name!r}", got)
    return shown.index(source.output), source.sampling


def _growth(value: relax.Expr, param: relax.Var) -> tuple[int, int]:
    """The dimension in which a state's next value is longer than the state, and by how much."""
    got, want = shape_of(value), shape_of(param)
    pairs = list(zip(got, want, strict=False))
    longer = [axis for axis, (had, has) in enumerate(pairs) if had > has]
    fits = len(got) == len(want) and len(longer) <= 1 and all(g >= w for g, w in pairs)
    if not fits or str(value.ty.dtype) != str(param.ty.dtype):
        raise _refuse(
            f"{param.ty.dtype}{want}, or longer in one dimension,",
            f"the next state of {param.name!r}",
            f"{value.ty.dtype}{got}",
        )
    return (longer[0], got[longer[0]] - want[longer[0]]) if longer else (0, 0)


def _refuse(expected: str, field: str, got: str) -> InputError:
    return InputError(f"expected {expected} for {field}, got {got}; see docs/states.md")
