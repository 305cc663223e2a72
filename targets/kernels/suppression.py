"""NonMaxSuppression: of boxes that overlap, the one with the best score.

    for image, class:
      left = scores that are above the least one
      for m < most, while there are any:
        kept[m] = place of the best one that is left, the first of equal ones; -1 if there is none
        boxes whose overlap with it is above the threshold are no longer left

Images and classes are independent of each other.  A box without area overlaps nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax, tirx
from tvm.ir import Expr
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_stretch.network.steps import steps_call


@dataclass(frozen=True)
class Limits:
    """Which boxes are kept."""

    most: int  # of an image and class
    overlap: float  # intersection over union above which the worse box is dropped
    least: float  # scores must be above it


def suppression_call(
    bb: relax.BlockBuilder, boxes: relax.Expr, scores: relax.Expr, limits: Limits
) -> relax.Call:
    """The places of kept boxes by descending score, for each image and class; -1 after them.

    Boxes are (images, count, 4), their lower corners first; scores are (images, classes, count).
    """
    images, classes, count = (int(d) for d in scores.ty.shape.values)
    kernel = _kernel(images, classes, count, limits)
    kind = relax.TensorType((images, classes, limits.most), "int32")
    return steps_call(bb, "ordering.suppression", kernel, [boxes, scores], kind)


_GONE = float(np.finfo("float32").min)


def _long(*values: int) -> list[Expr]:
    return [tirx.const(value, "int64") for value in values]


def _kernel(images: int, classes: int, count: int, limits: Limits) -> tirx.PrimFunc:
    gone = tirx.const(_GONE, "float32")
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        boxes = T.arg("boxes", tirx.decl_buffer(_long(images, count, 4), "float32", "boxes"))
        scores = T.arg("scores", tirx.decl_buffer(_long(images, classes, count), "float32", "s"))
        shape = _long(images, classes, limits.most)
        kept = T.arg("kept", tirx.decl_buffer(shape, "int32", "kept"))
        left = T.sblock_alloc_buffer(_long(count), "float32")
        best = T.sblock_alloc_buffer(_long(1), "int32")
        with T.grid(*_long(images, classes)) as (image, kind), T.sblock("suppress"):
            image = T.axis.spatial(*_long(images), image)
            kind = T.axis.spatial(*_long(classes), kind)
            T.buffer_store(best, tirx.const(0, "int32"), [0])
            with T.serial(*_long(0, count)) as i:
                score = scores[image, kind, i]
                above = score > tirx.const(limits.least, "float32")
                T.buffer_store(left, tirx.Select(above, score, gone), [i])
            with T.serial(*_long(0, limits.most)) as m:
                with T.If(best[0] >= 0), T.Then():
                    _keep_best(boxes, image, left, best, limits.overlap)
                T.buffer_store(kept, best[0], [image, kind, m])
    return builder.get()


def _keep_best(
    boxes: tirx.Buffer, image: Expr, left: tirx.Buffer, best: tirx.Buffer, overlap: float
) -> None:
    """Find the best score that is left; it and boxes that overlap it are no longer left."""
    gone, none = tirx.const(_GONE, "float32"), tirx.const(-1, "int32")
    count = left.shape[0]
    T.buffer_store(best, none, [0])
    with T.serial(tirx.const(0, "int64"), count) as i:
        best_score = left[tirx.max(best[0], tirx.const(0, "int32")).astype("int64")]
        better = left[i] > tirx.Select(best[0] < 0, gone, best_score)
        with T.If(better), T.Then():
            T.buffer_store(best, i.astype("int32"), [0])
    with T.If(best[0] >= 0), T.Then():
        chosen = best[0].astype("int64")
        T.buffer_store(left, gone, [chosen])
        with T.serial(tirx.const(0, "int64"), count) as i:
            one, other = ([boxes[image, at, k] for k in range(4)] for at in (chosen, i))
            with T.If(_overlap(one, other, overlap)), T.Then():
                T.buffer_store(left, gone, [i])


def _overlap(one: list[Expr], other: list[Expr], most: float) -> Expr:
    """Whether the intersection of two boxes over their union is above a limit."""
    zero = tirx.const(0.0, "float32")
    sides = [tirx.min(one[k + 2], other[k + 2]) - tirx.max(one[k], other[k]) for k in (0, 1)]
    shared = tirx.max(sides[0], zero) * tirx.max(sides[1], zero)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    union = areas[0] + areas[1] - shared
    some = tirx.all(shared > zero, areas[0] > zero, areas[1] > zero, union > zero)
    return tirx.all(some, shared / union > tirx.const(most, "float32"))
