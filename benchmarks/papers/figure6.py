"""HOPE, figure 6: beside µLayer on seven networks, where handing over converts no layout.

    python -m benchmarks.papers.figure6 [squeezenet1_0 ..]

The paper runs µLayer on a library whose CPU and GPU kernels share one layout. Both schedulers get
such hand-overs here, on roofs of a CPU and a GPU that is three times as fast, or as fast
(`benchmarks.scheduling_profiles`). Shown is by how many percent HOPE's latency is below µLayer's;
the paper's are at most 40.6, 35.9 and 28.0 % on its three phones, and none for the LSTM.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.baselines import schedule_hope_gs, schedule_hope_lp, schedule_mulayer
from benchmarks.commands import markdown, options
from benchmarks.schedulers import NETWORKS
from benchmarks.scheduling_profiles import graph_of, one_layout, spans, synthetic_problem
from tvm_stretch.plan.scheduling.result import Scheduler

PROFILES = ("1:3", "1:1")
SCHEDULERS: Mapping[str, Scheduler] = {
    "µLayer": schedule_mulayer,
    "HOPE:GS": schedule_hope_gs,
    "HOPE:LP": schedule_hope_lp,
}


def rows(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Percent of µLayer's latency that HOPE saves, of each network and in the mean."""
    means: dict[tuple[str, str], list[float]] = {}
    for name in names:
        cells = []
        for profile in PROFILES:
            makespans = spans(one_layout(synthetic_problem(graph_of(name), profile)), SCHEDULERS)
            for who in ("HOPE:GS", "HOPE:LP"):
                saved = 100 * (1 - makespans[who] / makespans["µLayer"])
                means.setdefault((profile, who), []).append(saved)
                cells.append(f"{saved:.1f}")
        yield name, *cells
    yield "mean", *(f"{sum(one) / len(one):.1f}" for one in means.values())


def main() -> None:
    """Run from the command line."""
    arguments = options(__doc__, None, ("networks*", str))
    heads = [f"{profile} {who}, %" for profile in PROFILES for who in ("HOPE:GS", "HOPE:LP")]
    print("\n".join(markdown(("less than µLayer", *heads), rows(arguments.networks or NETWORKS))))


if __name__ == "__main__":
    main()
