"""Whoever catches `StretchError` catches all that is raised on purpose."""

from __future__ import annotations

import ast
import builtins
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import tvm
import tvm_ffi
from helpers.rooms import tree_of
from tvm.s_tir.schedule import ScheduleError

import tvm_stretch as ts
from tvm_stretch.base import errors
from tvm_stretch.make.lowering.executor_graph import Graph
from tvm_stretch.run.autoload import find_file

ROOT = Path(__file__).resolve().parents[2]

# Python asks modules for names this way, and expects this answer.
ALLOWED = {
    ("tvm_stretch/__init__.py", "AttributeError"),  # Python's own word for a missing name
    ("tvm_stretch/base/exports.py", "AttributeError"),
    ("tvm_stretch/base/files.py", "OSError"),  # of what is no regular file, as the system says it
    ("tvm_stretch/lab/training/__init__.py", "AttributeError"),
    # argparse's own for a wrong option
    ("tvm_stretch/api/cli/values.py", "argparse.ArgumentTypeError"),
    *(("tvm_stretch/phone/link.py", f"{kind}Error") for kind in ("Connection", "Timeout")),
    *(("tvm_stretch/phone/wire.py", f"{k}Error") for k in ("Connection", "Timeout", "Value")),
}


def is_foreign(name: str) -> bool:
    """An exception of Python's, or of a module (`tvm.error.InternalError`), and not one of ours."""
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, BaseException):
        return True
    return "." in name and name.endswith(("Error", "Exception"))


def foreign_exceptions(tree: ast.Module) -> Iterator[str]:
    """What is raised by its name, and the bases of exceptions that are defined here."""
    for node in ast.walk(tree):
        named: list[ast.expr] = []
        if isinstance(node, ast.Raise) and node.exc is not None:
            named = [node.exc.func if isinstance(node.exc, ast.Call) else node.exc]
        elif isinstance(node, ast.ClassDef) and node.name.endswith("Error"):
            named = [base for base in node.bases if node.name != "StretchError"]
        yield from filter(is_foreign, map(ast.unparse, named))


def test_only_our_own_are_raised() -> None:
    found = {
        (str(path.relative_to(ROOT)), name)
        for room in ("tvm_stretch", "passes", "targets")
        for path in (ROOT / room).rglob("*.py")
        for name in foreign_exceptions(tree_of(path))
    }
    assert found == ALLOWED


@pytest.mark.parametrize(
    "code",
    [
        "raise ValueError('x')",
        "raise RuntimeError",
        "raise tvm.error.InternalError('x')",
        "class FooError(Exception): ...",
    ],
)
def test_what_the_walk_finds(code: str) -> None:
    assert list(foreign_exceptions(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    ["raise", "raise error", "raise PlanError('x')", "raise node.refuse('x')"],
)
def test_what_the_walk_leaves(code: str) -> None:
    assert not list(foreign_exceptions(ast.parse(code)))


def test_all_are_exported() -> None:
    kinds = [
        kind
        for kind in vars(errors).values()
        if getattr(kind, "__module__", "") == errors.__name__ and isinstance(kind, type)
    ]
    assert all(issubclass(kind, ts.StretchError) for kind in kinds)
    assert {kind.__name__ for kind in kinds} <= set(ts.__all__)


@pytest.mark.parametrize(
    "kind", [*errors.StretchError.__subclasses__(), ScheduleError, tvm.error.InternalError]
)
def test_kinds_are_kept_through_tvm(kind: type[Exception]) -> None:
    """Ours and TVM's: the compiler tells failures of TVM's schedules from others by them."""

    def fail() -> None:
        raise kind("it")

    with pytest.raises(kind, match="it"):
        tvm_ffi.convert(fail)()


def test_a_library_that_is_missing() -> None:
    with pytest.raises(ts.InstallError, match=r"^expected libnothing\.so in one of .*; install"):
        find_file("libnothing.so")


def test_a_graph_with_an_unknown_kind_of_tensor() -> None:
    sizes = {"arena_bytes": 0, "weights_bytes": 0, "prepared_bytes": 0}
    lists = ("inputs", "outputs", "tensors", "prepare", "nodes", "processors", "regions")
    data = json.loads(Graph(**dict.fromkeys(lists, ()), **sizes).to_json())
    tensor = {"shape": [1], "dtype": "float32", "buffer": 0, "offset": 0, "bytes": 4}
    damaged = json.dumps({**data, "tensors": [{**tensor, "kind": "cloud"}]})
    with pytest.raises(
        ts.ArtifactError,
        match=r"^expected input or .* for kind of tensors\[0\] .*, got 'cloud'; ex",
    ):
        Graph.from_json(damaged)


def test_the_reason_is_what_torch_says_before_its_trace() -> None:
    torch = pytest.importorskip("torch")
    graph = torch.fx.Graph()
    graph.output(graph.call_function(torch.mm, (graph.placeholder("x"), 3)))
    with pytest.raises(TypeError, match="tlparse") as raised:
        torch.fx.Interpreter(torch.fx.GraphModule({}, graph)).run(torch.ones(2, 2))
    assert "tlparse" in str(raised.value).splitlines()[-1]
    assert "must be Tensor" in errors.last_line(raised.value)
