"""Networks that others made: files that packages ship, and architectures with random weights.

```
python -m benchmarks.real_networks [names ...] [--json rows.json] [--seconds 10] [--mcpu haswell]
    [--precision bfloat16]
```
Answers are compared with ONNX Runtime's before times are shown: to compile with an empty cache,
and of an inference with one thread, by turns with ONNX Runtime and OpenVINO (told to compute in
float32, if it is installed), medians. With a precision, ours computes in it, OpenVINO as it comes,
and ours in float32 runs in turns too. The last row is the geometric mean of the ratios to the
better of them. A network is right, or
refused with the reason that `Network.refused` states; all else ends the program with an error.
`timm/NAME` is any network of timm.
Rows that the JSON file holds already are not measured again. `tests/test_real_networks.py`
runs the same list with small inputs.

The extra `networks` of this package brings the others; networks of missing packages are skipped, by
name.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime

import tvm_stretch as ts
from benchmarks.commands import Run, campaign, line, options, say
from benchmarks.harness import (
    LEAST,
    TOLERANCE,
    Model,
    compiled,
    difference,
    load,
    own_cpu,
    race,
)

if TYPE_CHECKING:
    import torch

Shape = tuple[int, ...]
ROUNDED = 0.03
"""Largest error where numbers are rounded to bfloat16 or float16."""


@dataclass(frozen=True)
class Network:
    """Where a network comes from: `build(True)` makes it for a small input, else the published."""

    packages: tuple[str, ...]
    build: Callable[[bool], Model]
    refused: str = ""
    """Words of the error that refuses it, empty if it is not refused."""
    tolerance: float = TOLERANCE

    @property
    def missing(self) -> str:
        """The missing package, or an empty text."""
        return " and ".join(p for p in self.packages if importlib.util.find_spec(p) is None)

    @property
    def is_exported(self) -> bool:
        """Whether torch makes it."""
        return "torch" in self.packages


def _shipped(
    package: str,
    path: str,
    published: Mapping[str, Shape],
    small: Mapping[str, Shape] | None = None,
    refused: str = "",
) -> Network:
    """A file of a package that need not be imported."""

    def build(quick: bool) -> Model:
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.submodule_search_locations is not None
        content = (Path(spec.submodule_search_locations[0]) / path).read_bytes()
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        kinds = {port.name: port.type for port in session.get_inputs()}
        rng, shapes = np.random.default_rng(0), (small if quick and small else published)
        return Model(content, {n: _values(rng, kinds[n], s) for n, s in shapes.items()})

    return Network((package,), build, refused)


def _values(rng: np.random.Generator, kind: str, shape: Shape) -> np.ndarray:
    if kind == "tensor(int32)":  # magika: bytes of a file
        return rng.integers(0, 256, shape, "int32")
    if kind == "tensor(int64)":  # silero-vad: its sampling rate
        return np.full(shape, 16000, "int64")
    return rng.standard_normal(shape, "float32")


def _exported(
    package: str,
    make: Callable[[int], torch.nn.Module],
    published: int,
    small: int,
    frames: Shape = (),
) -> Network:
    """An architecture with random weights, through torch.export and then torch.onnx.

    Args:
        frames: the number of frames of a video; nothing for images.
    """

    def build(quick: bool) -> Model:
        import torch

        import_torchvision()
        torch.manual_seed(0)
        size = small if quick else published
        net = make(size)
        x = torch.randn(2, 3, *frames, size, size)
        _settle(net, x)
        program = torch.export.export(net.eval(), (x[:1],))
        exported = torch.onnx.export(program, dynamo=True, verbose=False)
        assert exported is not None
        model = exported.model_proto
        inputs = {model.graph.input[0].name: x[:1].numpy()}
        return Model(model.SerializeToString(), inputs, program)

    return Network(tuple(dict.fromkeys(("torch", "onnxscript", "torchvision", package))), build)


def import_torchvision() -> None:
    """The published torchvision is built for CUDA: beside a torch without, its operators fail.

    No network here needs them, but its modules ask for the names of two.
    """
    import torch

    try:
        import torchvision  # noqa: F401
    except ModuleNotFoundError:
        return
    except RuntimeError:
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        signature = "(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor"
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", signature)


def unequal_weights(net: torch.nn.Module) -> None:
    """Give random values to parameters whose values are all equal.

    A layer scale of 1e-6 or a last scale of zero would hide whole branches of a new network, and
    equal scores of experts would leave the choice to chance.
    """
    for value in net.parameters():
        if value.numel() > 1 and value.min() == value.max():
            if value.min() == 0:
                value.data.normal_(0, 0.1)
            else:
                value.data.uniform_(0.5, 1.5)


def _settle(net: torch.nn.Module, x: torch.Tensor) -> None:
    """Make weights look trained: not all equal, with statistics that fit the activations."""
    import torch

    unequal_weights(net)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                module.momentum = 1.0
        net.train()(x)


def _ocr(name: str, file: str, published: Shape, small: Shape) -> tuple[str, Network]:
    path = f"models/{file}.onnx"
    shapes = {"x": published}, {"x": small}
    return f"pp-ocr {name}", _shipped("rapidocr_onnxruntime", path, *shapes)


def _silero(file: str, shapes: Mapping[str, Shape], refused: str = "") -> tuple[str, Network]:
    return file, _shipped("silero_vad", f"data/{file}.onnx", shapes, refused=refused)


def _torchvision(name: str, published: int, small: int, frames: Shape = ()) -> tuple[str, Network]:
    def make(size: int) -> torch.nn.Module:
        from torchvision import models

        if name.startswith("vit"):
            return models.get_model(name, weights=None, image_size=size)
        if name == "googlenet":
            return models.googlenet(weights=None, aux_logits=False, init_weights=False)
        if name.startswith("deeplab"):
            net = models.get_model(name, weights=None, weights_backbone=None)
            return _chosen(net, lambda result: result["out"])
        return models.get_model(name, weights=None)

    return name, _exported("torchvision", make, published, small, frames)


def _timm(
    name: str, published: int = 224, small: int = 64, img_size: bool = False
) -> tuple[str, Network]:
    def make(size: int) -> torch.nn.Module:
        import timm

        return timm.create_model(name, **({"img_size": size} if img_size else {}))

    return f"timm {name}", _exported("timm", make, published, small)


def any_timm(name: str) -> Network:
    """A network of timm at its own size."""
    import timm

    return _timm(name, timm.create_model(name).default_cfg["input_size"][-1])[1]


def _ultralytics(name: str) -> tuple[str, Network]:
    def make(size: int) -> torch.nn.Module:
        os.environ.setdefault("YOLO_OFFLINE", "true")  # it would look for news of itself
        from ultralytics.nn.tasks import DetectionModel

        net = DetectionModel(f"{name}.yaml", verbose=False)
        return _chosen(net, lambda result: result[0] if isinstance(result, tuple) else result)

    return name, _exported("ultralytics", make, 640, 64)


def _chosen(net: torch.nn.Module, choose: Callable[[Any], Any]) -> torch.nn.Module:
    """The network with the output that `choose` takes of its result."""
    import torch

    class Chosen(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return choose(self.net(x))

    return Chosen()


_VAD = {"input": (1, 576), "state": (2, 1, 128)}
_VAD_STEPS = {"input": (2, 576), "h": (1, 1, 128), "c": (1, 1, 128)}

NETWORKS: dict[str, Network] = dict(
    [
        _ocr("det", "ch_PP-OCRv4_det_infer", (1, 3, 640, 640), (1, 3, 64, 96)),
        _ocr("cls", "ch_ppocr_mobile_v2.0_cls_infer", (1, 3, 48, 192), (1, 3, 48, 192)),
        _ocr("rec", "ch_PP-OCRv4_rec_infer", (1, 3, 48, 320), (1, 3, 48, 64)),
        _silero("silero_vad", _VAD | {"sr": ()}, "condition"),
        _silero("silero_vad_16k_op15", _VAD | {"sr": ()}),
        _silero("silero_vad_half", _VAD),
        _silero("silero_vad_16k_sequence", _VAD_STEPS),
        ("magika", _shipped("magika", "models/standard_v3_3/model.onnx", {"bytes": (1, 2048)})),
        _ultralytics("yolov8n"),
        _ultralytics("yolo11n"),
        _torchvision("convnext_tiny", 224, 64),
        _torchvision("vit_b_16", 224, 32),
        _torchvision("swin_t", 224, 64),
        _torchvision("efficientnet_v2_s", 384, 64),
        _torchvision("deeplabv3_mobilenet_v3_large", 520, 64),
        _torchvision("deeplabv3_resnet50", 224, 64),
        _torchvision("densenet121", 224, 64),
        _torchvision("googlenet", 224, 64),
        _torchvision("shufflenet_v2_x1_0", 224, 64),
        _torchvision("r3d_18", 112, 32, frames=(8,)),
        _timm("mobilenetv4_conv_small"),
        _timm("ghostnet_100"),
        _timm("repvgg_a0"),
        _timm("lcnet_050"),
        _timm("regnety_002"),
        _timm("rexnet_100"),
        _timm("edgenext_xx_small", 256),
        _timm("mobilevit_xxs", 256),
        _timm("efficientvit_b0"),
        _timm("deit_tiny_patch16_224", small=32, img_size=True),
        _timm("levit_128s", small=224),
        _timm("pvt_v2_b0"),
    ]
)


def wrong_by(got: object, model: Model) -> float:
    """The `difference` of an answer; the right one is finite and not all zeros."""
    for want in model.expected:
        assert np.isfinite(want).all() and np.any(want)
    return difference(got, model.expected)


def measure_network(
    name: str, network: Network, seconds: float, target: Any, precision: str = "float32"
) -> dict[str, Any]:
    """A row of the table."""
    model = network.build(False)
    row: dict[str, Any] = {"input": list(next(iter(model.inputs.values())).shape)}
    begin = time.perf_counter()
    try:
        ours = compiled(model, [target], precision=precision)
    except ts.StretchError as refusal:
        if not network.refused or network.refused not in str(refusal):
            raise
        return row | {"refused": str(refusal)}
    row["compile_s"] = time.perf_counter() - begin
    rounded = precision != "float32"
    runs: dict[str, Run] = {"ours": lambda: ours(**model.inputs), "onnxruntime": load("ort", model)}
    if rounded:
        plain = compiled(model, [target])
        runs["float32"] = lambda: plain(**model.inputs)
    try:
        if importlib.util.find_spec("openvino") is not None:
            runs["openvino"] = load("openvino-own" if rounded else "openvino", model)
    except Exception as failure:  # it does not take the network
        say(f"OpenVINO: {str(failure).strip().splitlines()[-1]}")
    wrong_by(model.expected, model)  # which has to be an answer that can be compared
    most, judged = ROUNDED if rounded else network.tolerance, ["ours"]
    errors, samples = race(name, runs, model.expected, most, LEAST, judged, seconds=seconds)
    row |= {f"{engine}_ms": samples.median(engine) for engine in runs}
    row |= {f"ratio_{one}": samples.ratio("ours", one) for one in runs if one != "ours"}
    kernels = sorted(ours.profile().kernels, key=lambda kernel: -kernel.share)[:5]
    row["slowest"] = [f"{k.share:.0%} {k.name[:60]} {k.kernel[:40]} {k.output}" for k in kernels]
    return row | {"error": errors["ours"]}


def main(arguments: Sequence[str] | None = None, every: Mapping[str, Network] = NETWORKS) -> int:
    """Prints the table; fails if an answer is wrong."""
    args = options(
        *(__doc__, arguments, ("networks*", tuple(every)), ("--json", Path)),
        ("--seconds", 10.0, "of measuring, for each network"),
        ("--mcpu", "", "ours for another core; see `only_avx2.py` for the peer"),
        ("--precision", "float32", "ours, as in compile()"),
    )
    asked = {name: any_timm(name[5:]) for name in args.networks if name.startswith("timm/")}
    every = {**every, **asked}
    if unknown := [name for name in args.networks if name not in every]:
        sys.exit(f"expected some of {', '.join(every)}, got {unknown[0]!r}; correct the name")

    def measure(name: str) -> dict[str, Any] | None:
        if missing := every[name].missing:
            say(f"{name}: needs {missing}: pip install -e '.[networks]'")
            return None
        with tempfile.TemporaryDirectory() as cache:
            os.environ["TVM_STRETCH_CACHE_DIR"] = cache
            how = args.seconds, own_cpu(args.mcpu), args.precision
            return measure_network(name, every[name], *how)

    heads = "network", "input", "compile s", "ONNX Runtime ms", "OpenVINO ms", "ours ms", "ratios"
    rows = campaign(args.networks, measure, heads, _cells, args.json)
    worst = [max(ratios) for ratios in map(_ratios, rows.values()) if ratios]
    if len(worst) > 1:
        mean = statistics.geometric_mean(worst)
        print(line(("geometric mean, over the better one", *[""] * 5, mean)))
    return 0


def _ratios(row: Mapping[str, Any]) -> list[float]:
    """Our time over ONNX Runtime's and OpenVINO's."""
    return [row[name] for name in ("ratio_onnxruntime", "ratio_openvino") if name in row]


def _cells(row: Mapping[str, Any]) -> Sequence[object]:
    size = "×".join(map(str, row["input"]))
    if "refused" in row:
        return size, f"refused: {row['refused']}", *[""] * 4
    times = [row.get(f"{engine}_ms", "") for engine in ("onnxruntime", "openvino", "ours")]
    unrounded = f", {row['ratio_float32']:.2f} of float32" if "ratio_float32" in row else ""
    ratios = ", ".join(f"{ratio:.2f}" for ratio in _ratios(row)) + unrounded
    return size, f"{row['compile_s']:.0f}", *times, ratios


if __name__ == "__main__":
    sys.exit(main())
