"""A .pt2 file is data: whatever it asks torch to run is refused or left out, never run."""

from __future__ import annotations

import json
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.mutations import campaign, damaged_bytes, damaged_json, dice_of
from helpers.relax_helpers import run

from tvm_stretch.base.errors import ModelError, StretchError, UnsupportedError
from tvm_stretch.read import load_network
from tvm_stretch.read.torch.archive import _is_expression

Parts = dict[str, bytes]
CONFIG, CONSTANTS = (
    "data/weights/model_weights_config.json",
    "data/constants/model_constants_config.json",
)
GRAPH, SAMPLES = "models/model.json", "data/sample_inputs/model.pt"


class Net(torch.nn.Module):
    """Weights, a buffer, constants."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.register_buffer("scale", torch.full((4, 1, 1), 2.0))
        self.plain = torch.arange(4.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A convolution, scaled and shifted."""
        return self.conv(x) * self.scale + self.plain.reshape(4, 1, 1)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> tuple[Parts, np.ndarray, np.ndarray]:
    """The parts of a file that torch wrote, an input, and what the network answers."""
    net, x = Net().eval(), torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    path = tmp_path_factory.mktemp("honest") / "net.pt2"
    torch.export.save(torch.export.export(net, (x,)), path)
    with zipfile.ZipFile(path) as archive:
        parts = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    with torch.no_grad():
        return parts, x.numpy(), net(x).numpy()


def written(path: Path, parts: Parts, root: str = "net/", **options: Any) -> Path:
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, content in parts.items():
            archive.writestr(root + name, content)
    return path


class Touch:
    """Its pickle makes a file when it is read."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


def edited(parts: Parts, name: str, edit: Callable[[Any], object]) -> Parts:
    """One part of JSON, changed in place."""
    data = json.loads(parts[name])
    edit(data)
    return {**parts, name: json.dumps(data).encode()}


def pickled(parts: Parts, marker: Path, config: str, part: str) -> Parts:
    """The first tensor of a list is a pickle, or an object of the given kind."""

    def edit(data: Any) -> None:
        first = next(iter(data["config"].values()))
        first.update(use_pickle=True, path_name=part)

    folder = config.rpartition("/")[0]
    return {**edited(parts, config, edit), f"{folder}/{part}": pickle.dumps(Touch(marker))}


def call_of(marker: Path) -> str:
    return f"__import__('pathlib').Path('{marker}').touch()"


def with_size(parts: Parts, marker: Path) -> Parts:
    """Shapes are expressions, which torch evaluates."""

    def edit(program: Any) -> None:
        (meta, *_) = program["graph_module"]["graph"]["tensor_values"].values()
        meta["sizes"][0] = {"as_expr": {"expr_str": call_of(marker), "hint": None}}

    return edited(parts, GRAPH, edit)


def with_name(parts: Parts, marker: Path) -> Parts:
    """Names of tensors stand in Python source, which torch executes."""
    text = parts[GRAPH].decode()
    return {**parts, GRAPH: text.replace('"x"', json.dumps(f"x = {call_of(marker)}")).encode()}


def with_target(parts: Parts, _marker: Path, target: str = "torch.os.system") -> Parts:
    def edit(program: Any) -> None:
        program["graph_module"]["graph"]["nodes"][0]["target"] = target

    return edited(parts, GRAPH, edit)


def with_import(parts: Parts, marker: Path) -> Parts:
    """Structures of inputs name modules, which torch imports."""
    marker.with_name("evil_module.py").write_text(f"{call_of(marker)}\nfactory = list\n")
    context = {"default_factory_module": "evil_module", "default_factory_name": "factory"}
    context |= {"dict_context": []}
    tree = {"type": "collections.defaultdict", "context": context, "children_spec": []}

    def edit(program: Any) -> None:
        signature = program["graph_module"]["module_call_graph"][0]["signature"]
        signature["in_spec"] = json.dumps([1, tree])

    return edited(parts, GRAPH, edit)


EXPLOITS: dict[str, Callable[[Parts, Path], Parts]] = {
    "a pickled weight": lambda parts, m: pickled(parts, m, CONFIG, "weight_0"),
    "a pickled constant": lambda parts, m: pickled(parts, m, CONSTANTS, "tensor_0"),
    "an opaque constant": lambda parts, m: pickled(parts, m, CONSTANTS, "opaque_obj_0"),
    "an object of TorchScript": lambda parts, m: pickled(parts, m, CONSTANTS, "custom_obj_0"),
    "an expression": with_size,
    "the name of a tensor": with_name,
    "a function": with_target,
    "a library": lambda parts, m: with_target(parts, m, "torch.ops.load_library"),
    "an attribute": lambda parts, m: with_target(parts, m, "torch.ops.aten.relu.__init__"),
    "a file of torch": lambda parts, m: with_target(parts, m, "torch.ops.aten.from_file.default"),
    "an import": with_import,
    "compiled code": lambda parts, _: {**parts, "data/aotinductor/model/model.so": b"\x7fELF"},
}


@pytest.mark.parametrize("name", EXPLOITS)
def test_code_in_a_file_is_refused(
    honest: tuple[Parts, Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    marker = tmp_path / "marker"
    monkeypatch.syspath_prepend(tmp_path)
    path = written(tmp_path / "evil.pt2", EXPLOITS[name](honest[0], marker))
    with pytest.raises((ModelError, UnsupportedError), match=r"^expected .*, got .*; ") as caught:
        load_network(path)
    assert not marker.exists(), "the file ran code"
    assert ".pt2" in str(caught.value)


def test_what_no_network_needs_is_not_read(honest: tuple[Parts, Any, Any], tmp_path: Path) -> None:
    """Sample inputs are pickles in every file, and guards are Python."""
    parts, x, expected = honest
    marker = tmp_path / "marker"

    def edit(program: Any) -> None:
        program["guards_code"] = [call_of(marker)]
        for node in program["graph_module"]["graph"]["nodes"]:
            node["metadata"] = {"stack_trace": f"\n{call_of(marker)}"}

    evil = {**edited(parts, GRAPH, edit), SAMPLES: pickle.dumps(Touch(marker))}
    path = written(tmp_path / "net.pt2", {**evil, "extra/readme": b"\xff", "data/other": b""})
    np.testing.assert_allclose(run(load_network(path), x)[0], expected, rtol=1e-4, atol=1e-5)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["../escaped", "/absolute", "a/../../b", "back\\slash", ""])
def test_odd_names_of_parts(honest: tuple[Parts, Any, Any], tmp_path: Path, name: str) -> None:
    path = written(tmp_path / "net.pt2", {**honest[0], name: b""})
    with pytest.raises(ModelError, match="parts with names of their own in one folder"):
        load_network(path)
    assert [p.name for p in tmp_path.iterdir()] == ["net.pt2"]


def test_archives_that_are_none(honest: tuple[Parts, Any, Any], tmp_path: Path) -> None:
    path, parts = tmp_path / "net.pt2", honest[0]
    older = {
        "version": b"8.3",
        "serialized_state_dict.pt": pickle.dumps(Touch(tmp_path / "marker")),
    }
    for content, says in (
        (older, "torch 2.9 or later"),
        ({k: v for k, v in parts.items() if k != GRAPH}, "models/model.json in the archive"),
        ({**parts, CONFIG: b"[]"}, "an object in"),
        ({**parts, GRAPH: b"{"}, "save the ExportedProgram"),
        ({**parts, "data/weights/weight_0": b""}, "the numbers of the tensor"),
    ):
        with pytest.raises(ModelError, match=says):
            load_network(written(path, content, root="" if content is older else "net/"))
    with pytest.raises(ModelError, match="parts that are not compressed"):  # 1 GB from 1 MB
        zeros = {**parts, "data/zeros": bytes(10**7)}
        load_network(written(path, zeros, compression=zipfile.ZIP_DEFLATED))
    assert not (tmp_path / "marker").exists()


def test_two_parts_of_one_name(honest: tuple[Parts, Any, Any], tmp_path: Path) -> None:
    """Python reads the last one, others the first."""
    path = written(tmp_path / "net.pt2", honest[0])
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(f"net/{GRAPH}", honest[0][GRAPH])
    with pytest.raises(ModelError, match="names of their own"):
        load_network(path)


def test_tensors_that_would_need_far_more_memory(
    honest: tuple[Parts, Any, Any], tmp_path: Path
) -> None:
    """All numbers of a tensor may be the same one: strides of 0."""

    def edit(data: Any) -> None:
        meta = next(iter(data["config"].values()))["tensor_meta"]
        meta["sizes"] = [{"as_int": 2**15}] * 2
        meta["strides"] = [{"as_int": 0}] * 2

    path = written(tmp_path / "net.pt2", edited(honest[0], CONFIG, edit))
    with pytest.raises(UnsupportedError, match="elements for all constants"):
        load_network(path)


@pytest.mark.parametrize(
    ("text", "is_safe"),
    [
        ("Symbol('s77', positive=True, integer=True)", True),
        ("Add(Mul(Integer(-2), Symbol('s0')), FloorDiv(Symbol('s1'), Integer(2)))", True),
        ("Pow(Symbol('s77', positive=True, integer=True), Integer(2))", True),
        ("Float('1.5', precision=53)", True),
        ("Pow(Integer(9), Pow(Integer(9), Integer(9)))", False),
        ("Pow(Integer(9), Integer(99))", False),
        ("Integer(9)**Integer(99999999)", False),
        ("Symbol('s0').__class__", False),
        ("Symbol(exit())", False),
        ("Eq('exit()', 1)", False),
        ("[x for x in (1,)]", False),
        ("(lambda: 1)()", False),
        ("Function('f')(1)", False),
        ("S('exit()')", False),
        (f"Integer({'9' * 30})", False),
        ("Add(" * 300 + ")" * 300, False),
        ("", False),
        ({"a": "exit()"}, False),
    ],
)
def test_sizes_are_of_known_functions(text: object, is_safe: bool) -> None:
    assert _is_expression(text) is is_safe


def test_open_sizes_are_read(tmp_path: Path) -> None:
    class Halves(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x).reshape(x.shape[0] * 2, -1)

    sizes = {0: torch.export.Dim("b", min=2, max=60), 2: torch.export.Dim("h", min=4, max=80)}
    program = torch.export.export(Halves(), (torch.zeros(3, 4, 8),), dynamic_shapes=(sizes,))
    torch.export.save(program, tmp_path / "net.pt2")
    x = np.random.default_rng(0).standard_normal((4, 4, 6)).astype("f")
    mod = load_network(tmp_path / "net.pt2", {"x": x.shape})
    np.testing.assert_array_equal(run(mod, x)[0], np.maximum(x, 0).reshape(8, -1))


def hostile(dice: random.Random, parts: Parts, path: Path) -> None:
    """A damaged file: of bytes, or of JSON in an archive that is whole."""
    if dice.random() < 0.3:
        written(path, parts)
        path.write_bytes(damaged_bytes(dice, path.read_bytes()))
        return
    parts = dict(parts)
    name = dice.choice([CONFIG, CONSTANTS, GRAPH, GRAPH])
    parts[name] = json.dumps(damaged_json(dice, json.loads(parts[name]))).encode()
    written(path, parts)


@campaign(500)
def test_hostile_files(honest: tuple[Parts, Any, Any], tmp_path: Path, piece: int) -> None:
    """Refused with an error of ours, or read."""
    path = tmp_path / "net.pt2"
    for dice in dice_of(piece):
        hostile(dice, honest[0], path)
        try:
            mod = load_network(path)
        except StretchError as error:
            assert str(error).startswith("expected ") and "; " in str(error), error
        else:
            assert mod["main"].params
