"""The base of passes that replace calls of Relax operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.network.expressions import bindings_of, constant_value
from tvm_stretch.network.operators import kind_of
from tvm_stretch.network.source_names import same_source


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
        made = self.rewrite(call)
        return call if made is None else made

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
