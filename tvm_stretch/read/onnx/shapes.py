"""Fix the input shapes of an ONNX graph, and widen float16 where no processor computes in it.

    x: [N, 3, 224, 224], shapes={"x": (1, 3, 224, 224)}   ->   x: [1, 3, 224, 224]

Shapes that the graph computes become constants when it is translated, so that all is static.

    x: float16                                     x: float16
    y = Conv(x, w: float16)               ->       x.wide = Cast(x, float32)
                                                   y.wide = Conv(x.wide, w: float32)
                                                   y = Cast(y.wide, float16)

Without it, a processor would convert before and after every operator. Inputs and outputs keep their
type; in between nothing is rounded to float16, so the answer has more digits.
"""

from __future__ import annotations

import json
import operator
import shlex
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvm_stretch.base.errors import InputError, ModelError
from tvm_stretch.read.onnx.reader import OnnxNetwork

_MOST = (1 << 63) - 1
"""The largest extent that a file can hold; `network_limits.py` limits the size of tensors."""


def fix_shapes(
    network: OnnxNetwork,
    shapes: Mapping[str, Sequence[int]] | None,
    sizes: Mapping[str, int] | None = None,  # of dimensions that the network names
) -> None:
    """Give every input of ``network`` the static shape of ``shapes``, in place.

    Raises:
        InputError: ``shapes`` names an unknown input, or has another rank.
        ModelError: A dimension stays open.
    """
    wanted = {name: sizes_of(name, shape) for name, shape in (shapes or {}).items()}
    names = [value.name for value in network.inputs]
    for name in wanted:
        if name not in names:
            raise InputError(
                f"expected one of the inputs {names} for shapes, got {name!r}; use a name of the "
                "model"
            )
    by_name = {value.name: value for value in network.model.graph.input}
    for name in names:
        _forget_placeholders(by_name[name])
    bound: dict[str, int] = dict(sizes or {})
    for name in names:
        if name in wanted:
            _set_shape(by_name[name], wanted[name], bound)
    for name in names:
        _bind_names(by_name[name], bound)
    _refuse_open([by_name[name] for name in names])
    network.inputs = [by_name[name] for name in names]
    del network.model.graph.value_info[:]
    for output in network.model.graph.output:
        output.type.tensor_type.ClearField("shape")


def _forget_placeholders(value: onnx.ValueInfoProto) -> None:
    """Some exporters write -1 or "?" for open dimensions; two of them need not be equal."""
    for dim in value.type.tensor_type.shape.dim:
        if dim.dim_value < 0 or dim.dim_param == "?":
            dim.Clear()


def sizes_of(name: str, shape: Sequence[int]) -> list[int]:
    """What ``shapes`` says of the input ``name``, as integers."""
    try:
        sizes = [operator.index(size) for size in shape]
    except TypeError:
        raise InputError(
            f"expected one integer per dimension for shapes[{name!r}], got {shape!r}; give every "
            "size"
        ) from None
    if max(sizes, default=0) > _MOST:
        raise InputError(
            f"expected sizes of at most {_MOST} for shapes[{name!r}], got {sizes}; give others"
        )
    return sizes


def _set_shape(value: onnx.ValueInfoProto, wanted: list[int], bound: dict[str, int]) -> None:
    """Write ``wanted`` into ``value`` and note which named dimensions it fixes."""
    tensor = value.type.tensor_type
    if tensor.HasField("shape"):
        given = tensor.shape.dim
        if len(given) != len(wanted):
            raise InputError(
                f"expected {len(given)} dimensions for shapes[{value.name!r}], got {wanted}; "
                f"the model says {describe_shape(value)}"
            )
        for index, (dim, size) in enumerate(zip(given, wanted, strict=True)):
            fixed = dim.dim_value if dim.HasField("dim_value") else bound.get(dim.dim_param, size)
            if size != fixed:
                other = f" and {dim.dim_param} is {fixed} elsewhere" if dim.dim_param else ""
                raise InputError(
                    f"expected {fixed} for dimension {index} of shapes[{value.name!r}], got "
                    f"{size}; the model says {describe_shape(value)}{other}"
                )
            if dim.dim_param:
                bound[dim.dim_param] = size
    if any(size < 0 for size in wanted):
        raise InputError(
            f"expected sizes of at least 0 for shapes[{value.name!r}], got {wanted}; give every "
            "size"
        )
    tensor.shape.Clear()
    for size in wanted:
        tensor.shape.dim.add().dim_value = size


def _bind_names(value: onnx.ValueInfoProto, bound: dict[str, int]) -> None:
    """Fill named dimensions that ``shapes`` fixes elsewhere."""
    for dim in value.type.tensor_type.shape.dim:
        if dim.WhichOneof("value") == "dim_param" and dim.dim_param in bound:
            dim.dim_value = bound[dim.dim_param]


def _refuse_open(values: Sequence[onnx.ValueInfoProto]) -> None:
    """Refuse dimensions that stay open, with a way to close those of all inputs."""
    given = {v.name: _dimensions(v) for v in values}
    for value in values:
        dims = given[value.name]
        if dims is None:
            raise ModelError(
                f"expected a static shape for input {value.name!r}, got unknown rank; pass "
                f"{how_to_close(given)}"
            )
        left = [str(dim) for dim in dims if not isinstance(dim, int)]
        if left:
            raise ModelError(
                f"expected a static shape for input {value.name!r}, got {describe_shape(value)} "
                f"with {' and '.join(left)} left open; pass {how_to_close(given)}"
            )


Dimensions = Sequence[int | str]
"""Sizes, and names of those that are open."""

_EXAMPLE, _PIXELS = 100, 224
"""Suggested sizes for open dimensions: of time steps and the like, and of images."""


def _dimensions(value: onnx.ValueInfoProto) -> Dimensions | None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return [
        dim.dim_value
        if dim.WhichOneof("value") == "dim_value"
        else dim.dim_param or f"dimension {i} of {value.name!r}"
        for i, dim in enumerate(tensor.shape.dim)
    ]


def how_to_close(given: Mapping[str, Dimensions | None]) -> str:
    """Arguments that fix the open dimensions of all inputs, ready to paste into a call or a shell.

    ``{"x": ["N", 3, "frames"]}`` -> ``shapes={"x": (1, 3, 100)}, or --shape x=1,3,100 on the
    command line, with your numbers for frames``. A first dimension is taken for the batch size, for
    which 1 is suggested.
    """
    numbers: dict[int | str, int] = {d[0]: 1 for d in given.values() if d and isinstance(d[0], str)}
    guessed: list[str] = []
    shapes: dict[str, list[int]] = {}
    for name, dims in given.items():
        if dims is None:
            return f"shapes={{{json.dumps(name)}: (...)}}"
        left = [dim for dim in dims if isinstance(dim, str)]
        is_image = len(dims) == 4 and all(isinstance(dim, str) for dim in dims[2:])
        for dim in left:
            if dim not in numbers:
                numbers[dim] = _PIXELS if is_image else _EXAMPLE
                guessed.append(dim)
        if left:
            shapes[name] = [dim if isinstance(dim, int) else numbers[dim] for dim in dims]
    call = ", ".join(f"{json.dumps(n)}: {tuple(s)}" for n, s in shapes.items())
    words = (shlex.quote(f"{n}={','.join(map(str, s))}") for n, s in shapes.items())
    command = " ".join(f"--shape {word}" for word in words)
    own = f", with your numbers for {' and '.join(guessed)}" if guessed else ""
    return f"shapes={{{call}}}, or {command} on the command line{own}"


def describe_shape(value: onnx.ValueInfoProto) -> str:
    """Return the shape as text, named dimensions by name: ``[N, 3, 224, 224]``."""
    dims = value.type.tensor_type.shape.dim
    return (
        "["
        + ", ".join(
            d.dim_param or (str(d.dim_value) if d.HasField("dim_value") else "?") for d in dims
        )
        + "]"
    )


_HALF, _WIDE = TensorProto.FLOAT16, TensorProto.FLOAT
_TYPES = ("to", "dtype", "output_dtype")
"""Attributes of ONNX operators that hold the type of a result."""


def widen_halves(network: OnnxNetwork) -> bool:
    """Make all tensors between inputs and outputs float32, in place; whether any was float16."""
    graph = network.model.graph
    changed = False
    for name, weight in network.weights.items():
        if weight.dtype == np.float16:
            network.weights[name] = weight.astype("float32")
            changed = True
    given = [value.name for value in network.inputs if _is_half(value)]
    returned = [value.name for value in graph.output if _is_half(value)]
    ports = {*given, *returned} - ({*given} & {*returned})  # one that is both stays as it is
    changed = _widen(graph, ports) or changed or bool(ports)
    values = [value for value in graph.input if value.name in network.weights]
    for value in (*values, *graph.value_info):
        if _is_half(value):
            value.type.tensor_type.elem_type = _WIDE
    casts = [
        helper.make_node("Cast", [name], [_wide(name)], to=_WIDE) for name in given if name in ports
    ]
    nodes = [*casts, *graph.node]
    nodes += [
        helper.make_node("Cast", [_wide(name)], [name], to=_HALF)
        for name in returned
        if name in ports
    ]
    del graph.node[:]
    graph.node.extend(nodes)
    kept = {*given, *returned}
    for name, kind in network.declared.items():
        if kind == _HALF and name not in kept:
            network.declared[name] = _WIDE
    return changed


def _wide(name: str) -> str:
    return f"{name}.wide"


def _is_half(value: onnx.ValueInfoProto) -> bool:
    return bool(value.type.tensor_type.elem_type == _HALF)


def _widen(graph: onnx.GraphProto, ports: set[str]) -> bool:
    """Widen one graph and the graphs in its nodes, which read the ports under another name."""
    changed = False
    for tensor in graph.initializer:
        changed |= _widen_tensor(tensor)
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [_wide(name) if name in ports else name for name in names]
        for attribute in node.attribute:
            if attribute.name in _TYPES and attribute.i == _HALF:
                attribute.i = _WIDE
            changed |= attribute.HasField("t") and _widen_tensor(attribute.t)
            inner = [attribute.g] if attribute.HasField("g") else []
            for other in (*inner, *attribute.graphs):
                changed |= _widen(other, ports)
                _rename_results(other.output, ports)
    return changed


def _rename_results(values: Iterable[onnx.ValueInfoProto], ports: set[str]) -> None:
    """The results of an inner graph are float32, perhaps under another name."""
    for value in values:
        value.name = _wide(value.name) if value.name in ports else value.name
        if _is_half(value):
            value.type.tensor_type.elem_type = _WIDE


def _widen_tensor(tensor: TensorProto) -> bool:
    if tensor.data_type != _HALF:
        return False
    wide = numpy_helper.to_array(tensor).astype("float32")
    tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
    return True
