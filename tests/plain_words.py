"""Looks for words that make our prose hard to read; `make lint` runs it.

```
python tests/plain_words.py            # counts, and fails if a pattern occurs too often
python tests/plain_words.py --list     # every place
```

It reads docstrings, comments and pages, not code. CONTRIBUTING.md has the rule and ten examples.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("tvm_stretch", "passes", "targets", "benchmarks", "tutorials", "docs")
PAGES = ("README.md", "ARCHITECTURE.md")  # CONTRIBUTING.md quotes what not to write
EXEMPT = ("benchmarks/log", "benchmarks/tests")


class Pattern(NamedTuple):
    """What to look for, how often it may still occur, and what to write."""

    name: str
    regex: str
    most: int
    instead: str


_BEGIN = r"(?:(?<=\. )|(?<=\A)|(?<=\n))"
PATTERNS = (
    Pattern("behind", r"\bbehind\b", 5, "after, fused into, followed by"),
    Pattern("nobody", r"\bnobody\b", 3, "no region, no reader, none"),
    Pattern("what is", r"\b[Ww]hat is\b", 7, "name the noun: the values that, operators that"),
    Pattern("Of ...", _BEGIN + r"Of\b", 3, "begin with the subject"),
    Pattern("Those ...", _BEGIN + r"(?:Those|Such)\b", 1, "repeat the noun"),
    Pattern("whoever", r"\b[Ww]hoever\b", 1, "the caller, users who"),
    Pattern("so many", r"\bso many\b", 1, "`n`, the number of"),
)


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring and comment, or of a page."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield 1, re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    elif path.suffix == ".py":
        yield from _of_python(text)
    else:
        for number, line in enumerate(text.splitlines(), start=1):
            if found := re.search(r"//\s*(.*)$", line):
                yield number, found[1]


def _of_python(text: str) -> Iterator[tuple[int, str]]:
    before = tokenize.INDENT
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        starts = before in (tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE, tokenize.NL)
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")
        elif token.type == tokenize.STRING and starts:
            yield token.start[0], token.string.strip("r\"'")
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            before = token.type


def files() -> Iterator[Path]:
    """All that has prose of ours."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            name = str(path.relative_to(ROOT))
            if path.suffix in (".py", ".cc", ".h", ".c", ".md") and not name.startswith(EXEMPT):
                yield path
    yield from (ROOT / page for page in PAGES)


def find() -> Iterator[tuple[Pattern, Path, int, str]]:
    """Every occurrence of a pattern."""
    for path in files():
        for start, text in prose(path):
            for pattern in PATTERNS:
                for found in re.finditer(pattern.regex, text):
                    line = start + text.count("\n", 0, found.start())
                    shown = text[: found.end()].splitlines()[-1:] or [""]
                    rest = text[found.end() :].split("\n", 1)[0]
                    yield pattern, path, line, (shown[0] + rest).strip()


def main() -> int:
    """Print counts or places; 1 if a pattern occurs too often."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("paths", nargs="*", help="only files whose path begins so")
    options = parser.parse_args()
    counts = dict.fromkeys(PATTERNS, 0)
    for pattern, path, line, text in find():
        name = str(path.relative_to(ROOT))
        if options.paths and not name.startswith(tuple(options.paths)):
            continue
        counts[pattern] += 1
        if options.list:
            print(f"{name}:{line}: {pattern.name}: {text}")
    for pattern, count in counts.items():
        if count > pattern.most or options.list or options.paths:
            print(f"{pattern.name!r} {count} times (at most {pattern.most}): {pattern.instead}")
    return int(any(count > pattern.most for pattern, count in counts.items()))


if __name__ == "__main__":
    sys.exit(main())
