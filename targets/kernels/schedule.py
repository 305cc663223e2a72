"""Replace the body of each fused PrimFunc by the loop nest of its template.

conv2d -> + bias -> relu  (a plain reduction and elementwise blocks)
->  one register-tiled nest with the epilogue applied to the accumulators
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call, Op
from tvm.ir.expr import Expr, TensorLoad

from tvm_stretch.network.attributes import IMAGES, WHOLE_QUADS
from tvm_stretch.network.expressions import nodes_of
from tvm_stretch.network.rewriting import rewrite
from tvm_stretch.targets.hexagon.kernels.hvx_stores import pack_stores
from tvm_stretch.targets.opencl.kernels.rules import schedule_items

from .fixed_point import narrowing_of
from .flat import with_nest
from .float_bits import quantise_bits
from .fused import FusedKernel, split_fused
from .generic import schedule_generic
from .loops import SERIAL, VECTORIZED
from .machine import VectorMachine
from .nan import take_nan
from .template import Template, read_template


def schedule_kernel(func: tirx.PrimFunc, machine: VectorMachine) -> tirx.PrimFunc:
    """The scheduled form of any PrimFunc: by its template, or by the generic schedule."""
    fused = split_fused(func)
    written = None if fused is None else _by_template(machine, fused)
    generic = _WITHOUT_TEMPLATE[machine.kind]
    scheduled = _with_own_copies(generic(func, machine) if written is None else written)
    scheduled = scheduled.with_body(rewrite(scheduled.body, (tirx.For, _lane_by_lane)))
    if machine.kind != "dsp":
        return scheduled
    scheduled = scheduled.with_body(quantise_bits(scheduled.body))
    return pack_stores(scheduled, [] if fused is None or written is None else _constants(fused))


def _with_own_copies(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Give each `Let` a variable of its own.

    If an expression reads a value twice, as in a square of exp, the value occurs twice, including
    its `Let`. TVM's passes take that for two values of one variable, and fail.
    """
    if not any(map(_names_twice, nodes_of(func.body, tirx.BufferStore))):
        return func
    converted = tirx.transform.ConvertSSA()(tvm.IRModule({"main": func}))
    return converted["main"]


def _lane_by_lane(loop: tirx.For) -> tirx.For:
    """A loop whose lanes choose what they read, as of a join, without vectors if it has a `Let`.

    TVM would give up vectors for such a choice, but fails on the `Let` before.
    """
    if loop.kind != VECTORIZED:
        return loop
    lanes = {loop.loop_var}

    def depends(expr: Expr) -> bool:
        return not lanes.isdisjoint(nodes_of(expr, tirx.Var))

    def enter(block: s_tir.SBlockRealize) -> None:
        iterators = zip(block.block.iter_vars, block.iter_values, strict=True)
        lanes.update(iterator.var for iterator, value in iterators if depends(value))

    def chooses(call: Call) -> bool:
        choice = isinstance(call.op, Op) and call.op.name == "prim.if_then_else"
        return choice and depends(call.args[0])

    tvm_ffi.structural_walk(loop.body, (s_tir.SBlockRealize, enter), order="pre")
    if not (nodes_of(loop.body, tirx.Let) and any(map(chooses, nodes_of(loop.body, Call)))):
        return loop
    return tirx.For(loop.loop_var, loop.min, loop.extent, SERIAL, loop.body)


def _names_twice(store: tirx.BufferStore) -> bool:
    named = [let.var for let in nodes_of(store.value, tirx.Let)]
    return len(named) > len({*named})


def _constants(fused: FusedKernel) -> list[tirx.Buffer]:
    """Constant operands of an integer layer: weights, and the operands of its rounding."""
    narrowing = narrowing_of(fused.epilogue.value)
    if narrowing is None:
        return []
    loads = [narrowing.mantissa, narrowing.number.b]
    return [fused.operands[1], *(load.source for load in loads)]


def _by_template(machine: VectorMachine, fused: FusedKernel) -> tirx.PrimFunc | None:
    template = template_of(fused, machine)
    nest = None if template is None else template.write(machine, fused)
    if template is None or nest is None:
        return None
    written = with_nest(fused.func, nest)
    if machine.kind != "gpu":
        return written
    written = written.with_attr(WHOLE_QUADS, True)
    images = _images(template, fused)
    return written.with_attr(IMAGES, images) if images else written


def _images(template: Template, fused: FusedKernel) -> list[int]:
    """Parameters that are read as images; the epilogue reads single numbers, so not its own."""
    value = fused.epilogue.value
    own = [] if value is None else [load.source for load in nodes_of(value, TensorLoad)]
    wanted = [fused.operands[operand] for operand in template.image_operands]
    return [
        place
        for place, param in enumerate(fused.func.params)
        if any(param.same_as(one) for one in wanted) and not any(param.same_as(o) for o in own)
    ]


def _on_core(func: tirx.PrimFunc, machine: VectorMachine) -> tirx.PrimFunc:
    scheduled = schedule_generic(func, machine)
    return scheduled.with_body(take_nan(_with_outer_threads(scheduled.body, machine.threads)))


def _with_outer_threads(body: tirx.Stmt, threads: int) -> tirx.Stmt:
    """TVM's own loop nests wake all threads in inner loops, and where a kernel has one thread."""

    def serial(loop: tirx.For) -> tirx.For:
        if loop.kind != tirx.ForKind.PARALLEL:
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    def serial_inside(loop: tirx.For) -> tirx.For:
        inside = rewrite(loop.body, (tirx.For, serial))
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, inside)

    if not any(loop.kind == tirx.ForKind.PARALLEL for loop in nodes_of(body, tirx.For)):
        return body
    return rewrite(body, (tirx.For, serial if threads == 1 else serial_inside))


def _on_gpu(func: tirx.PrimFunc, machine: VectorMachine) -> tirx.PrimFunc:
    assert machine.gpu is not None
    return schedule_items(func, machine.gpu)  # TVM combines partial results of work-items


_WITHOUT_TEMPLATE = {"core": _on_core, "dsp": _on_core, "gpu": _on_gpu}
"""What schedules kernels without a template, by kind of machine."""


def template_of(fused: FusedKernel, machine: VectorMachine) -> Template | None:
    """What writes a kernel on a machine; None: the generic schedule."""
    template = read_template(fused.config).on(machine)
    if template is not None and template.needs_own_blocks and len(fused.blocks) != 1:
        return None
    return template
