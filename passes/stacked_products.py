"""Write products of stacks of matrices as the network means them, not as torch lowers them.

    a1 = reshape(a: (1, 4, 401, 32), (4, 401, 32)), b1 = reshape(b, (4, 32, 401))
    y = reshape(matmul(a1, b1), (1, 4, 401, 401))       ->   y = matmul(a, b)
    y = matmul(x: (4, 9, 8), [w, w, w, w])              ->   y = matmul(x, w)

So attention is found, and layers have one matrix of weights. `SimplifyOperators` drops the reshapes
that are left.
"""

from __future__ import annotations

import tvm
from tvm import relax

from tvm_stretch.network.expressions import RESHAPES, constant, rewrite_functions, shape_of
from tvm_stretch.network.operators import kind_of
from tvm_stretch.network.rewriting import SourceRewriter


@relax.expr_functor.mutator
class _Writer(SourceRewriter):
    def rewrite(self, call: relax.Call) -> relax.Expr | None:
        """Replace a product, or the reshape of one."""
        if kind_of(call) == "matmul":
            return self._of_equal_matrices(call)
        return self._of_operands(call) if kind_of(call) in RESHAPES else None

    def _of_equal_matrices(self, call: relax.Call) -> relax.Expr | None:
        """The product with one of constant matrices that are all the same."""
        x, weight = call.args[0], self.constant(call.args[1])
        if weight is None or weight.ndim < 3 or weight.size == 0:
            return None
        matrices = weight.reshape(-1, *weight.shape[-2:])
        if shape_of(call)[:-1] != shape_of(x)[:-1]:
            return None
        if len({matrix.tobytes() for matrix in matrices}) != 1:
            return None
        return relax.op.matmul(x, constant(matrices[0]), call.attrs.out_dtype)

    def _of_operands(self, call: relax.Call) -> relax.Expr | None:
        """The product of reshaped operands, if a reshape of an operand may meet it."""
        product, shape = self.definition(call.args[0]), shape_of(call)
        if kind_of(product) != "matmul" or shape[-2:] != shape_of(product)[-2:]:
            return None
        before = [shape_of(operand) for operand in product.args]
        moved = [kind_of(self.definition(operand)) in RESHAPES for operand in product.args]
        if not any(moved) or any(len(own) < 3 or own[:-2] != before[0][:-2] for own in before):
            return None
        wanted = [relax.ShapeExpr([*shape[:-2], *own[-2:]]) for own in before]
        a, b = map(self.emit, map(relax.op.reshape, product.args, wanted))
        return relax.op.matmul(a, b, product.attrs.out_dtype)


@tvm.transform.module_pass(opt_level=0, name="StackedProducts")
class StackedProducts:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_functions(mod, lambda mod, function: _Writer(mod).visit_expr(function))
