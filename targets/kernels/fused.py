"""Split a fused PrimFunc into the anchor, which a template knows, and its epilogue.

FuseTIR hands over one function per group, for example ``conv2d -> + bias -> + residual -> relu``.
The anchor's blocks carry the annotation ``tvm_stretch.kernel`` (which template, with which
configuration). The other blocks are inlined into one elementwise expression, the epilogue, which
the template evaluates on each tile while it is still in registers.

Kernels that compute only a rectangle of their output, for streams of frames.

    conv2d(data, weight, out)   ->   conv2d(data, weight, out, [top, bottom, left, right])

A frame of a video resembles the one before, and feature maps keep the pixels that did not change.
The template that writes the loop nest clips its loops. A nest may compute more pixels than asked
for, up to the ends of its register tiles: their inputs are the same, so their values are too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.ir import Expr
from tvm.ir.expr import TensorLoad

from tvm_stretch.network.attributes import ANNOTATION, FIXED, MEANING, RECTANGLE
from tvm_stretch.network.codec import from_text
from tvm_stretch.network.expressions import nodes_of
from tvm_stretch.network.rewriting import rewrite

from .fixed_point import FixedPoint, narrowing_call
from .loops import Index, TileRun, const, load


@dataclass(frozen=True)
class Rectangle:
    """The pixels that a call computes."""

    buffer: tirx.Buffer  # four integers: top, bottom, left, right, without the ends

    def rows(self, first: Index, count: Index, row: int = 1, image: int = 1) -> tuple[Expr, Expr]:
        """The part of ``count`` rows from ``first`` on that the call computes.

        ``row`` pixels may be a row of the nest where ``image`` pixels are a row of the image.
        """
        low, high = load(self.buffer, 0), load(self.buffer, 1)
        low, high = low * image // row, (high * image + (row - 1)) // row
        begin = tirx.max(const(first), low)
        end = tirx.min(const(first) + const(count), high)
        return begin, tirx.max(const(0), end - begin)

    def tiles(
        self, run: TileRun[Any], body: Callable[[Index, Callable[[Expr], Expr]], tirx.Stmt]
    ) -> tirx.Stmt:
        """``body(count, place)`` for the tiles of a run that have a pixel of the rectangle.

        ``place`` maps the number of a tile among those to its number in the run.
        """
        left, right = load(self.buffer, 2), load(self.buffer, 3)
        if run.count == 1:
            meets = tirx.all(left < run.start + run.width, right > run.start)
            return tirx.IfThenElse(meets, body(1, lambda t: t), None)
        begin = tirx.max(left - run.start, const(0)) // run.width
        end = (tirx.max(right - run.start, const(0)) + (run.width - 1)) // run.width
        begin, end = (tirx.min(place, const(run.count)) for place in (begin, end))
        return body(tirx.max(const(0), end - begin), lambda t: begin + t)

    def meets(self, first: tuple[Expr, Expr], size: tuple[int, int]) -> Expr:
        """Whether the call computes a pixel of an area."""
        top, bottom, left, right = (load(self.buffer, i) for i in range(4))
        (y, x), (height, width) = first, size
        return tirx.all(y < bottom, y + height > top, x < right, x + width > left)


@dataclass(frozen=True)
class Epilogue:
    """``out[axes] = value``, where ``value`` reads the anchor's result at the same position."""

    anchor: tirx.Buffer
    out: tirx.Buffer
    axes: tuple[tirx.Var, ...]
    value: Expr | None

    def store(self, indices: Sequence[int | Expr], accumulator: Expr) -> tirx.Stmt:
        """Store the fused result of ``accumulator``, the anchor's value at ``indices``."""
        where = [const(i) for i in indices]
        return tirx.BufferStore(self.out, self.value_at(where, accumulator), where)

    def value_at(self, indices: Sequence[Expr], accumulator: Expr) -> Expr:
        """The fused result of ``accumulator``, the anchor's value at ``indices``."""
        if self.value is None:
            return accumulator
        places = dict(zip(self.axes, indices, strict=True))

        def replace(node: Expr) -> Expr:
            if isinstance(node, TensorLoad):
                return accumulator if node.source.same_as(self.anchor) else node
            return places.get(node, node)

        return rewrite(self.value, ((TensorLoad, tirx.Var), replace))


@dataclass(frozen=True)
class FusedKernel:
    """A fused PrimFunc as a template sees it: configuration, operands, blocks and epilogue.

    Operands are listed in the order in which blocks first read them, without the epilogue's own.
    """

    func: tirx.PrimFunc  # with all blocks
    config: str
    operands: tuple[tirx.Buffer, ...]
    blocks: tuple[s_tir.SBlock, ...]
    epilogue: Epilogue
    rectangle: Rectangle | None = None  # of kernels that compute only a part


def blocks_of(func: tirx.PrimFunc) -> list[s_tir.SBlock]:
    """The blocks of a kernel that is not scheduled yet, in order."""
    return [block for block in nodes_of(func.body, s_tir.SBlock) if block.name_hint != "root"]


def split_fused(func: tirx.PrimFunc) -> FusedKernel | None:
    """Split ``func`` at its anchor; None if it has none, or if its epilogue is not elementwise."""
    sch = s_tir.Schedule(tvm.IRModule({"main": func}))
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    marks = [_mark_of(sch.get(b)) for b in blocks]
    if not any(marks):
        return None
    last = max(i for i, mark in enumerate(marks) if mark)
    config = marks[last]
    anchor = sch.get(blocks[last]).writes[0].source
    needed = _needed([sch.get(b) for b in blocks[: last + 1]])
    # Blocks that only the epilogue reads may come before the anchor.
    own = [any(sch.get(b).writes[0].source.same_as(n) for n in needed) for b in blocks]
    meaning = tuple(sch.get(b) for b, is_own in zip(blocks, own, strict=True) if is_own)
    operands = _operands(func, meaning)
    part = Rectangle(func.params[-1]) if RECTANGLE in (func.attrs or {}) else None
    followers = [b for b, is_own in zip(blocks, own, strict=True) if not is_own]
    for follower in followers[:-1]:
        sch.compute_inline(follower)
    if not followers:
        epilogue = Epilogue(anchor, anchor, (), None)
        return FusedKernel(func, config, operands, meaning, epilogue, part)
    final = sch.get(followers[-1])
    axes = tuple(axis.var for axis in final.iter_vars)
    body = final.body
    if not isinstance(body, tirx.BufferStore) or not same_place(body.indices, axes):
        return None
    if list(map(int, body.buffer.shape)) != list(map(int, anchor.shape)):
        return None
    for read in _loads(body.value, anchor):
        if not same_place(read.indices, axes):
            return None
    value = body.value
    if FIXED in final.annotations:
        value = _narrowed(func, anchor, axes, from_text(FixedPoint, str(final.annotations[FIXED])))
    epilogue = Epilogue(anchor, body.buffer, axes, value)
    return FusedKernel(func, config, operands, meaning, epilogue, part)


def _mark_of(block: s_tir.SBlock) -> str:
    """Template and configuration of an anchor; an integer operator is a configuration itself."""
    meaning = block.annotations.get(MEANING)
    return str(block.annotations.get(ANNOTATION, "" if meaning is None else f"integer {meaning}"))


def elementwise(blocks: Sequence[s_tir.SBlock], anchor: tirx.Buffer) -> Epilogue | None:
    """The blocks after ``anchor`` as one expression; None if they are not elementwise."""
    axes: tuple[tirx.Var, ...] = ()
    chain: list[tuple[tirx.Buffer, Expr | None]] = [(anchor, None)]
    for one in blocks:
        body, own = one.body, tuple(axis.var for axis in one.iter_vars)
        axes = axes or own
        if not isinstance(body, tirx.BufferStore) or not same_place(body.indices, own):
            return None
        reads = [read for buffer, _ in chain for read in _loads(body.value, buffer)]
        same = list(map(int, body.buffer.shape)) == list(map(int, anchor.shape))
        if not (same and reads and all(same_place(read.indices, own) for read in reads)):
            return None
        chain.append((body.buffer, _inlined(body.value, chain, dict(zip(own, axes, strict=True)))))
    return Epilogue(anchor, chain[-1][0], axes, chain[-1][1])


def _inlined(
    value: Expr,
    chain: Sequence[tuple[tirx.Buffer, Expr | None]],
    places: Mapping[tirx.Var, tirx.Var],
) -> Expr:
    """``value`` at other axes, with the values of buffers in place of their loads."""

    def replace(node: Expr) -> Expr:
        if not isinstance(node, TensorLoad):
            return places.get(node, node)
        inner = next((value for buffer, value in chain if node.source.same_as(buffer)), None)
        return node if inner is None else inner

    return rewrite(value, ((TensorLoad, tirx.Var), replace))


def _narrowed(
    func: tirx.PrimFunc, anchor: tirx.Buffer, axes: Sequence[tirx.Var], fixed: FixedPoint
) -> Expr:
    """The rounding of a layer's sums; its last operands are bias and mantissa of each channel."""
    *_, bias, mantissa, _ = func.params
    channel = (0, axes[1], 0, 0, axes[-1])
    return narrowing_call(
        load(anchor, *axes) + load(bias, *channel), load(mantissa, *channel), fixed
    )


def _operands(func: tirx.PrimFunc, blocks: Sequence[s_tir.SBlock]) -> tuple[tirx.Buffer, ...]:
    """The parameters that the blocks read, without repetition."""
    operands: list[tirx.Buffer] = []
    for buffer in (region.source for block in blocks for region in block.reads):
        is_parameter = any(buffer.same_as(param) for param in func.params)
        if is_parameter and not any(buffer.same_as(other) for other in operands):
            operands.append(buffer)
    return tuple(operands)


def _needed(blocks: Sequence[s_tir.SBlock]) -> list[tirx.Buffer]:
    """The result of the last block, and all buffers from which it is computed."""
    needed = [blocks[-1].writes[0].source]
    for block in reversed(blocks):
        if any(block.writes[0].source.same_as(buffer) for buffer in needed):
            needed += [region.source for region in block.reads]
    return needed


def same_place(indices: Sequence[Expr], axes: Sequence[tirx.Var]) -> bool:
    """Whether the indices are exactly these axes."""
    return len(indices) == len(axes) and all(
        i.same_as(a) for i, a in zip(indices, axes, strict=True)
    )


def _loads(value: Expr, buffer: tirx.Buffer) -> list[TensorLoad]:
    return [load for load in nodes_of(value, TensorLoad) if load.source.same_as(buffer)]
