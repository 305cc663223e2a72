"""Keep floats floats: what TVM's simplifier and a compiler's fused instructions do to them.

    (x + 1.0) - x          ->   hidden("Sub", x + 1.0, x)   ->   (x + 1.0) - x
    rounded(x * y) + z     ->   product(x, y) + z           in OpenCL C

TVM simplifies floats as if they were real numbers: `x - x` becomes 0 though it is NaN for infinity,
`x != x` becomes false though NaN differs from itself, `not (x < y)` becomes `y <= x`, and a product
with 0 is 0. So differences, comparisons and zeros are calls while such a pass runs; other
arithmetic of floats it leaves alone. The same rules apply wherever TVM makes an expression, so
`keep_views.py` keeps zeros out of sums and products from the start.

LLVM fuses a product with the sum that reads it, and rounds once instead of twice. Loop nests of
templates want that; products of the network itself have a fence (``passes/round_products.py``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import tvm
from tvm import tirx
from tvm.ir import Call, Expr

from tvm_stretch.network.rewriting import Rule, rewrite, rewrite_kernels
from tvm_stretch.passes.round_bfloats import rounded
from tvm_stretch.passes.round_products import fence, fenced, is_fence

_BINARY = (tirx.Sub, tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)
_HIDDEN = "tvm_stretch_hidden_"
_HIDDEN_ZERO = f"{_HIDDEN}zero"
_ZEROS = itertools.count()
_PRODUCT = "tvm_stretch_product"
_LET = "tvm_stretch_let"
_SCALARS = {"float32": "float", "float16": "half", "float64": "double"}
_WIDTHS = ("", "2", "4", "8", "16")


def simplify_integers(*passes: tvm.transform.Pass) -> tvm.transform.Pass:
    """``passes``, which do not see differences, comparisons and zeros of floats."""
    simplify = tvm.transform.Sequential(passes)

    @tvm.transform.module_pass(opt_level=0, name="SimplifyIntegers")
    def simplify_kernels(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return _hiding(mod, ((_BINARY, _hidden), (tirx.FloatImm, _hidden_zero)), simplify, _shown)

    return simplify_kernels


def _hiding(
    mod: tvm.IRModule,
    hide: Sequence[Rule],
    run: tvm.transform.Pass,
    show: Callable[[Call], Expr],  # undoes what `hide` did
) -> tvm.IRModule:
    """What a pass makes of kernels that have calls in place of what it must not see."""
    hidden = rewrite_kernels(mod, lambda func: func.with_body(rewrite(func.body, *hide)))
    changed = run(hidden)
    return rewrite_kernels(changed, lambda func: func.with_body(rewrite(func.body, (Call, show))))


def _hidden(node: Expr) -> Expr:
    if "float" not in str(node.a.ty.dtype):
        return node
    name = _HIDDEN + type(node).__name__
    return tirx.call_pure_extern(str(node.ty.dtype), name, node.a, node.b)


def _hidden_zero(number: tirx.FloatImm) -> Expr:
    """Each zero is a call of its own: one of two equal ones would take the place of a choice."""
    if number.value != 0:
        return number
    sign = tirx.const(int(math.copysign(1, number.value)), "int32")
    own = tirx.const(next(_ZEROS), "int64")
    return tirx.call_pure_extern(str(number.ty.dtype), _HIDDEN_ZERO, sign, own)


def _shown(call: Call) -> Expr:
    name = _extern_name(call)
    if name == _HIDDEN_ZERO:
        return tirx.FloatImm(str(call.ty.dtype), 0.0 * int(call.args[1]))
    if not name.startswith(_HIDDEN):
        return call
    return getattr(tirx, name.removeprefix(_HIDDEN))(*call.args[1:])


def _extern_name(call: Call) -> str:
    is_extern = getattr(call.op, "name", "") == "tirx.call_pure_extern"
    return str(call.args[0].value) if is_extern else ""


def opencl_product(call: Call) -> Expr:
    """A fenced product as a call of the prelude's function, other calls as they are.

    A fence whose product was simplified to something else holds nothing to be kept apart.
    """
    product = fenced(call)
    if product is None:
        return call.args[1] if is_fence(call) else call
    dtype = str(call.ty.dtype)
    scalar, _, width = dtype.partition("x")
    name = f"{_PRODUCT}_{_SCALARS[scalar]}{width}"
    return tirx.call_pure_extern(dtype, name, product.a, product.b)


def product_prelude(text: str) -> str:
    """The functions for the products of a program: OpenCL may fuse neither across them."""
    functions = []
    for scalar in _SCALARS.values():
        for kind in (f"{scalar}{width}" for width in _WIDTHS):
            if f"{_PRODUCT}_{kind}(" in text:
                body = "{\n#pragma OPENCL FP_CONTRACT OFF\n  return a * b;\n}\n"
                functions.append(f"static {kind} {_PRODUCT}_{kind}({kind} a, {kind} b) {body}")
    return "".join(functions)


@tvm.transform.module_pass(opt_level=0, name="WidenBfloats")
def widen_bfloats(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
    """TVM's `BF16ComputeLegalize`, which forgets the value of a `Let`: they are calls meanwhile."""

    def hidden(let: tirx.Let) -> Expr:
        parts = let.var, let.value, let.body
        return tirx.call_pure_extern(str(let.ty.dtype), _LET, *parts)

    def shown(call: Call) -> Expr:
        return tirx.Let(*call.args[1:]) if _extern_name(call) == _LET else call

    return _hiding(mod, [(tirx.Let, hidden)], tirx.transform.BF16ComputeLegalize(), shown)


def _fenced(difference: tirx.Sub) -> Expr:
    """A difference with a fence: TVM's code generator binds `x - x` to 0 and fails if it is not."""
    if "float" not in str(difference.ty.dtype):
        return difference
    return tirx.Sub(fence(difference.a), difference.b)


@tirx.transform.prim_func_pass(opt_level=0, name="RoundBfloatsByBits")
def round_bfloats(
    func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext
) -> tirx.PrimFunc:
    """Write the roundings of `passes/round_bfloats.py` with integers, to the nearest even number.

    It stands after `VectorizeLoop`, which fails over a `Let`, and `BF16ComputeLegalize`, which does
    not look into one.
    """
    count = itertools.count()

    def written(call: Call) -> Expr:
        value = rounded(call)
        if value is None:
            return call
        dtype = str(call.ty.dtype)
        lanes = dtype.removeprefix("float32")
        x = tirx.Var(f"unrounded_{next(count)}", dtype)

        def const(value: int) -> Expr:
            number = tirx.const(value, "uint32")
            return tirx.Broadcast(number, int(lanes[1:])) if lanes else number

        bits = tirx.reinterpret(f"uint32{lanes}", x)
        even = bits + const(0x7FFF) + (bits >> const(16) & const(1))
        is_nan = (bits & const(0x7FFFFFFF)) > const(0x7F800000)
        kept = tirx.Select(is_nan, const(0x7FC00000), even & const(0xFFFF0000))
        return tirx.Let(x, rewrite(value, (tirx.Sub, _fenced)), tirx.reinterpret(dtype, kept))

    written_out = func.with_body(rewrite(func.body, (Call, written)))
    if next(count) == 0:
        return func
    # a value that is read twice stands there twice, and each `Let` needs a name of its own
    return tirx.transform.ConvertSSA()(tvm.IRModule({"main": written_out}))["main"]
