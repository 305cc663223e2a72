"""Collects all errors of the source for the page `messages.md` of the site.

raise InputError(f"expected a path for {what}, got {path!r}; give one")
->  | expected a path for …, got … | give one |
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("tvm_stretch", "passes", "targets")


def page() -> str:
    """A table for each class of errors; its words begin with what a message begins with."""
    by_class: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for name, text in messages(ast.parse(path.read_text(encoding="utf-8"))):
                said, _, advice = text.partition("; ")
                by_class[name].add((said, advice))
    lines = [
        "# Messages",
        "",
        "Every error says what was expected, what was found, and after the semicolon what to do. "
        "`…` stands for what differs from time to time. Search this page for the first words of "
        "a message. `tvm-stretch doctor` looks at the machine.",
    ]
    for name in sorted(by_class):
        lines += ["", f"## {name}", "", "| message | what to do |", "| --- | --- |"]
        lines += [f"| {_cell(said)} | {_cell(advice)} |" for said, advice in sorted(by_class[name])]
    return "\n".join(lines) + "\n"


def messages(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Class and text of each error that is raised with its text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            name, text = ast.unparse(node.exc.func), _text(node.exc.args[0])
            if (
                name.endswith("Error")
                and not name.startswith("argparse.")
                and text.startswith("expected ")
            ):
                yield name.rpartition(".")[2], text


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return "…"


def _cell(text: str) -> str:
    """A cell of a table, in which nothing is markup."""
    for character in "\\`*_{}[]<>|":
        text = text.replace(character, f"\\{character}" if character != "<" else "&lt;")
    return " ".join(text.split())
