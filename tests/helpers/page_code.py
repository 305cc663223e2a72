"""The code of the pages: blocks that name a language, and a reader who types them in.

    for block in blocks("docs/streams.md"):
        reader.runs(block)          # Python and shell in one folder, with the names so far

A block without a language is no code: it draws something, or shows what a program prints. What no
test can run begins with the comment `not run in tests:` and the reason, which readers see, too.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm_stretch.run.autoload import find_file

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("docs/*.md", "README.md", "tutorials/*.md", "java/*.md", "tvm_stretch/**/*.md")
    for path in ROOT.glob(pattern)
)
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_UNTESTED = re.compile(r"(?:#|//) not run in tests: (.+)\n")
_SETUP = ("make ", "pip install ", "cd ")
"""What begins a line that takes minutes or changes the machine: such lines are only looked at."""


@dataclass(frozen=True)
class Block:
    """A block of a page.

    Attributes:
        language: the word after the backquotes; empty if it is no code.
    """

    page: str
    line: int
    language: str
    code: str

    @property
    def place(self) -> str:
        """Page and line, as compilers name them."""
        return f"{self.page}:{self.line}"

    @property
    def untested(self) -> str | None:
        """Why no test runs it, as it says itself."""
        match = _UNTESTED.match(self.code)
        return match and match[1]

    def commands(self) -> list[str]:
        """Lines of a shell; one that ends with a backslash goes on."""
        return self.code.replace("\\\n", " ").splitlines()

    def setup(self) -> list[str]:
        """Commands that are looked at and not run."""
        return [line for line in self.commands() if line.startswith(_SETUP)]


def blocks(page: str) -> list[Block]:
    """All blocks of a page, with code or without."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        line = text[: match.start()].count("\n") + 1
        found.append(Block(page, line, match[1], match[2]))
    return found


class Reader:
    """Somebody who types in the code of a page, in the present folder.

    Attributes:
        names: Python's variables, which one block leaves to the next.
        instead: what the reader has in place of a word of the page, such as a phone's address.
    """

    def __init__(self, **names: Any) -> None:
        self.names = names
        self.instead: dict[str, str] = {}
        Path("tutorials").symlink_to(ROOT / "tutorials")

    def runs(self, block: Block) -> None:
        """Run a block; what it raises or says is the test's failure."""
        code = block.code
        for word, own in self.instead.items():
            code = code.replace(word, own)
        {"python": self._python, "sh": self._shell, "c": self._c, "cpp": self._c}[block.language](
            Block(block.page, block.line, block.language, code)
        )

    def _python(self, block: Block) -> None:
        # lines before the code keep the page's numbers
        exec(compile("\n" * block.line + block.code, block.page, "exec"), self.names)

    def _shell(self, block: Block) -> None:
        lines = [line for line in block.commands() if line not in block.setup()]
        programs = [Path(sys.executable).parent, find_file("bin/tvm_stretch_bench").parent]
        path = os.pathsep.join([*map(str, programs), os.environ["PATH"]])
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", "\n".join(lines)],
            env={**os.environ, "PATH": path},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, f"{block.place}: {done.stdout}"

    def _c(self, block: Block) -> None:
        """The body of a function, as a program that ends with its `status`."""
        header = "tvm_stretch.h" if block.language == "c" else "tvm_stretch.hpp"
        before = "TvmStretchModel* model; " if block.language == "c" else "int status = 0; "
        text = f"#include <{header}>\nint main() {{ {before}{block.code} return status; }}\n"
        Path(f"page.{block.language}").write_text(text)
        library = find_file("lib/libtvm_stretch_runtime.so")
        ffi = Path(sysconfig.get_path("purelib"), "tvm_ffi/lib")
        words = [
            "g++" if block.language == "cpp" else "gcc",
            f"page.{block.language}",
            str(library),
        ]
        words += [f"-I{find_file('include/tvm_stretch.h').parent}", f"-Wl,-rpath-link,{ffi}"]
        words += [f"-Wl,-rpath,{library.parent}:{ffi}", "-o", "page"]
        subprocess.run(words, check=True)
        subprocess.run(["./page"], check=True)


def words_of(line: str) -> list[str]:
    """The words of a shell's line without its comment."""
    return shlex.split(line, comments=True)
