"""How well the cost model predicts networks that it has never seen.

    python -m benchmarks.cost_model measure --folder costs --seconds 480 --target llvm opencl
    python -m benchmarks.cost_model evaluate --folder costs --json cost_model.json

`measure` times samples, members of the zoo and random networks, kernel by kernel and as a whole.
`evaluate` trains on what is not of the networks it then predicts: zoo members are held out family
by family (all ResNets at once, ...), random networks are never trained on. Measurements of kernels
equal to theirs leave the training set too, wherever they come from. Kernel errors and coverage are
those of the held-out networks' kernels.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tvm_stretch.targets.processor import Processor

from tvm_stretch import zoo
from tvm_stretch.cost.bench import Bench, NetworkTiming
from tvm_stretch.cost.dataset import Dataset, Row
from tvm_stretch.cost.features import Features, RunFeatures, from_json, to_json
from tvm_stretch.cost.measure import learn, measure, open_dataset
from tvm_stretch.cost.prediction import Prediction
from tvm_stretch.processors import make_processors
from tvm_stretch.zoo.builder import Builder

FAMILIES = (
    *("resnet", "regnet", "efficientnet", "mobilenet", "squeezenet", "inception", "pnasnet"),
    "vgg",
    "yolo",
)
"""Beginnings of the names of zoo members that are held out together."""

ZOO = (
    *("mobilenet_v2", "resnet18", "squeezenet1_1", "squeezenet1_0", "mobilenet_v1"),
    *("regnetx_1_6gf", "resnet34", "mobilenet_v3_small", "efficientnet_lite0", "resnet50"),
    *("mobilenet_v3_large", "inception_v3", "efficientnet_lite4", "regnetx_4gf", "pnasnet_mobile"),
    *("yolov2", "vgg16", "inception_v4"),
)


def random_network(seed: int) -> object:
    """A small CNN of three to five stages of random blocks."""
    dice = random.Random(seed)
    b = Builder(seed)
    side = dice.choice((96, 112, 128, 160, 192, 224))
    width = dice.choice((16, 24, 32, 40, 48))
    x = b.input("x", (1, 3, side, side))
    x = b.conv_bn(x, width, dice.choice((3, 5)), 2, act="relu")
    for _ in range(dice.randint(3, 4)):
        kind = dice.choice(("basic", "bottleneck", "mobile", "plain"))
        width = dice.randrange(width, 2 * width + 1, 8)
        act = dice.choice(("relu", "relu6", "swish"))
        for index in range(dice.randint(1, 3)):
            x = _block(b, x, kind, width, 2 if index == 0 else 1, act)
    x = b.global_pool(x)
    return b.finish(f"random{seed}", b.dense(b.flatten(x), dice.choice((10, 100, 1000))))


def _block(b: Builder, x: Any, kind: str, width: int, stride: int, act: str) -> Any:
    if kind == "plain":
        return b.conv_bn(x, width, 3, stride, act=act)
    if kind == "basic":
        y = b.conv_bn(b.conv_bn(x, width, 3, stride, act=act), width, 3)
    elif kind == "bottleneck":
        inner = max(8, width // 2)
        y = b.conv_bn(b.conv_bn(x, inner, 1, act=act), inner, 3, stride, act=act)
        y = b.conv_bn(y, width, 1)
    else:
        inner = 4 * x.channels
        y = b.conv_bn(b.conv_bn(x, inner, 1, act=act), inner, 3, stride, groups=inner, act=act)
        y = b.conv_bn(y, width, 1)
        return b.add(x, y) if (stride, x.channels) == (1, width) else y
    if (stride, x.channels) != (1, width):
        x = b.conv_bn(x, width, 1, stride)
    return b.add(x, y, act=act)


# --- measuring ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Network:
    """A measured network: features of its kernels in order, and the time of a run."""

    name: str
    kernels: list[Features]
    nanoseconds: int
    quiet: bool


def measure_all(
    processor: Processor, host: Processor, folder: Path, seconds: float, say: Callable[[str], None]
) -> None:
    """Fill the folder; what is there already is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    dataset = open_dataset(folder, processor)
    path = folder / f"{processor.name}.networks.jsonl"
    known = {network.name for network in _read(path)} if path.exists() else set()
    end = time.monotonic() + seconds
    bench = Bench([processor] if processor is host else [processor, host])
    for name, build in _networks():
        if name in known or time.monotonic() > end:
            continue
        timing = bench.measure_network(name, build())
        for row in timing.rows:
            dataset.append(row)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(_network_json(name, timing)) + "\n")
        say(f"{name}: {timing.total.nanoseconds / 1e6:.2f} ms, {bench.describe()}")


def _networks() -> Iterator[tuple[str, Callable[[], object]]]:
    """Zoo members and random networks in turn."""
    for index, name in enumerate(ZOO):
        yield name, lambda name=name: zoo.build(name)  # type: ignore[misc]
        yield f"random{index}", lambda index=index: random_network(index)  # type: ignore[misc]


def _network_json(name: str, timing: NetworkTiming) -> dict[str, Any]:
    return {
        "name": name,
        "nanoseconds": timing.total.nanoseconds,
        "quiet": timing.total.quiet,
        "kernels": [to_json(kernel) for kernel in timing.kernels],
    }


def _read(path: Path) -> list[Network]:
    items = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [
        Network(i["name"], [from_json(k) for k in i["kernels"]], i["nanoseconds"], i["quiet"])
        for i in items
    ]


# --- evaluating -----------------------------------------------------------------------------------


def evaluate(folder: Path, processor: Processor, host: Processor) -> dict[str, Any]:
    """Hold out, learn, predict, compare."""
    dataset = Dataset.open(folder / f"{processor.name}.jsonl")
    networks = _read(folder / f"{processor.name}.networks.jsonl")
    over_host = processor is not host and processor.machine.group_items == 1
    results, errors, covered = [], [], []
    for held in _held_out(networks):
        unseen = {_without_place(kernel) for network in held for kernel in network.kernels}
        names = {network.name for network in held}
        start = time.monotonic()
        below = None
        if over_host:
            host_rows = Dataset.open(folder / f"{host.name}.jsonl")
            below = learn(_training_set(host_rows, names, unseen), host)
        model = learn(_training_set(dataset, names, unseen), processor, below)
        seconds = time.monotonic() - start
        for network in held:
            predictions = model.predict_all(
                [*network.kernels, RunFeatures.of(len(network.kernels))]
            )
            predicted = sum(p.nanoseconds for p in predictions)
            results.append((network, predicted, predictions[:-1]))
        own = [
            row
            for row in dataset.rows
            if row.network in names and row.quiet and row.features.family != RunFeatures.family
        ]
        for row, answer in zip(own, model.predict_all([r.features for r in own]), strict=True):
            errors.append((row, answer.nanoseconds / row.nanoseconds - 1))
            covered.append((row, answer.low <= row.nanoseconds <= answer.high))
        print(
            f"{processor.name}: {', '.join(sorted(names))}; learned in {seconds:.0f} s", flush=True
        )
    return _summary(dataset, results, errors, covered)


def _held_out(networks: list[Network]) -> list[list[Network]]:
    """Families of zoo members, then all random networks."""
    kinds = (*FAMILIES, "random")
    groups = [[n for n in networks if n.name.startswith(kind)] for kind in kinds]
    return [group for group in groups if group]


def _training_set(dataset: Dataset, held: set[str], unseen: set[Features]) -> Dataset:
    """The rows that have nothing to do with the held-out networks, nor with random ones."""
    rows = [
        row
        for row in dataset.rows
        if row.network not in held
        and not row.network.startswith("random")
        and _without_place(row.features) not in unseen
    ]
    return Dataset(dataset.path, dataset.device, rows)


def _without_place(kernel: Features) -> Features:
    """The kernel itself, wherever it runs."""
    return replace(kernel, round_bytes=0, reuse_bytes=0)


def _summary(
    dataset: Dataset,
    results: list[tuple[Network, int, list[Prediction]]],
    errors: list[tuple[Row, float]],
    covered: list[tuple[Row, bool]],
) -> dict[str, Any]:
    families: dict[str, Any] = {}
    for name in sorted({row.features.family for row, _ in errors}):
        own = [abs(error) for row, error in errors if row.features.family == name]
        inside = [is_in for row, is_in in covered if row.features.family == name]
        families[name] = {
            "kernels": len(own),
            "mape": statistics.mean(own),
            "coverage": statistics.mean(inside),
        }
    relative = {n.name: predicted / n.nanoseconds - 1 for n, predicted, _ in results}
    weights = [row.nanoseconds for row, _ in errors]
    return {
        "device": dataset.device,
        "rows": len(dataset.rows),
        "quiet_rows": sum(row.quiet for row in dataset.rows),
        "networks": [
            {
                "name": network.name,
                "measured_ms": network.nanoseconds / 1e6,
                "predicted_ms": predicted / 1e6,
                "error": relative[network.name],
                "out_of_range": sum(bool(p.out_of_range) for p in predictions),
                "kernels": len(predictions),
                "quiet": network.quiet,
            }
            for network, predicted, predictions in results
        ],
        "within_10_percent": statistics.mean(abs(e) <= 0.1 for e in relative.values()),
        "kernel_mape": statistics.mean(abs(error) for _, error in errors),
        "kernel_mape_by_time": sum(w * abs(e) for w, (_, e) in zip(weights, errors, strict=True))
        / sum(weights),
        "coverage": statistics.mean(inside for _, inside in covered),
        "families": families,
    }


def table(summary: dict[str, Any]) -> str:
    """The summary for people."""
    lines = ["| network | measured ms | predicted ms | error | out of range |", "|" + " --- |" * 5]
    for n in summary["networks"]:
        lines.append(
            f"| {n['name']} | {n['measured_ms']:.2f} | {n['predicted_ms']:.2f} | "
            f"{n['error']:+.1%} | {n['out_of_range']}/{n['kernels']} |"
        )
    lines += ["", "| family | kernels | MAPE | covered by 90 % intervals |", "|" + " --- |" * 4]
    for name, f in summary["families"].items():
        lines.append(f"| {name} | {f['kernels']} | {f['mape']:.1%} | {f['coverage']:.1%} |")
    lines += [
        "",
        f"{summary['rows']} rows; networks within 10 %: {summary['within_10_percent']:.0%}; "
        f"kernel MAPE {summary['kernel_mape']:.1%} (by time {summary['kernel_mape_by_time']:.1%}); "
        f"coverage {summary['coverage']:.1%}",
    ]
    return "\n".join(lines)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("step", choices=("measure", "evaluate"))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--target", nargs="+", default=["llvm"])
    parser.add_argument("--seconds", type=float, default=480, help="of samples, and of networks")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    def say(line: str) -> None:
        print(line, flush=True)

    processors, placeable = make_processors(options.target, 1)
    if options.step == "measure":
        for processor in placeable:
            measure_all(processor, processors[0], options.folder, options.seconds, say)
        measure(
            options.target,
            budget=options.seconds,
            folder=options.folder,
            cpu_threads=1,
            progress=say,
        )
        return
    start = time.monotonic()
    summaries = {}
    for processor in placeable:
        summaries[processor.name] = evaluate(options.folder, processor, processors[0])
        print(f"\n{processor.name}\n\n{table(summaries[processor.name])}\n", flush=True)
    print(f"{math.ceil(time.monotonic() - start)} s")
    if options.json:
        options.json.write_text(json.dumps(summaries, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
