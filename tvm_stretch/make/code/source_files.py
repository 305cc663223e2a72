"""The files whose code generates kernels: the key of the kernel cache covers all of them.

    make/code/*.py, targets/**/{kernels,code}/*.py, passes/schedule_kernels.py
      │ from tvm_stretch.network.rewriting import rewrite
      ▼
    network/rewriting.py, and what it imports in turn

Imports are found in the text: files need not be loaded, and imports inside functions count too.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from tvm_stretch import passes
from tvm_stretch.targets import kernels

_PACKAGE = "tvm_stretch"
_IMPORT = re.compile(
    rb"^[ \t]*from (tvm_stretch(?:\.\w+)*) import[ \t]*(\([^)]*\)|[^\n]*)", re.MULTILINE
)
_FOLDERS = {
    f"{_PACKAGE}.passes": passes.__path__[0],
    f"{_PACKAGE}.targets": str(Path(kernels.__path__[0]).parent),
    _PACKAGE: str(Path(__file__).parents[2]),
}
"""Folders of the packages; in a checkout not all of them lie in that of ours."""


def source_files() -> dict[str, bytes]:
    """The content of each file by the name of its module, in an order that is always the same.

    The package itself is left out: it only names what its modules have.
    """
    found: dict[str, bytes] = {}
    waiting = [*_generators()]
    while waiting:
        module = waiting.pop()
        content = None if module in found or module == _PACKAGE else _content(module)
        if content is not None:
            found[module] = content
            waiting += _imports(content)
    return dict(sorted(found.items()))


def _generators() -> Iterator[str]:
    """The modules that generate code, without those that they import."""
    yield f"{_PACKAGE}.passes.schedule_kernels"
    for package, folders in (("make", {"code"}), ("targets", {"code", "kernels"})):
        folder = Path(_path(f"{_PACKAGE}.{package}"))
        for path in folder.rglob("[!_]*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            if folders & {*parts}:
                yield ".".join((_PACKAGE, package, *parts))


def _imports(content: bytes) -> Iterator[str]:
    """All names that may be modules."""
    for package, names in _IMPORT.findall(content):
        yield package.decode()
        yield from (f"{package.decode()}.{name}" for name in re.findall(r"\w+", names.decode()))


def _content(module: str) -> bytes | None:
    """The file of a module or package; None if it is neither."""
    for path in (f"{_path(module)}.py", f"{_path(module)}/__init__.py"):
        with contextlib.suppress(OSError):
            return Path(path).read_bytes()
    return None


def _path(module: str) -> str:
    """The path of a module without its suffix."""
    package = next(name for name in _FOLDERS if f"{module}.".startswith(f"{name}."))
    return _FOLDERS[package] + module.removeprefix(package).replace(".", "/")
