"""Operators of torch that TVM's importer translates wrongly, or not at all.

conv2d(x: bfloat16, w, bias)     the bias is added in the network's type
x // 2, div(x, y, rounding_mode) both operands in the result's type
(x > 0).cumsum(1)                sums of booleans are integers
x.unfold(2, 3, 1)                windows of 3: their elements are taken by constant indices
fold(x, (8, 8), 3)               each pixel is the sum of elements taken by constant indices
lstm(x, (h, c), weights, ..)     one layer after the other: `quantised.py`
x.amax(1), pad(x, .., "reflect") reductions and edges: `images.py`
x + 1.5, x.log1p()               arithmetic: `numbers.py`
x[:, i, j], x.scatter(1, i, y)   elements by index: `places.py`
interpolate(x, (7, 7))           resizes, samplers and pools: `images.py`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax

from tvm_stretch.network.expressions import shape_of
from tvm_stretch.read.torch.decomposing import decompose
from tvm_stretch.read.torch.images import IMAGES, REDUCTIONS
from tvm_stretch.read.torch.importer import Call, Converter, importer_names, is_static
from tvm_stretch.read.torch.numbers import NUMBERS, divided, floor_divided
from tvm_stretch.read.torch.places import PLACES
from tvm_stretch.read.torch.quantised import RECURRENT
from tvm_stretch.read.windows import Windows, fold
from tvm_stretch.targets.kernels.halves import NARROW

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Graph, Node

_KEPT = (
    "col2im.default",
    "unfold.default",
    *(name for name in IMAGES if "upsample" in name),
)
"""What torch would write in terms of strides, additions to places in memory, or indices."""

_ASSERTIONS = ("_assert_async.default", "_assert_async.msg", "_assert_scalar.default")


_BATCHES = (
    "_native_batch_norm_legit_functional.default",
    "_native_batch_norm_legit.no_stats",
    "_native_batch_norm_legit.default",
)
"""Norms by the statistics of the batch, where TVM's importer takes those of the training."""


def _overload(name: str) -> Any:
    """The operator of a name such as `add.Tensor`."""
    import torch

    operator, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, operator), overload)


def _rrelu(x: Any, lower: float = 1 / 8, upper: float = 1 / 3, *training: Any) -> Any:
    """In eval mode, which is the only one that is not random."""
    import torch

    return torch.nn.functional.leaky_relu(x, (lower + upper) / 2)


_DIVISIONS = ("div.Tensor", "div.Tensor_mode", "div.Scalar_mode", "floor_divide.default")


def decomposed(program: ExportedProgram) -> ExportedProgram:
    """The program in the few operators that TVM's importer, or a converter here, knows.

    Assertions about numbers are left out: kernels have none.
    """
    import torch
    from torch._decomp import decomposition_table

    from tvm_stretch.read.torch import elements, histograms, special  # noqa: F401  they register
    from tvm_stretch.read.torch.complex import in_real_numbers
    from tvm_stretch.read.torch.linalg import unchecked
    from tvm_stretch.read.torch.own import WRITTEN
    from tvm_stretch.read.torch.routing import join_routed

    table = torch.export.default_decompositions()
    for name in (*_KEPT, *RECURRENT):
        table.pop(_overload(name), None)
    table.update({_overload(name): decomposition_table[_overload(name)] for name in _BATCHES})
    table[torch.ops.aten.rrelu.default] = _rrelu
    table.update(WRITTEN)
    with unchecked():
        program = in_real_numbers(decompose(program, table))
    while more := _further(program, table):
        table.update(more)
        try:
            program = decompose(program, table)
        except Exception:  # torch does not always take its own
            break
    for node in reversed([*program.graph.nodes]):
        name = node.target.__name__ if node.op == "call_function" else ""
        if name in _ASSERTIONS:
            program.graph.erase_node(node)
    join_routed(program.graph)
    used = needed(program.graph)  # not what was computed for assertions alone
    program.graph.eliminate_dead_code(lambda node: node.op == "placeholder" or node in used)
    return program


def needed(graph: Graph) -> dict[Node, None]:
    """The nodes of which a result, or something that is written to, depends.

    Torch itself keeps unread random numbers, too, for those that are drawn after them.
    """
    nodes: dict[Node, None] = {}
    for node in reversed(graph.nodes):
        schema = getattr(node.target, "_schema", None)
        writes = schema is not None and schema.is_mutable
        if node.op == "output" or writes or not nodes.keys().isdisjoint(node.users):
            nodes[node] = None
    return nodes


def _further(program: ExportedProgram, table: Mapping[Any, Any]) -> dict[Any, Any]:
    """Torch's own decompositions of operators that are known neither to the importer nor here."""
    import torch
    from torch._decomp import decomposition_table

    supported = {*importer_names(), *converters(), *RECURRENT}
    unknown = {
        node.target
        for node in program.graph.nodes
        if node.op == "call_function"
        and (node.target.__name__ not in supported or _needs_statistics(node))
    }
    return {
        op: decomposition_table[op]
        for op in unknown - {*table}
        if op in decomposition_table and torch.Tag.nondeterministic_seeded not in op.tags
    }


def _needs_statistics(node: Any) -> bool:
    """Whether more is read of a norm than its first result, which is all that kernels give."""
    if node.target.__name__ not in ("native_layer_norm.default", "native_group_norm.default"):
        return False
    return any(user.args[1] for user in node.users)


def converters() -> dict[str, Any]:
    """By torch's name, as TVM's importer wants them."""
    from tvm_stretch.read.torch.own import OWN_CONVERTERS

    return {
        **NUMBERS,
        **IMAGES,
        **REDUCTIONS,
        **PLACES,
        **OWN_CONVERTERS,
        "convolution.default": _convolution,
        "addmm.default": _addmm,
        "full_like.default": _full_like,
        **dict.fromkeys(("split.Tensor", "split_with_sizes.default"), _split),
        "native_group_norm.default": _group_norm,
        "col2im.default": _fold,
        "unfold.default": _unfold,
        "cumprod.default": _running(relax.op.cumprod),
        "cumsum.default": _running(relax.op.cumsum),
        **dict.fromkeys(_DIVISIONS, _divide),
        **dict.fromkeys(("mm.default", "bmm.default", "matmul.default"), _matmul),
    }


def _convolution(call: Call) -> relax.Expr:
    """In the network's type, where TVM's importer computes in float32."""
    x, weight, bias, stride, padding, dilation, transposed, extra, groups = call.args
    emit, rank = call.emit, len(weight.ty.shape.values) - 2
    if transposed:
        attributes = {"strides": stride, "pads": [*padding] * 2, "dilations": dilation}
        attributes |= {"output_padding": extra, "group": groups}
        inputs = [x, weight, bias][: 2 + (bias is not None)]
        return call.onnx("ConvTranspose", inputs, attributes)
    operator = (relax.op.nn.conv1d, relax.op.nn.conv2d, relax.op.nn.conv3d)[rank - 1]
    result = emit(operator(x, weight, stride, padding, dilation, groups))
    if bias is None:
        return result
    shape = [1, int(bias.ty.shape.values[0]), *(1 for _ in range(rank))]
    return emit(relax.op.add(result, emit(relax.op.reshape(bias, relax.ShapeExpr(shape)))))


def _group_norm(call: Call) -> relax.Expr:
    """Also without factors and summands, which the importer leaves undefined."""
    x, weight, bias, _, channels, _, groups, epsilon = call.args
    dtype = str(x.ty.dtype)
    weight = relax.const(np.ones(channels), dtype) if weight is None else weight
    bias = relax.const(np.zeros(channels), dtype) if bias is None else bias
    axes = [*range(2, len(x.ty.shape.values))]
    normed = relax.op.nn.group_norm(x, weight, bias, groups, 1, axes, epsilon)
    return call.emit(normed)


def _full_like(call: Call) -> relax.Expr:
    """A constant, where TVM has an operator that it cannot compile."""
    x, number = call.args[:2]
    return call.emit(relax.op.full(x.ty.shape, relax.const(number, call.dtype)))


def _matmul(call: Call) -> relax.Expr:
    return call.emit(relax.op.matmul(*call.args[:2]))


def _addmm(call: Call) -> relax.Expr:
    """``beta * bias + alpha * (a @ b)``; what has no factor is not read."""
    emit, (bias, a, b) = call.emit, call.args[:3]
    product = emit(relax.op.matmul(a, b))
    factors = call.node.kwargs.get("beta", 1), call.node.kwargs.get("alpha", 1)
    terms = [
        value if factor == 1 else emit(relax.op.multiply(value, relax.const(factor, a.ty.dtype)))
        for value, factor in zip((bias, product), factors, strict=True)
        if factor
    ]
    if len(terms) == 2:
        return emit(relax.op.add(terms[1], terms[0]))
    if factors[1]:
        return terms[0]
    only = terms[0] if terms else relax.const(0, call.dtype)
    return emit(relax.op.broadcast_to(only, product.ty.shape))


def _divide(call: Call) -> relax.Expr:
    """Numbers and operands of other types become the result's type first, as torch does it."""
    mode = call.node.kwargs.get("rounding_mode")
    if call.node.target.__name__ == "floor_divide.default":
        mode = "floor"
    divide = floor_divided if mode == "floor" else divided
    result = divide(call, *map(call.typed, call.args[:2]))
    is_cut = mode == "trunc" and "float" in call.dtype
    return call.emit(relax.op.trunc(result)) if is_cut else result


def _split(call: Call) -> relax.Expr:
    """Parts along an axis; TVM makes no tuple of a single part."""
    x, sizes = call.args[:2]
    axis = call.get(2, "dim", 0)
    if isinstance(sizes, int):
        if not is_static(x):
            return call.importer._split(call.node)
        length = shape_of(x)[axis]
        sizes = [min(sizes, length - begin) for begin in range(0, length, sizes or 1)] or [0]
    if len(sizes) == 1:
        return call.emit(relax.Tuple([x]))
    cuts = [int(cut) for cut in np.cumsum(sizes)[:-1]]
    return call.emit(relax.op.split(x, cuts, axis))


def _running(function: Callable[..., relax.Expr]) -> Converter:
    """Running sums and products in the result's type; of halves in float32, as PyTorch does."""

    def convert(call: Call) -> relax.Expr:
        x, axis = call.args[:2]
        emit, dtype = call.emit, call.dtype
        if dtype not in NARROW:
            return emit(function(x, axis, dtype))
        return emit(relax.op.astype(emit(function(x, axis, "float32")), dtype))

    return convert


def _unfold(call: Call) -> relax.Expr:
    """`x.unfold`: windows along one axis; their elements become the last axis."""
    emit, (x, axis, size, step) = call.emit, call.args
    rank = len(x.ty.shape.values)
    axis %= rank
    starts = np.arange(0, int(x.ty.shape.values[axis]) - size + 1, step)
    places = relax.const(starts[:, None] + np.arange(size), "int64")
    windows = emit(relax.op.take(x, places, axis))
    axes = [a for a in range(rank + 1) if a != axis + 1]
    return emit(relax.op.permute_dims(windows, [*axes, axis + 1]))


def _fold(call: Call) -> relax.Expr:
    """`fold`: where windows overlap, their elements are added."""
    x, size, kernel, dilation, padding, stride = call.args
    windows = Windows(size, kernel, dilation, padding, padding, stride)
    return fold(call.emit, x, windows)
