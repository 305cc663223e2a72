"""Writes seed corpora: small inputs that each fuzzer's reader takes.

    python tests/fuzz/seeds.py FOLDER      FOLDER/graph_seed_corpus/.., and FOLDER/model.so

`regressions/NAME` has inputs that once were findings; they belong to the corpus of their fuzzer.
"""

from __future__ import annotations

import io
import json
import struct
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
sys.path[:0] = [str(TESTS), str(TESTS / "unit"), str(TESTS.parent)]

RPC_MAGIC, TRACKER_MAGIC = 0xFF271, 0x2F271


def frames() -> Iterator[bytes]:
    """Greetings, right and late ones, answers of a tracker, addresses."""
    for choice in range(4):
        for key in (b"client:pixel", b"client:pixel -timeout=60", b"client:pixel -cancel=7"):
            yield bytes([choice]) + struct.pack("<ii", RPC_MAGIC, len(key)) + key
    answers = b"".join(struct.pack("<i", len(text)) + text for text in (b"[0, null]", b'[0, "p"]'))
    yield bytes([4]) + struct.pack("<i", TRACKER_MAGIC) + answers
    yield bytes([5]) + b"[::1]:9190"


def programs() -> Iterator[bytes]:
    """Return a program of a DSP that runs a kernel and a copy."""
    from helpers.dsp_protocol import BLOCK, COPY, WEIGHTS, Node, Program, Tensor

    tensors = [
        Tensor(BLOCK, 0, (16,), (1,), 32),
        Tensor(WEIGHTS, 128, (16,), (1,), 32),
        Tensor(BLOCK, 128, (4, 4), (4, 1), 32),
    ]
    nodes = [Node(0, (0, 1), (2,)), Node(COPY, (2,), (0,))]
    yield Program(tensors, nodes, [(0, 2)]).pack()
    yield Program(tensors[:1], nodes[:0]).pack()


def calls() -> Iterator[bytes]:
    """Return calls of the C interface; c_interface.cc says which byte is which call."""
    for call in range(12):
        yield bytes([3, 1, 4, 0, 0, 0, 0, 0, call, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0])
    yield bytes([5, 3]) + b"0-1" + bytes([3, 1, 48, 0, 0, 0, 0, 0])


def graphs() -> Iterator[bytes]:
    """The graphs of the C++ tests, and those that the compiler makes."""
    for text in (TESTS / "native" / "graphs.h").read_text().split('R"(')[1:]:
        yield text.partition(')"')[0].encode()
    import test_states
    from helpers.small_models import scaled_model

    yield scaled_model().graph.to_json().encode()
    yield test_states.looping(test_states.decoder()).graph.to_json().encode()


def artifacts(folder: Path) -> Iterator[bytes]:
    """One whole file, and its parts."""
    content = (folder / "model.so").read_bytes()
    yield content
    yield content[:4096] + content[-4096:]
    yield content[:64]


def onnx_models() -> Iterator[bytes]:
    """Layers, shapes, control flow, a decoder, 8 bits."""
    import test_hostile_onnx
    import test_states

    for make in (
        test_hostile_onnx.convolutions,
        test_hostile_onnx.shapes,
        test_hostile_onnx.control_flow,
        test_states.decoder,
    ):
        yield make().SerializeToString()


def tflite_models() -> Iterator[bytes]:
    """Layers of floats and of 8 bits."""
    from helpers.tflite_models import Builder

    for quantised in (False, True):
        net = Builder((1, 8, 8, 3), quantised=quantised)
        net.conv(4, 3, activation="RELU6")
        yield net.finish()


def archives() -> Iterator[bytes]:
    """What torch.export writes."""
    import torch
    from test_torch_archive import Net

    buffer = io.BytesIO()
    torch.export.save(torch.export.export(Net().eval(), (torch.zeros(1, 3, 6, 6),)), buffer)
    yield buffer.getvalue()
    packed = io.BytesIO()
    with zipfile.ZipFile(buffer) as whole, zipfile.ZipFile(packed, "w") as small:
        for name in whole.namelist()[:2]:
            small.writestr(name, whole.read(name))
    yield packed.getvalue()


def language_models() -> Iterator[bytes]:
    """The heads of files of two families, up to the first weights."""
    from gguf import GGUFReader
    from helpers.gguf_files import write_model

    with tempfile.TemporaryDirectory() as text:
        for family in ("llama", "gemma3"):
            path = write_model(Path(text, f"{family}.gguf"), family)
            yield path.read_bytes()[: GGUFReader(path).data_offset]


def plans() -> Iterator[bytes]:
    """One with regions, splits and prices."""
    from helpers.small_models import compiled

    yield compiled(9).plan.to_json().encode()
    yield json.dumps(
        {
            "format": "tvm_stretch.plan",
            "version": 1,
            "processors": ["cpu", "opencl"],
            "regions": [{"name": "r", "processor": "cpu", "operators": ["a"], "after": []}],
            "shares": {"conv": [0.5, 0.5]},
        }
    ).encode()


def designs() -> Iterator[bytes]:
    """Two branches of a segment."""
    from tvm_stretch.plan.design import Design

    segments, processors = [("relu_8", "relu_16"), ("relu_16", "relu_20")], ("cpu", "opencl")
    for merge in ("concat", "restore", "project"):
        depths, widths = [[3, 3], [2, 1]], [[80, 64], [96, 32]]
        found = Design.of_lists(segments, processors, depths, widths, merge)
        yield json.dumps(found.to_data()).encode()


def profiles() -> Iterator[bytes]:
    """Those of the package."""
    for path in sorted((TESTS.parent / "targets" / "profiles").glob("*.toml")):
        yield path.read_bytes()


CORPORA = {
    "frames": frames,
    "dsp_program": programs,
    "c_interface": calls,
    "graph": graphs,
    "network_data": graphs,
    "onnx": onnx_models,
    "tflite": tflite_models,
    "pt2": archives,
    "gguf": language_models,
    "plan": plans,
    "design": designs,
    "profile": profiles,
}


def _write(folder: Path, name: str, contents: Iterator[bytes]) -> None:
    corpus = folder / f"{name}_seed_corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(contents):
        (corpus / f"seed{number}").write_bytes(content)
    for path in sorted((HERE / "regressions" / name).glob("*")):
        (corpus / path.name).write_bytes(path.read_bytes())


def main(folder: Path) -> None:
    """Write all of them."""
    import test_lengths

    import tvm_stretch as ts

    model = ts.compile(
        test_lengths.attention(total=[1, test_lengths.RESULTS]),
        ["llvm"],
        shapes={"tokens": (1, "n")},
        lengths={"n": [4, 7, 16]},
        states={"total": "next_total"},
        cpu_threads=1,
    )
    with tempfile.TemporaryDirectory() as text:
        model.export(path := Path(text, "model.so"))
        (folder / "model.so").write_bytes(path.read_bytes())
    for name, make in CORPORA.items():
        _write(folder, name, make())
    _write(folder, "artifact", artifacts(folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
