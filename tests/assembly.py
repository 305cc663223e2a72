"""Hot loops of a kernel, read from its assembly; no processor of that kind is needed.

innermost loops  ->  multiply-adds, instructions, vectors moved to or from the stack, stores
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LABEL = re.compile(r"^(\.L\w+):")
_JUMP = re.compile(r"^\t(?:j\w+|b\.?\w*|cbn?z\s+\w+,|tbn?z\s+\w+,\s*#\d+,)\s+(\.L\w+)")
_MULTIPLY_ADD = re.compile(r"\bvfmadd\w+ps\b|\bfmla\b")
_VECTOR = re.compile(r"%[xyz]mm\d|\b[qv]\d")
_STACK = re.compile(r"\(%rsp\b|\[sp\b")
_STORE = re.compile(r"\tvmov[au]ps\s+%[xyz]mm\d+, .*\(|\tst[pur1]+\s+.*\b[qv]\d")


@dataclass(frozen=True)
class HotLoop:
    """An innermost loop that multiplies."""

    body: tuple[str, ...]

    @property
    def multiply_adds(self) -> int:
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


def hot_loops(assembly: str) -> list[HotLoop]:
    """The innermost loops that hold at least half the multiply-adds of the richest one."""
    code: list[str] = []
    labels: dict[str, int] = {}
    for line in assembly.split("\n"):
        line = re.split(r"\s*(?:#\s|//)", line)[0].rstrip()
        if label := _LABEL.match(line):
            labels[label[1]] = len(code)
        elif re.match(r"^\t[a-z]", line):
            code.append(line)
    jumps = ((_JUMP.match(line), end) for end, line in enumerate(code))
    spans = {(labels[j[1]], end + 1) for j, end in jumps if j and labels.get(j[1], end + 1) <= end}
    inner = [s for s in spans if not any(s != t and s[0] <= t[0] and t[1] <= s[1] for t in spans)]
    loops = [HotLoop(tuple(code[start:end])) for start, end in sorted(inner)]
    most = max((loop.multiply_adds for loop in loops), default=0)
    return [loop for loop in loops if most and loop.multiply_adds >= most / 2]
