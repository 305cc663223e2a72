"""Compiling is one line: the network passes the stations, and its model is made once.

The walk follows the network from ``compile(source)`` through rooms that decide and build, in the
order of the code; other rooms only answer questions about it. A stay is a run of functions of one
file that receive the network. To climb back is to come again to a file that stands in a higher room
than the stay before.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import rooms
from cpu_targets import TARGET
from fake_targets import fake_processor
from search_helpers import emit

import tvm_stretch as ts
from tvm_stretch.run.model import Model

STATIONS = ("api.compiler", "api.request", "read.load", "make", "plan.search")
DOOR = "read"  # only hands on what `read.load` has
SIDE_ROOMS = ("make.lowering", "make.code")  # they get kernels, not the network
NETWORK = ("source", "mod", "network")
Function = ast.FunctionDef


@dataclass
class Walk:
    """Follows the network; ``stays`` are the files that it enters."""

    stays: list[str] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        paths = {name: path for name, path in rooms.modules() if is_station(name)}
        self.trees = {name: ast.parse(path.read_text()) for name, path in paths.items()}
        self.methods: dict[str, list[tuple[str, Function]]] = {}
        for module, tree in self.trees.items():
            for made in filter(lambda node: isinstance(node, ast.ClassDef), tree.body):
                for method in functions(made):
                    self.methods.setdefault(method.name, []).append((module, method))

    def enter(self, module: str, function: Function) -> None:
        """Go through a function that receives the network, once."""
        if id(function) in self.seen:
            return
        self.seen.add(id(function))
        if self.stays[-1:] != [module]:
            self.stays.append(module)
        for call in calls_in_order(function):
            if any(is_network(given) for given in [*call.args, *(k.value for k in call.keywords)]):
                for found in self.called(module, call.func):
                    self.enter(*found)

    def called(self, module: str, name: ast.expr) -> Iterator[tuple[str, Function]]:
        """The function of that name, if a station has it."""
        if isinstance(name, ast.Attribute):
            found = self.methods.get(name.attr, [])
            yield from found if len(found) == 1 else ()
        elif isinstance(name, ast.Name):
            yield from self.named(module, name.id)

    def named(self, module: str, name: str) -> Iterator[tuple[str, Function]]:
        for node in self.trees[module].body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                yield module, node
            elif isinstance(node, ast.ClassDef) and node.name == name:
                yield from ((module, f) for f in functions(node) if f.name == "__init__")
            elif isinstance(node, ast.ImportFrom) and node.module in self.trees:
                for alias in node.names:
                    if alias.name == name:
                        yield from self.named(str(node.module), name)


def is_station(module: str) -> bool:
    name = module.removeprefix("tvm_stretch.")
    if name.startswith(SIDE_ROOMS):
        return False
    return name == DOOR or any(name == s or name.startswith(f"{s}.") for s in STATIONS)


def functions(node: ast.AST) -> list[Function]:
    return [child for child in ast.iter_child_nodes(node) if isinstance(child, Function)]


def calls_in_order(node: ast.AST) -> Iterator[ast.Call]:
    """Calls of a function, the innermost first; those of nested functions where these stand."""
    for child in ast.iter_child_nodes(node):
        yield from calls_in_order(child)
    if isinstance(node, ast.Call):
        yield node


def is_network(given: ast.expr) -> bool:
    if isinstance(given, ast.Subscript):  # mod["main"]
        given = given.value
    if isinstance(given, ast.Attribute):  # network.mod
        return given.attr in NETWORK
    return isinstance(given, ast.Name) and given.id in NETWORK


def test_the_network_goes_straight_through_the_stations() -> None:
    walk = Walk()
    (start,) = walk.named("tvm_stretch.api.compiler", "compile")
    walk.enter(*start)
    print(*walk.stays, sep="\n")
    assert {"tvm_stretch.plan.search.choose", "tvm_stretch.make.pipeline"} <= {*walk.stays}
    assert len(walk.stays) <= 25
    levels = [rooms.level_of(stay) or 0 for stay in walk.stays]
    climbs = [
        walk.stays[i]
        for i in range(1, len(levels))
        if levels[i] > levels[i - 1] and walk.stays[i] in walk.stays[:i]
    ]
    assert not climbs
    page = (Path(rooms.ROOT) / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert all(f"`{stay.removeprefix('tvm_stretch.')}`" in page for stay in walk.stays)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Model]:
    """The models that are made meanwhile."""
    found: list[Model] = []
    initialise = Model.__init__

    def noting(self: Model, *given: object, **named: object) -> None:
        found.append(self)
        initialise(self, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Model, "__init__", noting)
    return found


def test_a_model_is_made_once(made: list[Model]) -> None:
    mod = emit(["conv"], size=8, channels=8)
    model = ts.compile(mod, TARGET, cpu_threads=1)
    plan = model.plan
    given = ts.compile(mod, TARGET, cpu_threads=1, plan=plan, spare=True)
    assert made == [model, given] and given.plan.regions == plan.regions


def test_the_model_that_won_is_not_built_again(
    made: list[Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tvm_stretch.plan.search.contest._PATIENCE", 1)
    mod = emit(["conv"], size=8, channels=8)
    model = ts.compile(mod, [TARGET, fake_processor("p1")], cpu_threads=1)
    *trials, last = made
    assert last is model and "chosen" in model.plan.reason and model.plan.considered
    assert any(model.module.same_as(trial.module) for trial in trials)


def test_a_plan_alone_is_predicted_and_nothing_is_built(made: list[Model]) -> None:
    mod = emit(["conv"] * 2, size=28, channels=32)
    plan = ts.plan_for(mod, [TARGET, fake_processor("p1")], cpu_threads=1)
    assert plan.predicted_ns and plan.considered and not made
    assert plan.reason.endswith("predicted for this machine, not measured")
