"""NN-Stretch's tables and figures, on the twin of a Snapdragon 855.

```
python -m benchmarks.stretched space [networks]            table 2: designs, what each rule leaves
python -m benchmarks.stretched capacity [designs.json]     table 6, and what published designs keep
python -m benchmarks.stretched published designs.json      their latency, and ours at equal capacity
python -m benchmarks.stretched stage                       figure 8: a stage of EfficientNet
python -m benchmarks.stretched front resnet50 --svg f.svg  figure 12: latency over capacity
python -m benchmarks.stretched rules resnet50              alpha of equation 4, beta of equation 5
python -m benchmarks.stretched stages                      table 1: stages of RegNetX-4GF, found
python -m benchmarks.stretched layers                      figure 3b: MobileNetV1 on CPU and GPU
python -m benchmarks.stretched channels                    figure 7: a 3x3 convolution, ever wider
```
Everything is counted or predicted, nothing is measured or trained; designs.json holds published
designs as NN-Stretch's artifact has them (``{"R-34-CD": {"depths": ..}}``). `space` ends with an
error if a search takes more than 5 s of a core, `published` if ours is slower. Figures 3b and 7
have no numbers in the paper's text but that handing over takes about 1 ms, more than most layers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import tvm

import tvm_stretch as ts
from benchmarks.commands import options, show
from benchmarks.published_designs import Design as Published
from benchmarks.published_designs import round_trips_ms, work_of_convolution, work_of_group
from benchmarks.twin import DEVICE, NETWORKS, TEAMS, network
from tutorials import zoo
from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.lab.stretching.design_rules import Rules
from tvm_stretch.lab.stretching.front import find_candidates
from tvm_stretch.lab.stretching.judge import Candidate
from tvm_stretch.lab.stretching.stretching import Stretching
from tvm_stretch.network.operator_graph import OperatorGraph
from tvm_stretch.network.properties.repeated_blocks import detect_stages
from tvm_stretch.plan.cost.profile import Profile
from tvm_stretch.plan.cost.profile_file import load_profile
from tvm_stretch.plan.design import Branch, Design, StretchedSegment
from tvm_stretch.plan.measuring.calibrate import processor_of
from tvm_stretch.read import load_network, load_trainable

TABLE_6 = {
    "R-34": (3.7, 21.8),
    "R-50": (4.1, 25.6),
    "RX-1.6": (1.6, 11.2),
    "RX-4": (4.0, 20.6),
    "EN-L4": (2.6, 13.0),
    "EN-B5": (10.3, 30.4),
}
"""Thousands of millions of multiply-adds, millions of parameters; EfficientNet-B5's before its
squeeze-and-excitation was taken out."""

FIGURE_8 = ("cpu", "hexagon")
"""Its processors."""

ALPHAS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
BETAS = (0.5, 0.55, 0.6, 0.7, 0.8, 1.0, 1.2)
MOST_SECONDS = 5.0
_SHARES = np.arange(0.60, 1.12, 0.03)
"""Capacities that are searched for one that a published design has."""


@cache
def model_of(name: str) -> tvm.IRModule:
    """One of the six networks at 224², or any of the zoo as it was published."""
    model = network(name) if name in NETWORKS.values() else zoo.build(name)
    return load_trainable(model)


def stretching(name: str, team: Sequence[str] | None = None, **rules: float) -> Stretching:
    """The stretching of a network for some processors of the phone, or for all."""
    return ts.stretch(model_of(name), team, device=DEVICE, rules=Rules(**rules))


def shares(st: Stretching, candidate: Candidate) -> str:
    """Multiply-adds and parameters as shares of the original's."""
    work, size = st.original
    return f"{candidate.multiply_adds / work:.0%}, {candidate.parameters / size:.0%}"


# --- table 2 --------------------------------------------------------------------------------------


def space_row(name: str) -> tuple[float, Sequence[object]]:
    """CPU seconds of the search, and how many designs there are."""
    model_of(name)
    began = time.process_time()
    try:
        st = stretching(name)
    except UnsupportedError as error:
        return 0.0, (name, "-", "-", "-", "-", f"refused: {str(error).split(';')[0]}")
    blocks = sum(run.depth for run in st.task.chain.runs)
    first, *rules, simulated = st.space.values()
    left = ", ".join(f"10^{value:.0f}" for value in rules)
    tried = f"{10**simulated:.0f}"
    seconds = time.process_time() - began
    return seconds, (name, blocks, f"10^{first:.0f}", left, tried, f"{seconds:.2f}")


def space(names: Sequence[str]) -> None:
    """Table 2 counted, for three processors."""
    seconds = {}

    def rows() -> Iterable[Sequence[object]]:
        for name in names:
            seconds[name], row = space_row(name)
            yield row

    rules = "bounds, equation 5, equation 6, capacity"
    heads = "network", "blocks", "designs", f"left by {rules}", "simulated", "search, CPU s"
    show(heads, rows())
    slow = [name for name, taken in seconds.items() if taken > MOST_SECONDS]
    if slow:
        raise SystemExit(
            f"expected at most {MOST_SECONDS:g} s of a core for every search, got more: {slow}"
        )


# --- published designs ----------------------------------------------------------------------------


def read_designs(files: Sequence[str]) -> dict[str, tuple[str, Published]]:
    """Published designs of several branches by name, each with its network's."""
    found = {}
    read = [json.loads(Path(file).read_text(encoding="utf-8")) for file in files]
    for key, data in (item for designs in read for item in designs.items()):
        name = key.rpartition("/")[2]
        if len(data["devices"]) > 1:
            found[name] = (NETWORKS[name.rpartition("-")[0]], data)
    return found


def as_ours(st: Stretching, data: Published) -> Design:
    """A published design in the form of ours."""
    stages = detect_stages(st.mod)
    ends = [(stage.blocks[0].inputs[0], stage.blocks[-1].output) for stage in stages]
    team = [processor_of(device) for device in data["devices"]]
    merge = "project" if data["block_type"] == "mbconv" else "concat"
    return Design.of_lists(ends, team, data["depths"], data["widths"], merge)


def capacity(designs: Mapping[str, tuple[str, Published]]) -> None:
    """Table 6 beside the networks here, and the shares that published designs keep of them."""

    def originals() -> Iterable[Sequence[object]]:
        for short, (work, size) in TABLE_6.items():
            built = zoo.build(NETWORKS[short]), network(NETWORKS[short])
            counts = [zoo.count(model)[::-1] for model in built]
            own = (f"{ops / 1e9:.2f}, {weights / 1e6:.1f}" for ops, weights in counts)
            yield short, f"{work}, {size}", *own

    heads = "as published", "here as published", "here at 224²"
    show(("network", *(f"{head}: G, M" for head in heads)), originals())
    if not designs:
        return
    print()

    def branched() -> Iterable[Sequence[object]]:
        for name, (original, data) in designs.items():
            st = stretching(original, [processor_of(device) for device in data["devices"]])
            judged = st.judge(as_ours(st, data))
            built = judged.multiply_adds / 1e9, f"{judged.parameters / 1e6:.1f}"
            yield name, *built, shares(st, judged)

    show(("published design", "G multiply-adds", "M parameters", "of the original's"), branched())


def equal_capacity(st: Stretching, work: float, size: float) -> Candidate:
    """The fastest of ours with at least this work and size."""
    found = [
        candidate
        for share in _SHARES
        for candidate in find_candidates(
            st.task, st.places, Rules(capacity=float(share), least_ratio=0.2), st.merge
        )[0]
        if candidate.multiply_adds >= work and candidate.parameters >= size
    ]
    return min(found, key=lambda candidate: candidate.ns)


def published(designs: Mapping[str, tuple[str, Published]]) -> None:
    """Published designs beside ours of at least their capacity, both predicted in the same way."""
    slower = []

    def rows() -> Iterable[Sequence[object]]:
        for name, (original, data) in designs.items():
            team = [processor_of(device) for device in data["devices"]]
            st = stretching(original, team)
            theirs = st.judge(as_ours(st, data))
            ours = equal_capacity(st, theirs.multiply_adds, theirs.parameters)
            if ours.ns > theirs.ns:
                slower.append(name)
            pairs = ((one.ns / 1e6, shares(st, one)) for one in (theirs, ours, st.best))
            yield name, *(cell for pair in pairs for cell in pair), theirs.rule or "none"

    heads = "design", "published, ms", "capacity", "ours, ms", "capacity"
    rule = "rule that would prune the published one"
    show((*heads, "ours that keeps 90 %, ms", "capacity", rule), rows())
    if slower:
        raise SystemExit(f"expected none of ours to be slower, got {slower}")


# --- figures and sweeps ---------------------------------------------------------------------------


def stage() -> None:
    """Figure 8: EfficientNet-B5's stage of 7 blocks and 176 channels, by the paper's rules."""
    st = stretching("efficientnet_b5", FIGURE_8, alpha=0.1, beta=1.0, least_ratio=0.5)
    (run,) = (r for r in st.task.chain.runs if (r.depth, r.width) == (7, 176))
    theirs = (Branch("cpu", 6, 136), Branch("hexagon", 4, 160))
    (ours,) = (s.branches for s in st.best.design.segments if s.start == run.start)

    def rows() -> Iterable[Sequence[object]]:
        for told, branches in (("paper", theirs), ("ours", ours)):
            judged = st.judge(Design((StretchedSegment(run.start, run.end, branches, run.merge),)))
            named = ", ".join(map(str, branches))
            yield told, named, f"{judged.ns / 1e6:.2f}", shares(st, judged), judged.rule or "none"

    heads = "branches of", "depth and width", "network, ms", "capacity", "rule that prunes them"
    show(heads, rows())


def sweep(name: str) -> None:
    """The best design for various α and β, on each set of processors."""

    def best(team: Sequence[str], **rules: float) -> str:
        st = stretching(name, team, **rules)
        kept = [candidate for candidate in st.candidates if candidate.kept]
        if not kept:
            return "none"
        most = max(len(candidate.design.segments) for candidate in st.candidates)
        return f"{kept[0].ns / 1e6:.2f} ms, {len(kept[0].design.segments)} of {most} segments"

    for what, values in (("alpha", ALPHAS), ("beta", BETAS)):
        rows = ((value, *(best(team, **{what: value}) for team in TEAMS)) for value in values)
        show((what, *map("+".join, TEAMS)), rows)
        print()


def front(name: str, team: Sequence[str], svg: Path | None) -> None:
    """Figure 12, without accuracies: nothing is trained here."""
    found = stretching(name, team).front()
    print(found)
    if svg is not None:
        found.draw(svg)


# --- figures that need no stretching --------------------------------------------------------------

TABLE_1 = ((56, 2), (28, 5), (14, 14), (7, 2))
"""The width of feature maps and the number of blocks of each stage of RegNetX-4GF."""


def stages(mod: tvm.IRModule) -> list[tuple[int, int]]:
    """Width of the feature maps and number of blocks of each stage that is found."""
    return [(stage.shape[-1], len(stage.blocks)) for stage in detect_stages(mod)]


def layers(mod: tvm.IRModule, profile: Profile) -> Iterator[tuple[str, float, float, float]]:
    """Each convolution: its name, ms on CPU and GPU, and to hand its input and output over."""
    graph = OperatorGraph(mod["main"])
    for group in graph.groups:
        work = work_of_group(group)
        if group.anchor.kind != "nn.conv2d":
            continue
        cpu, gpu = (profile.processor(p).nanoseconds(work) / 1e6 for p in ("cpu", "opencl"))
        data, result = prod(group.anchor.arg_shapes[0]), prod(group.anchor.shape)
        # Each processor computes half of the channels.
        over = round_trips_ms(profile, "opencl", [(data, result // 2)])
        yield f"{work.family}, {data} -> {result}", cpu, gpu, over


def channels(profile: Profile) -> Iterator[tuple[int, float]]:
    """Channels of a 3x3 convolution at 28 x 28, and 10^9 operations a second on the GPU."""
    for width in (8, 16, 32, 64, 128, 256, 512):
        work = work_of_convolution(width, width, 3, 28)
        yield width, 2 * work.multiply_adds / profile.processor("opencl").nanoseconds(work)


def print_stages() -> None:
    """Table 1."""
    found = stages(load_network(zoo.build("regnetx_4gf", size=224)))
    told = ([f"{size}², {count} blocks" for size, count in own] for own in (TABLE_1, found))
    numbered = enumerate(zip(*told, strict=True), start=1)
    show(("stage", "table 1", "found"), ((number, *both) for number, both in numbered))


def print_layers() -> None:
    """Figure 3b."""
    rows = list(layers(load_network(zoo.build("mobilenet_v1")), load_profile(DEVICE)))
    show(("layer and its values", "CPU ms", "GPU ms", "handing over, ms"), rows)
    longer = sum(over > min(cpu, gpu) for _, cpu, gpu, over in rows)
    print(f"\nhanding over takes longer than {longer} of {len(rows)} layers")


def print_channels() -> None:
    """Figure 7."""
    rows = ((width, f"{speed:.0f}") for width, speed in channels(load_profile(DEVICE)))
    show(("channels", "GFLOP/s on the GPU"), rows)


def main() -> None:
    """Run from the command line."""
    commands: dict[str, Callable[[Any], None]] = {
        "space": lambda args: space(args.given or zoo.names()),
        "capacity": lambda args: capacity(read_designs(args.given)),
        "published": lambda args: published(read_designs(args.given)),
        "stage": lambda args: stage(),
        "rules": lambda args: sweep(*(args.given or ["resnet50"])),
        "front": lambda args: front(*(args.given or ["resnet50"]), args.processors, args.svg),
        "stages": lambda args: print_stages(),
        "layers": lambda args: print_layers(),
        "channels": lambda args: print_channels(),
    }
    args = options(
        *(__doc__, None, ("what", str), ("given*", (), "networks, or a file of designs")),
        ("--processors", ["cpu", "hexagon"], "of `front`"),
        ("--svg", Path, "draw the front there"),
        what=commands,
    )
    commands[args.what](args)


if __name__ == "__main__":
    main()
