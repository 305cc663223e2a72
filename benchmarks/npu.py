"""Phones with Qualcomm's tensor unit (HTP): their profiles, and the plans that these predict.

python -m benchmarks.npu profiles [folder]     the profiles of three chips, and their residuals
python -m benchmarks.npu plans                 CPU, GPU and NPU alone and together, six networks

No such phone was here. `LATENCY_MS` are facts that Qualcomm publishes: latencies of whole networks
in 8 bits on the HTP, from `perf.yaml` of its AI Hub Models (github.com/quic/ai-hub-models, 12
February 2026, w8a8, TFLite with the QNN delegate). The NPU of a profile is fitted to them. It
publishes none for CPU and GPU; theirs are those of the Snapdragon 855, which were fitted to
measurements, times `_ASSUMED`: ratios of clocks, instructions and peaks in data sheets.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import onnx

import tvm_stretch as ts
from benchmarks.commands import options, show
from tutorials import zoo
from tutorials.zoo import regnet, resnet
from tutorials.zoo.builder import Builder, Tensor
from tvm_stretch.plan.cost.profile import ProcessorProfile, Profile, Transfer
from tvm_stretch.plan.cost.profile_file import load_profile, profile_text
from tvm_stretch.plan.measuring import works_of_networks
from tvm_stretch.plan.measuring.calibrate import Calibration, Latency, calibrate_profile

CHIPS = ("snapdragon-8-gen-1", "snapdragon-8-gen-2", "snapdragon-8-gen-3")
ARCHITECTURES = ("69", "73", "75")
"""Versions of the HTP."""

LATENCY_MS = {
    "resnet18": (0.609, 0.391, 0.293),
    "resnet50": (1.059, 0.767, 0.576),
    "resnet101": (1.661, 1.141, 0.867),
    "resnext50": (1.276, 0.915, 0.674),
    "regnetx_3_2gf": (1.134, 0.722, 0.536),
    "mobilenet_v2": (0.546, 0.408, 0.289),
    "squeezenet1_1": (0.264, 0.200, 0.150),
    "inception_v3": (0.945, 0.644, 0.484),
    "shufflenet_v2": (0.515, 0.450, 0.311),
}
"""By network, for each of `CHIPS` (QCS8450 and QCS8550 stand for the first two, a Galaxy S24)."""

_Emit = Callable[[Builder, Tensor, int], Tensor]


def _resnext_block(b: Builder, x: Tensor, width: int, stride: int) -> Tensor:
    """A bottleneck whose middle has 32 groups, with four channels a group in the first stage."""
    y = b.conv_bn(x, 2 * width, act="relu")
    y = b.conv_bn(y, 2 * width, 3, stride, groups=32, act="relu")
    y = b.conv_bn(y, 4 * width, scale=0.5)
    fits = stride == 1 and x.channels == 4 * width
    return b.add(y, x if fits else b.conv_bn(x, 4 * width, 1, stride), act="relu")


_MORE: dict[str, _Emit] = {
    "resnet101": partial(resnet._resnet, block=resnet._bottleneck, depths=(3, 4, 23, 3)),
    "resnext50": partial(resnet._resnet, block=_resnext_block, depths=(3, 4, 6, 3)),
    "regnetx_3_2gf": partial(regnet._regnet, w_0=88, w_a=26.31, w_m=2.25, depth=25, group=48),
}
"""Networks that the zoo lacks."""


def built(name: str) -> onnx.ModelProto:
    """A network of `LATENCY_MS`."""
    if name not in _MORE:
        return zoo.build(name, size=224)
    builder = Builder(0)
    x = builder.input("x", (1, 3, 224, 224))
    return builder.finish(name, _MORE[name](builder, x, 1000))


_BASE = "snapdragon-855"
_ASSUMED = {
    "cpu": ((2.1, 1.5), (2.25, 1.97), (2.3, 2.25)),
    "opencl": ((2.2, 1.5), (3.0, 1.97), (3.6, 2.25)),
}
"""Arithmetic and bandwidth of memory, times those of the Snapdragon 855."""

_STIFFNESS = 0.05
"""Half of the usual one: a tensor unit's ratios are far from those of CPUs, GPUs and vectors."""

_REGION_US, _HAND_OVER_US = 60.0, 20.0
"""Start of a graph, a remote call: with this start, networks that are left out are 9 to 12 % off on
the three chips, without 14 % (10 to 13 % with 40, 9 to 13 with 80). Hand-overs are assumed."""

TEAMS = (("npu",), ("cpu",), ("opencl",), ("cpu", "opencl"), ("cpu", "opencl", "npu"))
PLANNED = (
    *("resnet18", "resnet50", "regnetx_1_6gf", "regnetx_4gf", "efficientnet_lite4"),
    "mobilenet_v2",
)


def faster(processor: ProcessorProfile, arithmetic: float, memory: float) -> ProcessorProfile:
    """A processor with other speeds."""
    speeds = {name: arithmetic * n for name, n in processor.multiply_adds_per_ns.items()}
    return replace(
        processor,
        multiply_adds_per_ns=MappingProxyType(speeds),
        activation_bytes_per_ns=memory * processor.activation_bytes_per_ns,
        weight_bytes_per_ns=memory * processor.weight_bytes_per_ns,
        kernel_us=processor.kernel_us / arithmetic,
        group_us=processor.group_us / arithmetic,
        watts=None,
    )


def assumed(place: int) -> Profile:
    """The profile of a chip before its NPU is fitted, which is then that of a fast DSP."""
    base, chip = load_profile(_BASE), CHIPS[place]
    made = {
        name: faster(base.processor(name), *_ASSUMED[name][place]) for name in ("cpu", "opencl")
    }
    target = {"kind": "npu", "htp_arch": ARCHITECTURES[place], "device": chip}
    vectors = base.processor("hexagon")
    made["npu"] = replace(vectors, name="npu", target=target, watts=None, region_us=_REGION_US)
    kept = [t for t in base.transfers if "hexagon" not in (t.sender, t.receiver)]
    pairs = (("cpu", "npu"), ("npu", "cpu"))
    kept += [Transfer(*pair, _HAND_OVER_US, bytes_per_ns=20.0) for pair in pairs]
    source = (
        "NPU: latencies of nine networks that Qualcomm publishes (AI Hub Models, w8a8); CPU and "
        "GPU: a Snapdragon 855 times ratios of data sheets; nothing was measured by us"
    )
    return Profile(chip, source, MappingProxyType(made), tuple(kept), base.together)


def calibration(place: int) -> Calibration:
    """The profile of a chip."""
    like = assumed(place)
    networks = {name: built(name) for name in LATENCY_MS}
    works = works_of_networks(networks, like, list(networks))
    rows = [Latency(name, "npu", ms[place]) for name, ms in LATENCY_MS.items()]
    return calibrate_profile(rows, works, like, _STIFFNESS)


def plans(chip: str) -> Iterator[Sequence[str]]:
    """Rows of predicted latencies."""
    for name in PLANNED:
        network = zoo.build(name, size=224)  # planned as it will be in 8 bits
        found = [ts.plan_for(network, list(team), device=chip) for team in TEAMS]
        cells = [f"{plan.predicted_ns / 1e6:.2f} ms" for plan in found]
        owners = Counter(region.processor for region in found[-1].regions)
        yield name, *cells, " ".join(f"{key}: {count}" for key, count in owners.items())


def profiles(chip: str, folder: Path) -> None:
    """The profile of a chip, printed and written."""
    made = calibration(CHIPS.index(chip))
    print(made)
    (folder / f"{chip}.toml").write_text(profile_text(made.profile))


def main() -> None:
    """See the module docstring."""
    args = options(
        *(__doc__, None, ("what", str), ("folder?", Path(tempfile.gettempdir()))),
        what=("profiles", "plans"),
    )
    for chip in CHIPS:
        print(f"\n{chip}\n")
        if args.what == "profiles":
            profiles(chip, args.folder)
        else:
            show(("network", *map("+".join, TEAMS), "regions"), plans(chip))


if __name__ == "__main__":
    main()
