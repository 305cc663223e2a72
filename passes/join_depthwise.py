"""Join a depthwise convolution with the 1x1 convolution that alone reads it, where a GPU gains.

    a = R.call_tir(fused_depthwise_conv2d_add_clip, (x, w, b))
    y = R.call_tir(fused_conv2d_add_add, (a, v, c, x))
        ->
    a + y = R.call_tir(fused_depthwise_conv2d_add_clip_conv2d_add_add, (x, w, b, v, c, x))

The joined PrimFunc still says in plain blocks what it computes; the mark of its last anchor names
the template of both (`kernels/gpu/pair.py`), whose model also says whether one kernel is faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import tvm
from tvm import relax, s_tir, tirx
from tvm.ir import GlobalVar

from tvm_stretch.network.attributes import ANNOTATION, KERNELS
from tvm_stretch.network.expressions import bindings_of, count_uses
from tvm_stretch.network.operators import kind_of
from tvm_stretch.network.provenance import Provenance, free_name, table_of, with_table
from tvm_stretch.network.rewriting import changed_block, rewrite
from tvm_stretch.passes.name_operators import Renamer
from tvm_stretch.targets.kernels.fused import blocks_of, elementwise, split_fused
from tvm_stretch.targets.kernels.template import Template, read_template
from tvm_stretch.targets.opencl.kernels.machine import GpuMachine
from tvm_stretch.targets.opencl.kernels.pair import GroupPairConfig, choose_pair


@tvm.transform.module_pass(opt_level=0, name="JoinDepthwise")
class JoinDepthwise:
    """See the module docstring; to be run on kernel-level Relax, before the loop nests."""

    def __init__(self, gpu: GpuMachine) -> None:
        self.gpu = gpu

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        joined = _Joiner(mod, self.gpu)
        regions = {v: f for v, f in mod.functions.items() if isinstance(f, relax.Function)}
        changed = {var: joined.rewritten(function) for var, function in regions.items()}
        if not joined.groups:
            return mod
        updated = joined.builder.get()
        for var, function in changed.items():
            updated.update_func(updated.get_global_var(var.name_hint), function)
        updated = relax.transform.FuseTIR()(updated)
        for name, config in joined.groups.items():
            var = updated.get_global_var(name)
            updated.update_func(var, _marked(updated[var], config))
        return relax.transform.DeadCodeElimination()(updated)


@dataclass(frozen=True)
class _Pair:
    first: relax.VarBinding
    second: relax.VarBinding
    config: GroupPairConfig
    data: int  # place of the first kernel's result among the operands of the second
    weight: int


class _Joiner:
    """Rewrites regions; `groups` are the joined kernels by name."""

    def __init__(self, mod: tvm.IRModule, gpu: GpuMachine) -> None:
        self.mod = mod
        self.gpu = gpu
        self.builder = relax.BlockBuilder(mod)
        self.groups: dict[str, GroupPairConfig] = {}
        self.joined: dict[tuple[object, ...], GlobalVar] = {}
        self.depthwise: dict[GlobalVar, Template | None] = {}

    def rewritten(self, function: relax.Function) -> relax.Function:
        """The function with one call for each pair."""
        pairs = {pair.second.var: pair for pair in self._pairs(function)}
        if not pairs:
            return function
        table = table_of(function, KERNELS)
        names = _names(function, pairs, table)
        gone = {pair.first.var for pair in pairs.values()}

        def joined(block: relax.BindingBlock) -> relax.BindingBlock:
            left = [binding for binding in block.bindings if binding.var not in gone]
            return type(block)([self._joined(pairs[b.var]) if b.var in pairs else b for b in left])

        body = relax.SeqExpr([joined(block) for block in function.body.blocks], function.body.body)
        again = relax.Function(function.params, body, function.ret_ty, function.is_pure)
        renamed = Renamer(self.mod, names).visit_expr(again.with_attrs(dict(function.attrs or {})))
        return with_table(renamed, KERNELS, table)

    def _pairs(self, function: relax.Function) -> Iterator[_Pair]:
        uses, makers = count_uses(function), dict[relax.Var, relax.VarBinding]()
        for binding in bindings_of(function):
            call = binding.value
            if kind_of(call) != "call_tir" or len(call.args) != 2:
                continue
            for arg in call.args[1].fields:
                first = makers.get(arg)
                pair = first and uses.get(arg) == 1 and self._pair(first, binding)
                if pair:
                    yield pair
            if self._window_of(call.args[0]) is not None:
                makers[binding.var] = binding

    def _window_of(self, var: GlobalVar) -> Template | None:
        """The template of a kernel whose epilogue may be computed before another kernel."""
        if var not in self.depthwise:
            self.depthwise[var] = _window_of(self.mod[var])
        return self.depthwise[var]

    def _pair(self, first: relax.VarBinding, second: relax.VarBinding) -> _Pair | None:
        window, func = self._window_of(first.value.args[0]), self.mod[second.value.args[0]]
        fused = split_fused(func)
        if window is None or fused is None or len(fused.operands) != 2:
            return None
        data, weight = (_place(func, operand) for operand in fused.operands)
        if not second.value.args[1].fields[data].same_as(first.var):
            return None
        inner = len(first.value.args[1].fields)
        config = choose_pair(window, read_template(fused.config), inner, self.gpu)
        return None if config is None else _Pair(first, second, config, data, weight)

    def _joined(self, pair: _Pair) -> relax.VarBinding:
        """The call of the joined kernel, whose weights come after the operands of the first."""
        (one, first), (two, second) = (b.value.args for b in (pair.first, pair.second))
        rest = [a for i, a in enumerate(second.fields) if i not in (pair.data, pair.weight)]
        operands = [*first.fields, second.fields[pair.weight], *rest]
        distinct = list(dict.fromkeys(operands))
        places = tuple(map(distinct.index, operands))
        key = (one, two, places)
        if key not in self.joined:
            self.joined[key] = self._group(pair, distinct)
        return relax.VarBinding(pair.second.var, relax.Call(self.joined[key], distinct))

    def _group(self, pair: _Pair, operands: list[relax.Expr]) -> GlobalVar:
        """A function of both calls, of which `FuseTIR` makes a kernel."""
        first, second = pair.first.value, pair.second.value
        params = {a: relax.Var(f"p{i}", a.ty) for i, a in enumerate(operands)}
        name = f"{first.args[0].name_hint}_{second.args[0].name_hint.removeprefix('fused_')}"
        attrs = {"Primitive": True}

        def called(call: relax.Call) -> relax.Call:
            own = [params[arg] for arg in call.args[1].fields]
            args = [call.args[0], relax.Tuple(own)]
            return relax.Call(call.op, args, call.attrs, call.ty_args)

        with self.builder.function(name, list(params.values()), attrs=attrs, private=True):
            with self.builder.dataflow():
                params[pair.first.var] = self.builder.emit(called(first))
                result = self.builder.emit_output(called(second))
            var = self.builder.emit_func_output(result)
        self.groups[var.name_hint] = pair.config
        return var


def _names(
    function: relax.Function, pairs: Mapping[relax.Var, _Pair], table: dict[str, Provenance]
) -> dict[relax.Var, str]:
    """New names of joined results, whose provenance is added to the table."""
    taken, names = {*table}, dict[relax.Var, str]()
    for binding in bindings_of(function):
        pair = pairs.get(binding.var)
        if binding.value in names:  # a result of the function
            names[binding.var] = names[binding.value]
        if pair is None:
            continue
        first, second = (table[b.var.name] for b in (pair.first, pair.second))
        joined = replace(second, operators=first.operators + second.operators)
        names[binding.var] = free_name(" + ".join(joined.operators), taken)
        table[names[binding.var]] = joined
    return names


def _window_of(func: tirx.PrimFunc) -> Template | None:
    fused, blocks = split_fused(func), blocks_of(func)
    if fused is None or elementwise(blocks[len(fused.blocks) :], fused.epilogue.anchor) is None:
        return None
    template = read_template(fused.config)
    return template if ANNOTATION in blocks[len(fused.blocks) - 1].annotations else None


def _place(func: tirx.PrimFunc, operand: tirx.Buffer) -> int:
    return next(i for i, param in enumerate(func.params) if operand.same_as(param))


def _marked(func: tirx.PrimFunc, config: GroupPairConfig) -> tirx.PrimFunc:
    """The joined kernel with the template of both."""

    def mark(block: s_tir.SBlock) -> s_tir.SBlock:
        marks = dict(block.annotations)
        if str(marks.get(ANNOTATION, "")) != config.conv.annotation[ANNOTATION]:
            return block
        return changed_block(block, annotations={**marks, **config.annotation})

    return func.with_body(rewrite(func.body, (s_tir.SBlock, mark)))
