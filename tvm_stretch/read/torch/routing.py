"""Rows that computed sizes split among matrices become one product with a table of rows.

    parts = x.split(sizes.tolist()); cat([part @ w for part, w in zip(parts, weights)])
        ->  _grouped_mm(x, stack(weights), stack(sizes).cumsum(0))

Kernels have no tensors of computed sizes; the one of `targets/kernels/experts.py` reads the table.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

_READ = "_local_scalar_dense.default"


def join_routed(graph: Any) -> None:
    """Replace each concatenation of such products; other computed sizes stay as they are."""
    for node in list(graph.nodes):
        if _name(node) == "cat.default":
            split = _split_of(node)
            if split is not None:
                _join(graph, node, split)


def _name(node: Any) -> str:
    return node.target.__name__ if getattr(node, "op", "") == "call_function" else ""


def _split_of(cat: Any) -> Any:
    """The split of rows of whose parts, each times a matrix, ``cat`` is made; else None."""
    products = cat.args[0]
    if len(cat.args) > 1 or not products or any(_name(x) != "mm.default" for x in products):
        return None
    split: Any = next(iter(products[0].args[0].args), None)
    if _name(split) != "split_with_sizes.default" or len(split.args) > 2:
        return None
    in_order = [
        x.args[0].target is operator.getitem and x.args[0].args == (split, place)
        for place, x in enumerate(products)
    ]
    computed = all(_name(size) == _READ for size in split.args[1])
    return split if computed and all(in_order) and len(products) == len(split.args[1]) else None


def _join(graph: Any, cat: Any, split: Any) -> None:
    def add(function: Any, *args: Any, like: Any) -> Any:
        node = graph.call_function(function, args)
        node.meta["val"] = like
        return node

    aten, weights = torch.ops.aten, [x.args[1] for x in cat.args[0]]
    sizes = [size.args[0] for size in split.args[1]]
    count, first = len(weights), weights[0].meta["val"]
    with graph.inserting_before(cat):
        table = first.new_empty((count, *first.shape))
        stacked = add(aten.stack.default, weights, like=table)
        ends = sizes[0].meta["val"].new_empty((count,))
        counts = add(aten.stack.default, sizes, like=ends)
        counts = add(aten.cumsum.default, counts, 0, like=ends)
        x = split.args[0]
        product = x.meta["val"].new_empty((x.meta["val"].shape[0], first.shape[1]))
        joined = add(aten._grouped_mm.default, x, stacked, counts, like=product)
    cat.replace_all_uses_with(joined)
