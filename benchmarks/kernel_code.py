"""The layers of networks of the zoo, the kernels chosen for them, and the hot loops of their code.

    straight pieces of assembly  ->  multiply-adds, instructions, vectors through the stack

A piece ends where code jumps or is jumped to: that is the body of a tile's innermost loop, or,
where a row is one tile, what it computes between the tests for the border.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import tvm
from tvm import te, tirx
from tvm.target import Target

from tutorials import zoo
from tvm_stretch.network.expressions import shape_of
from tvm_stretch.network.operators import Calls
from tvm_stretch.read import load_network
from tvm_stretch.targets.cpu.code.object_code import llvm_module
from tvm_stretch.targets.cpu.kernels.conv import ConvConfig
from tvm_stretch.targets.cpu.kernels.window import WindowConfig
from tvm_stretch.targets.cpu.kernels.winograd import WinogradConfig
from tvm_stretch.targets.kernels.layers import ConvShape, conv_shape, dense_shape
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.schedule import schedule_kernel
from tvm_stretch.targets.kernels.template import choose

SIX = ("resnet18", "resnet34", "resnet50", "regnetx_1_6gf", "regnetx_4gf", "efficientnet_lite4")

Config = ConvConfig | WinogradConfig | WindowConfig


@cache
def layers(name: str, size: int | None = 224) -> Counter[ConvShape]:
    """The convolutions and dense layers of a network, and how often each stands there."""
    found: Counter[ConvShape | None] = Counter()
    for _, call in Calls(load_network(zoo.build(name, size=size))["main"]).bound:
        kind = getattr(call.op, "name", "")
        if kind == "relax.nn.conv2d":
            found[conv_shape(call)] += 1
        elif kind == "relax.matmul":
            data, weight = map(shape_of, call.args)
            found[dense_shape(data, weight[1])] += 1
    return Counter({shape: count for shape, count in found.items() if shape is not None})


def config_of(shape: ConvShape, machine: VectorMachine) -> Config:
    """The configuration that is chosen for a layer; the first layer reads a plain image."""
    plain = shape.in_channels < machine.lanes and shape.groups == 1
    sums = "float16" if machine.half else "float32"
    config: Config = choose(shape, machine.summing(sums), 1 if plain else machine.lanes)
    return config


def form(config: Config) -> tuple[Any, ...]:
    """Layers of one form have the same hot loops, but for borders and the last columns."""
    if isinstance(config, WindowConfig):
        return ("depthwise", config.kernel, config.stride)
    tile = (config.pixels, config.oc_blocks)
    if isinstance(config, WinogradConfig):
        return ("winograd", config.tile, *tile)
    return ("conv", config.kernel, config.stride, config.data_block, *tile)


def forms(shapes: Iterable[ConvShape], machine: VectorMachine) -> dict[tuple[Any, ...], Config]:
    """One configuration of each form that the layers need, that of the most multiply-adds."""
    found = {}
    for shape in sorted(shapes, key=lambda shape: shape.multiply_adds):
        config = config_of(shape, machine)
        found[form(config)] = config
    return found


def kernel(config: Config, machine: VectorMachine) -> tirx.PrimFunc:
    """The scheduled kernel of a configuration, with nothing fused to it."""
    lanes, dtype = config.lanes, "float16" if machine.half else "float32"
    weight_shape: tuple[int, ...]
    if isinstance(config, ConvConfig):
        block = (lanes,) if config.data_block > 1 else ()
        image = (config.batch, config.in_blocks, *config.in_size, *block)
        weight_shape = config.weight_shape
    elif isinstance(config, WinogradConfig):
        image = (config.batch, config.parts * config.in_blocks, *config.in_size, lanes)
        weight_shape = config.weight_shape
    else:
        image = (config.batch, config.blocks, *config.in_size, lanes)
        weight_shape = (config.blocks, *config.kernel, lanes)
    data = te.placeholder(image, dtype, name="x")
    weight = te.placeholder(weight_shape, dtype, name="w")
    out = config.meaning(data, weight)
    scheduled = schedule_kernel(te.create_prim_func([data, weight, out], "int64"), machine)
    return scheduled.with_attr("global_symbol", "kernel")


def build(config: Config, machine: VectorMachine, target: Mapping[str, Any]) -> tvm.runtime.Module:
    """The compiled kernel; its assembly is `inspect_source("asm")`."""
    return llvm_module(tvm.IRModule({"kernel": kernel(config, machine)}), Target(dict(target)))


# --- hot loops ------------------------------------------------------------------------------------

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


def cycles(loop: HotLoop, tool: str, arguments: Sequence[str], passes: int = 50) -> float:
    """Cycles of one pass by llvm-mca."""
    command = [tool, *arguments, f"-iterations={passes}", "-noalias=true"]
    done = subprocess.run(command, input=loop.text, text=True, capture_output=True, check=True)
    match = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    assert match, done.stdout
    return int(match[1]) / passes
