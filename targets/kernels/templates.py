"""Replace the body of each fused PrimFunc by the loop nest of its template.

conv2d -> + bias -> relu  (a plain reduction and elementwise blocks)
->  one register-tiled nest with the epilogue applied to the accumulators
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from .concat import ConcatConfig, takes_concat, write_concat
from .conv import ConvConfig, layer_of
from .conv_nest import write_conv
from .fixed_point import narrowing_of
from .float_bits import quantise_bits
from .fused import Epilogue, FusedKernel, split_fused
from .generic import schedule_generic
from .gpu.conv import GroupConvConfig, write_group_conv
from .gpu.dense import RowConfig, write_row
from .gpu.groups import WHOLE_QUADS
from .gpu.item_conv import ItemConvConfig, write_item_conv
from .gpu.rules import schedule_items
from .gpu.window import GroupWindowConfig, write_group_window
from .hvx_conv import write_word_conv
from .hvx_mean import mean_nest
from .hvx_stores import pack_stores
from .hvx_table import table_nest
from .hvx_window import takes_pool, write_hvx_depthwise, write_hvx_pool
from .integer_conv import IntegerConvConfig, write_integer_conv
from .integer_window import IntegerWindowConfig, write_integer_window
from .machine import VectorMachine
from .matmul import MatmulConfig, write_matmul
from .matrix_conv import write_matrix_conv
from .nan import take_nan
from .recurrent import STEPS
from .recurrent_nest import write_recurrence
from .softmax import SoftmaxConfig, write_softmax
from .window import WindowConfig, window_of, write_window
from .winograd import WinogradConfig
from .winograd_nest import write_winograd, write_winograd_input, write_winograd_product
from .winograd_weight import write_weight_transform

Writer = Callable[[dict[str, Any], VectorMachine, FusedKernel], tirx.Stmt]


def schedule_kernel(func: tirx.PrimFunc, machine: VectorMachine) -> tirx.PrimFunc:
    """The scheduled form of any PrimFunc: by its template, or by the generic schedule."""
    fused = split_fused(func)
    fused = fused if fused is not None and _fits(fused, machine) else None
    scheduled = _with_own_copies(_schedule(func, machine, fused))
    if not machine.packs_bytes:
        return scheduled
    scheduled = scheduled.with_body(quantise_bits(scheduled.body))
    return pack_stores(scheduled, [] if fused is None else _constants(fused))


def _with_own_copies(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Give each `Let` a variable of its own.

    If an expression reads a value twice, as in a square of exp, the value occurs twice, including
    its `Let`. TVM's passes take that for two values of one variable, and fail.
    """
    stores: list[tirx.BufferStore] = []
    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, stores.append))
    if not any(map(_names_twice, stores)):
        return func
    converted = tirx.transform.ConvertSSA()(tvm.IRModule({"main": func}))
    return converted["main"]


def _names_twice(store: tirx.BufferStore) -> bool:
    named: list[tirx.Var] = []
    tvm_ffi.structural_walk(store.value, (tirx.Let, lambda let: named.append(let.var)))
    return len(named) > len({*named})


def _constants(fused: FusedKernel) -> list[tirx.Buffer]:
    """Constant operands of an integer layer: weights, and the operands of its rounding."""
    narrowing = narrowing_of(fused.epilogue.value)
    if narrowing is None:
        return []
    loads = [narrowing.mantissa, narrowing.number.b]
    return [fused.operands[1], *(load.source for load in loads)]


def _schedule(
    func: tirx.PrimFunc, machine: VectorMachine, fused: FusedKernel | None
) -> tirx.PrimFunc:
    marks: dict[str, Any] = {"s_tir": True, "tirx.noalias": True}
    if fused is not None:
        config = json.loads(fused.config)
        body = _WRITERS[config.pop("template")](_tuples(config), machine, fused)
        marks |= {WHOLE_QUADS: True} if machine.gpu is not None else {}
    elif STEPS in (func.attrs or {}):
        body = write_recurrence(func, machine)
    elif machine.packs_bytes and (nest := mean_nest(func) or table_nest(func)) is not None:
        body = nest
    elif machine.gpu is not None:  # TVM itself combines partial results of work-items
        return schedule_items(func, machine.gpu)
    else:
        scheduled = schedule_generic(func, machine)
        return scheduled.with_body(take_nan(scheduled.body))
    return tirx.PrimFunc(func.params, body).with_attrs({**(func.attrs or {}), **marks})


def _fits(fused: FusedKernel, machine: VectorMachine) -> bool:
    """Whether the template accepts the kernel; otherwise it gets the generic schedule."""
    is_concat = json.loads(fused.config)["template"] == "concat"
    return not is_concat or takes_concat(fused, machine)


def _tuples(config: dict[str, Any]) -> dict[str, Any]:
    """JSON only has lists, but configurations must be hashable."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in config.items()}


def _concat(config: dict[str, Any], machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
    return write_concat(ConcatConfig(**config), machine, fused)


def _conv(config: dict[str, Any], machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
    return write_conv(ConvConfig(**config), machine, fused.operands, fused.epilogue)


def _matmul(config: dict[str, Any], machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
    return write_matmul(MatmulConfig(**config), machine, fused)


def _softmax(config: dict[str, Any], machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
    return write_softmax(SoftmaxConfig(**config), machine, fused)


def _winograd(config: dict[str, Any], machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
    return write_winograd(WinogradConfig(**config), machine, fused.operands, fused.epilogue)


def _winograd_input(
    config: dict[str, Any], machine: VectorMachine, fused: FusedKernel
) -> tirx.Stmt:
    cfg = WinogradConfig(**config)
    return write_winograd_input(cfg, machine, fused.operands[0], fused.epilogue.out)


def _winograd_product(
    config: dict[str, Any], machine: VectorMachine, fused: FusedKernel
) -> tirx.Stmt:
    return write_winograd_product(WinogradConfig(**config), machine, fused.operands, fused.epilogue)


def _winograd_weight(
    config: dict[str, Any], _machine: VectorMachine, fused: FusedKernel
) -> tirx.Stmt:
    return write_weight_transform(WinogradConfig(**config), fused.operands[0], fused.epilogue.out)


def _window(config: dict[str, Any], machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
    cfg = WindowConfig(**config)
    if machine.packs_bytes and takes_pool(cfg, fused.operands[0], fused.epilogue):
        return write_hvx_pool(cfg, fused.operands[0], fused.epilogue)
    return write_window(cfg, machine, fused.operands, fused.epilogue)


def _integer_conv(config: dict[str, Any], machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
    cfg = IntegerConvConfig(**config)
    write = write_word_conv if cfg.way.offset else write_integer_conv
    write = write_matrix_conv if cfg.way.is_matrix else write
    return write(cfg, machine, fused.operands, fused.epilogue)


def _integer_window(
    config: dict[str, Any], machine: VectorMachine, fused: FusedKernel
) -> tirx.Stmt:
    cfg = IntegerWindowConfig(**config)
    if machine.packs_bytes:
        return write_hvx_depthwise(cfg, fused.operands, fused.epilogue)
    return write_integer_window(cfg, machine, fused.operands, fused.epilogue)


def _of_gpu(
    kind: type[Any], write: Callable[[Any, tuple[tirx.Buffer, ...], Epilogue], tirx.Stmt]
) -> Writer:
    """A template for GPUs; cores that take over from a GPU compute the same in loops."""

    def one(config: dict[str, Any], machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        cfg = kind(**config)
        if machine.gpu is not None:
            return write(cfg, fused.operands, fused.epilogue)
        if isinstance(cfg, WindowConfig):
            return write_window(
                WindowConfig(**window_of(cfg)), machine, fused.operands, fused.epilogue
            )
        loops = ConvConfig(**{**layer_of(cfg), "pixels": 1})
        return write_conv(loops, machine, fused.operands, fused.epilogue)

    return one


_WRITERS: dict[str, Writer] = {
    "concat": _concat,
    "conv": _conv,
    GroupConvConfig.template: _of_gpu(GroupConvConfig, write_group_conv),
    ItemConvConfig.template: _of_gpu(ItemConvConfig, write_item_conv),
    RowConfig.template: _of_gpu(RowConfig, write_row),
    GroupWindowConfig.template: _of_gpu(GroupWindowConfig, write_group_window),
    "integer_conv": _integer_conv,
    "integer_window": _integer_window,
    "matmul": _matmul,
    "softmax": _softmax,
    "winograd": _winograd,
    "winograd_input": _winograd_input,
    "winograd_product": _winograd_product,
    "winograd_weight": _winograd_weight,
    "window": _window,
}
