"""What the readers of pages have before they type in the code: networks, inputs, files, phones.

Networks have the names of the pages and are small. A page of `READERS` has more than `a_network`.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import torch
import tvm
import tvm_ffi
from helpers import small_decoder, tflite_models
from helpers.gguf_files import LETTERS, write_model
from helpers.onnx_models import Net
from helpers.page_code import Reader
from helpers.quantised_networks import IMAGES, residual
from helpers.rpc_processes import Phone, Tracker
from helpers.scripted_adb import PIXEL, ScriptedAdb
from onnx import TensorProto, helper, numpy_helper

import tvm_stretch as ts
from tutorials.zoo.builder import Builder
from tvm_stretch.api.phone import clean_up
from tvm_stretch.phone import fleet
from tvm_stretch.plan.plan import Plan
from tvm_stretch.run.autoload import find_file

_DICE = np.random.default_rng(0)


def _image(size: int = 32) -> np.ndarray:
    return _DICE.standard_normal((1, 3, size, size), dtype="float32")


def a_network(reader: Reader) -> None:
    """Small networks under the names of the pages, and images."""
    for name in ("net", "resnet50", "resnet18", "squeezenet", "detector", "classifier"):
        net = Net()
        x = net.input("x" if name == "net" else "input", (1, 3, 32, 32))
        for _ in range(2):
            x = net.op("Relu", net.conv(x, 16, (3, 3), pads=[1] * 4))
        onnx.save(net.model(net.op("Flatten", net.op("GlobalAveragePool", x))), f"{name}.onnx")
    image = _image()
    np.save("picture.npy", image)
    np.save("images.npy", np.concatenate([image] * 4))
    network = onnx.load("net.onnx")
    reader.names |= {"ts": ts, "np": np, "x": image, "images": [image] * 4, "network": network}


def integers(reader: Reader) -> None:
    """A network of 8 bits."""
    a_network(reader)
    network = ts.quantize(residual(), [image[None] for image in IMAGES])
    reader.names["integer_network"] = network
    Plan(("hexagon", "opencl", "cpu"), ()).write("plan.json")


def _renamed(network: onnx.ModelProto, **names: str) -> onnx.ModelProto:
    """Inputs and outputs under other names."""
    graph = network.graph
    for port in (*graph.input, *graph.output):
        port.name = names.get(port.name, port.name)
    for node in graph.node:
        for ends in (node.input, node.output):
            ends[:] = [names.get(name, name) for name in ends]
    return network


def engines(reader: Reader) -> None:
    """What `integers` has; and a provider's name that no other one has."""
    a_network(reader)
    reader.instead['Provider("openvino"'] = 'Provider("another"'


def decoders(reader: Reader) -> None:
    """A decoder for one token, one that is a state, and one for several, and a sound's filter."""
    a_network(reader)
    cache = {"past": "past_key_values.0.key", "present": "present.0.key"}
    one = _renamed(small_decoder.decoder(), **cache)
    one.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1
    onnx.save(one, "decoder.onnx")
    step = _renamed(small_decoder.decoder(), tokens="token", past="past.0", present="present.0")
    step.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1
    onnx.save(step, "decoder_step.onnx")
    several = _renamed(small_decoder.decoder(), past="past.0", present="present.0")
    onnx.save(several, "decoder_n.onnx")
    net = Net()
    x = net.input("audio", (1, 160))
    before = net.input("hidden", (1, 160))
    onnx.save(
        _renamed(net.model(net.op("Add", net.op("Tanh", x), before)), t1="next"), "voice.onnx"
    )
    keys = np.ones((small_decoder.PLACES, small_decoder.WIDTH), "float32")
    reader.names |= {"tokens": np.array([[3]]), "positions": np.array([0]), "keys": keys}
    reader.instead |= {"run_steps(64": "run_steps(16"}
    reader.names |= {"audio": _DICE.standard_normal((100, 1, 160), dtype="float32")}
    reader.names |= {
        "last_token_of_the_prompt": np.array([[5]]),
        "prompt": np.array([[3, 1, 4, 1, 5]]),
        "end": 2,
    }


def _attention(*sizes: int | str) -> onnx.ModelProto:
    """Attention over tokens, of which a mask hides some."""
    weights = {
        "table": _DICE.standard_normal((20, 32), dtype="float32"),
        "inner": _DICE.standard_normal((32, 32), dtype="float32"),
        "one": np.float32(1),
        "much": np.float32(1e9),
        "axis": np.array([1]),
    }
    node = helper.make_node
    nodes = [
        node("Gather", ["table", "tokens"], ["rows"]),
        node("MatMul", ["rows", "inner"], ["x"]),
        node("Transpose", ["x"], ["keys"], perm=[0, 2, 1]),
        node("MatMul", ["x", "keys"], ["scores"]),
        node("Sub", ["mask", "one"], ["hidden"]),
        node("Mul", ["hidden", "much"], ["far"]),
        node("Unsqueeze", ["far", "axis"], ["each"]),
        node("Add", ["scores", "each"], ["masked"]),
        node("Softmax", ["masked"], ["shares"], axis=-1),
        node("MatMul", ["shares", "x"], ["y"]),
    ]
    info, sizes = helper.make_tensor_value_info, sizes or ("batch", "sequence")
    inputs = [info("tokens", TensorProto.INT64, sizes), info("mask", TensorProto.FLOAT, sizes)]
    outputs = [info("y", TensorProto.FLOAT, [*sizes, 32])]
    constants = [numpy_helper.from_array(np.asarray(v), name) for name, v in weights.items()]
    graph = helper.make_graph(nodes, "attention", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def attention(reader: Reader) -> None:
    """A network of open lengths, and inputs of one."""
    a_network(reader)
    onnx.save(_attention(), "bert.onnx")
    tokens = _DICE.integers(0, 20, (1, 32))
    reader.names |= {"net": _attention(), "tokens": tokens, "mask": np.ones((1, 32), "float32")}


def video(reader: Reader) -> None:
    """A network that answers with an image, and frames in which one pixel changes."""
    b = Builder(0)
    x = b.input("x", (1, 3, 32, 32))
    for channels in (16, 3):
        x = b.conv_bn(x, channels, 3)
    onnx.save(b.finish("denoiser", x), "denoiser.onnx")
    frames = [_image()] * 3
    frames[2] = frames[1].copy()
    frames[2][0, :, 5, 5] += 1
    reader.names |= {"ts": ts, "video": frames}


def precisions(reader: Reader) -> None:
    """Networks of 8 bits of every kind, one of complex numbers, and a language model."""
    attention(reader)
    images = reader.names["images"]
    onnx.save(ts.quantize("resnet50.onnx", images), "resnet50_int8.onnx")
    onnx.save(_attention(1, 32), "bert.onnx")
    net = tflite_models.Builder((1, 8, 8, 3), quantised=True)
    net.conv(4, 3)
    Path("mobilenet_int8.tflite").write_bytes(net.finish())
    write_model(Path("SmolLM2-135M-Instruct.Q4_1.gguf"))
    core = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"}
    reader.names |= {"torch": torch, "net": _Transform(), "x": torch.ones(2, 5), "phone_core": core}
    reader.names["tokens"] = np.array([[5]])
    with suppress(ImportError):
        reader.names |= _prepared()


def _prepared() -> dict[str, Any]:
    """A layer with torchao's observers, which have seen an image."""
    from torchao.quantization.pt2e import quantize_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    image = torch.from_numpy(_image())
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = quantize_pt2e.prepare_pt2e(torch.export.export(net, (image,)).module(), quantizer)
    prepared(image)
    return {"image": image, "prepared": prepared, "convert_pt2e": quantize_pt2e.convert_pt2e}


class _Transform(torch.nn.Module):
    """A Fourier transform, whose result is complex."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform the last axis."""
        return torch.fft.fft(x)


def a_language_model(reader: Reader) -> None:
    """A small language model with random weights, and a prompt."""
    write_model(Path("my.gguf"), tokens=LETTERS)
    reader.names |= {"ts": ts, "tokens": [5, 17, 80]}


LATENCIES = "model,processor,latency_ms\nR-50,cpu,0.2\nR-50,opencl,0.3\n"


def an_app(reader: Reader) -> None:
    """Networks of one shape, of which one was trained further, and a phone."""
    a_network(reader)
    onnx.save(onnx.load("net.onnx"), "finetuned.onnx")
    reader.names["phone"] = ts.connect(reader.instead["192.0.2.7:9190"], "pixel-8")
    reader.instead |= {"3 * 224 * 224": "3 * 32 * 32", "scores(1000)": "scores(16)"}


def phones(reader: Reader) -> None:
    """Two phones of this machine behind a tracker, one of them also on a scripted cable."""
    integers(reader)
    Path("phone.csv").write_text(LATENCIES)
    ts.tune.measure(["llvm", "opencl"], cache="costs/pixel-7", budget=1, cpu_threads=1)
    shutil.copytree("costs/pixel-7", "costs/mi-9")
    fleet = 'keys=["pixel-8", "mi-9"])'
    reader.instead |= {
        "budget=480": "budget=2",
        "budget=60": "budget=2",
        fleet: f"{fleet}, budget=2",
    }


def at_a_terminal(reader: Reader) -> None:
    """Reports of two days, and what phones need."""
    a_network(reader)
    Path("phone.csv").write_text(LATENCIES)
    model = ts.compile("resnet50.onnx", ["llvm"])
    for name in ("before.html", "after.html"):
        model.report(name)
    _residual_stages()
    reader.instead |= {"--budget 300": "--budget 2"}


def _residual_stages() -> None:
    b = Builder(0)
    x = b.conv_bn(b.input("x", (1, 3, 24, 24)), 16, 3, act="relu")
    for channels in (32, 64):
        y = b.conv_bn(b.conv_bn(x, channels, 3, 2, act="relu"), channels, 3)
        x = b.add(y, b.conv_bn(x, channels, 1, 2), act="relu")
        y = b.conv_bn(b.conv_bn(x, channels, 3, act="relu"), channels, 3)
        x = b.add(y, x, act="relu")
    onnx.save(b.finish("stages", b.classifier(x, 5)), "resnet34.onnx")


def a_trainer(reader: Reader) -> None:
    """A network of residual blocks, its teacher, and images with labels."""
    a_network(reader)
    _residual_stages()
    shutil.copy("resnet34.onnx", "resnet18.onnx")
    images = torch.from_numpy(_DICE.standard_normal((16, 3, 24, 24), dtype="float32"))
    batches = ts.training.Batches(images, torch.arange(16) % 5, 8)
    reader.names |= {"images": images, "more_images": images, "loader": batches, "train": batches}
    reader.names |= {"tests": batches, "teacher": ts.training.to_torch("resnet34.onnx")}
    reader.instead |= {'device="cuda", ': "", "epochs=100": "epochs=1", "epochs=20": "epochs=1"}


@contextmanager
def _lent(reader: Reader) -> Iterator[None]:
    """A tracker with two phones, of which one is also on a scripted cable."""
    tracker = Tracker()
    kinds = [Phone("--tracker", tracker.address, key=key) for key in ("pixel-8", "mi-9")]
    adb = ScriptedAdb(Path("adb").absolute(), {**PIXEL, "ro.product.cpu.abilist": "x86_64"})
    os.environ["PATH"] = adb.environment()["PATH"]
    files = Path("build/phone/android/x86_64")
    files.mkdir(parents=True)
    for path in (find_file("bin/tvm_stretch_rpc"), find_file("lib/libtvm_stretch_runtime.so")):
        shutil.copy(path, files)
    for module, name in ((tvm, "libtvm_runtime.so"), (tvm_ffi, "libtvm_ffi.so")):
        shutil.copy(Path(module.__file__).parent / "lib" / name, files)
    reader.instead |= dict.fromkeys(("192.0.2.7:9190", "HOST:PORT"), tracker.address)
    with socket.create_server(("127.0.0.1", 0)) as free:
        own = f"tvm-stretch phone --tracker 127.0.0.1:{free.getsockname()[1]} "
    reader.instead["tvm-stretch phone "] = own
    try:
        # a phone beside busy cores counts as hot
        with mock.patch.multiple(fleet, _PAUSE=0.0, _COOLING_SECONDS=0.0):
            yield
    finally:
        clean_up()
        for process in (*kinds, tracker):
            process.kill()


def two_processors(reader: Reader) -> None:
    """Networks, and a plan that is there whichever processor wins."""
    a_network(reader)
    reader.names["alone"] = Plan(("cpu",), ())
    reader.instead["plans=True)\nlist("] = 'plans={"without opencl": alone})\nlist('


READERS: dict[str, Callable[[Reader], None]] = {
    "docs/apps.md": an_app,
    "docs/command_line.md": at_a_terminal,
    "docs/engines.md": engines,
    "docs/hexagon.md": integers,
    "docs/language.md": a_language_model,
    "docs/lengths.md": attention,
    "docs/phones.md": phones,
    "docs/processors.md": two_processors,
    "docs/states.md": decoders,
    "docs/streams.md": video,
    "docs/stretching.md": a_trainer,
    "docs/types.md": precisions,
}
"""Readers with more than `a_network`."""


@contextmanager
def prepared(page: str, reader: Reader) -> Iterator[None]:
    """A reader who has what a page takes for granted."""
    make = READERS.get(page, a_network)
    if make in (an_app, phones, at_a_terminal):
        with _lent(reader):
            make(reader)
            yield
    else:
        make(reader)
        yield
