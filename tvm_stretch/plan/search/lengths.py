"""One model for inputs of several lengths: a plan for each in one artifact.

    n=64    network for (1, 64)    --choose()--> plan --.
    n=128   network for (1, 128)   --choose()--> plan --+--> one graph, arena and set of weights
    n=256   network for (1, 256)   --choose()--> plan --'

Kernels keep their constant loop bounds, so each length runs as fast as a model for it alone.
Constants are content-addressed: weights are stored once, and packed once for all lengths whose
kernels want the same packing. Inputs of any length are padded to some sizes, if that is harmless:

Length(1, 512), predicted for 1, 22 and 512: 7.3, 7.9, 323 ms     a run may take 1.5 times as
    ->  1, 32, 48, 72, ..., 352, 512                             long as one without padding
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isqrt

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.base.errors import InputError
from tvm_stretch.base.progress import say
from tvm_stretch.make.lowering.executor_graph import Span
from tvm_stretch.make.lowering.lower import length_name
from tvm_stretch.make.pipeline import Observer, build_parts
from tvm_stretch.make.reading import Reader, SizedNetwork
from tvm_stretch.network.expressions import shape_of, tensor_types
from tvm_stretch.network.properties.padding import masks_of
from tvm_stretch.network.states import read_states
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.search.choose import choose, predict
from tvm_stretch.plan.search.decision import Decision
from tvm_stretch.plan.search.limits import Limits
from tvm_stretch.plan.search.site import Site
from tvm_stretch.read.lengths import Length, Lengths, combined, read_lengths
from tvm_stretch.run.model import Model


def choose_each(
    networks: Sequence[SizedNetwork],  # of one source
    site: Site,  # where the model is to run
    limits: Limits,
    plan: Plan | None,  # the caller's plan, for each length
    observer: Observer,
) -> list[Decision]:
    """Choose a plan for each length.

    Raises:
        InputError: a name changes no input, or a state would have several shapes.
    """
    _check_inputs(networks)
    _check_states(networks)
    names = [length_name(network.sizes) for network in networks]
    decisions = []
    for own, network in zip(names, networks, strict=True):
        if own:
            say(f"choosing the plan for {own}")
        decision = choose(site.job(network.mod, plan, observer=observer), site, limits)
        others = "; ".join(other for other in names if other != own)
        which = f"for {own}" + (f", beside {others}" if others else "")
        decisions.append(decision.noted(which if own else ""))
    return decisions


def build_each(
    networks: Sequence[SizedNetwork],
    decisions: Sequence[Decision],
    spans: Sequence[Span],  # dimensions whose other sizes are padded
    spare: bool,  # whether the CPU gets kernels for all operators
    name: str,  # of the network, for people
) -> Model:
    """One model for all lengths."""
    jobs = [replace(decision.job, spare=spare) for decision in decisions]
    names = [length_name(network.sizes) for network in networks]
    parts = build_parts(*jobs, lengths=[network.sizes for network in networks])
    parts = parts.named(names, [0.0] * len(names)).spanning(spans)
    for number, one in enumerate(decisions):
        parts = parts.explained(one.reason, one.considered, number, network=name)
    return Model.from_parts(parts)


def _check_inputs(networks: Sequence[SizedNetwork]) -> None:
    """Refuse lengths between which the shapes of inputs could not choose."""
    sizes_of: dict[tuple[tuple[int, ...], ...], Mapping[str, int]] = {}
    for network in networks:
        shapes = tuple(tuple(shape_of(param)) for param in network.mod["main"].params)
        other = sizes_of.setdefault(shapes, network.sizes)
        if other is not network.sizes:
            raise InputError(
                f"expected inputs of other shapes for {length_name(network.sizes)} than for "
                f"{length_name(other)}, got {[*map(list, shapes)]} for both; name dimensions of "
                "inputs, as the network or shapes= has them"
            )


def _check_states(networks: Sequence[SizedNetwork]) -> None:
    """Refuse states that would change their shape with the length.

    Only states that are chosen from scores may: one length reads what a run chose, and the caller
    feeds the others.
    """
    resting = {(param.name, shape) for one in networks for param, shape in _held(one.mod)}
    first = networks[0]
    shapes = {param.name: shape for param, shape in _next(first.mod)}
    for network in networks:
        for (param, shape), (_, following) in zip(
            _held(network.mod), _next(network.mod), strict=True
        ):
            if following != shapes[param.name]:
                raise InputError(
                    f"expected one shape of the state {param.name!r} for all lengths, got "
                    f"{[*shapes[param.name]]} for {length_name(first.sizes)} and "
                    f"{[*following]} for {length_name(network.sizes)}; fix it with shapes="
                )
            if (param.name, following) not in resting:
                raise InputError(
                    f"expected a length that reads {[*following]} for the state {param.name!r}, "
                    f"got only longer ones, such as {[*shape]}; add the size 1 to lengths="
                )


Shaped = list[tuple[relax.Var, tuple[int, ...]]]


def _next(mod: tvm.IRModule) -> Shaped:
    """The parameters that are states, with the shapes of the values that a run leaves in them."""
    results = [tuple(map(int, ty.shape.values)) for ty in tensor_types(mod["main"].body.body)]
    _, states = read_states(mod["main"])
    pairs = zip(_held(mod), states, strict=True)
    return [(param, results[state.result]) for (param, _), state in pairs]


def _held(mod: tvm.IRModule) -> Shaped:
    """The parameters that are states, with their shapes."""
    _, states = read_states(mod["main"])
    params = [*mod["main"].params]
    return [(param, tuple(shape_of(param))) for param in params[len(params) - len(states) :]]


_ROUND = 8  # above 16, sizes are multiples: kernels compute several rows at once


def _shared_rooms(lengths: Lengths, reader: Reader) -> dict[str, tuple[int, int]]:
    """The axis along which the longest length appends to each state, and how much.

    Nothing where inputs are padded.
    """
    given = [(name, one) for name, one in read_lengths(lengths).items() if isinstance(one, list)]
    if len(given) < len(lengths):
        return {}
    longest = reader.sized({name: max(one) for name, one in given}).mod
    pairs = zip(_held(longest), read_states(longest["main"])[1], strict=True)
    return {param.name: (state.axis, state.grown) for (param, _), state in pairs if state.grown}


def sized_networks(
    lengths: Lengths | None, reader: Reader, site: Site
) -> tuple[list[SizedNetwork], list[Span]]:
    """The networks to compile, and the dimensions whose other sizes are padded.

    Raises:
        InputError: the lengths are none, or padding may change an answer.
    """
    if lengths is None:
        return [reader.sized({})], []
    if reader.states is not None:
        reader.rooms = _shared_rooms(lengths, reader)
    given = read_lengths(lengths)
    _check_counted(given, reader.states)
    sizes, spans = {}, []
    largest = {n: one.high if isinstance(one, Length) else max(one) for n, one in given.items()}
    combined({n: [1] if isinstance(one, Length) else one for n, one in given.items()})
    for name, one in given.items():
        sizes[name] = one if isinstance(one, list) else _chosen(name, one, largest, reader, site)
    wanted = combined(sizes)
    for name, one in given.items():
        if isinstance(one, Length):
            spans.append(_span(name, one, sizes[name], largest, reader))
    return [reader.sized(own) for own in wanted], spans


def _check_counted(
    given: Mapping[str, list[int] | Length], states: Mapping[str, object] | None
) -> None:
    """Refuse states that count or read along a dimension whose sizes are padded."""
    for state, source in (states or {}).items():
        name = getattr(source, "length", None) or getattr(source, "step", None)
        if isinstance(name, str) and isinstance(given.get(name), Length):
            raise InputError(
                f"expected a list of sizes for the length {name!r} of the state {state!r}, got a "
                "Length, whose padding would count too; list them"
            )


def _chosen(
    name: str, span: Length, largest: Mapping[str, int], reader: Reader, site: Site
) -> list[int]:
    """The sizes to which inputs are padded."""
    probes = sorted({span.low, isqrt(span.low * span.high), span.high})
    times = []
    for size in probes:
        say(f"predicting the time for {name}={size}")
        plan = predict(site.job(reader.sized({**largest, name: size}).mod), site).plan
        times.append(max(plan.predicted_ns or 1, 1) if plan is not None else 1)
    return ladder(span, probes, times)


def ladder(span: Length, probes: Sequence[int], times: Sequence[float]) -> list[int]:
    """Sizes between which padding costs at most the waste, by times predicted for a few sizes.

    >>> ladder(Length(1, 8), [1, 2, 8], [1, 2, 8])
    [1, 3, 5, 8]
    """
    sizes = np.arange(span.low, span.high + 1)
    costs = np.exp(np.interp(np.log(sizes), np.log(probes), np.log(times)))
    steps = [span.high]
    while steps[-1] > span.low:
        allowed = costs[steps[-1] - span.low] / (1 + span.waste)
        last = span.low + int(np.argmax(costs >= allowed * (1 - 1e-9))) - 1
        last = -(-last // _ROUND) * _ROUND if last > 2 * _ROUND else last
        steps.append(max(span.low, min(last, steps[-1] - 1)))
    return steps[::-1]


def _span(
    name: str, span: Length, sizes: Sequence[int], largest: Mapping[str, int], reader: Reader
) -> Span:
    """The dimension, after padding to these sizes has been shown to be harmless.

    Neighbouring sizes are compared, and the last two sizes of all.
    """
    fills: dict[str, int] = {}
    hiding: set[str] = set()
    first = max(2, span.low)  # axes of one element are broadcast, so nothing is padded to 1
    pairs = {(first, next(size for size in sizes if size >= first)), (span.high - 1, span.high)}
    pairs |= {pair for pair in itertools.pairwise(sizes) if pair[0] >= first}
    slopes: list[tuple[dict[str, tuple[int, ...]], list[tuple[int, ...]]]] = []
    for few, many in sorted(pair for pair in pairs if first <= pair[0] < pair[1]):
        say(f"comparing {name}={few} with {name}={many}")
        small, large = (reader.sized({**largest, name: size}).mod["main"] for size in (few, many))
        masks = masks_of(small, large, name)
        fills |= dict.fromkeys(sorted(masks.names), masks.fill)
        hiding |= masks.hiding
        slopes.append(_slopes(name, small, large, many - few))
    if any(one != slopes[0] for one in slopes):
        raise _uneven(name)
    inputs, outputs = slopes[0]
    return Span(name, span.low, span.high, inputs, tuple(outputs), fills, tuple(sorted(hiding)))


def _slopes(
    name: str, small: relax.Function, large: relax.Function, more: int
) -> tuple[dict[str, tuple[int, ...]], list[tuple[int, ...]]]:
    """By how much the axes of inputs, by name, and of outputs grow with the dimension."""

    def slope(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
        grown = [b - a for a, b in zip(one, other, strict=True)]
        if any(size % more or size < 0 for size in grown):
            raise _uneven(name)
        return tuple(size // more for size in grown)

    inputs = {
        one.name: slope(shape_of(one), shape_of(other))
        for one, other in zip(small.params, large.params, strict=True)
    }
    results = [
        [tuple(map(int, ty.shape.values)) for ty in tensor_types(main.body.body)]
        for main in (small, large)
    ]
    return inputs, [slope(one, other) for one, other in zip(*results, strict=True)]


def _uneven(name: str) -> InputError:
    return InputError(
        f"expected inputs and outputs that grow evenly with {name!r} for a Length, got others; "
        "list the lengths instead"
    )
