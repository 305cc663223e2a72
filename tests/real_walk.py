"""Counts how far the network walks through the files while `ts.compile` runs: its real call tree.

    .venv/bin/python tests/real_walk.py              # the figures
    .venv/bin/python tests/real_walk.py --files      # and the stays

There are two walks: of the caller's network until it is read, and of the canonical module until the
model is there, through a search that builds and measures its plans. A function is on a walk if an
argument is the network, its `main`, or an object whose ``mod`` is the network, such as a `Job`;
each function counts when it is called first. A *stay* is a run of functions of one file. A stay
*returns* to a file where the walk was before, and *climbs* if that file is also in a higher room
(`rooms.py`) than the stay before.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from types import CodeType, FrameType

import tvm
from helpers import rooms
from helpers.cpu_targets import TARGET
from helpers.fake_targets import fake_processor
from helpers.search_helpers import emit

import tvm_stretch as ts
from tvm_stretch.read.load import load_network

FILES = {str(path): name for name, path in rooms.modules()}


@dataclass
class Walk:
    """The files that one object enters."""

    network: object
    stays: list[str] = field(default_factory=list)
    seen: set[CodeType] = field(default_factory=set)

    def holds(self, value: object) -> bool:
        """Whether a value is the network, its main function, or has it as ``mod``."""
        network = self.network
        if not isinstance(value, tvm.IRModule | tvm.relax.Function):
            value = getattr(value, "mod", value)
        if isinstance(network, tvm.IRModule) and isinstance(value, tvm.relax.Function):
            return value.same_as(network["main"])
        is_module = isinstance(value, tvm.IRModule) and isinstance(network, tvm.IRModule)
        return value.same_as(network) if is_module else value is network

    def enter(self, frame: FrameType) -> None:
        """Note a function that receives the network."""
        code, module = frame.f_code, FILES.get(frame.f_code.co_filename)
        if module is None or code in self.seen or code.co_name.startswith("<"):
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if any(self.holds(frame.f_locals[name]) for name in names if name != "self"):
            self.seen.add(code)
            if self.stays[-1:] != [module]:
                self.stays.append(module)

    @property
    def returns(self) -> list[str]:
        """The stays in files where the walk was before."""
        return [stay for index, stay in enumerate(self.stays) if stay in self.stays[:index]]

    @property
    def climbs(self) -> list[str]:
        """The returns from a lower room."""
        levels = [rooms.level_of(stay) or 0 for stay in self.stays]
        return [
            stay
            for index, stay in enumerate(self.stays)
            if stay in self.stays[:index] and levels[index] > levels[index - 1]
        ]


def walks(size: int, channels: int) -> tuple[Walk, Walk]:
    """The walks of a compile for two processors: reading, and what follows."""
    source = emit(["conv"] * 3, size=size, channels=channels)
    reading, compiling = Walk(source), Walk(None)

    def profile(frame: FrameType, event: str, result: object) -> None:
        if event == "return" and frame.f_code is load_network.__code__ and not compiling.network:
            compiling.network = result
        elif event == "call":
            (compiling if compiling.network else reading).enter(frame)

    sys.setprofile(profile)
    try:
        ts.compile(source, [TARGET, fake_processor("p1")], cpu_threads=1)
    finally:
        sys.setprofile(None)
    return reading, compiling


if __name__ == "__main__":
    for name, walk in zip(("reading", "compiling"), walks(28, 32), strict=True):
        climbs = (
            f"{len(walk.climbs)} climbs, {max(Counter(walk.climbs).values(), default=0)} to one"
        )
        counts = (
            f"{len(walk.stays)} stays of {len(walk.seen)} functions, {len(walk.returns)} returns"
        )
        print(f"{name}: {counts}, {climbs}")
        if "--files" in sys.argv:
            print(*(f"  {stay}" for stay in walk.stays), sep="\n")
