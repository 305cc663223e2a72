"""Rewrites TVM's trees with callbacks that may raise exceptions.

    body = rewrite(function.body, (Call, replace))

If a callback of ``tvm_ffi.structural_map`` raises an exception after nodes were replaced, the heap
is damaged (apache-tvm-ffi 0.1.14), and the process crashes later. So exceptions are caught in the
callback, and raised after the walk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

Rule = tuple[Any, Callable[[Any], Any]]
"""A class of nodes, or several, and a function from a node to its replacement."""


def rewrite(root: Any, *rules: Rule) -> Any:
    """The tree with the replacements, children before parents.

    After an exception of a rule the remaining nodes are not rewritten, and the exception is raised
    here.
    """
    raised: list[BaseException] = []

    def careful(replace: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def one(node: Any) -> Any:
            if raised:
                return node
            try:
                return replace(node)
            except BaseException as error:  # Ctrl-C too
                raised.append(error)
                return node

        return one

    listed: Sequence[Rule] = [(kinds, careful(replace)) for kinds, replace in rules]
    result = tvm_ffi.structural_map(root, listed)
    if raised:
        raise raised[0]
    return result


def changed_block(block: s_tir.SBlock, **changes: Any) -> s_tir.SBlock:
    """A block with other fields, given by the names that `SBlock` has for them."""
    return s_tir.SBlock(*(changes.get(name, getattr(block, name)) for name in _BLOCK_FIELDS))


_BLOCK_FIELDS = (
    *("iter_vars", "reads", "writes", "name_hint", "body", "init"),
    *("alloc_buffers", "match_buffers", "annotations"),
)


def rewrite_kernels(
    mod: tvm.IRModule, change: Callable[[tirx.PrimFunc], tirx.PrimFunc]
) -> tvm.IRModule:
    """A new module with `change` applied to every PrimFunc; Relax functions stay."""
    updated = tvm.IRModule(dict(mod.functions), attrs=mod.attrs)
    for var, func in mod.functions.items():
        if isinstance(func, tirx.PrimFunc):
            updated.update_func(var, change(func))
    return updated
