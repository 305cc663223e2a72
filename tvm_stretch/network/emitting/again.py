"""A network emitted again, operator by operator, with other channels or other layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.network.emitting.scale_operators import Scaler, Value
from tvm_stretch.network.emitting.scaled_weights import Weights
from tvm_stretch.network.expressions import with_variables
from tvm_stretch.network.operators import Operator, Operators
from tvm_stretch.plan.sources import Source

Emit = Callable[[Scaler, Operator, Mapping[str, Value]], Value]


def emitted_again(mod: tvm.IRModule, emit: Emit) -> tuple[tvm.IRModule, dict[str, Source]]:
    """The network whose operators ``emit`` writes, and the channels from which tensors come."""
    main = mod["main"]
    operators = Operators(main)
    scaler = Scaler(operators, Weights(warm=True, rng=np.random.default_rng(0)))
    values = {name: scaler.unchanged(name) for name in operators.params}
    for operator in operators:
        values[operator.name] = emit(scaler, operator, values)
    block = relax.DataflowBlock(scaler.emitter.bindings)
    result = with_variables(main.body.body, lambda var: values[var.name].var)
    body = relax.BlockBuilder().normalize(relax.SeqExpr([block], result))
    function = relax.Function(main.params, body, is_pure=main.is_pure)
    updated = mod.clone()
    updated["main"] = function.with_attrs(main.attrs) if main.attrs else function
    return updated, scaler.sources
