"""Two models that share processors: as a group, and one after the other.

    python -m benchmarks.groups [resnet18 mobilenet_v2] [--size 128] [--rates 10 10] [--rounds 5]

Both models have a plan for CPU and OpenCL together and one for each alone. One after the other,
each takes the plan that was the fastest when it was compiled, mostly on both processors; the
operating system's scheduling is two threads that call the models without a group. The three take
turns, with the same runs of both models, in the ratio of `--rates`. The prediction is of runs that
do not slow each other down, and do not wait for each other at the end. A deadline is missed if an
answer comes later than twice the member's own run and the slowest run of any member together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

import tvm_stretch as ts
from benchmarks.commands import options
from tutorials import zoo

_TARGETS = ["llvm", "opencl"]


def one_after_the_other(models: Sequence[ts.Model], counts: Sequence[int], inputs: list) -> None:
    """All runs on the calling thread."""
    for model, count, x in zip(models, counts, inputs, strict=True):
        for _ in range(count):
            model(x)


def by_threads(models: Sequence[ts.Model], counts: Sequence[int], inputs: list) -> None:
    """A thread for each model."""

    def work(model: ts.Model, count: int, x: np.ndarray) -> None:
        for _ in range(count):
            model(x)

    threads = [
        threading.Thread(target=work, args=given)
        for given in zip(models, counts, inputs, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_a_group(group: ts.Group, counts: Sequence[int], inputs: list) -> None:
    """All runs submitted at once, in turns."""
    futures = [
        group.submit(index, inputs[index])
        for step in range(max(counts))
        for index in range(len(counts))
        if step < counts[index]
    ]
    for future in futures:
        future.result()


def seconds(action: Callable[[], None]) -> float:
    """How long it takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def missed(group: ts.Group, inputs: list, count: int) -> tuple[int, int]:
    """Deadlines missed of runs that come at random times, and the number of runs."""
    members = list(group.members.values())
    slack = max(member.way.seconds for member in members)
    allowed = [2 * (member.way.seconds + slack) for member in members]
    generator, late, futures = np.random.default_rng(0), [], []
    for _ in range(count):
        index = int(generator.integers(len(members)))
        begin = time.perf_counter()

        def done(_: object, begin: float = begin, index: int = index) -> None:
            late.append(time.perf_counter() - begin > allowed[index])

        future = group.submit(index, inputs[index])
        future.add_done_callback(done)
        futures.append(future)
        time.sleep(float(generator.exponential(2 * slack)))
    for future in futures:
        future.result()
    return sum(late), count


def main() -> None:
    """Run from the command line."""
    arguments = options(
        __doc__,
        None,
        ("networks*", ["resnet18", "mobilenet_v2"]),
        ("--size", 128),
        ("--rates*", int, "runs of each model in a round"),
        ("--rounds", 5),
    )
    networks = [zoo.build(name, size=arguments.size) for name in arguments.networks]
    models = [ts.compile(network, _TARGETS, plans=True) for network in networks]
    counts = arguments.rates or [10] * len(models)
    inputs = [np.zeros(model.inputs[0].shape, "float32") for model in models]
    for model in models:
        model.use(next(iter(model.plans)))
    group = ts.Group(dict(zip(arguments.networks, models, strict=True)), rates=counts)
    print(group)
    ways: dict[str, Callable[[], None]] = {
        "one after the other": lambda: one_after_the_other(models, counts, inputs),
        "two threads": lambda: by_threads(models, counts, inputs),
        "group": lambda: in_a_group(group, counts, inputs),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(arguments.rounds):
        for name, way in ways.items():
            taken[name].append(seconds(way))
    print("\n| | runs in a second | times one after the other |\n| --- | --- | --- |")
    for name, rounds in taken.items():
        gain = median(a / b for a, b in zip(taken["one after the other"], rounds, strict=True))
        print(f"| {name} | {sum(counts) / median(rounds):.1f} | {gain:.2f} |")
    alone = sum(
        member.rate * min(way.seconds for way in member.ways) for member in group.members.values()
    )
    print(f"\npredicted for the group: {alone / max(group.load.values()):.2f}")
    late, count = missed(group, inputs, 40)
    print(f"\n{late} of {count} deadlines missed")
    group.close()


if __name__ == "__main__":
    main()
