"""``stretch()`` (NN-Stretch) makes a new architecture of several branches, to be trained.

    st = ts.stretch("resnet34.onnx", targets=["llvm", "opencl"])
    print(st.candidates)            # designs with predictions, and the rule that pruned each
    module = st.module()            # Relax, the best design, weights from the given network
    net = st.to_torch()             # the same as a torch module, to be trained; then st.load_torch
    st.judge("design.json")         # any other design

segments.py finds the segments, design_search.py the best designs that design_rules.py allows;
predict.py simulates them and passes/duplicate_and_scale.py builds one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import tvm

from tvm_stretch.api.compiler import compile
from tvm_stretch.base.compiling import compiling
from tvm_stretch.base.errors import InputError, PlanError, UnsupportedError
from tvm_stretch.base.named_arguments import named_arguments
from tvm_stretch.base.progress import Progress, reporting, say
from tvm_stretch.lab.stretching.accuracy import AccuracyTarget, with_accuracy
from tvm_stretch.lab.stretching.block_layers import count
from tvm_stretch.lab.stretching.design_rules import Rules
from tvm_stretch.lab.stretching.front import Front, find_candidates, find_front, front_of_trained
from tvm_stretch.lab.stretching.judge import (
    Candidate,
    Candidates,
    Task,
    judge_design,
    refuse_unknown,
    runs_all,
    simple_designs,
    why_not_all,
)
from tvm_stretch.lab.stretching.predict import Chain
from tvm_stretch.lab.stretching.segments import Run, find_runs, refuse_shared_weights
from tvm_stretch.lab.stretching.tables import Pricing
from tvm_stretch.network.operators import Operators
from tvm_stretch.passes.duplicate_and_scale import with_sources
from tvm_stretch.plan.design import MERGES, Design, DesignLike, Source
from tvm_stretch.plan.search.costs import Costs
from tvm_stretch.plan.search.site import DeviceLike, Targets, site_of
from tvm_stretch.read import load_trainable
from tvm_stretch.run.model import Model
from tvm_stretch.targets.registry import used_unasked

if TYPE_CHECKING:
    from tvm_stretch.lab.training import TrainableNetwork


@dataclass(frozen=True)
class Stretching:
    """A network and the designs that may replace it.

    Attributes:
        mod: the network; its batch normalisations are not folded.
        rules: the rules that prune designs.
        candidates: the best designs and the simplest ones, simulated.
        space: the decimal logarithm of the number of designs that are left after each rule.
        seconds: the duration of the search.
        task: the network in segments, with costs.
        places: the places of the processors that may get branches.
        merge: how branches are merged, if the caller chose it.
        refused: the reason of each processor that gets no branches.
        where: arguments of ``ts.compile`` for the processors that the designs are for.
        accuracy: of the unstretched network; None without an `AccuracyTarget`.
    """

    mod: tvm.IRModule
    rules: Rules
    candidates: Candidates
    space: Mapping[str, float]
    seconds: float
    task: Task = field(repr=False)
    places: tuple[int, ...] = ()
    merge: str | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    where: Mapping[str, object] = field(default_factory=dict)
    accuracy: float | None = None

    @property
    def best(self) -> Candidate:
        """The fastest candidate that no rule prunes.

        Raises:
            UnsupportedError: the rules prune all candidates.
        """
        kept = [candidate for candidate in self.candidates if candidate.kept]
        if not kept:
            hint = "give weaker rules, such as rules=Rules(capacity=0.8, tolerance=0.3)"
            if self.candidates[0].accuracy is not None:
                hint = "train longer, or allow a larger loss"
            elif self.candidates[0].ns > self.task.fastest_alone_ns:
                hint = (
                    "this network is faster on one processor, unless designs may have less capacity"
                )
            raise UnsupportedError(
                f"expected a design that the rules leave, got none, the fastest "
                f"{self.candidates[0].rule}; {hint}"
            )
        return kept[0]

    @property
    def least_meetings(self) -> int | None:
        """The fewest meeting points with which a design was accurate enough, for `Rules.meetings`.

        None without an `AccuracyTarget`. Search with ``Rules(meetings=1)`` to have all counts tried
        (NN-Stretch, section 4.3: a lower bound of N_meet).
        """
        kept = [c for c in self.candidates if c.kept and c.accuracy is not None]
        return min((self.task.meetings(c.design)[0] for c in kept), default=None)

    @cached_property
    def original(self) -> tuple[int, int]:
        """Multiply-adds and parameters of the unstretched network."""
        return count(self.task.chain.layers())

    @cached_property
    def alone_ns(self) -> dict[str, int]:
        """The unstretched network's latency on each processor that supports all of it."""
        return {
            processor.name: self.task.alone_ns(place)
            for place, processor in enumerate(self.task.pricing.costs.processors)
            if runs_all(processor, self.task.chain.operators)
        }

    @compiling()
    def module(
        self, design: DesignLike | None = None, *, warm_start: bool = True, seed: int = 0
    ) -> tvm.IRModule:
        """The network of a design, as Relax with batch normalisations: it has to be trained.

        Args:
            design: by default the best candidate's.
            warm_start: whether weights start from those of the given network.
            seed: the seed of random weights.
        """
        return self._built(self._chosen(design), warm_start, seed)[0]

    def _built(
        self, design: Design, warm_start: bool, seed: int
    ) -> tuple[tvm.IRModule, dict[str, Source]]:
        if not isinstance(seed, int) or seed < 0:
            raise InputError(f"expected a whole number for seed, got {seed!r}; 0 is one")
        return with_sources(self.mod, design, warm_start, seed)

    @compiling()
    def to_torch(
        self, design: DesignLike | None = None, *, warm_start: bool = True, seed: int = 0
    ) -> TrainableNetwork:
        """Like `module`, as a torch module to train and give to `load_torch`.

        Raises:
            InstallError: torch is not installed.
        """
        from tvm_stretch.lab.training import to_torch

        chosen = self._chosen(design)
        module, sources = self._built(chosen, warm_start, seed)
        return to_torch(module, chosen.to_data(), sources)

    @compiling()
    def load_torch(self, net: TrainableNetwork) -> tvm.IRModule:
        """Convert the trained module of `to_torch` to Relax, for ``ts.compile``.

        Raises:
            InputError: ``net`` is of another network, or weights are missing or not finite.
        """
        from tvm_stretch.lab.training import load_torch
        from tvm_stretch.lab.training.exchange import as_network

        design = as_network(net).design
        if design is None:
            raise InputError(
                "expected a module that to_torch of a stretching made for net, got one of a "
                "network without design; see training.load_torch"
            )
        try:
            module = self.module(design)
        except PlanError as error:
            raise InputError(
                f"expected a module that to_torch of this stretching made for net, got one of "
                f"another network ({error}); use the stretching that it came from"
            ) from error
        return load_torch(module, net)

    def compile_untrained(self, design: DesignLike | None = None, **options: Any) -> Model:
        """Compile a design whose weights were not trained: its latency counts, its answers do not.

        Args:
            design: by default the best candidate's.
            options: as for ``ts.compile``; by default the processors are those of ``ts.stretch``.
        """
        chosen = self._chosen(design)
        model = compile(self.module(chosen), **{**self.where, **options})
        assert model.parts is not None
        reason = f"weights not trained: {chosen}; {model.plan.reason}"
        return Model(model.module, parts=model.parts.explained(reason))

    def _chosen(self, design: DesignLike | None) -> Design:
        if design is None:
            return self.best.design
        chosen = Design.read(design)
        refuse_unknown(chosen, self.task)
        return chosen

    def front(self) -> Front:
        """Latency over capacity, or over accuracy with an `AccuracyTarget` (NN-Stretch, figure 12).

        `Front.draw` draws it.
        """
        if self.accuracy is not None:
            return front_of_trained(self.task, self.candidates, self.accuracy)
        return find_front(self.task, self.places, self.rules, self.merge)

    @compiling()
    def judge(self, design: DesignLike, what: str = "") -> Candidate:
        """The predictions of a design, and the rule that would prune it.

        Raises:
            PlanError: it does not fit the network, or names an unknown processor.
        """
        return judge_design(self.task, self.rules, Design.read(design), what)

    def __str__(self) -> str:
        work, size = self.original
        alone = ", ".join(f"{name} {ns / 1e6:.3f} ms" for name, ns in self.alone_ns.items())
        steps = [f"  10^{left:.1f}  {rule}" for rule, left in self.space.items()]
        without = [f"{name} gets no branches: {reason}" for name, reason in self.refused.items()]
        return "\n".join(
            (
                f"as it is: {alone}; {work / 1e6:.1f} M multiply-adds, "
                f"{size / 1e6:.2f} M parameters",
                *without,
                "designs left after each rule:",
                *steps,
                str(self.candidates),
            )
        )


@named_arguments
def stretch(
    source: object,
    targets: Targets = None,
    *,
    device: DeviceLike = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    cpu_threads: int | None = None,
    rules: Rules | None = None,
    merge: str | None = None,
    accuracy: AccuracyTarget | None = None,
    progress: Progress | None = None,
) -> Stretching:
    """Find designs of several branches, one for each processor, for a sequential network.

    Designs are new architectures that have to be trained: compile a design's module after training.
    Before, `Stretching.compile_untrained` gives models that are only good for measuring latency.

    Args:
        source: as for ``ts.compile``.
        targets: as for ``ts.compile``; two or three of them get branches. The default is one
            processor of each registered kind, or all of the device; little cores and DSPs take part
            by default only if a profile has them.
        device: the device to design for, as for ``ts.compile``; nothing is measured on it.
        shapes: as for ``ts.compile``.
        cpu_threads: as for ``ts.compile``.
        rules: the rules that prune designs; by default with the paper's numbers.
        merge: how branches are merged (plan/design.py); by default as each block suggests.
        accuracy: how much accuracy designs may lose, as a `ts.stretching.AccuracyTarget`: they are
            trained together, which takes about as long as training three networks.
        progress: as for ``ts.compile``.

    Raises:
        UnsupportedError: the network has no blocks that can be stretched, or fewer than two
            processors support it.

    Examples:
        >>> found = ts.stretch("resnet18.onnx", device="snapdragon-855")
        >>> print(found)
        as it is: cpu ... ms, ...
        >>> [branch.processor for branch in found.best.design.segments[0].branches]
        ['cpu', 'hexagon']
    """
    if not isinstance(rules, Rules | None):
        raise InputError(
            f"expected a Rules for rules, got {rules!r}; give ts.stretching.Rules(alpha=0.1), say"
        )
    if not isinstance(merge, str | None):
        raise InputError(
            f"expected one of {', '.join(MERGES)} for merge, got {merge!r:.80}; leave it out for "
            "what each block suggests"
        )
    if not isinstance(accuracy, AccuracyTarget | None):
        raise InputError(
            f"expected a ts.stretching.AccuracyTarget for accuracy, got {accuracy!r:.80}; it holds "
            "images and labels, and how much may be lost"
        )
    with reporting(progress), compiling():
        wanted = used_unasked() if targets is None and device is None else targets
        site = site_of(device, wanted, cpu_threads, built=False)
        costs, places = site.costs(), site.places
        mod = load_trainable(source, shapes)
        where = {"targets": wanted, "device": device, "cpu_threads": cpu_threads}
        stretched = stretch_network(mod, costs, places, rules or Rules(), merge, where)
    with reporting(progress):
        return stretched if accuracy is None else with_accuracy(stretched, accuracy)


def stretch_network(
    mod: tvm.IRModule,
    costs: Costs,
    places: Sequence[int],
    rules: Rules,
    merge: str | None = None,
    where: Mapping[str, object] | None = None,
) -> Stretching:
    """Like `stretch`, for a module of `load_trainable` and with known costs.

    Args:
        mod: the network.
        costs: the costs of the model's processors.
        places: the places that operators may be placed on.
        rules: the rules that prune designs.
        merge: how branches are merged.
        where: arguments of ``ts.compile`` for the same processors.
    """
    say("searching for designs")
    began = time.perf_counter()
    task, able, refused = task_of(mod, costs, places)
    stretched, space = find_candidates(task, able, rules, merge)
    simple = [
        judge_design(task, rules, design, what)
        for what, design in simple_designs(task, able, merge)
    ]
    by_latency = sorted([*stretched, *simple], key=lambda candidate: candidate.ns)
    candidates = Candidates(sorted(by_latency, key=lambda candidate: not candidate.kept))
    seconds = time.perf_counter() - began
    return Stretching(
        mod, rules, candidates, space, seconds, task, tuple(able), merge, refused, where or {}
    )


def task_of(
    mod: tvm.IRModule, costs: Costs, places: Sequence[int]
) -> tuple[Task, list[int], dict[str, str]]:
    """The network in stages with costs, the places that may get branches, and why others may not.

    Raises:
        UnsupportedError: the network has no blocks, or fewer than two processors run it.
    """
    operators = Operators(mod["main"])
    stages = find_runs(operators)
    refuse_shared_weights(operators, stages)
    reasons = {p: why_not_all(costs.processors[p], operators) for p in places}
    able = [p for p, reason in reasons.items() if reason is None]
    refused = {costs.processors[p].name: reason for p, reason in reasons.items() if reason}
    if len(able) < 2:
        raise UnsupportedError(
            "expected two or three processors that run the network for targets, got "
            f"{[costs.processors[p].name for p in able]}; name another target"
            + "".join(f" ({name}: {reason})" for name, reason in refused.items())
        )
    task = Task(Chain.cut(operators, stages), Pricing(costs), _home(operators, stages, costs, able))
    task.pricing.learn(task.chain.layers())
    return task, able, refused


def _home(operators: Operators, stages: Sequence[Run], costs: Costs, able: Sequence[int]) -> int:
    """The place of the fastest processor for operators outside of branches."""
    outside, pricing = Chain.cut(operators, stages).outside(), Pricing(costs)
    return min(able, key=lambda place: pricing.nanoseconds(outside, place, together=False))
