"""The rooms of the house, from the ground up, and the modules in them."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {
    "tvm_stretch": "tvm_stretch",
    "passes": "tvm_stretch.passes",
    "targets": "tvm_stretch.targets",
}

# From the ground up, as ARCHITECTURE.md draws them; a name covers what stands below it.
_FOLDERS = sorted(path.parent.name for path in (ROOT / "targets").glob("*/__init__.py"))
PROCESSORS = tuple(name for name in _FOLDERS if name != "kernels")
ROOMS = (
    ("base.errors",),
    ("base",),
    ("network",),
    ("targets.kernels", "targets.processor", *(f"targets.{name}.kernels" for name in PROCESSORS)),
    ("plan",),
    ("network.properties",),
    ("network.emitting",),
    ("passes",),
    ("make.code", *(f"targets.{name}.code" for name in PROCESSORS)),
    ("make.lowering",),
    ("run",),
    ("targets",),
    ("run.testing",),
    ("plan.scheduling",),
    ("plan.cost",),
    ("read",),
    ("make",),
    ("phone",),
    ("plan.search",),
    ("api.options",),
    ("api.compiler", "api.problems"),
    ("lab.training",),
    ("lab",),
    ("plan.measuring", "phone.fleet"),
    ("api.comparing", "api.differences"),
    ("api.tune", "api.results"),
    ("api", "__main__"),
)
LEVELS = {f"tvm_stretch.{name}": level for level, names in enumerate(ROOMS) for name in names}


def level_of(module: str) -> int | None:
    """The room of a module: that of the longest name that covers it."""
    covering = [name for name in LEVELS if f"{module}.".startswith(f"{name}.")]
    return LEVELS[max(covering, key=len)] if covering else None


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """A file's syntax tree, which tests only read."""
    return ast.parse(path.read_text(encoding="utf-8"))


def modules() -> Iterator[tuple[str, Path]]:
    for folder, package in SOURCES.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            yield ".".join([package, *(part for part in parts if part != "__init__")]), path


@functools.cache
def imported(module: str, path: Path, at_once: bool = False) -> tuple[tuple[str, int], ...]:
    """What a file imports, with the line: anywhere in it, or only when it is imported itself."""
    return tuple(_imported(module, path, at_once))


def _imported(module: str, path: Path, at_once: bool) -> Iterator[tuple[str, int]]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    tree = tree_of(path)
    for node in tree.body if at_once else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - (node.level - 1)]
            base = ".".join(filter(None, [*(above if node.level else ()), node.module or ""]))
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)
