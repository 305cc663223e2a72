"""What the papers show, and the command that shows ours.

`trained` ones are accuracies of small networks trained here, beside predicted latencies;
`measured` figures come from this machine's clock, `emulated` ones from counted instructions,
`predicted` ones from the profile of a phone, `counted` ones from networks and plans alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

PAPERS = {
    "nn-stretch": "NN-Stretch (Wei et al., MobiSys 2023)",
    "hope": "HOPE (heuristics and integer programs for operators on heterogeneous processors)",
    "pitfalls": "Potentials and Pitfalls of inference on heterogeneous mobile processors",
}


@dataclass(frozen=True)
class Part:
    """A table or figure.

    Attributes:
        paper: a key of `PAPERS`.
        number: such as ``table 2``.
        shows: what it shows.
        theirs: the figures that the paper's text or table states.
        how: ``measured``, ``trained``, ``emulated``, ``predicted`` or ``counted``; empty if there
            is none.
        command: arguments after ``python -m``; empty if ours needs what software cannot give.
        lacks: the thing that is missing; empty if ours is complete.
        minutes: of a command, measured on two cores of a server that did much other work.
    """

    paper: str
    number: str
    shows: str
    theirs: str
    how: str = ""
    command: tuple[str, ...] = ()
    lacks: str = ""
    minutes: int = 0

    @property
    def key(self) -> str:
        """The name of its file."""
        return f"{self.paper}.{self.number.replace(' ', '')}"


def _part(
    paper: str, number: str, shows: str, theirs: str, how: str, *command: str, **more: int
) -> Part:
    return Part(paper, number, shows, theirs, how, command, minutes=more.get("minutes", 1))


def _absent(paper: str, number: str, shows: str, theirs: str, lacks: str) -> Part:
    return Part(paper, number, shows, theirs, lacks=lacks)


DRAWINGS = {
    "nn-stretch": ("figure 1", "figure 2", "figure 4", "figure 5", "figure 6", "table 5"),
    "hope": ("figure 1", "figure 2", "figure 3"),
    "pitfalls": ("figure 1", "table 1"),
}
"""What shows an idea, a part of a network or a list of phones, and no result."""

_PHONE = "a phone: a person must hold one, with its GPU, its DSP and a meter"

PARTS: Sequence[Part] = (
    _part(
        "nn-stretch",
        "table 1",
        "stages of RegNetX-4GF",
        "4 stages of 2, 5, 14, 2 blocks",
        "counted",
        "benchmarks.phone_figures",
        "stages",
    ),
    _part(
        "nn-stretch",
        "figure 3",
        "layers of MobileNetV1 on CPU and GPU, and a hand-over",
        "handing over takes about 1 ms, more than most layers",
        "predicted",
        "benchmarks.phone_figures",
        "layers",
    ),
    _part(
        "nn-stretch",
        "table 2",
        "designs, and what each rule leaves",
        "more than 10^50 designs; the rules leave about 20",
        "counted",
        "benchmarks.stretched",
        "space",
        minutes=6,
    ),
    _part(
        "nn-stretch",
        "table 3",
        "accuracy and latency by the number of meeting points",
        "ResNet-56, CIFAR-100: from 70.3 %, 13.2 ms with one to 72.5 %, 17.9 ms with nine",
        "trained",
        "benchmarks.papers.designs",
        "meetings",
        minutes=10,
    ),
    _part(
        "nn-stretch",
        "figure 7",
        "speed of a 3x3 convolution on the GPU by its channels",
        "speed grows with the channels",
        "predicted",
        "benchmarks.phone_figures",
        "channels",
    ),
    _part(
        "nn-stretch",
        "figure 8",
        "branches for a stage of EfficientNet",
        "7 blocks of 176 channels: 6 of 136 on the CPU, 4 of 160 on the DSP",
        "predicted",
        "benchmarks.stretched",
        "stage",
    ),
    _part(
        "nn-stretch",
        "table 4",
        "accuracy at low scaling ratios",
        "ShuffleNetV2, CIFAR-100: shallow or narrow branches lose 1.3 and 2.4 points",
        "trained",
        "benchmarks.papers.designs",
        "bounds",
        minutes=10,
    ),
    _part(
        "nn-stretch",
        "table 6",
        "multiply-adds and parameters of the networks",
        "ResNet-34 3.7 G, 21.8 M; ResNet-50 4.1 G, 25.6 M; RegNetX-4GF 4.0 G, 20.6 M",
        "counted",
        "benchmarks.papers.table6",
    ),
    _part(
        "nn-stretch",
        "table 7",
        "accuracy of stretched networks, on drawn shapes",
        "ImageNet: at most 0.6 points lost",
        "trained",
        "benchmarks.accuracy",
        "--folder",
        "build/papers/accuracy",
        "--tasks",
        "shapes",
        "--networks",
        "resnet",
        "--seeds",
        "4",
        minutes=10,
    ),
    _part(
        "nn-stretch",
        "figure 9",
        "latency on one processor and on several",
        "up to 2.2 times as fast as one processor",
        "predicted",
        "benchmarks.stretched",
        "latency",
    ),
    _part(
        "nn-stretch",
        "figure 10",
        "power and energy",
        "CPU 5.1 to 6.5 W, DSP 1.2 to 2.0 W; CPU, GPU and DSP need 56.3 % less energy than the CPU",
        "predicted",
        "benchmarks.twin",
        "energy",
    ),
    _part(
        "nn-stretch",
        "figure 11",
        "beside CoDL on CPU and GPU",
        "up to 1.6 times as fast as CoDL",
        "measured",
        "benchmarks.carried_out",
        "resnet18",
        "--size",
        "128",
        minutes=5,
    ),
    _part(
        "nn-stretch",
        "table 8",
        "branches without scaling",
        "ResNet-50, ImageNet: 78.2 %, the original 76.7 %",
        "trained",
        "benchmarks.papers.designs",
        "copies",
        minutes=4,
    ),
    _part(
        "nn-stretch",
        "table 9",
        "depth, width or both",
        "ResNet-50, ImageNet: 76.2 % and 1.5 times as fast with both",
        "trained",
        "benchmarks.papers.designs",
        "scaling",
        minutes=6,
    ),
    _part(
        "nn-stretch",
        "figure 12",
        "latency over capacity",
        "a front above the original network",
        "predicted",
        "benchmarks.stretched",
        "front",
        "resnet50",
    ),
    _part(
        "nn-stretch",
        "figure 13",
        "latency while another program needs a processor",
        "changes to the free processors",
        "measured",
        "benchmarks.adaptation",
        "resnet18",
        "--size",
        "128",
        minutes=6,
    ),
    _part(
        "hope",
        "figure 4",
        "schedulers on seven networks",
        "HOPE's plans are faster than MOSAIC's and StarPU's",
        "counted",
        "benchmarks.schedulers",
        "inception_v3",
        "squeezenet1_0",
        "--profiles",
        "1:3",
        minutes=2,
    ),
    _part(
        "hope",
        "figure 5",
        "schedulers at three clocks of the CPU",
        "HOPE:LP stays ahead: by 17.5 to 22.1 % of MOSAIC, 9.3 to 10.8 % of StarPU",
        "predicted",
        "benchmarks.papers.clocks",
        minutes=2,
    ),
    _part(
        "hope",
        "figure 6",
        "beside µLayer",
        "µLayer pays for meetings after every layer",
        "measured",
        "benchmarks.carried_out",
        "squeezenet1_0",
        minutes=5,
    ),
    _part(
        "hope",
        "figure 7",
        "big and little cores, without a GPU",
        "HOPE:LP's plans take 0 to 15.7 % less time than StarPU's",
        "measured",
        "benchmarks.papers.clusters",
        minutes=12,
    ),
    _part(
        "hope",
        "ablations",
        "without tensor caching or node merging; other N_T, ε and K",
        "the text names N_T = 12, ε = 0.2, K = 4 for two processors, and no figures",
        "counted",
        "benchmarks.papers.ablations",
        minutes=10,
    ),
    _absent(
        "pitfalls",
        "figure 2",
        "six engines on four phones",
        "no strategy is best everywhere",
        _PHONE,
    ),
    _part(
        "pitfalls",
        "figure 3",
        "operators that processors refuse, by TFLite's lists",
        "about 48 % of ResNet-50's in CPU and GPU, with those that branches add",
        "counted",
        "benchmarks.papers.figure3",
        minutes=2,
    ),
    _part(
        "pitfalls",
        "table 2",
        "levels of optimisation, each alone and combined",
        "pruning, fusion, memory plan and CoDL together: 103 of 213 ms; CoDL alone 189",
        "measured",
        "benchmarks.papers.table2",
        minutes=20,
    ),
    _part(
        "pitfalls",
        "figure 4",
        "plans while other programs run",
        "no granularity is always best",
        "measured",
        "benchmarks.papers.figure4",
        "squeezenet1_0",
        minutes=5,
    ),
    _part(
        "pitfalls",
        "table 3",
        "errors of predictions while resources change",
        "2 to 126 % of the latency; nothing corrects them",
        "measured",
        "benchmarks.papers.table3",
        minutes=6,
    ),
    _part(
        "pitfalls",
        "figure 5",
        "frames dropped by an app that draws beside a network",
        "more than 90 % beside Mace on the GPU; fewer where the CPU takes a part",
        "measured",
        "benchmarks.papers.figure5",
        minutes=4,
    ),
    _part(
        "pitfalls",
        "table 4",
        "frames and layers used again",
        "6.6 % less latency for 4.1 % of VMAF, 13.6 % for 14.3 %",
        "measured",
        "benchmarks.streams",
        minutes=9,
    ),
)


def parts(paper: str = "", kind: str = "", number: str = "") -> Iterator[Part]:
    """The parts of a paper, its tables or figures alone, or one of them, or all."""
    for part in PARTS:
        own = (part.paper, *part.number.partition(" ")[::2])
        if all(word in ("", known) for word, known in zip((paper, kind, number), own, strict=True)):
            yield part
