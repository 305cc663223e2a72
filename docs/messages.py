"""Collects all errors of the source for the page `messages.md` of the site.

raise InputError(f"expected a path for {what}, got {path!r}; give one")
TVM_FFI_THROW(ValueError) << "expected a path for " << what << ", got " << path << "; give one";
->  | expected a path for …, got … | give one |
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("tvm_stretch", "passes", "targets")
NATIVE = "From C++"
_STRING = r'"(?:[^"\\\n]|\\.)*"'
_COMMENT = re.compile(rf"//[^\n]*|/\*.*?\*/|({_STRING}|'[^'\n]*')", re.DOTALL)
_CONSTANT = re.compile(rf"\b(k[A-Z]\w*)(?:\[\])? =\s*((?:{_STRING}\s*)+);")
_SHARED = re.compile(rf"inline constexpr const char\* {_CONSTANT.pattern}")
_STATEMENT = re.compile(rf"(?:{_STRING}|'[^'\n]*'|[^;{{}}])+")


def page() -> str:
    """A table for each class of errors; its words begin with what a message begins with."""
    by_class: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for name, text in messages(ast.parse(path.read_text(encoding="utf-8"))):
                by_class[name].add(_parts(text))
    texts = [path.read_text(encoding="utf-8") for path in native_files()]
    by_class[NATIVE] = {_parts(text) for text in native_messages(texts)}
    lines = [
        "# Messages",
        "",
        "Every error says what was expected, what was found, and after the semicolon what to do. "
        "`…` stands for what differs from time to time. Search this page for the first words of "
        f"a message. Those of the executor, of apps and of phones stand below _{NATIVE}_, because "
        "their class differs by language. `tvm-stretch doctor` looks at the machine.",
    ]
    for name in sorted(by_class):
        lines += ["", f"## {name}", "", "| message | what to do |", "| --- | --- |"]
        lines += [f"| {_cell(said)} | {_cell(advice)} |" for said, advice in sorted(by_class[name])]
    return "\n".join(lines) + "\n"


def _parts(text: str) -> tuple[str, str]:
    said, _, advice = text.partition("; ")
    return said, advice


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


# --- C and C++ ------------------------------------------------------------------------------------


def native_files() -> list[Path]:
    """All sources of the product in C and C++."""
    files = (path for folder in SOURCES for path in sorted((ROOT / folder).rglob("*.*")))
    return [path for path in files if path.suffix in (".c", ".cc", ".h", ".hpp")]


def native_messages(texts: list[str]) -> set[str]:
    """The statements of sources in C and C++ that say what was expected, or what to do."""
    sources = [_COMMENT.sub(lambda match: match[1] or "", text) for text in texts]
    common = {name: text for source in sources for name, text in _SHARED.findall(source)}
    found = set()
    for source in sources:
        constants = common | dict(_CONSTANT.findall(source))
        for statement in _STATEMENT.findall(_CONSTANT.sub("", source)):
            words = re.split(r"\b(k[A-Z]\w*)", statement)
            text = _said("".join(constants.get(word, word) for word in words))
            if text.startswith("expected ") or re.search(r".; [a-z]", text):
                found.add(text)
    return found


def _said(statement: str) -> str:
    """The strings of a statement, with `…` for what stands between them."""
    pieces = re.split(rf"({_STRING})", statement)
    strings = [ast.literal_eval(piece) for piece in pieces[1::2]]
    first = next((i for i, text in enumerate(strings) if text.startswith("expected ")), 0)
    gaps = [gap.replace("std::string(", "").strip() for gap in pieces[2::2]]
    if "printf(" in pieces[0]:
        gaps[-1:] = [""]  # its arguments
    text = ""
    for string, gap in zip(strings[first:], gaps[first:], strict=True):
        between = ": " if gap == "," else "…" if re.search(r"\w", gap) else ""
        text += re.sub(r"%[ds]", "…", string) + between
    return "" if "  --" in text else text.rstrip(": ")  # the help of a program


def _cell(text: str) -> str:
    """A cell of a table, in which nothing is markup."""
    for character in "\\`*_{}[]<>|":
        text = text.replace(character, f"\\{character}" if character != "<" else "&lt;")
    return " ".join(text.split())
