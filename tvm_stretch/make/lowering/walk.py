"""Walk over kernel-level Relax and record which kernels run, on which memory.

Each function of this file that returns a value returns a `View` (a tensor in some memory) or a
tuple of values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.make.lowering.dependences import RegionSteps
from tvm_stretch.make.lowering.executor_graph import COPY_KERNEL, TensorKind
from tvm_stretch.make.lowering.placed_tensors import (
    Buffer,
    DraftNode,
    View,
    ancestors,
    band,
    is_readable,
    new_view,
)
from tvm_stretch.make.lowering.weights import WeightsBlob
from tvm_stretch.network.attributes import KERNELS, PARTS
from tvm_stretch.network.expressions import ALIGNMENT, dtype_bytes
from tvm_stretch.network.operators import PROCESSOR
from tvm_stretch.network.provenance import Provenance, show_dots, table_of
from tvm_stretch.passes.name_operators import REGION


@dataclass
class Walk:
    """State of the walk."""

    mod: tvm.IRModule  # the module that holds `main`
    processors: list[str]  # names; the attribute of a region's function selects one
    weights: WeightsBlob = field(default_factory=WeightsBlob)  # the constants
    prepare: list[DraftNode] = field(default_factory=list)  # kernels that only read constants
    constants: dict[tuple[int, int], Buffer] = field(default_factory=dict)
    prepared: dict[tuple[Any, ...], tuple[View, ...]] = field(default_factory=dict)
    # the functions of all kernels, by the names that steps use
    kernels: dict[str, tirx.PrimFunc] = field(default_factory=dict)
    # the regions of walks over other plans' modules
    done: list[RegionSteps] = field(default_factory=list)
    values: dict[relax.Var, Any] = field(default_factory=dict)
    inputs: list[View] = field(default_factory=list)
    regions: list[RegionSteps] = field(default_factory=list)  # all other kernels, by region
    region: RegionSteps | None = None
    names: dict[str, str] = field(default_factory=dict)
    # of the expression that is being visited
    provenance: Provenance = field(default_factory=Provenance)

    @cached_property
    def parts(self) -> dict[str, Provenance]:
        """The origin of each part of an operator, read once for all regions."""
        return table_of(self.mod["main"], PARTS)

    def over(self, mod: tvm.IRModule) -> Walk:
        """A walk over the module of another plan, with which it shares constants and `prepare`."""
        return Walk(
            mod,
            self.processors,
            self.weights,
            self.prepare,
            self.constants,
            self.prepared,
            self.kernels,
            self.done,
        )

    def visit_main(self, main: relax.Function) -> list[View]:
        """Record every step; returns the views that the function returns."""
        for index, param in enumerate(main.params):
            self.inputs.append(new_view("input", *tensor_type(param.ty, param.name), index))
        bindings = (binding for block in main.body.blocks for binding in block.bindings)
        if any(isinstance(_callee(binding), tvm.ir.GlobalVar) for binding in bindings):
            results = self.visit_function(main, self.inputs)
        else:
            results = self.visit_region(main, self.inputs, "main", 0)
        results = results if isinstance(results, tuple) else (results,)
        return [self.claim_output(index, value) for index, value in enumerate(results)]

    def visit_region_call(self, call: relax.Call, name: str) -> Any:
        """Walk a function that `main` calls; returns the value of its result."""
        function = self.mod[call.op]
        if self.region is not None or not isinstance(function, relax.Function):
            raise _refuse(f"a call of {call.op.name_hint} outside main", name)
        processor = str((function.attrs or {}).get(PROCESSOR, self.processors[0]))
        if processor not in self.processors:
            raise UnsupportedError(
                f"expected one of the processors {self.processors} for region "
                f"{call.op.name_hint!r}, got {processor!r}; give lower() that processor too"
            )
        function = relax.analysis.remove_all_unused(function)
        arguments = [self.visit(argument, name) for argument in call.args]
        index = self.processors.index(processor)
        region = call.op.name_hint.removeprefix(REGION)
        return self.visit_region(function, arguments, region, index)

    def visit_region(
        self, function: relax.Function, arguments: Sequence[Any], name: str, processor: int
    ) -> Any:
        """Walk a function as a region of its own."""
        self.region = RegionSteps(name, processor)
        self.regions.append(self.region)
        results = self.visit_function(function, arguments)
        self.region = None
        return results

    def visit_function(self, function: relax.Function, arguments: Sequence[Any]) -> Any:
        """The value that a function returns."""
        self.values.update(zip(function.params, arguments, strict=True))
        kernels, parts = table_of(function, KERNELS), self.parts
        for block in function.body.blocks:
            for binding in block.bindings:
                if not isinstance(binding, relax.VarBinding):
                    raise _refuse(type(binding).__name__, binding.var.name)
                self.provenance = kernels.get(binding.var.name, Provenance()).in_part(parts)
                self.values[binding.var] = self.visit(binding.value, binding.var.name)
        return self.visit(function.body.body, "the result")

    def record(self, step: DraftNode) -> None:
        """Add a step to the current region."""
        if self.region is None:
            raise _refuse(f"{step.kernel} beside calls of regions", step.name)
        self.region.steps.append(step)

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
        if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.GlobalVar):
            return self.visit_region_call(expr, name)
        if not isinstance(expr, relax.Call) or not isinstance(expr.op, tvm.ir.Op):
            raise _refuse(type(expr).__name__, name)
        if expr.op.name == "relax.call_tir":
            return self.visit_call_tir(expr, name)
        if expr.op.name not in _VIEW_OPS:
            raise _refuse(expr.op.name, name)
        return _VIEW_OPS[expr.op.name](self, expr, name)

    def visit_constant(self, constant: tvm.ir.GenericConst) -> View:
        """A view of the weights; equal constants share a buffer."""
        shape, dtype = tensor_type(constant.ty, "a constant")
        offset = self.weights.add(constant.value)
        size = math.prod(shape) * dtype_bytes(dtype)
        key = (offset, size)
        buffer = self.constants.setdefault(key, Buffer(size, "constant", offset=offset))
        return View(buffer, shape, dtype)

    def name_of(self, var: tvm.ir.GlobalVar) -> str:
        """The kernel's name, or a new one if a kernel of another module has it."""
        if var.name_hint not in self.names:
            tries = (f"{var.name_hint}{number or ''}" for number in itertools.count())
            name = next(name for name in tries if name not in self.kernels)
            self.names[var.name_hint] = name
            self.kernels[name] = self.mod[var]
        return self.names[var.name_hint]

    def visit_call_tir(self, call: relax.Call, name: str) -> Any:
        """Record a kernel call, under `prepare` if all its operands are constant."""
        if len(call.args) != 2:
            raise _refuse("call_tir with symbolic arguments", name)
        inputs = self.visit(call.args[1], name)
        inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        out_type = call.ty_args[0]
        several = isinstance(out_type, relax.TupleType)
        types = [tensor_type(t, name) for t in (out_type.fields if several else [out_type])]
        kernel = self.name_of(call.args[0])
        if all(view.buffer.is_constant for view in inputs):
            outputs = self.run_once(kernel, name, inputs, types)
        else:
            outputs = tuple(new_view("arena", *t) for t in types)
            self.record(DraftNode(kernel, name, self.provenance, inputs, outputs))
        return outputs if several else outputs[0]

    def run_once(
        self, kernel: str, name: str, inputs: tuple[View, ...], types: list[tuple[Any, str]]
    ) -> tuple[View, ...]:
        """Record a `prepare` step; the same kernel on the same constants is recorded once."""
        function = tvm_ffi.structural_hash(self.kernels[kernel])
        key = (function, *((v.buffer, v.offset, v.shape, v.dtype) for v in inputs))
        if key not in self.prepared:
            outputs = tuple(new_view("prepared", *t) for t in types)
            self.prepare.append(DraftNode(kernel, name, self.provenance, inputs, outputs))
            self.prepared[key] = outputs
        return self.prepared[key]

    def copy(self, source: View, target: View, name: str) -> View:
        """Record a copy; returns the target. Either tensor may get gaps yet: see `in_pieces`."""
        helping = replace(self.provenance, operators=(), helpers=self.provenance.served[:1])
        step = DraftNode(COPY_KERNEL, show_dots(name), helping, (source,), (target,))
        if target.buffer.root.is_constant:
            self.prepare.append(step)
        else:
            self.record(step)
        return target

    # Views.

    def view(self, source: View, shape: tuple[int, ...], offset: int, name: str) -> View:
        """A tensor on `source` from `offset` bytes on, with another shape; a copy if necessary."""
        view = View(source.buffer, shape, source.dtype, source.offset + offset)
        if is_readable(view):
            return view
        kind: TensorKind = "prepared" if source.buffer.is_constant else "arena"
        if view.find_layout() is None:
            dense = self.copy(source, new_view(kind, source.shape, source.dtype), f"{name}.dense")
            return self.view(dense, shape, offset, name)
        return self.copy(view, new_view(kind, shape, source.dtype), f"{name}.copy")

    def visit_reshape(self, call: relax.Call, name: str) -> View:
        """Any operator that only changes the shape."""
        shape, _ = tensor_type(call.ty, name)
        return self.view(self.visit(call.args[0], name), shape, 0, name)

    def visit_split(self, call: relax.Call, name: str) -> tuple[View, ...]:
        """Consecutive slices of a tensor."""
        source = self.visit(call.args[0], name)
        axis = call.attrs.axis % len(source.shape)
        views, offset = [], 0
        for part_type in call.ty.fields:
            shape, dtype = tensor_type(part_type, name)
            views.append(self.view(band(source, shape, axis, offset), shape, 0, name))
            offset += math.prod(shape[axis:]) * dtype_bytes(dtype)
        return tuple(views)

    def visit_strided_slice(self, call: relax.Call, name: str) -> View:
        """One slice; its offset is that of its first element."""
        source = self.visit(call.args[0], name)
        shape, dtype = tensor_type(call.ty, name)
        axes, begin = _integers(call.args[1], name), _integers(call.args[2], name)
        strides = _integers(call.args[4], name) if len(call.args) > 4 else [1] * len(axes)
        if any(stride != 1 for stride in strides):
            raise _refuse(f"strided_slice with strides {strides}", name)
        shortened = [i for i, size in enumerate(shape) if size != source.shape[i]]
        element = 0
        for axis, first in zip(axes, begin, strict=True):
            axis, size = axis % len(shape), source.shape[axis]
            first = min(max(first + size if first < 0 else first, 0), size)
            element += first * math.prod(source.shape[axis + 1 :])
        offset = element * dtype_bytes(dtype)
        if not shortened or math.prod(shape[: shortened[-1]]) == 1:
            return self.view(source, shape, offset, name)
        if len(shortened) > 1:
            raise _refuse(f"strided_slice along axes {shortened}", name)
        return self.view(band(source, shape, shortened[0], offset), shape, 0, name)

    def visit_concat(self, call: relax.Call, name: str) -> View:
        """One buffer; the producer of each part writes into it, or the part is copied."""
        parts = self.visit(call.args[0], name)
        shape, dtype = tensor_type(call.ty, name)
        axis = 0 if call.attrs.axis is None else call.attrs.axis % len(shape)
        constant = all(part.buffer.is_constant for part in parts)
        whole = new_view("prepared" if constant else "arena", shape, dtype)
        offset = 0
        for index, part in enumerate(parts):
            slot = band(whole, part.shape, axis, offset)
            if not self.move(part, slot):
                self.copy(part, slot, f"{name}.part{index}")
            offset += part.bytes // math.prod(shape[:axis])
        return whole

    def move(self, part: View, slot: View) -> bool:
        """Let the producer of `part` write straight into `slot`, if that is possible.

        It is not if the part belongs to the caller or the artifact, is a slice of another tensor,
        went into another concat already, or has views that kernels could not read there.
        """
        own, place = part.buffer, slot.buffer
        if own.kind != place.root.kind or own.parent is not None or not part.is_whole_buffer:
            return False
        if place.parent is None:  # one piece of it
            if slot.offset % ALIGNMENT:
                return False
            own.parent, own.offset = place, slot.offset
            return True
        readable = [view for view in self.views_on(own) if is_readable(view)]
        own.parent, own.offset = place.parent, place.offset
        own.run, own.pitch = place.run, place.pitch
        if all(view.find_layout() for view in self.views_on(own)) and all(
            map(is_readable, readable)
        ):
            return True
        own.parent, own.offset, own.run, own.pitch = None, 0, 0, 0
        return False

    def views_on(self, buffer: Buffer) -> Iterator[View]:
        """All recorded tensors in this buffer or in a part of it."""
        regions = (*self.done, *self.regions)
        steps = [step for region in regions for step in region.steps] + self.prepare
        recorded = itertools.chain.from_iterable((*step.inputs, *step.outputs) for step in steps)
        for view in itertools.chain(recorded, _views(self.values.values())):
            if buffer in ancestors(view.buffer):
                yield view

    def claim_output(self, index: int, value: Any) -> View:
        """Put a result into the caller's memory, by a copy if it must also live elsewhere."""
        if not isinstance(value, View):
            raise _refuse("a tuple inside the returned tuple", "main")
        buffer = value.buffer
        if buffer.kind == "arena" and buffer.parent is None and value.is_whole_buffer:
            buffer.kind, buffer.index = "output", index
            return value
        target = new_view("output", value.shape, value.dtype, index)
        self.region, self.provenance = self.region_to_copy(buffer.root), Provenance()
        self.copy(value, target, f"output{index}.copy")
        self.region = None
        return target

    def region_to_copy(self, root: Buffer) -> RegionSteps:
        """The last region that writes `root`; if none does, a region of the CPU."""
        for region in reversed(self.regions):
            if any(view.buffer.root is root for step in region.steps for view in step.outputs):
                return region
        for region in self.regions:
            if region.processor == 0:
                return region
        self.regions.append(RegionSteps("outputs", 0))
        return self.regions[-1]


_VIEW_OPS: dict[str, Callable[[Walk, relax.Call, str], Any]] = {
    "relax.reshape": Walk.visit_reshape,
    "relax.flatten": Walk.visit_reshape,
    "relax.expand_dims": Walk.visit_reshape,
    "relax.squeeze": Walk.visit_reshape,
    "relax.split": Walk.visit_split,
    "relax.strided_slice": Walk.visit_strided_slice,
    "relax.concat": Walk.visit_concat,
}


def _callee(binding: relax.Binding) -> Any:
    """The callee of a binding's call; None if it is no call."""
    value = getattr(binding, "value", None)
    return value.op if isinstance(value, relax.Call) else None


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
    """The integers in a tuple of constants."""
    try:
        return [int(getattr(item, "value", item)) for item in expr.fields]
    except (AttributeError, TypeError) as error:
        raise _refuse("strided_slice with bounds that are not constant", name) from error


def _views(values: Iterable[Any]) -> Iterator[View]:
    """The tensors among values that may be tuples."""
    for value in values:
        if isinstance(value, View):
            yield value
        else:
            yield from _views(value)


def _refuse(what: str, name: str) -> UnsupportedError:
    return UnsupportedError(
        f"expected call_tir, a view, a tuple or a constant for {name}, got {what}; "
        "legalize it to a kernel before lowering"
    )
