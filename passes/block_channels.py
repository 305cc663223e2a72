"""Give feature maps the blocked layout NCHW[c] and bring in the kernel templates.

    y = R.nn.conv2d(x, w)            # x: (1, 64, 56, 56)
    z = R.nn.relu(R.add(y, b))       # b: (1, 64, 1, 1)
        ->
    u = R.call_tir(winograd_weight, (w,))            # constant operands: once, at load
    y = R.call_tir(winograd, (x5, u))                # x5: (1, 8, 56, 56, 8)
    z = R.nn.relu(R.add(y, b5))                      # b5: (1, 8, 1, 1, 8)

A value is converted at most once, and only where an operator needs the other layout. A region
passes results on in the layout in which it computed them, so that processors exchange values
without conversions. Matrices (M, C) count as images of M pixels, (1, C, M, 1), so that dense layers
share the kernels of convolutions.  Channels that do not fill a block are padded with lanes whose
values stay finite and are multiplied by weights of zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tvm
from tvm import relax

from tvm_stretch.network.emitting.blocked_values import Rewriter
from tvm_stretch.network.emitting.weights import store_halves
from tvm_stretch.network.expressions import (
    bindings_of,
    builder_with_kernels,
    results_of,
    with_variables,
    written_again,
)
from tvm_stretch.network.operators import PROCESSOR
from tvm_stretch.passes.name_operators import Renamer
from tvm_stretch.targets.kernels.machine import VectorMachine


@tvm.transform.module_pass(opt_level=0, name="BlockChannels")
class BlockChannels:
    """See the module docstring; ``machines`` gives the block width and tiles of each processor.

    A function without the attribute ``processor`` belongs to the first machine. Values that pass
    between machines of different block widths have the plain layout.
    """

    def __init__(self, machines: Mapping[str, VectorMachine]) -> None:
        self.machines = dict(machines)
        self.halves = store_halves(self.machines.values())

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        regions = [f for f in mod.functions.values() if isinstance(f, relax.Function)]
        rewrite = _rewrite_regions if len(regions) > 1 else _rewrite_main
        # a plain copy without readers would keep other operators from being fused
        return relax.transform.DeadCodeElimination()(rewrite(mod, self))

    def machine(self, function: relax.Function) -> VectorMachine:
        """The machine that runs ``function``."""
        first = next(iter(self.machines))
        return self.machines[str((function.attrs or {}).get(PROCESSOR, first))]


def _rewrite_main(mod: tvm.IRModule, options: BlockChannels) -> tvm.IRModule:
    main = mod["main"]
    rewriter = Rewriter(options.machine(main), builder_with_kernels(mod), options.halves)
    with written_again(rewriter.bb, "main", main, rewriter.plain):
        for param in main.params:
            rewriter.bind_parameter(param, param)
        rewriter.bind_all(main)
    return _named(rewriter.bb.get(), rewriter.names) if rewriter.converted else mod


def _rewrite_regions(mod: tvm.IRModule, options: BlockChannels) -> tvm.IRModule:
    """Rewrite each region, then `main`, because the types of its calls have changed."""
    main, bb = mod["main"], builder_with_kernels(mod)
    bindings = [*bindings_of(main)]
    calls = [b for b in bindings if isinstance(b.value, relax.Call)]
    names = {b.var: b.value for b in bindings if not isinstance(b.value, relax.Call)}

    def origin(expr: relax.Expr) -> tuple[relax.Expr, int]:
        """The call, and the index of its result, that computes a value of `main`."""
        while expr in names:
            expr = names[expr]
        return (expr.tuple_value, expr.index) if isinstance(expr, relax.TupleGetItem) else (expr, 0)

    returned = {origin(field) for field in results_of(main)}
    narrow = _read_in_other_blocks(mod, calls, origin, options)
    blocked: set[tuple[relax.Expr, int]] = set()
    operators: dict[relax.Var, str] = {}
    converted = False
    for binding in calls:
        call, var = binding.value, binding.var
        region = mod[call.op]
        rewriter = Rewriter(options.machine(region), bb, options.halves)
        params = [
            rewriter.blocked_parameter(param) if origin(arg) in blocked else param
            for param, arg in zip(region.params, call.args, strict=True)
        ]
        with bb.function(call.op.name_hint, params, attrs=dict(region.attrs or {})):
            with bb.dataflow():
                for old, new in zip(region.params, params, strict=True):
                    rewriter.bind_parameter(old, new)
                rewriter.bind_all(region)
                result = []
                for index, field in enumerate(results_of(region)):
                    if rewriter.is_blocked(field) and (var, index) not in returned | narrow:
                        blocked.add((var, index))
                    keep = (var, index) in blocked
                    value = rewriter.blocked(field) if keep else rewriter.plain(field)
                    result.append(bb.emit_output(value))
            is_tuple = isinstance(region.body.body, relax.Tuple)
            bb.emit_func_output(relax.Tuple(result) if is_tuple else result[0])
        converted |= rewriter.converted
        operators.update(rewriter.names)
    return _named(_retyped_main(mod, bb), operators) if converted or blocked else mod


def _read_in_other_blocks(
    mod: tvm.IRModule,
    calls: list[relax.Binding],
    origin: Callable[[relax.Expr], tuple[relax.Expr, int]],
    options: BlockChannels,
) -> set[tuple[relax.Expr, int]]:
    """Results of regions that a region on a machine of another block width reads."""
    lanes = {binding.var: options.machine(mod[binding.value.op]).lanes for binding in calls}
    return {
        origin(arg)
        for binding in calls
        for arg in binding.value.args
        if lanes.get(origin(arg)[0], lanes[binding.var]) != lanes[binding.var]
    }


def _named(mod: tvm.IRModule, names: Mapping[relax.Var, str]) -> tvm.IRModule:
    """Give variables that hold an operator's result the operator's name."""
    renamed = mod.clone()
    for var, function in mod.functions.items():
        if isinstance(function, relax.Function):
            renamed[var] = Renamer(mod, names).visit_expr(function)
    return renamed


def _retyped_main(mod: tvm.IRModule, bb: relax.BlockBuilder) -> tvm.IRModule:
    """`main` with the same calls of the new regions."""
    main, regions = mod["main"], {v.name_hint: v for v in bb.get().functions}
    renamed: dict[relax.Var, relax.Expr] = {}

    def rename(expr: relax.Expr) -> relax.Expr:
        expr = with_variables(expr, lambda var: renamed.get(var, var))
        is_call = isinstance(expr, relax.Call)
        return relax.Call(regions[expr.op.name_hint], expr.args) if is_call else expr

    with written_again(bb, "main", main, rename) as bindings:
        for binding in bindings:
            renamed[binding.var] = bb.emit(rename(binding.value), name_hint=binding.var.name)
    return bb.get()
