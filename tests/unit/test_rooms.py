"""The rooms of the house stand on each other: a module imports from its own room and lower ones."""

from __future__ import annotations

import ast

import pytest
from helpers.rooms import ROOT, imported, level_of, modules, tree_of


def test_nobody_imports_from_a_room_above() -> None:
    broken = []
    for module, path in modules():
        level = level_of(module)
        if module == "tvm_stretch":
            continue  # the public names
        assert level is not None, f"{module} is in no room of {__name__}"
        for name, line in imported(module, path):
            above = level_of(name)
            if above is not None and above > level:
                broken.append(f"{path.relative_to(ROOT)}:{line} imports {name} from a room above")
    assert not broken, "\n".join(broken)


DEFERRED = {
    "tvm_stretch": "one public name needs it",
    "tvm_stretch.api.cli": "`--help` and completion load neither NumPy nor TVM",
    "tvm_stretch.api.tokenizer": "tokenizers and jinja2 are optional",
    "tvm_stretch.api.cli.commands": "most commands need no processors, and shtab is optional",
    "tvm_stretch.plan.cost.correction": "only training needs SciPy",
    "tvm_stretch.plan.cost.family": "only training needs SciPy",
    "tvm_stretch.plan.scheduling.named": "only HOPE's linear program needs SciPy",
    "tvm_stretch.plan.cost.trees": "only learned cost models need xgboost",
    "tvm_stretch.api.differences": "ONNX Runtime is optional",
    "tvm_stretch.base.errors": "the executor's errors are registered when it is loaded",
    "tvm_stretch.make.quantise": "ONNX Runtime is optional",
    "tvm_stretch.read.tflite.reader": "the package tflite is optional",
    "tvm_stretch.read.torch.decomposing": "torch is optional",
    "tvm_stretch.read.torch.importer": "torch is optional",
    "tvm_stretch.read.torch.numbers": "torch is optional",
    "tvm_stretch.read.torch.operators": "torch is optional",
    "tvm_stretch.read.torch.places": "torch is optional",
    "tvm_stretch.read.torch.archive": "torch is optional",
    "tvm_stretch.read.torch.quantised": "torch is optional",
    "tvm_stretch.read.torch.reader": "torch is optional",
    "tvm_stretch.run.asynchronous": "only background runs need threads",
    "tvm_stretch.run.autoload": "plain `import tvm` runs it, before tvm_ffi is complete",
    "tvm_stretch.run.report": "only graphs for Netron need onnx",
    "tvm_stretch.lab.stretching.accuracy": "torch is optional",
    "tvm_stretch.lab.stretching.stretching": "torch is optional, and training imports it",
}
"""Modules that may import within functions, and why."""


def test_imports_stand_at_the_top() -> None:
    """Imports within functions hide circles."""
    found = {
        module
        for module, path in modules()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(inner, ast.Import | ast.ImportFrom) for inner in ast.walk(node))
    }
    assert found == set(DEFERRED)


def test_imports_have_no_circle() -> None:
    """No module is needed to import itself."""
    paths = dict(modules())
    needs = {
        module: {
            name if name in paths else name.rpartition(".")[0]
            for name, _ in imported(module, path, at_once=True)
        }
        & set(paths)
        for module, path in paths.items()
    }
    while free := [module for module, needed in needs.items() if not needed & set(needs)]:
        for module in free:
            del needs[module]
    assert not needs, f"circles among {sorted(needs)}"


def loaded_with(module: str) -> set[str]:
    """All modules that importing one of ours imports; of others, what is named."""
    paths = dict(modules())
    found: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        if name in paths:
            waiting += [other for other, _ in imported(name, paths[name], at_once=True)]
        waiting += [name.rpartition(".")[0]] if "." in name else []
    return found


def test_compile_loads_only_what_it_needs() -> None:
    """What learns and solves takes a second to import."""
    found = loaded_with("tvm_stretch.api.compiler")
    assert {"tvm_stretch.plan.scheduling.heft", "tvm_stretch.plan.cost.family", "numpy"} <= found
    assert not found & {"scipy", "xgboost"}


@pytest.mark.parametrize("module", ["lab.stretching.stretching", "api.cli", "api.compiler"])
def test_torch_is_loaded_only_to_train(module: str) -> None:
    assert "tvm_stretch.base.progress" in loaded_with(f"tvm_stretch.{module}")
    assert "torch" not in loaded_with(f"tvm_stretch.{module}")
    assert "torch" in loaded_with("tvm_stretch.lab.training")


@pytest.mark.parametrize(
    ("module", "level"),
    [
        ("tvm_stretch.targets.cpu.kernels.conv", 3),
        ("tvm_stretch.targets.cpu.cpu", 11),
        ("numpy", None),
    ],
)
def test_the_longest_name_decides(module: str, level: int | None) -> None:
    assert level_of(module) == level


def test_functions_are_short() -> None:
    """At most 60 lines without signature and docstring."""
    found = set()
    for _, path in modules():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                if body and (node.end_lineno or 0) - body[0].lineno >= 60:
                    found.add(f"{path.relative_to(ROOT)} {node.name}")
    assert not found
