"""Averages of integers without floats, for processors whose vectors hold none.

    y = R.call_tir(integer_average, (x, counts))
        ->
    sums = R.call_tir(integer_conv2d, (x, ones, zeros))        # each channel with weights of one
    y = R.call_tir(integer_round, (sums, factors))             # a factor for each pixel

If all pixels have the same factor, the convolution rounds with it and no second kernel is needed.
`integers._average` adds floats, as ONNX Runtime does, and the rounding of these floats decides
which means count as halves; here halves go where `UseFixedPoint` sends them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.network.expressions import constant, shape_of
from tvm_stretch.network.integer_kernels import integer_call
from tvm_stretch.network.integers import Integer, integer_of, operands_of, rounding_of
from tvm_stretch.network.operators import PROCESSOR
from tvm_stretch.network.rewriting import CallRewriter
from tvm_stretch.targets.kernels.machine import VectorMachine


@tvm.transform.module_pass(opt_level=0, name="AverageBySums")
class AverageBySums:
    """See the module docstring; only regions of ``machines`` that pack bytes are rewritten."""

    def __init__(self, machines: Mapping[str, VectorMachine]) -> None:
        self.rounds = {name for name, machine in machines.items() if machine.kind == "dsp"}

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        if not self.rounds:  # a search lowers many modules, most of them for other processors
            return mod
        writer = _Writer(mod)
        for var, function in mod.functions.items():
            attrs = getattr(function, "attrs", None) or {}
            if isinstance(function, relax.Function) and str(attrs.get(PROCESSOR)) in self.rounds:
                writer.builder_.update_func(var, writer.visit_expr(function))
        return writer.builder_.get() if writer.has_changed else mod


@relax.expr_functor.mutator
class _Writer(CallRewriter):
    has_changed = False

    def rewrite(self, call: relax.Call) -> relax.Expr | None:
        integer = integer_of(call)
        if integer is None or integer.kind != "average":
            return None
        self.has_changed = True
        data, counts = operands_of(call)
        channels = shape_of(data)[1]
        of_data, of_result = map(np.float32, integer.factors)
        factor = of_data / (of_result * counts.value.numpy())
        sums = replace(
            integer, kind="conv2d", rounding=None, factors=(), groups=channels, kernel=(1, 1)
        )
        ones = constant(np.ones((channels, 1, *integer.kernel), "int8"))
        operands = [data, ones, constant(np.zeros(channels, "int32"))]
        if factor.size == 1:
            every = constant(np.full(channels, factor.flat[0], "float32"))
            rounded = replace(sums, rounding=integer.rounding)
            return integer_call(self.builder_, rounded, *operands, every)
        summed = self.builder_.emit(integer_call(self.builder_, sums, *operands))
        rounding = Integer("round", rounding_of(integer))
        return integer_call(self.builder_, rounding, summed, constant(factor))
