"""Potentials & Pitfalls, figure 3: operators that processors refuse, by TFLite's published lists.

A network's operators become those of TFLite: a bias and an activation belong to their layer, if
TFLite can fuse it. What a delegate's list lacks goes to the CPU. A grouped convolution of a branch
is many small ones between a split and a concat, as NN-Stretch ran it. The second table counts, of
all operators in branches for GPU and DSP, those that fall back. The paper counts about 48 % for
NN-Stretch's ResNet-50 on CPU and GPU; the lists alone do not explain that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import tvm_stretch as ts
from benchmarks.commands import Table, options
from tutorials import zoo
from tvm_stretch.network.operators import Operator, Operators
from tvm_stretch.passes.duplicate_and_scale import processors_of_branches
from tvm_stretch.read import load_network

GPU = frozenset(
    [
        "ADD", "AVERAGE_POOL_2D", "CONCATENATION", "CONV_2D", "DEPTHWISE_CONV_2D", "EXP",
        "FULLY_CONNECTED", "LOGICAL_AND", "LOGISTIC", "LSTM", "MAX_POOL_2D", "MAXIMUM", "MINIMUM",
        "MUL", "PAD", "PRELU", "RELU", "RELU6", "RESHAPE", "RESIZE_BILINEAR", "SOFTMAX",
        "STRIDED_SLICE", "SUB", "TRANSPOSE_CONV",
    ]
)  # fmt: skip
"""TensorFlow Lite's guide, "GPU delegates", of 2019 to 2023."""

HEXAGON = frozenset(
    [
        "ADD", "ARG_MAX", "ARG_MIN", "AVERAGE_POOL_2D", "CONCATENATION", "CONV_2D",
        "DEPTH_TO_SPACE", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "HARD_SWISH", "L2_NORMALIZATION",
        "LOGISTIC", "MAX_POOL_2D", "MAXIMUM", "MEAN", "MINIMUM", "MIRROR_PAD", "MUL", "NEG", "PACK",
        "PAD", "RELU", "RELU6", "RESHAPE", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "RSQRT",
        "SLICE", "SOFTMAX", "SPACE_TO_DEPTH", "SPLIT", "SQUARED_DIFFERENCE", "STRIDED_SLICE", "SUB",
        "TANH", "TRANSPOSE", "TRANSPOSE_CONV",
    ]
)  # fmt: skip
"""The page of TensorFlow Lite's Hexagon delegate, for networks of 8 bits."""

NETWORKS = ("resnet50", "mobilenet_v1", "vgg16", "yolov2", "posenet", "retinaface",
            "fast_style_transfer", "shufflenet_v2")  # fmt: skip
"""The paper's, as far as it names them, and two whose operators are less usual."""

BRANCHED = ("resnet50", "regnetx_1_6gf", "mobilenet_v1", "vgg16")
_PHONE = "snapdragon-855"
_TEAMS = (("cpu", "opencl"), ("cpu", "hexagon"), ("cpu", "opencl", "hexagon"))
_LISTS = {"opencl": GPU, "hexagon": HEXAGON}

_NAMES = {
    "nn.max_pool2d": "MAX_POOL_2D",
    "nn.avg_pool2d": "AVERAGE_POOL_2D",
    "mean": "MEAN",
    "reshape": "RESHAPE",
    "permute_dims": "TRANSPOSE",
    "concat": "CONCATENATION",
    "split": "SPLIT",
    "take": "GATHER",
    "matmul": "FULLY_CONNECTED",
    "subtract": "SUB",
    "multiply": "MUL",
    "divide": "DIV",
    "sqrt": "SQRT",
    "nn.leakyrelu": "LEAKY_RELU",
    "nn.softmax": "SOFTMAX",
    "sigmoid": "LOGISTIC",
}
_PART_OF_ANOTHER = frozenset(["nn.relu", "clip", "TupleGetItem"])  # RELU and RELU6 are fused


def tflite_operators(name: str) -> Counter[str]:
    """How often a network has each operator of TFLite."""
    main = load_network(zoo.build(name))["main"]
    return Counter(filter(None, map(_name, Operators(main))))


def _name(operator: Operator) -> str:
    if operator.kind == "nn.conv2d":
        return "DEPTHWISE_CONV_2D" if operator.groups > 1 else "CONV_2D"
    if operator.kind == "add":
        return "ADD" if len(operator.inputs) > 1 else ""
    return (
        ""
        if operator.kind in _PART_OF_ANOTHER
        else _NAMES.get(operator.kind, operator.kind.upper())
    )


def fallen_back(name: str, team: Sequence[str]) -> tuple[int, int] | str:
    """Operators in the branches for GPU and DSP of our design: those refused, and all."""
    try:
        mod = ts.stretch(zoo.build(name), team, device=_PHONE).module()
    except ts.UnsupportedError as error:
        return str(error).partition(";")[0]
    branched = load_network(mod)
    owner = processors_of_branches(branched)
    refused, count = 0, 0
    for operator in Operators(branched["main"]):
        known = _LISTS.get(owner.get(operator.name, ""))
        for kind in _as_run(operator) if known is not None else ():
            count += 1
            refused += kind not in (known or ())
    return refused, count


def _as_run(operator: Operator) -> Iterator[str]:
    """The operators of TFLite that NN-Stretch's runs have for one."""
    is_conv = operator.kind == "nn.conv2d"
    if is_conv and operator.groups > 1 and operator.groups < operator.arg_shapes[0][1]:
        yield from ("SPLIT", *["CONV_2D"] * operator.groups, "CONCATENATION")
    elif name := _name(operator):
        yield name


def main() -> None:
    """Print the share of refused operators, and which they are."""
    options(__doc__, None)
    table = Table("network", "operators", "GPU refuses", "DSP refuses", "refused by the GPU")
    for name in NETWORKS:
        found = tflite_operators(name)
        shares = [
            sum(count for kind, count in found.items() if kind not in known) / found.total()
            for known in (GPU, HEXAGON)
        ]
        refused = ", ".join(f"{n} {kind}" for kind, n in found.items() if kind not in GPU)
        table.row(name, found.total(), *(f"{share:.0%}" for share in shares), refused)
    print()
    branched = Table("branched", *("+".join(team) for team in _TEAMS))
    for name in BRANCHED:
        cells = [fallen_back(name, team) for team in _TEAMS]
        shown = (c if isinstance(c, str) else f"{c[0] / c[1]:.0%} of {c[1]}" for c in cells)
        branched.row(name, *shown)


if __name__ == "__main__":
    main()
