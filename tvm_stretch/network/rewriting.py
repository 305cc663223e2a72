"""The two ways in which passes rewrite: `CallRewriter` for Relax, `rewrite` for TIR.

    body = rewrite(function.body, (Call, replace))

If a callback of ``tvm_ffi.structural_map`` raises an exception after nodes were replaced, the heap
is damaged (apache-tvm-ffi 0.1.14), and the process crashes later. So exceptions are caught in the
callback, and raised after the walk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx

from tvm_stretch.network.expressions import bindings_of, constant_value
from tvm_stretch.network.operators import kind_of
from tvm_stretch.network.provenance import same_source


class CallRewriter(relax.PyExprMutator):
    """Visits the calls of a function, operands before the calls that read them.

    A subclass has `rules`, or implements `rewrite`, and is decorated with
    ``relax.expr_functor.mutator``.
    """

    rules: ClassVar[Mapping[str, Callable[[Any, relax.Call], relax.Expr | None]]] = {}
    """By kind of operator, the function that replaces its calls, as `rewrite` does."""

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Rewrite the operands, then the call."""
        call = self.visit_expr_post_order(call)
        rewritten = self.rewrite(call)
        return call if rewritten is None else rewritten

    def rewrite(self, call: relax.Call) -> relax.Expr | None:
        """The replacement of a call whose operands are rewritten; None if the call stays."""
        rule = self.rules.get(kind_of(call))
        return None if rule is None else rule(self, call)

    def definition(self, x: relax.Expr) -> Any:
        """The expression that ``x`` is bound to."""
        return self.lookup_binding(x) if isinstance(x, relax.Var) else x

    def constant(self, x: relax.Expr) -> np.ndarray | None:
        """The value of ``x`` if it is constant."""
        return constant_value(x, self.definition)

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """``mod``, which the rewriter was made with, with a rewritten ``main`` and its kernels."""
        kinds = {kind_of(binding.value) for binding in bindings_of(mod["main"])}
        if self.rules and kinds.isdisjoint(self.rules):
            return mod
        self.builder_.update_func(mod.get_global_var("main"), self.visit_expr(mod["main"]))
        return self.builder_.get()


class SourceRewriter(CallRewriter):
    """Also names what it emits for a binding after the same operator of the frontend."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.source = ""
        """The hint for bindings that replace the visited one."""

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Record from which operator of the frontend the binding comes."""
        self.source = same_source(binding.var)
        super().visit_var_binding_(binding)

    def emit(self, value: relax.Expr) -> relax.Var:
        """Bind a value."""
        return self.builder_.emit(value, name_hint=self.source)


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


def without_scopes(body: tirx.Stmt) -> tirx.Stmt:
    """A kernel without TVM's marks of scatters, whose loops are written in their order anyway."""

    def unmarked(node: tirx.AttrStmt) -> tirx.Stmt:
        return node.body if str(node.attr_key) == "pragma_scope" else node

    return rewrite(body, (tirx.AttrStmt, unmarked))


def rewrite_kernels(
    mod: tvm.IRModule, change: Callable[[tirx.PrimFunc], tirx.PrimFunc]
) -> tvm.IRModule:
    """A new module with `change` applied to every PrimFunc; Relax functions stay."""
    updated = tvm.IRModule(dict(mod.functions), attrs=mod.attrs)
    for var, func in mod.functions.items():
        if isinstance(func, tirx.PrimFunc):
            updated.update_func(var, change(func))
    return updated


def with_body(
    mod: tvm.IRModule, body: relax.SeqExpr, builder: relax.BlockBuilder | None = None
) -> tvm.IRModule:
    """``mod`` with another body of ``main``, and the kernels of ``builder`` that the body calls."""
    main, builder = mod["main"], builder or relax.BlockBuilder()
    function = relax.Function(main.params, builder.normalize(body), is_pure=main.is_pure)
    updated = mod.clone()
    updated.update(builder.get())
    updated["main"] = function.with_attrs(dict(main.attrs)) if main.attrs else function
    return updated


class Bindings:
    """Collects the bindings of a function that a pass writes anew."""

    def __init__(self, builder: relax.BlockBuilder | None = None) -> None:
        self.bindings: list[relax.Binding] = []
        self.builder = builder or relax.BlockBuilder()
        """Receives the kernels that the bindings call."""

    def bind(self, var: relax.Var, value: relax.Expr) -> relax.Var:
        """Bind a value to a variable."""
        self.bindings.append(relax.VarBinding(var, self.builder.normalize(value)))
        return var

    def bind_new(
        self, name: str, value: relax.Expr, kind: type[relax.Var] = relax.DataflowVar
    ) -> relax.Var:
        """Bind a value to a new variable."""
        value = self.builder.normalize(value)
        return self.bind(kind(name, value.ty), value)
