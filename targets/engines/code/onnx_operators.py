"""How each operator of canonical Relax is written in ONNX; see `onnx_region.py`.

Integer operators become floats between DequantizeLinear and QuantizeLinear, the form that engines
recognise. Operators that only move numbers, and the maximum, are the same on integers and floats.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.network.expressions import axes_of, flat_args, shape_of, tensor_types
from tvm_stretch.network.integers import integer_of, operands_of
from tvm_stretch.network.operators import kind_of
from tvm_stretch.targets.engines.code.onnx_region import Graph, Rule, export
from tvm_stretch.targets.engines.code.onnx_scales import function_of

_LAYOUTS = {"layout": "NCHW", "data_layout": "NCHW", "out_layout": "NCHW", "kernel_layout": "OIHW"}
_MOVES = (
    *("concat", "maximum", "minimum", "nn.max_pool2d", "nn.pad"),
    *("permute_dims", "reshape", "split", "strided_slice", "take"),
)
_TYPES = ("bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64")


def rule_of(call: relax.Call) -> Rule | None:
    """The rule for a call; None if there is none."""
    return _RULES.get(kind_of(call))


def onnx_of(function: relax.Function) -> bytes:
    """A region as an ONNX model.

    Raises:
        UnsupportedError: an operator has no rule, or its scales contradict each other.
    """
    return export(function, rule_of)


def why_not_onnx(call: relax.Call) -> str | None:
    """Why a call has no form in ONNX that engines take; None if it has one."""
    kind = kind_of(call)
    if rule_of(call) is None and kind != "split":  # its parts are slices
        return f"{kind}: no engine's form of it is known"
    integer = integer_of(call)
    if integer is not None:
        if integer.kind == "table":
            is_function = function_of(call) is not None
            return None if is_function else f"{kind}: a function that ONNX has no operator for"
        if integer.rounding is None:
            return f"{kind}: its sums have no scale of 8 bits"
        constants = operands_of(call)[1:] if kind in _LAYERS else []
        if not all(isinstance(c, GenericConst) for c in constants):
            return f"{kind}: its weights are computed"
        data = [operand for operand in operands_of(call) if not isinstance(operand, GenericConst)]
        if kind in ("integer.add", "integer.multiply") and len(data) != 2:
            return f"{kind}: one of its operands is constant"
        if kind == "integer.average" and _include_pad(call) is None:
            return f"{kind}: its windows end beyond the image"
    elif (reason := _why_not_same(kind, call)) is not None:
        return reason
    for expr in (call, *call.args):
        for ty in tensor_types(expr) if not isinstance(expr, GenericConst) else ():
            if str(ty.dtype) not in _TYPES or not isinstance(ty.shape, relax.ShapeExpr):
                return f"{kind}: engines have no tensor of {ty.dtype}"
    return None


def _why_not_same(kind: str, call: relax.Call) -> str | None:
    """Why ONNX's operator computes something else; None if it computes the same."""
    if any(str(getattr(call.attrs, key, plain)) != plain for key, plain in _LAYOUTS.items()):
        return f"{kind}: engines take images as NCHW"
    if kind == "nn.avg_pool2d" and _ints(call.attrs.dilation) != [1, 1]:
        return f"{kind}: its windows are dilated"
    if kind == "strided_slice":
        return _why_not_slice(call)
    if kind == "nn.pad" and call.attrs.pad_mode != "constant":
        return f"nn.pad: engines pad with a constant, not with {call.attrs.pad_mode}"
    if kind == "take" and not _takes_rows(call):
        return "take: its indices are computed, or end outside"
    args = flat_args(call)
    types = [str(ty.dtype) for expr in (call, *args) for ty in tensor_types(expr)]
    if kind == "astype" or not {"uint8", "int8"} & set(types):
        return None
    constants = args[: 1 if kind == "take" else None]
    if kind not in _MOVES or any(isinstance(arg, GenericConst) for arg in constants):
        return f"{kind}: engines take integers of 8 bits for scaled numbers; quantise"
    return None


def _why_not_slice(call: relax.Call) -> str | None:
    listed = call.args[1:]
    if not all(isinstance(arg, relax.Tuple) for arg in listed):
        return "strided_slice: its borders are computed"
    steps = listed[3].fields if len(listed) > 3 else ()
    return "strided_slice: it goes backwards" if any(int(step) < 0 for step in steps) else None


def repetitions_of(call: relax.Call) -> int | None:
    """How often a ``take`` repeats each row or column of images in turn; None for other rows."""
    if not _takes_rows(call) or len(shape_of(call)) != 4 or int(call.attrs.axis) < 2:
        return None
    rows, had = call.args[1].value.numpy(), shape_of(call.args[0])[int(call.attrs.axis)]
    times = rows.size // max(had, 1)
    return times if times and np.array_equal(rows, np.repeat(np.arange(had), times)) else None


def _takes_rows(call: relax.Call) -> bool:
    """Whether it takes rows with constant numbers: ONNX counts negative ones from the end."""
    data, indices = call.args
    if call.attrs.axis is None or not isinstance(indices, GenericConst):
        return False
    numbers = indices.value.numpy()
    return bool(((numbers >= 0) & (numbers < shape_of(data)[int(call.attrs.axis)])).all())


def _ints(values: Any) -> list[int]:
    return [int(value) for value in values]


# --- integer operators ----------------------------------------------------------------------------

_LAYERS = ("integer.conv2d", "integer.matmul")


def _layer(graph: Graph, var: relax.Var, call: relax.Call) -> str:
    integer = integer_of(call)
    assert integer is not None
    data, *constants = operands_of(call)
    weight, bias, factor = (c.value.numpy() for c in constants)
    of_data, of_result = graph.scales[data][0], graph.scales[var][0]
    scale = factor.astype("float64") * of_result / of_data
    if integer.kind == "matmul":
        weight = weight.T
    operands = [
        graph.real(data),
        graph.dequantised(weight, scale),
        graph.dequantised(bias.astype("int32"), scale * of_data),
    ]
    if integer.kind == "matmul":
        return graph.node("Gemm", operands, transB=1)
    return graph.node(
        "Conv",
        operands,
        kernel_shape=_ints(weight.shape[2:]),
        strides=_ints(integer.strides),
        pads=_ints(integer.padding),
        dilations=_ints(integer.dilation),
        group=integer.groups,
    )


def _of_integers(kind: str) -> Rule:
    def write(graph: Graph, var: relax.Var, call: relax.Call) -> str:
        operands = [o for o in operands_of(call) if not isinstance(o, GenericConst)]
        return graph.node(kind, map_real(graph, operands))

    return write


def _table(graph: Graph, var: relax.Var, call: relax.Call) -> str:
    """A table as the function whose results it has."""
    tabulated, data = function_of(call), graph.real(operands_of(call)[0])
    assert tabulated is not None
    function, dtype = tabulated.function, str(var.ty.dtype)
    if function.operator:
        attributes = {**function.attributes, "domain": function.domain}
        result = graph.node(function.operator, [data], **attributes)
    else:  # limits without effect, too: the HTP refuses a region that returns a mere rounding
        result = graph.limited(var, data, tabulated.low, tabulated.high)
    if not function.gates:
        return result
    gate = graph.rounded(result, (1 / 256, int(np.iinfo(dtype).min)), dtype)
    return graph.node("Mul", [data, gate])


def map_real(graph: Graph, operands: list[relax.Expr]) -> list[str]:
    """The names of the operands' real numbers."""
    return [graph.real(operand) for operand in operands]


def _average(graph: Graph, var: relax.Var, call: relax.Call) -> str:
    integer = integer_of(call)
    assert integer is not None
    return graph.node(
        "AveragePool",
        [graph.real(operands_of(call)[0])],
        kernel_shape=_ints(integer.kernel),
        strides=_ints(integer.strides),
        pads=_ints(integer.padding),
        count_include_pad=int(bool(_include_pad(call))),
    )


def _include_pad(call: relax.Call) -> bool | None:
    """Whether averages count the padding; None if they count something else."""
    integer = integer_of(call)
    assert integer is not None
    data, counts = operands_of(call)
    if integer.dilation != (1, 1) or not isinstance(counts, GenericConst):
        return None
    numbers = counts.value.numpy()
    sizes, (top, left, bottom, right) = shape_of(data)[2:], integer.padding
    for include in (True, False):
        sums = []
        for axis, (size, before, after) in enumerate(
            zip(sizes, (top, left), (bottom, right), strict=True)
        ):
            taps, stride = integer.kernel[axis], integer.strides[axis]
            starts = np.arange(0, size + before + after - taps + 1, stride) - before
            places = starts[:, None] + np.arange(taps)
            around = (before, after) if include else (0, 0)
            sums.append(((places >= -around[0]) & (places < size + around[1])).sum(1))
        expected = np.outer(*sums)[None, None]
        if np.array_equal(np.broadcast_to(numbers, expected.shape), expected):
            return include
    return None


# --- floats ---------------------------------------------------------------------------------------


def _conv(graph: Graph, var: relax.Var, call: relax.Call) -> str:
    attrs = call.attrs
    return graph.node(
        "Conv",
        map_real(graph, list(call.args)),
        strides=_ints(attrs.strides),
        pads=_ints(attrs.padding),
        dilations=_ints(attrs.dilation),
        group=int(attrs.groups),
    )


def _simple(kind: str) -> Rule:
    return lambda graph, _, call: graph.node(kind, map_real(graph, list(call.args)))


def _pool(kind: str) -> Rule:
    def write(graph: Graph, var: relax.Var, call: relax.Call) -> str:
        attrs = call.attrs
        more: dict[str, Any] = {"dilations": _ints(attrs.dilation)}
        if kind == "AveragePool":  # without dilation in this version of ONNX
            more = {"count_include_pad": int(attrs.count_include_pad)}
        return graph.node(
            kind,
            [graph.real(call.args[0])],
            kernel_shape=_ints(attrs.pool_size),
            strides=_ints(attrs.strides),
            pads=_ints(attrs.padding),
            ceil_mode=int(attrs.ceil_mode),
            **more,
        )

    return write


def _mean(graph: Graph, var: relax.Var, call: relax.Call) -> str:
    shape, axes = shape_of(call.args[0]), call.attrs.axis
    listed = list(range(len(shape))) if axes is None else _ints(axes)
    keep = int(bool(call.attrs.keepdims))
    if len(shape) == 4 and keep and sorted(axis % 4 for axis in listed) == [2, 3]:
        return graph.node("GlobalAveragePool", [graph.real(call.args[0])])
    return graph.node("ReduceMean", [graph.real(call.args[0])], axes=listed, keepdims=keep)


def _reshape(graph: Graph, var: relax.Var, call: relax.Call) -> str:
    shape = graph.constant(np.array(shape_of(call), "int64"))
    return graph.node("Reshape", [graph.real(call.args[0]), shape])


def _transpose(graph: Graph, var: relax.Var, call: relax.Call) -> str:
    data, order = call.args[0], axes_of(call)
    real = graph.real(data)
    if data in graph.given:
        real = graph.rounded(graph.held(data), graph.scales[data], str(data.ty.dtype))
    return graph.node("Transpose", [real], perm=order)


def _concat(graph: Graph, var: relax.Var, call: relax.Call) -> str:
    operands = map_real(graph, list(call.args[0].fields))
    return graph.node("Concat", operands, axis=int(call.attrs.axis))


def _slice(graph: Graph, var: relax.Var, call: relax.Call) -> str:
    data, *listed = call.args  # axes, begin, end, strides, as canonical Relax has them
    lists = [np.array(_ints(one.fields), "int64") for one in listed]
    axes, begin, end, *strides = map(graph.constant, lists)
    return graph.node("Slice", [graph.real(data), begin, end, axes, *strides])


def _take(graph: Graph, var: relax.Var, call: relax.Call) -> str:
    data, times = graph.real(call.args[0]), repetitions_of(call)
    if times is None:
        rows = graph.value(call.args[1])
        return graph.node("Gather", [data, rows], axis=int(call.attrs.axis))
    scales = np.ones(len(shape_of(call)), "float32")
    scales[int(call.attrs.axis)] = times
    how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return graph.node("Resize", [data, "", graph.constant(scales)], mode="nearest", **how)


def _pad(graph: Graph, var: relax.Var, call: relax.Call) -> str:
    width, value = _ints(call.attrs.pad_width), float(call.attrs.pad_value)
    pads = graph.constant(np.array([*width[::2], *width[1::2]], "int64"))
    scale, zero = graph.scales.get(var, (1.0, 0))
    dtype = "float32" if var in graph.scales else str(call.ty.dtype)
    constant = graph.constant(np.asarray((value - zero) * scale, dtype))
    return graph.node("Pad", [graph.real(call.args[0]), pads, constant])


def _clip(graph: Graph, var: relax.Var, call: relax.Call) -> str:
    dtype = str(call.ty.dtype)
    limits = [graph.constant(np.asarray(float(arg.value), dtype)) for arg in call.args[1:]]
    return graph.node("Clip", [graph.real(call.args[0]), *limits])


def _silu(graph: Graph, var: relax.Var, call: relax.Call) -> str:
    data = graph.real(call.args[0])
    return graph.node("Mul", [data, graph.node("Sigmoid", [data])])


def _leaky(graph: Graph, var: relax.Var, call: relax.Call) -> str:
    alpha = float(call.attrs.alpha)
    return graph.node("LeakyRelu", [graph.real(call.args[0])], alpha=alpha)


def _softmax(graph: Graph, var: relax.Var, call: relax.Call) -> str:
    axis = int(call.attrs.axis)
    return graph.node("Softmax", [graph.real(call.args[0])], axis=axis)


def _astype(graph: Graph, var: relax.Var, call: relax.Call) -> str:
    to = helper.np_dtype_to_tensor_dtype(np.dtype(str(call.ty.dtype)))
    graph.names[var] = graph.node("Cast", [graph.value(call.args[0])], to=to or TensorProto.FLOAT)
    return graph.names[var]


_SAME_IN_ONNX = {
    **{"add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "matmul": "MatMul"},
    **{"maximum": "Max", "minimum": "Min", "power": "Pow", "abs": "Abs", "ceil": "Ceil"},
    **{"erf": "Erf", "exp": "Exp", "floor": "Floor", "log": "Log", "negative": "Neg"},
    **{"round": "Round", "sigmoid": "Sigmoid", "sqrt": "Sqrt", "tanh": "Tanh", "nn.relu": "Relu"},
}
_WRITERS: dict[str, Rule] = {
    "nn.conv2d": _conv,
    "nn.max_pool2d": _pool("MaxPool"),
    "nn.avg_pool2d": _pool("AveragePool"),
    "mean": _mean,
    "reshape": _reshape,
    "permute_dims": _transpose,
    "concat": _concat,
    "strided_slice": _slice,
    "take": _take,
    "clip": _clip,
    "nn.pad": _pad,
    "nn.silu": _silu,
    "nn.leakyrelu": _leaky,
    "nn.softmax": _softmax,
    "astype": _astype,
}
_OF_INTEGERS: dict[str, Rule] = {
    "integer.conv2d": _layer,
    "integer.matmul": _layer,
    "integer.add": _of_integers("Add"),
    "integer.multiply": _of_integers("Mul"),
    "integer.mean": _of_integers("GlobalAveragePool"),
    "integer.average": _average,
    "integer.table": _table,
}
_RULES: dict[str, Rule] = {
    **{kind: _simple(name) for kind, name in _SAME_IN_ONNX.items()},
    **_WRITERS,
    **_OF_INTEGERS,
}
