"""Finds candidates: the best designs of a network for each set of processors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from math import log10

from tvm_stretch.base.compiling import uncollected
from tvm_stretch.base.progress import step
from tvm_stretch.lab.stretching.block_layers import block_layers
from tvm_stretch.lab.stretching.design_rules import Rules, space_of_table_2
from tvm_stretch.lab.stretching.design_search import Search
from tvm_stretch.lab.stretching.judge import Candidate, Task, candidate_of
from tvm_stretch.lab.stretching.predict import Chain, predict
from tvm_stretch.lab.stretching.segments import Run, cut_runs
from tvm_stretch.plan.design import Design

MOST_SIMULATED = 20


@uncollected()
def find_candidates(
    task: Task, able: Sequence[int], rules: Rules, merge: str | None
) -> tuple[list[Candidate], dict[str, float]]:
    """Candidates for each set of processors, and the number of designs after each rule.

    Args:
        able: the places of processors that may get branches.
        merge: how branches are merged; by default as each block suggests.
    """
    blocks = sum(run.depth for run in task.chain.runs)
    space = {"all of them (table 2)": space_of_table_2(blocks, len(able))}
    sets = [s for size in (2, 3) for s in combinations(able, size)]
    segmentations = list(dict.fromkeys((task.chain.runs, _cut(task, able, rules))))
    found: dict[Design, Candidate] = {}
    for runs in segmentations:
        own = replace(task, chain=Chain.of(task.chain.operators, runs))
        for places in sets:
            step()
            search = Search(runs, task.pricing, places, task.home, rules, merge)
            share = MOST_SIMULATED // (len(segmentations) * len(sets))
            designs, left = search.best(max(1, share))
            if runs is segmentations[0] and len(places) == min(3, len(able)):
                space.update(left)
            for design in designs:
                step()
                figures = predict(own.chain, design, own.pricing, own.home)
                found.setdefault(design, candidate_of(task, design, figures))
    space["simulated"] = log10(max(1, len(found)))
    return list(found.values()), space


def _cut(task: Task, able: Sequence[int], rules: Rules) -> tuple[Run, ...]:
    """The stages, cut further where equation 4 allows another meeting point."""
    runs, costs = task.chain.runs, task.pricing.costs
    latency = {}
    for block in (block for run in runs for block in run.blocks):
        layers = block_layers(block, block.channels(block.start), block.width)
        alone = (task.pricing.nanoseconds(layers, place, together=False) for place in able)
        latency[block.end] = round(min(alone))
    cut = cut_runs(runs, latency, lambda size: costs.meeting(able, size), rules.alpha)
    return runs if len(cut) == len(runs) else cut
