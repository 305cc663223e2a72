"""Figures of NN-Stretch that need no stretching, beside our results and predictions.

```
python -m benchmarks.phone_figures stages      table 1: stages of RegNetX-4GF, found in the network
python -m benchmarks.phone_figures layers      figure 3b: MobileNetV1 layer by layer, on CPU and GPU
python -m benchmarks.phone_figures channels    figure 7: a 3x3 convolution on the GPU, ever wider
```
The last two are predicted by the twin of a Snapdragon 855; the paper's figures have no numbers in
its text but that handing over takes about 1 ms, more than most layers.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from math import prod

import tvm

from benchmarks.published_designs import round_trips_ms, work_of_convolution, work_of_group
from tutorials import zoo
from tvm_stretch.network.operator_graph import OperatorGraph
from tvm_stretch.network.properties.repeated_blocks import detect_stages
from tvm_stretch.plan.cost.profile import Profile
from tvm_stretch.plan.cost.profile_file import load_profile
from tvm_stretch.read import load_network

DEVICE = "snapdragon-855"

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


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("figure", choices=("stages", "layers", "channels"))
    figure = parser.parse_args().figure
    profile = load_profile(DEVICE)
    if figure == "stages":
        found = stages(load_network(zoo.build("regnetx_4gf", size=224)))
        print("| stage | table 1 | found |\n| --- | --- | --- |")
        for number, (theirs, ours) in enumerate(zip(TABLE_1, found, strict=True), start=1):
            print(f"| {number} | {theirs[0]}², {theirs[1]} blocks | {ours[0]}², {ours[1]} blocks |")
    elif figure == "layers":
        print("| layer and its values | CPU ms | GPU ms | handing over, ms |\n|" + " --- |" * 4)
        rows = list(layers(load_network(zoo.build("mobilenet_v1")), profile))
        for name, *times in rows:
            print(f"| {name} | {' | '.join(f'{ms:.2f}' for ms in times)} |")
        longer = sum(over > min(cpu, gpu) for _, cpu, gpu, over in rows)
        print(f"\nhanding over takes longer than {longer} of {len(rows)} layers")
    else:
        print("| channels | GFLOP/s on the GPU |\n| --- | --- |")
        for width, speed in channels(profile):
            print(f"| {width} | {speed:.0f} |")


if __name__ == "__main__":
    main()
