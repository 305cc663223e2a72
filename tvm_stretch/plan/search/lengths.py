"""One model for inputs of several lengths: a plan for each in one artifact.

    n=64    network for (1, 64)    --choose()--> plan --.
    n=128   network for (1, 128)   --choose()--> plan --+--> one graph, arena and set of weights
    n=256   network for (1, 256)   --choose()--> plan --'

Kernels keep their constant loop bounds, so each length runs as fast as a model for it alone.
Constants are content-addressed: weights are stored once, and packed once for all lengths whose
kernels want the same packing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import tvm

from tvm_stretch.base.errors import InputError
from tvm_stretch.base.progress import say
from tvm_stretch.make.lowering.executor_graph import Span
from tvm_stretch.make.lowering.lower import length_name
from tvm_stretch.make.pipeline import Observer, build_lengths
from tvm_stretch.network.expressions import shape_of
from tvm_stretch.network.states import read_states
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.search.choose import choose
from tvm_stretch.plan.search.limits import Limits
from tvm_stretch.plan.search.site import Site
from tvm_stretch.run.model import Model


@dataclass(frozen=True)
class SizedNetwork:
    """A network for inputs of one length."""

    sizes: Mapping[str, int]  # of the named dimensions
    mod: tvm.IRModule  # canonical Relax
    notes: Sequence[str]  # for people

    def sharing(self, share: tvm.transform.Pass) -> SizedNetwork:
        """The network with the constants of others that ``share`` saw; alone if it has no sizes."""
        return replace(self, mod=share(self.mod)) if self.sizes else self


def model_of_lengths(
    networks: Sequence[SizedNetwork],  # of one source
    site: Site,  # where the model is to run
    limits: Limits,
    plan: Plan | None,  # the caller's plan, for each length
    spare: bool,  # whether the CPU gets kernels for all operators
    observer: Observer,
    name: str = "",  # of the network, for people
    spans: Sequence[Span] = (),  # dimensions whose other sizes are padded
) -> Model:
    """Choose a plan for each length, and build one model of all.

    Raises:
        InputError: a name changes no input, or a state would have several shapes.
    """
    _check_inputs(networks)
    _check_states(networks)
    names = [length_name(network.sizes) for network in networks]
    plans, reasons = [], []
    for own, network in zip(names, networks, strict=True):
        say(f"choosing the plan for {own}")
        decision = choose(network.mod, site, limits, plan, observer)
        others = "; ".join(other for other in names if other != own)
        which = f"for {own}" + (f", beside {others}" if others else "")
        decision = decision.noted(which, *network.notes, site.note, limits.said)
        plans.append(decision.plan if decision.trial is None else decision.trial.plan)
        reasons.append((decision.reason, decision.considered))
    parts = build_lengths(
        [(network.mod, own) for network, own in zip(networks, plans, strict=True)],
        [network.sizes for network in networks],
        site.processors,
        site.placeable,
        observer,
        spare,
    )
    parts = parts.named(names, [0.0] * len(names)).spanning(spans)
    for number, (reason, considered) in enumerate(reasons):
        parts = parts.explained(reason, considered, number, network=name)
    return Model.from_parts(parts)


def _check_inputs(networks: Sequence[SizedNetwork]) -> None:
    """Refuse lengths between which the shapes of inputs could not choose."""
    known: dict[tuple[tuple[int, ...], ...], Mapping[str, int]] = {}
    for network in networks:
        params = network.mod["main"].params
        _, states = read_states(network.mod["main"])
        shapes = tuple(tuple(shape_of(param)) for param in params[: len(params) - len(states)])
        other = known.setdefault(shapes, network.sizes)
        if other is not network.sizes:
            raise InputError(
                f"expected inputs of other shapes for {length_name(network.sizes)} than for "
                f"{length_name(other)}, got {[*map(list, shapes)]} for both; name dimensions of "
                "inputs, as the network or shapes= has them"
            )


def _check_states(networks: Sequence[SizedNetwork]) -> None:
    """Refuse states that would change their shape with the length."""
    first = networks[0]
    known = {param.name: shape_of(param) for param in _held(first.mod)}
    for network in networks[1:]:
        for param in _held(network.mod):
            if shape_of(param) != known[param.name]:
                raise InputError(
                    f"expected one shape of the state {param.name!r} for all lengths, got "
                    f"{[*known[param.name]]} for {length_name(first.sizes)} and "
                    f"{[*shape_of(param)]} for {length_name(network.sizes)}; fix it with shapes="
                )


def rooms_of_states(network: SizedNetwork) -> dict[str, tuple[int, int]]:
    """The dimension in which a run makes a state longer, and by how much, for those that grow."""
    _, states = read_states(network.mod["main"])
    pairs = zip(_held(network.mod), states, strict=True)
    return {param.name: (state.axis, state.grown) for param, state in pairs if state.grown}


def _held(mod: tvm.IRModule) -> list[tvm.relax.Var]:
    """The parameters that are states."""
    _, states = read_states(mod["main"])
    params = [*mod["main"].params]
    return params[len(params) - len(states) :]
