"""Every public function refuses arguments of other kinds and sizes with an error of ours."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cpu_targets import TARGET
from onnx import helper, numpy_helper

import tvm_stretch as ts

FEW = (2**70, 10**400, "3", {1: 2}, float("nan"), object())
MORE = (
    *(-1, {"x": 1}, {2**70: 2**70}, float("inf"), b"x", True, 1.5, [None], [2**70], ("a",)),
    *("\0", set(), np.array([1, 2])),
)
ENDLESS = {"benchmark": "repeat", "profile": "repeat", "timeline": "repeat"}
"""Arguments that may be as large as a caller wants to wait."""


def network(rows: int | str = 1) -> onnx.ModelProto:
    """A convolution of images, or of any number of them."""
    weight = numpy_helper.from_array(np.ones((4, 3, 1, 1), "float32"), "w")
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (rows, 3, 8, 8))],
        [helper.make_empty_tensor_value_info("y")],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def arguments(function: Callable[..., object]) -> Iterator[tuple[str, Any]]:
    """The parameters of a function that have a default value, or are all that it has."""
    given = inspect.signature(function).parameters
    for name, one in given.items():
        known = one.default is not one.empty or len(given) == 1
        if known and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
            yield name, one.kind


def refuses(what: str, call: Callable[[], object]) -> None:
    """The call returns, or raises an error of ours."""
    try:
        call()
    except ts.StretchError as error:
        assert str(error).startswith("expected "), (what, error)
    except Exception as error:
        pytest.fail(f"{what} raised {type(error).__name__}: {error}")


def check(function: Callable[..., object], values: tuple[object, ...], **usual: object) -> None:
    """Each argument of a function, with each of the values."""
    needed = inspect.signature(function).parameters.values()
    first = [1 for one in needed if one.name == "count"]
    for name, kind in arguments(function):
        if ENDLESS.get(function.__name__) == name or name in ("progress", *usual):
            continue
        for value in values:
            what = f"{function.__name__}({name}={value!r:.40})"
            if kind is inspect.Parameter.POSITIONAL_ONLY:
                refuses(what, lambda value=value: function(value))
            else:
                refuses(
                    what, lambda name=name, value=value: function(*first, **{**usual, name: value})
                )


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``"3"`` is the name of a file, too."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def model() -> ts.Model:
    return ts.compile(network(), TARGET, cpu_threads=1, streams=True)


METHODS = [
    name
    for name, found in inspect.getmembers(ts.Model, inspect.isfunction)
    if not name.startswith("_")
]


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_models(model: ts.Model, name: str, tmp_path: Path) -> None:
    usual = {"path": tmp_path / "file"} if name in ("report", "export", "export_data") else {}
    check(getattr(model, name), FEW + MORE, **usual)


@pytest.mark.parametrize("value", FEW + MORE, ids=lambda value: f"{value!r:.20}")
def test_names_and_sizes(model: ts.Model, value: object) -> None:
    refuses("a call", lambda: model(value))
    refuses("steps", lambda: model.run_steps(2, value))
    refuses("a frame", lambda: model.stream()(value))
    refuses("a size", lambda: model.length_for(n=value))
    refuses("a state", lambda: model.states.__setitem__("x", value))


def test_sizes_of_lengths() -> None:
    model = ts.compile(network("n"), TARGET, lengths={"n": [1, 2]}, cpu_threads=1)
    for value in FEW + MORE:
        if value is not True:
            with pytest.raises(ts.StretchError, match=r"^expected .* for length_for|^expected at"):
                model.length_for(n=value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "values", [pytest.param(FEW[2:5]), pytest.param(FEW + MORE, marks=pytest.mark.full)]
)
def test_compile(values: tuple[object, ...]) -> None:
    check(ts.compile, values, source=network(), targets=TARGET)


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in ts.__all__ if name.islower()])
def test_functions(name: str, tmp_path: Path) -> None:
    function = getattr(ts, name)
    if not inspect.isfunction(function) or name in ("compile", "connect"):
        return
    usual = {"source": network(), "network": network(), "path": tmp_path / "file"}
    usual |= {"images": np.zeros((1, 3, 8, 8), "float32"), "objective": "latency", "data": []}
    given = inspect.signature(function).parameters
    needed = [key for key, one in given.items() if one.default is one.empty]
    check(function, FEW + MORE, **{key: usual[key] for key in needed if key in usual})
