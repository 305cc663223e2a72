"""Stores of bytes on HVX: four pixels fill a vector, fewer are written in words."""

from __future__ import annotations

from collections import Counter

import pytest
import tvm_ffi
from tvm import tirx

from tvm_stretch.targets.hexagon.kernels.hvx_stores import pack_stores
from tvm_stretch.targets.kernels.loops import VECTORIZED, block, load, loop, store


def stores(pixels: list[int], dtype: str = "uint8", lanes: int = 32) -> tirx.PrimFunc:
    """Pixels of a row become bytes, each in a loop of its own."""
    data = tirx.decl_buffer((2, 16, lanes), "int32", name="data")
    out = tirx.decl_buffer((2, 16, lanes), dtype, name="out")

    def one(x: int) -> tirx.Stmt:
        def lane(i: tirx.Var) -> tirx.Stmt:
            return store(out, load(data, 1, x, i).astype(dtype), 1, x, i)

        return loop(lanes, lane, "lane", VECTORIZED)

    return tirx.PrimFunc([data, out], block(*(one(x) for x in pixels)))


def written_by(func: tirx.PrimFunc) -> list[range]:
    """The bytes of the row that each store of bytes writes."""
    found: list[range] = []

    def visit(node: tirx.BufferStore) -> None:
        if str(node.buffer.dtype) == "uint8":
            _, pixel, lanes = node.indices
            first = int(pixel) * 32 + int(lanes.base)
            found.append(range(first, first + int(lanes.lanes)))

    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, visit))
    return found


@pytest.mark.parametrize(
    ("pixels", "whole", "words"),
    [
        ([0, 1, 2, 3], 1, 0),
        ([4, 6, 5, 7], 1, 0),  # in any order
        ([0, 1, 2, 3, 4], 2, 0),  # the last four once more
        ([0, 2], 0, 16),  # no neighbours
        ([9, 10, 11], 0, 24),
        (list(range(8)), 2, 0),
    ],
)
def test_neighbours_are_packed(pixels: list[int], whole: int, words: int) -> None:
    written = written_by(pack_stores(stores(pixels)))
    sizes = Counter(len(places) for places in written)
    assert sizes == Counter({size: n for size, n in ((128, whole), (4, words)) if n})
    bytes_of = {pixel * 32 + lane for pixel in pixels for lane in range(32)}
    assert set().union(*written) == bytes_of


@pytest.mark.parametrize("kind", [{"dtype": "int16"}, {"lanes": 16}])
def test_other_stores_stay(kind: dict[str, object]) -> None:
    func = stores([0, 1, 2, 3], **kind)
    assert pack_stores(func).same_as(func)
