"""Kernel-level Relax -> executor graph.

    lv  = R.call_tir(cls.conv, (x, w), …)        node conv: x, w -> lv
    lv1 = R.reshape(lv, (1, 64))                 no node: a second tensor on the bytes of lv
    lv2 = R.concat((a, b), axis=1)               no node: a and b are written into lv2's memory
    lv3 = R.call_tir(cls.pack, (constant,), …)   `prepare` node: run once, when the artifact loads

A view that would start where kernels must not read (`ALIGNMENT`), or a part of a concat
that already lives elsewhere, becomes a `tvm_stretch.copy` node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax

from tvm_stretch.errors import UnsupportedError
from tvm_stretch.lowering.graph import COPY_KERNEL, Graph, Port, TensorKind
from tvm_stretch.lowering.memory_plan import ALIGNMENT
from tvm_stretch.lowering.views import (
    Buffer,
    Step,
    TensorTable,
    View,
    dtype_bytes,
    new_view,
    place_buffers,
)
from tvm_stretch.lowering.weights import WeightsBlob


@dataclass(frozen=True)
class Lowered:
    """A graph and the bytes of its constants."""

    graph: Graph
    weights: tvm.runtime.Tensor


def lower(
    mod: tvm.IRModule,
    *,
    threads: int = 1,
    output_names: Sequence[str] | None = None,
) -> Lowered:
    """Turn the function `main` of kernel-level Relax into a graph.

    Args:
        mod: `main` may only hold `call_tir`, view operators, tuples and constants.
        threads: how many threads the kernels were scheduled for.
        output_names: names of the outputs; by default the attribute `output_names` of `main`.

    Raises:
        UnsupportedError: `main` holds anything else, or a shape is not static.
    """
    main = relax.analysis.remove_all_unused(mod["main"])
    lowering = _Lowering()
    outputs = lowering.visit_function(main)
    if output_names is None:
        attributes = main.attrs or {}
        output_names = [str(name) for name in attributes.get("output_names", [])]
    names = list(output_names) or [f"output{i}" for i in range(len(outputs))]
    if len(names) != len(outputs):
        raise UnsupportedError(
            f"expected {len(outputs)} names for the outputs, got {names}; give one per output"
        )
    arena_bytes = place_buffers(lowering.nodes, "arena")
    read_by_nodes = [view for step in lowering.nodes for view in step.inputs]
    prepared_bytes = place_buffers(lowering.prepare, "prepared", kept=read_by_nodes)
    table = TensorTable()
    graph = Graph(
        inputs=tuple(map(Port, (p.name for p in main.params), map(table.add, lowering.inputs))),
        outputs=tuple(map(Port, names, map(table.add, outputs))),
        prepare=tuple(map(table.add_step, lowering.prepare)),
        nodes=tuple(map(table.add_step, lowering.nodes)),
        tensors=tuple(table.ids),
        arena_bytes=arena_bytes,
        weights_bytes=lowering.weights.bytes,
        prepared_bytes=prepared_bytes,
        threads=threads,
    )
    return Lowered(graph, lowering.weights.tensor())


@dataclass
class _Lowering:
    """Walks `main` once. A value is a `View` or a tuple of values."""

    values: dict[relax.Var, Any] = field(default_factory=dict)
    weights: WeightsBlob = field(default_factory=WeightsBlob)
    inputs: list[View] = field(default_factory=list)
    prepare: list[Step] = field(default_factory=list)
    nodes: list[Step] = field(default_factory=list)
    constants: dict[int, Buffer] = field(default_factory=dict)
    prepared: dict[tuple[Any, ...], tuple[View, ...]] = field(default_factory=dict)

    def visit_function(self, function: relax.Function) -> list[View]:
        """Record every step; returns the views that the function returns."""
        for index, param in enumerate(function.params):
            self.values[param] = new_view("input", *tensor_type(param.ty, param.name), index)
            self.inputs.append(self.values[param])
        for block in function.body.blocks:
            for binding in block.bindings:
                if not isinstance(binding, relax.VarBinding):
                    raise _refuse(type(binding).__name__, binding.var.name)
                self.values[binding.var] = self.visit(binding.value, binding.var.name)
        results = self.visit(function.body.body, "the result")
        results = results if isinstance(results, tuple) else (results,)
        return [self.claim_output(index, value) for index, value in enumerate(results)]

    def visit(self, expr: Any, name: str) -> Any:
        """The value of an expression that is bound to `name`."""
        if isinstance(expr, relax.Var):
            return self.values[expr]
        if isinstance(expr, tvm.ir.GenericConst):
            return self.visit_constant(expr)
        if isinstance(expr, relax.Tuple):
            return tuple(self.visit(item, name) for item in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            return self.visit(expr.tuple_value, name)[expr.index]
        if not isinstance(expr, relax.Call) or not isinstance(expr.op, tvm.ir.Op):
            raise _refuse(type(expr).__name__, name)
        if expr.op.name == "relax.call_tir":
            return self.visit_call_tir(expr, name)
        if expr.op.name not in _VIEW_OPS:
            raise _refuse(expr.op.name, name)
        return _VIEW_OPS[expr.op.name](self, expr, name)

    def visit_constant(self, constant: tvm.ir.GenericConst) -> View:
        """A view of the weights; equal constants share their buffer."""
        shape, dtype = tensor_type(constant.ty, "a constant")
        offset = self.weights.add(constant.value)
        size = math.prod(shape) * dtype_bytes(dtype)
        buffer = self.constants.setdefault(offset, Buffer(size, "constant", offset=offset))
        return View(buffer, shape, dtype)

    def visit_call_tir(self, call: relax.Call, name: str) -> Any:
        """Record a kernel call, under `prepare` if all it reads is constant."""
        if len(call.args) != 2:
            raise _refuse("call_tir with symbolic arguments", name)
        inputs = self.visit(call.args[1], name)
        inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        out_type = call.ty_args[0]
        several = isinstance(out_type, relax.TupleType)
        types = [tensor_type(t, name) for t in (out_type.fields if several else [out_type])]
        kernel = call.args[0].name_hint
        if all(view.buffer.is_constant for view in inputs):
            outputs = self.run_once(kernel, name, inputs, types)
        else:
            outputs = tuple(new_view("arena", *t) for t in types)
            self.nodes.append(Step(kernel, name, inputs, outputs))
        return outputs if several else outputs[0]

    def run_once(
        self, kernel: str, name: str, inputs: tuple[View, ...], types: list[tuple[Any, str]]
    ) -> tuple[View, ...]:
        """Record a `prepare` step; the same kernel on the same constants is one step."""
        key = (kernel, *((v.buffer, v.offset, v.shape, v.dtype) for v in inputs))
        if key not in self.prepared:
            outputs = tuple(new_view("prepared", *t) for t in types)
            self.prepare.append(Step(kernel, name, inputs, outputs))
            self.prepared[key] = outputs
        return self.prepared[key]

    def copy(self, source: View, target: View, name: str) -> View:
        """Record a copy; returns the target."""
        steps = self.prepare if target.buffer.root.is_constant else self.nodes
        steps.append(Step(COPY_KERNEL, name, (source,), (target,)))
        return target

    # Views.

    def view(self, source: View, shape: tuple[int, ...], offset: int, name: str) -> View:
        """`source` from `offset` bytes on, with another shape."""
        view = View(source.buffer, shape, source.dtype, source.offset + offset)
        if view.offset % ALIGNMENT == 0:
            return view
        kind: TensorKind = "prepared" if source.buffer.is_constant else "arena"
        return self.copy(view, new_view(kind, shape, source.dtype), f"{name}.copy")

    def visit_reshape(self, call: relax.Call, name: str) -> View:
        """Any operator that only changes the shape."""
        shape, _ = tensor_type(call.ty, name)
        return self.view(self.visit(call.args[0], name), shape, 0, name)

    def visit_split(self, call: relax.Call, name: str) -> tuple[View, ...]:
        """Consecutive slices."""
        source = self.visit(call.args[0], name)
        axis = call.attrs.axis % len(source.shape)
        _require_contiguous(source.shape[:axis], "split", name)
        views, offset = [], 0
        for part_type in call.ty.fields:
            shape, dtype = tensor_type(part_type, name)
            views.append(self.view(source, shape, offset, name))
            offset += math.prod(shape) * dtype_bytes(dtype)
        return tuple(views)

    def visit_strided_slice(self, call: relax.Call, name: str) -> View:
        """One slice; its offset is where its first element stands."""
        source = self.visit(call.args[0], name)
        shape, dtype = tensor_type(call.ty, name)
        axes, begin = _integers(call.args[1], name), _integers(call.args[2], name)
        strides = _integers(call.args[4], name) if len(call.args) > 4 else [1] * len(axes)
        if any(stride != 1 for stride in strides):
            raise _refuse(f"strided_slice with strides {strides}", name)
        shortened = [i for i, size in enumerate(shape) if size != source.shape[i]]
        if shortened:
            _require_contiguous(shape[: shortened[-1]], "strided_slice", name)
        element = 0
        for axis, first in zip(axes, begin, strict=True):
            axis, size = axis % len(shape), source.shape[axis]
            first = min(max(first + size if first < 0 else first, 0), size)
            element += first * math.prod(source.shape[axis + 1 :])
        return self.view(source, shape, element * dtype_bytes(dtype), name)

    def visit_concat(self, call: relax.Call, name: str) -> View:
        """One buffer; each part is written there by its producer, or else copied."""
        parts = self.visit(call.args[0], name)
        shape, dtype = tensor_type(call.ty, name)
        axis = 0 if call.attrs.axis is None else call.attrs.axis % len(shape)
        _require_contiguous(shape[:axis], "concat", name)
        constant = all(part.buffer.is_constant for part in parts)
        whole = new_view("prepared" if constant else "arena", shape, dtype)
        offset = 0
        for index, part in enumerate(parts):
            if self.can_move(part, whole.buffer, offset):
                part.buffer.parent, part.buffer.offset = whole.buffer, offset
            else:
                slot = View(whole.buffer, part.shape, dtype, offset)
                self.copy(part, slot, f"{name}.part{index}")
            offset += part.bytes
        return whole

    def can_move(self, part: View, whole: Buffer, offset: int) -> bool:
        """Whether the producer of `part` may write it straight into `whole` at `offset`.

        Not if the part belongs to the caller or to the artifact, if it is a slice of something,
        if it went into another concat already, or if kernels must not read at that offset.
        """
        return (
            part.buffer.kind == whole.kind
            and part.buffer.parent is None
            and part.is_whole_buffer
            and offset % ALIGNMENT == 0
        )

    def claim_output(self, index: int, value: Any) -> View:
        """Let a result live in the caller's memory; by a copy if it has to live elsewhere too."""
        if not isinstance(value, View):
            raise _refuse("a tuple inside the returned tuple", "main")
        buffer = value.buffer
        if buffer.kind == "arena" and buffer.parent is None and value.is_whole_buffer:
            buffer.kind, buffer.index = "output", index
            return value
        target = new_view("output", value.shape, value.dtype, index)
        return self.copy(value, target, f"output{index}.copy")


_VIEW_OPS: dict[str, Callable[[_Lowering, relax.Call, str], Any]] = {
    "relax.reshape": _Lowering.visit_reshape,
    "relax.flatten": _Lowering.visit_reshape,
    "relax.expand_dims": _Lowering.visit_reshape,
    "relax.squeeze": _Lowering.visit_reshape,
    "relax.split": _Lowering.visit_split,
    "relax.strided_slice": _Lowering.visit_strided_slice,
    "relax.concat": _Lowering.visit_concat,
}


def tensor_type(ty: Any, name: str) -> tuple[tuple[int, ...], str]:
    """Static shape and dtype of a tensor type."""
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        raise UnsupportedError(
            f"expected a tensor with a static shape for {name}, got {ty}; "
            "fix the shapes of the inputs"
        )
    dims = ty.shape.values
    if not all(isinstance(dim, tvm.tirx.IntImm) for dim in dims):
        raise UnsupportedError(
            f"expected a static shape for {name}, got {dims}; fix the shapes of the inputs"
        )
    return tuple(int(dim) for dim in dims), str(ty.dtype)


def _integers(expr: Any, name: str) -> list[int]:
    """The integers of a tuple of constants."""
    try:
        return [int(getattr(item, "value", item)) for item in expr.fields]
    except (AttributeError, TypeError) as error:
        raise _refuse("strided_slice with bounds that are not constant", name) from error


def _require_contiguous(leading: Sequence[int], op: str, name: str) -> None:
    """A slice is contiguous if every dimension before the cut one is 1."""
    if math.prod(leading) != 1:
        raise _refuse(f"{op} behind dimensions {tuple(leading)}, which is no contiguous view", name)


def _refuse(found: str, name: str) -> UnsupportedError:
    return UnsupportedError(
        f"expected call_tir, a contiguous view, a tuple or a constant for {name}, got {found}; "
        "legalize it to a kernel before lowering"
    )
