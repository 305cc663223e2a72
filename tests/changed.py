"""Print the test files that a change can break: `make changed` runs them.

    git diff main  ->  modules  ->  all that import them  ->  test files that use one of those

`ts.compile` in a test is a use of the module that the package's `_LAZY` names. A change of anything
but Python in the product (C++, helpers in tests/, settings) can break every test: all are printed.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from helpers.rooms import ROOT, imported, modules

import tvm_stretch

TESTS = ROOT / "tests"


def affected(changed: set[str]) -> set[str]:
    """The modules that import one of these, and those that import them, and so on."""
    known = dict(modules())
    readers = defaultdict(set)
    for module, path in known.items():
        for name, _ in imported(module, path):
            readers[name if name in known else name.rpartition(".")[0]].add(module)
    found: set[str] = set()
    waiting = list(changed)
    while waiting:
        module = waiting.pop()
        if module not in found and module != "tvm_stretch":  # `used` resolves what it names
            found.add(module)
            waiting += readers[module]
    return found


@functools.cache
def used(path: Path) -> frozenset[str]:
    """The modules that a test file uses, also through its helpers."""
    names = {name for name, _ in imported(path.stem, path)}
    found = names | {name.rpartition(".")[0] for name in names}
    for name in re.findall(r"\bts\.(\w+)", path.read_text(encoding="utf-8")):
        lazy = tvm_stretch._MODULES.get(name) or tvm_stretch._LAZY.get(name)
        found |= {lazy} if lazy else set()
    for name in names:
        helper = _helper(name)
        if helper and helper != path:
            found |= used(helper)
    return frozenset(found)


def _helper(name: str) -> Path | None:
    """The file in tests/ that holds what a test imports by this name, if it is there."""
    parts = name.split(".")
    paths = (TESTS.joinpath(*parts[:end]).with_suffix(".py") for end in range(1, len(parts) + 1))
    return next(filter(Path.exists, paths), None)


def files_for(paths: list[str]) -> list[str]:
    """The test files that changes of these files can break."""
    tests = sorted(TESTS.rglob("test_*.py"))
    own = {str(path.relative_to(ROOT)): module for module, path in modules()}
    product = {path for path in paths if path in own}
    itself = {path for path in paths if Path(path).name.startswith("test_")}
    rest = set(paths) - product - itself
    if any(not path.endswith(".md") for path in rest):
        return [str(path.relative_to(ROOT)) for path in tests]
    broken = affected({own[path] for path in product}) if product else set()
    using = [path for path in tests if broken and used(path) & broken]
    names = [str(path.relative_to(ROOT)) for path in using]
    return sorted({*names, *itself & {str(path.relative_to(ROOT)) for path in tests}})


def differing(since: str = "main") -> list[str]:
    """The files that differ from a commit, new ones too."""
    found = [["diff", "--name-only", since], ["ls-files", "--others", "--exclude-standard"]]
    run = functools.partial(subprocess.check_output, cwd=ROOT, text=True)
    return [path for words in found for path in run(["git", *words]).split()]


if __name__ == "__main__":
    print("\n".join(files_for(differing(*sys.argv[1:2]))))
