"""Hot loops of a kernel, read from its assembly; no processor of that kind is needed.

straight pieces of code  ->  multiply-adds, instructions, vectors that pass through the stack

A piece ends where code jumps or is jumped to: that is the body of a tile's innermost loop, or,
where a row is one tile, what it computes between the tests for the border.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

_LABEL = re.compile(r"^(?:\.LBB\d+_\d+|\w+):")  # not those of debuggers
_JUMP = re.compile(r"^\t(?:j\w+|b\.?\w*|cbn?z\s+\w+,|tbn?z\s+\w+,\s*#\d+,)\s+(\.L\w+)")
# a product that begins a sum counts as well
_MULTIPLY_ADD = re.compile(r"\bvfn?madd\w+ps\b|\bvmulps\b|\bfml[as]\b|\bfmul\s+v")
_VECTOR = re.compile(r"%[xyz]mm\d|\b[qv]\d")
_STACK = re.compile(r"\(%rsp\b|\[sp\b")
_STORE = re.compile(r"\tvmov[au]ps\s+%[xyz]mm\d+, .*\(|\tst[pur1]+\s+.*\b[qv]\d")
_ADD = re.compile(r"\bv(?:add|sub)ps\b|\bf(?:add|sub)\s+v")


@dataclass(frozen=True)
class HotLoop:
    """Straight code that multiplies, seen as a loop of its own."""

    body: tuple[str, ...]

    @property
    def multiply_adds(self) -> int:
        """Vectors of products that a pass adds up."""
        return sum(bool(_MULTIPLY_ADD.search(line)) for line in self.body)

    @property
    def spills(self) -> int:
        """Vectors that pass through the stack."""
        return sum(bool(_STACK.search(line) and _VECTOR.search(line)) for line in self.body)

    @property
    def stores(self) -> int:
        """Vectors written to memory: sums that are no registers, or spills."""
        return sum(bool(_STORE.search(line)) for line in self.body)

    @property
    def share(self) -> float:
        """Multiply-adds among all instructions."""
        return self.multiply_adds / len(self.body)

    @property
    def transforms(self) -> bool:
        """Whether it adds vectors to each other, as transforms of Winograd do, products not."""
        return sum(bool(_ADD.search(line)) for line in self.body) > self.multiply_adds / 4

    @property
    def text(self) -> str:
        """The loop alone; whatever it jumps to is its own begin."""
        lines = (re.sub(r"\.L(?!CPI)\w+", ".Lbegin", line) for line in self.body)
        return "\n".join([".Lbegin:", *lines]) + "\n"


def hot_loops(assembly: str) -> list[HotLoop]:
    """The pieces that hold at least half the multiply-adds of the richest one.

    Of a Winograd convolution these are the products, not the transforms.
    """
    pieces: list[list[str]] = [[]]
    for line in assembly.split("\n"):
        line = re.split(r"\s*(?:#\s|//)", line)[0].rstrip()
        if _LABEL.match(line):
            pieces.append([])
        elif re.match(r"^\t[a-z]", line):
            pieces[-1].append(line)
            if _JUMP.match(line):
                pieces.append([])
    loops = [loop for loop in (HotLoop(tuple(piece)) for piece in pieces) if not loop.transforms]
    most = max((loop.multiply_adds for loop in loops), default=0)
    return [loop for loop in loops if most and loop.multiply_adds >= most / 2]


def loop_bytes(loops: Sequence[HotLoop], triple: str) -> list[int]:
    """The size of each loop's code; empty where nothing here can assemble it."""
    if triple.startswith("aarch64"):
        return [4 * len(loop.body) for loop in loops]
    assembler, size = shutil.which("as"), shutil.which("size")
    if not assembler or not size:
        return []
    parts = (f'.section .text.{i},"ax"\n{loop.text}' for i, loop in enumerate(loops))
    # labels are local to a section here
    text = "\n".join(p.replace(".Lbegin", f".Lbegin{i}") for i, p in enumerate(parts))
    with tempfile.NamedTemporaryFile(suffix=".o") as file:
        command = [assembler, "--64", "-o", file.name, "-"]
        done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
        if done.returncode:
            return []
        listed = subprocess.run(
            [size, "-A", file.name], text=True, capture_output=True, check=True
        ).stdout
    found = dict(re.findall(r"^\.text\.(\d+)\s+(\d+)", listed, re.MULTILINE))
    return [int(found[str(i)]) for i in range(len(loops))]


def cycles(loop: HotLoop, tool: str, arguments: Sequence[str], passes: int = 50) -> float:
    """Cycles of one pass by llvm-mca."""
    command = [tool, *arguments, f"-iterations={passes}", "-noalias=true"]
    done = subprocess.run(command, input=loop.text, text=True, capture_output=True, check=True)
    match = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    assert match, done.stdout
    return int(match[1]) / passes
