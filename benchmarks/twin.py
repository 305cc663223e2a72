"""The twin of a Snapdragon 855: calibrates it, checks it against papers, and plans for it.

```
python -m benchmarks.twin calibrate [rows.csv] [-o snapdragon-855.toml]   the profile, residuals
python -m benchmarks.twin check [designs.json [rows.csv]]                 what others published
python -m benchmarks.twin table [resnet34 ..] [--json out.json]           pairs of processors
python -m benchmarks.twin energy [designs.json]                           watts and joules
python -m benchmarks.twin packets rows.csv [resnet34 ..] [-o packets.toml]  our kernels on its DSP
```
`calibrate` fits the profile to the latencies of six networks on one processor each, published or
the rows of a table, and to one figure of NN-Stretch's text: stem and head of ResNet-50 take 11 % of
its latency on CPU and DSP. It ends with an error if networks that were left out are more than 12 %
off in the mean, or 30 % at most. `check` compares the profile with what NN-Stretch says of two
processors, some of which its transfers are from, and predicts published designs; with measured rows
(``model,latency_ms``) it ends with an error if they are more than 15 % off in the mean, or their
order is another one. `table` plans networks for each pair of processors and for all three: exact
branching, that changes no function, and the best stretched design that keeps nine tenths of
multiply-adds and parameters of every segment (`benchmarks.stretched` has more of these).
`packets` quantises the six networks, lets qemu count what our own kernels for Hexagon execute of
each (rows that are there already stay), and fits the DSP of the profile to that: a packet takes a
cycle, at the clock of `targets/hexagon/hexagon.py`. `table --profile packets.toml` then plans with
it.
"""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from scipy.stats import spearmanr

import tvm_stretch as ts
from benchmarks import published_designs
from benchmarks.commands import Rows, Table, options, show
from benchmarks.published_designs import (
    ORIGINALS,
    Part,
    count,
    predict_mj,
    predict_ms,
    round_trips_ms,
)
from tutorials import zoo
from tutorials.zoo.builder import Builder
from tutorials.zoo.efficientnet import b5_without_squeeze
from tvm_stretch.plan.cost.profile import Profile
from tvm_stretch.plan.cost.profile_file import load_profile
from tvm_stretch.plan.measuring.calibrate import (
    Calibration,
    Latency,
    calibrate_profile,
    processor_of,
    read_latencies,
)
from tvm_stretch.plan.search import search
from tvm_stretch.plan.search.twin import twin_costs, twin_processors
from tvm_stretch.read import load_network
from tvm_stretch.targets.processors import make_processors

Row: TypeAlias = dict[str, Any]

DEVICE = "snapdragon-855"
NETWORKS = {
    "R-34": "resnet34",
    "R-50": "resnet50",
    "RX-1.6": "regnetx_1_6gf",
    "RX-4": "regnetx_4gf",
    "EN-L4": "efficientnet_lite4",
    "EN-B5": "efficientnet_b5",
}
"""NN-Stretch's names of its networks, and ours."""

TEAMS = (
    ("cpu", "opencl"),
    ("cpu", "hexagon"),
    ("opencl", "hexagon"),
    ("cpu", "opencl", "hexagon"),
)
KINDS = ("exact", "stretched")
_SIZE = 224

# NN-Stretch, section 7.3: ResNet-50 on CPU and DSP of a Xiaomi 9 is 1.5 times as fast as on the
# CPU; stem and head are 11 % of that, handing over 17.9 %.
_R50_CD_MS = published_designs.LATENCY_MS["resnet50"][0] / 1.5
_R50_ENDS_MS, _R50_HANDOVER_MS = 0.11 * _R50_CD_MS, 0.179 * _R50_CD_MS

_MOST_LEFT_OUT = (0.12, 0.30)
_MOST_PUBLISHED, _LEAST_ORDER = 0.15, 0.9


def network(name: str) -> onnx.ModelProto:
    """A network at the size of the phone's measurements, EfficientNet-B5 as it was deployed."""
    if name != "efficientnet_b5":
        return zoo.build(name, size=_SIZE)
    builder = Builder(0)
    x = builder.input("x", (1, 3, _SIZE, _SIZE))
    return builder.finish(name, b5_without_squeeze(builder, x, 1000))


def published_latencies() -> list[Latency]:
    """The latencies of `published_designs.py`."""
    short = {ours: theirs for theirs, ours in NETWORKS.items()}
    return [
        Latency(short[name], processor_of(processor), ms)
        for name, latencies in published_designs.LATENCY_MS.items()
        for processor, ms in zip(published_designs.PROCESSORS, latencies, strict=True)
    ]


def calibration(latencies: Sequence[Latency]) -> Calibration:
    """The profile that fits the latencies, and the paper's figure of stem and head."""
    counted = {name: count(design) for name, design in ORIGINALS.items()}
    works = {name: network.works for name, network in counted.items()}
    ends = Latency("R-50", "cpu", _R50_ENDS_MS, "stem and head")
    works[ends.label] = [*counted["R-50"].stem.works, *counted["R-50"].head.works]
    return calibrate_profile([*latencies, ends], works, load_profile(DEVICE))


# --- what others published ------------------------------------------------------------------------


def facts(profile: Profile) -> Iterator[tuple[str, bool, float, float]]:
    """Statements of NN-Stretch: the text, whether the profile uses it, its number and ours."""
    # Equal halves of ResNet-50: each branch of a stage writes half of its channels.
    stages = [(256, 56), (512, 28), (1024, 14), (2048, 7)]
    halves = [(channels * size**2 // 2) for channels, size in stages]
    reads = [64 * 56**2, *(2 * values for values in halves[:-1])]
    parts = list(zip(reads, halves, strict=True))
    own = round_trips_ms(profile, "hexagon", parts)
    yield "ResNet-50, CPU+DSP: handing over, ms", True, _R50_HANDOVER_MS, own
    small = [(16 * 96**2, 8 * 96**2), (32 * 48**2, 16 * 48**2), (64 * 24**2, 32 * 24**2)]
    own = statistics.mean(round_trips_ms(profile, "hexagon", [part]) for part in small)
    yield "ResNet-56 at 96x96: one meeting point more, ms (table 3)", True, (17.9 - 13.2) / 8, own
    layers = [(32, 112), (64, 56), (128, 56), (256, 28), (512, 14), (1024, 7)]
    ops = [(channels * size**2, channels * size**2 // 2) for channels, size in layers]
    own = statistics.mean(round_trips_ms(profile, "opencl", [part]) for part in ops)
    yield "MobileNetV1, CPU+GPU: handing over for one layer, ms (figure 3b)", True, 1.0, own
    parts = list(zip(reads, halves, strict=True))
    own = round_trips_ms(profile, "opencl", parts)
    yield "ResNet-50, CPU+GPU of a Xiaomi 11: handing over, ms", False, 3.0, own
    own = _halved_ms(profile, "hexagon")
    yield "ResNet-50, CPU+DSP, ms (1.5 times as fast as the CPU)", False, _R50_CD_MS, own


def _halved_ms(profile: Profile, other: str) -> float:
    """The latency of ResNet-50 if two processors shared all blocks to finish together."""
    original = count(ORIGINALS["R-50"])
    ends = profile_ms(profile, original.stem) + profile_ms(profile, original.head)
    branches = 0.0
    for (stage,) in original.stages:
        alone = [profile_ms(profile, replace(stage, processor=p)) for p in ("cpu", other)]
        branches += 1 / sum(1 / ms for ms in alone)
    return ends + branches + _R50_HANDOVER_MS


def profile_ms(profile: Profile, part: Part) -> float:
    """What a part takes where it is."""
    processor = profile.processor(part.processor)
    return sum(processor.nanoseconds(work) for work in part.works) / 1e6


def check(designs: Path | None = None, rows: Path | None = None) -> None:
    """Print what others published beside what the twin says."""
    profile = load_profile(DEVICE)
    stated = (
        (what, "yes" if used else "no", theirs, ours, f"{ours / theirs - 1:+.0%}")
        for what, used, theirs, ours in facts(profile)
    )
    show(("NN-Stretch", "used", "published", "twin", "off"), stated)
    if designs is None:
        return
    predicted = {
        name: predict_ms(design, profile)
        for name, design in json.loads(designs.read_text(encoding="utf-8")).items()
    }
    measured = {} if rows is None else _measured(rows)
    print()
    found = Table("design", "predicted ms", "measured ms", "off")
    for name, ours in predicted.items():
        theirs = measured.get(name)
        found.row(name, ours, theirs or "-", f"{ours / theirs - 1:+.1%}" if theirs else "-")
    both = [(predicted[name], measured[name]) for name in predicted if name in measured]
    if len(both) > 1:
        _judge(both)


def _measured(path: Path) -> dict[str, float]:
    with path.open(encoding="utf-8", newline="") as file:
        return {row["model"]: float(row["latency_ms"]) for row in csv.DictReader(file)}


def _judge(both: Sequence[tuple[float, float]]) -> None:
    errors = [abs(ours / theirs - 1) for ours, theirs in both]
    order = float(spearmanr(*zip(*both, strict=True)).statistic)
    mean = statistics.mean(errors)
    print(f"\nmean {mean:.1%}, at most {max(errors):.1%} off; rank correlation {order:.2f}")
    if mean > _MOST_PUBLISHED or order < _LEAST_ORDER:
        raise SystemExit(f"expected at most {_MOST_PUBLISHED:.0%} and at least {_LEAST_ORDER}")


# --- energy ---------------------------------------------------------------------------------------


def energy_rows(designs: Path | None = None) -> Iterator[Sequence[str]]:
    """What the text of NN-Stretch says about figure 10, beside the twin's powers and designs."""
    profile, names = load_profile(DEVICE), tuple(load_profile(DEVICE).processors)
    power = profile.power(names)
    assert power is not None
    for name, low, high in (("cpu", 5.1, 6.5), ("hexagon", 1.2, 2.0)):
        ours = power.watts[names.index(name)] + power.idle_watts
        off = max(abs(ours / low - 1), abs(ours / high - 1))
        least = (high - low) / (high + low)  # any number is so far from one of the two
        told = f"{ours:.2f} (at most {off:.0%} off; one number for all networks is {least:.0%} off"
        yield f"{name} alone, W", f"{low} to {high}", f"{told} or more)"
    known = {} if designs is None else json.loads(designs.read_text(encoding="utf-8"))
    for key, design in known.items():
        name = key.split("/")[-1]
        original = ORIGINALS.get(name.rsplit("-", 1)[0])
        if original and len(design["devices"]) > 1:
            ms = [predict_ms(one, profile) for one in (original, design)]
            before, after = (predict_mj(one, profile) for one in (original, design))
            watts = (after / ms[1]) / (before / ms[0]) - 1
            what = f"{name} against the CPU: energy, power"
            yield what, _FIGURE_10.get(name, "-"), f"{after / before - 1:+.1%}, {watts:+.1%}"


ENERGY = "NN-Stretch, Xiaomi 9", "figure 10", "twin"
_FIGURE_10 = {
    "R-50-CDG": "-56.3 % (all three; the network is not named)",
    "EN-L4-CD": "at most +24 % power (the pair is not named)",
}


# --- plans ----------------------------------------------------------------------------------------


def packets_ms(name: str) -> float:
    """A quantised network on the emulated DSP alone: its packets at the DSP's clock."""
    model = network(name)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    images = np.random.default_rng(0).standard_normal([2, *shape[1:]]).astype("float32")
    target = {"kind": "hexagon", "deadline_ms": 600_000}
    compiled = ts.compile(ts.quantize(model, images), [target], cpu_threads=1)
    compiled(images[:1])
    counted = int(compiled.health()["hexagon"]["packets"])
    hexagon = make_processors([target], 1)[1][0]
    return counted * hexagon.hardware.packet_ns / 1e6


def packets(rows: Path, names: Sequence[str]) -> Calibration:
    """The profile whose DSP runs our kernels; missing entries are added to ``rows``."""
    known = [] if not rows.exists() else read_latencies(rows)
    short = {ours: theirs for theirs, ours in NETWORKS.items()}
    for name in names:
        if short[name] in {latency.network for latency in known}:
            continue
        known.append(Latency(short[name], "hexagon", packets_ms(name)))
        print(f"{name}: {known[-1].ms:.2f} ms", flush=True)
        lines = [f"{k.network},{k.processor},{k.ms:.4f}\n" for k in known]
        rows.write_text("model,processor,latency_ms\n" + "".join(lines), encoding="utf-8")
    works = {name: count(design).works for name, design in ORIGINALS.items()}
    device = f"{DEVICE}-packets"
    like = replace(load_profile(DEVICE), device=device, source=_PACKETS)
    return calibrate_profile(known, works, like)


_PACKETS = (
    "CPU and GPU: latencies of six networks (Xiaomi 9, TFLite 2.8); DSP: packets of our kernels, "
    "counted by an emulator, one hardware thread"
)


def plan_row(name: str, team: Sequence[str], device: str) -> Row:
    """The best processor alone, the best plan that changes nothing, the best stretched design."""
    profile, model = load_profile(device), network(name)
    found = search(load_network(model), twin_costs(profile, twin_processors(profile, team)[0]))
    alone = found.singles[0]
    best = min((alone, *found.rivals), key=lambda candidate: candidate.cost.ns)
    row: Row = {"alone": alone.what, "alone_ms": alone.cost.ns / 1e6}
    row |= {"exact": best.what, "exact_ms": best.cost.ns / 1e6}
    try:
        st = ts.stretch(model, team, device=device)
        chosen, (work, size) = st.best, st.original
        segments = len(chosen.design.segments)
        what = f"{segments} segments, {'+'.join(chosen.design.processors)}"
        kept = chosen.multiply_adds / work, chosen.parameters / size
        return row | {"stretched": what, "stretched_ms": chosen.ns / 1e6, "capacity": kept}
    except ts.UnsupportedError:
        what = "no design that the rules leave"
        return row | {"stretched": what, "stretched_ms": best.cost.ns / 1e6, "capacity": (1, 1)}


def _cells(row: Row) -> Iterator[str]:
    yield f"{row['alone_ms']:.1f} ({row['alone'].split()[0]})"
    for kind in KINDS:
        yield from (f"{row[f'{kind}_ms']:.1f}", f"x{row['alone_ms'] / row[f'{kind}_ms']:.2f}")
        if kind == "stretched":
            yield ", ".join(f"{share:.0%}" for share in row["capacity"])
        yield row[kind]


def plans(networks: Sequence[str], kept: Path | None, device: str) -> None:
    """Print and keep the rows; a row for more processors is no slower, as searches may be."""
    known = Rows(kept)
    heads = "fastest alone, ms", "exact, ms", "gain", "how", "stretched, ms", "gain", "capacity"
    table = Table("network", "processors", *heads, "how")
    for name in networks:
        shown: dict[str, Row] = {}
        for team in TEAMS:
            key, label = f"{name} {'+'.join(team)}", "+".join(team)
            row = dict(known.of.get(key) or known.record(key, plan_row(name, team, device)))
            for fewer, other in shown.items():
                for kind, keys in zip(KINDS, ((), ("capacity",)), strict=True):
                    if {*fewer.split("+")} < {*team} and other[f"{kind}_ms"] < row[f"{kind}_ms"]:
                        row |= {one: other[one] for one in (f"{kind}_ms", *keys)}
                        row[kind] = f"as for {fewer}"
            shown[label] = row
            table.row(name, label, *_cells(row))


def main() -> None:
    """Run from the command line."""
    commands: dict[str, Callable[[Any], None]] = {
        "calibrate": lambda args: _calibrate(args.o, *map(Path, args.given)),
        "check": lambda args: check(*map(Path, args.given)),
        "energy": lambda args: show(ENERGY, energy_rows(*map(Path, args.given))),
        "table": lambda args: plans(args.given or [*NETWORKS.values()], args.json, args.profile),
        "packets": lambda args: _packets(args.o, *args.given),
    }
    args = options(
        *(__doc__, None, ("what", str), ("given*", (), "files or networks, see above")),
        ("-o", Path, "write the profile there"),
        ("--json", Path, "keep all rows of `table` here, and go on from there"),
        ("--profile", DEVICE, "another one for `table`, as a file"),
        what=commands,
    )
    commands[args.what](args)


def _packets(output: Path | None, rows: str, *names: str) -> None:
    found = packets(Path(rows), names or [*NETWORKS.values()])
    print(found)
    if output is not None:
        found.write(output)


def _calibrate(output: Path | None, rows: Path | None = None) -> None:
    found = calibration(published_latencies() if rows is None else read_latencies(rows))
    print(found)
    if output is not None:
        found.write(output)
    errors, (mean, most) = found.left_out_errors, _MOST_LEFT_OUT
    if statistics.mean(errors) > mean or max(errors) > most:
        raise SystemExit(f"expected a mean of at most {mean:.0%}, and at most {most:.0%}")


if __name__ == "__main__":
    main()
