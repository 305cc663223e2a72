"""Take a Relax module as a network with static shapes and operators that every target has.

main(x: R.Tensor((n, 3, 224, 224)))    ->  main(x: R.Tensor((1, 3, 224, 224)))
topk(x, 2)[1], argsort(x), sort(x)     ->  the operators that ONNX's converters emit for TopK
argmax(x, 1), cumsum(x, 1)             ->  those for ArgMax and CumSum
median(x: int8)                        ->  median(astype(x, int32)), which TVM's runtime can sort
group_norm(x, scale, bias)             ->  g = reshape(x, (N, groups, -1)); c = g - mean(g)
                                           n = c / sqrt(mean(c * c) + epsilon)
                                           reshape(n, shape of x) * scale + bias

TVM's kernels take the variance as ``mean(x * x) - mean(x) ** 2`` from sums of one number after the
other: of 200,000 numbers around 3 that loses 9 bits of 24.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.base.errors import InputError, ModelError, UnsupportedError
from tvm_stretch.network.operators import kind_of
from tvm_stretch.network.rewriting import CallRewriter
from tvm_stretch.read.onnx.node import CONVERTERS, Node, static_shape
from tvm_stretch.read.onnx.operators.activation import standardise
from tvm_stretch.read.onnx.operators.elementwise import cast
from tvm_stretch.read.onnx.operators.reduction import place_of_extreme
from tvm_stretch.read.onnx.shapes import how_to_close, sizes_of

_RUNNING = {"cumsum": "CumSum", "cumprod": "CumProd"}
_NARROW = {"bool", "int8", "uint8", "int16", "uint16"}


@relax.expr_functor.mutator
class _Expander(CallRewriter):
    """Writes sorts, running sums and normalisations as converters of ONNX do."""

    def ordered(self, call: relax.Call) -> relax.Expr:
        """The first elements of an order, their places, or both."""
        attrs, shape, name = call.attrs, call.args[0].ty.shape.values, kind_of(call)
        k = int(attrs.k) if name == "topk" else int(shape[int(attrs.axis)])
        largest = bool(attrs.largest if name == "topk" else attrs.descending)
        values, indices = self.sorted(call, k, largest)
        if name == "sort":
            return values
        indices = self.builder_.emit(relax.op.astype(indices, str(attrs.dtype)))
        kind = str(attrs.ret_type) if name == "topk" else "indices"
        return {"both": relax.Tuple([values, indices]), "values": values}.get(kind, indices)

    def sorted(self, call: relax.Call, k: int, largest: bool) -> tuple[relax.Expr, relax.Expr]:
        """The ``k`` first values and their indices."""
        x = call.args[0]
        is_bool = str(x.ty.dtype) == "bool"
        if is_bool:  # TVM does not compare booleans
            x = self.builder_.emit(relax.op.astype(x, "uint8"))
        attrs = {"axis": int(call.attrs.axis), "largest": int(largest)}
        inputs, outputs = [x, np.asarray([k])], ["values", "indices"]
        values, indices = CONVERTERS["TopK"](
            Node("TopK", "", 18, inputs, attrs, outputs, self.builder_)
        )
        values = self.builder_.emit(values)
        return self.builder_.emit(relax.op.astype(values, "bool")) if is_bool else values, indices

    def place(self, call: relax.Call) -> relax.Expr:
        """The place of the largest or least number along an axis, or of all without an axis."""
        x, axis, keepdims = call.args[0], call.attrs.axis, bool(call.attrs.keepdims)
        if axis is None:
            x, keepdims = self.builder_.emit(relax.op.flatten(x)), False
        if str(x.ty.dtype) == "bool":
            x = self.builder_.emit(relax.op.astype(x, "uint8"))
        node = Node(kind_of(call), "", 18, [x], {}, ["place"], self.builder_)
        place = place_of_extreme(
            node,
            int(axis or 0) % node.rank(),
            largest=kind_of(call) == "argmax",
            last=False,
            keepdims=keepdims,
        )
        if axis is None:
            place = relax.op.reshape(self.builder_.emit(place), call.ty.shape)
        return place

    def median(self, call: relax.Call) -> relax.Expr | None:
        """The same median, of a type that TVM's runtime can sort."""
        dtype = str(call.args[0].ty.dtype)
        if dtype not in _NARROW:
            return None
        wide = self.builder_.emit(relax.op.astype(call.args[0], "int32"))
        medians = self.builder_.emit(relax.Call(call.op, [wide], call.attrs))
        if not isinstance(medians.ty, relax.TupleType):
            return relax.op.astype(medians, dtype)
        values, indices = (self.builder_.emit(relax.TupleGetItem(medians, i)) for i in range(2))
        return relax.Tuple([self.builder_.emit(relax.op.astype(values, dtype)), indices])

    def running(self, call: relax.Call) -> relax.Expr:
        """Sums or products of all elements up to each; of all axes if none is given."""
        if str(call.ty.dtype) == "bool":
            raise UnsupportedError(
                f'expected numbers for the result of {kind_of(call)}, got bool; write dtype="int64"'
            )
        x, axis = call.args[0], call.attrs.axis
        if axis is None:
            x, axis = relax.op.reshape(x, call.ty.shape), 0
        x = self.builder_.emit(relax.op.astype(x, str(call.ty.dtype)))
        inputs, attrs = [x, np.asarray(int(axis))], {"exclusive": int(call.attrs.exclusive or 0)}
        operator = _RUNNING[kind_of(call)]
        node = Node(operator, "", 18, inputs, attrs, ["result"], self.builder_)
        return CONVERTERS[operator](node)

    def normalised(self, call: relax.Call) -> relax.Expr:
        """A normalisation of groups or instances."""
        x, attrs = call.args[0], call.attrs
        shape, dtype = static_shape(x), str(x.ty.dtype)
        rank = len(shape)
        axes = [int(axis) % rank for axis in attrs.axes]
        channel = int(attrs.channel_axis) % rank
        node = Node(kind_of(call), "", 18, [x], {}, ["normed"], self.builder_)
        wide = "float32" if dtype in ("float16", "bfloat16") else dtype
        x = node.emit(cast(node, x, wide))
        if kind_of(call) == "nn.group_norm":
            groups = int(attrs.num_groups)
            parts = [*shape[:channel], groups, shape[channel] // groups, *shape[channel + 1 :]]
            axes = [channel + 1, *(axis + (axis > channel) for axis in axes)]
            x = node.emit(relax.op.reshape(x, parts))
            if axes == [*range(channel + 1, rank + 1)]:  # one axis has one loop
                x, axes = node.emit(relax.op.reshape(x, [*parts[: channel + 1], -1])), [channel + 1]
        normed, _, _ = standardise(node, x, axes, float(attrs.epsilon))
        normed = node.emit(cast(node, node.emit(relax.op.reshape(normed, shape)), dtype))
        along = [size if axis == channel else 1 for axis, size in enumerate(shape)]
        for index, used, combine in (
            (1, attrs.scale, relax.op.multiply),
            (2, attrs.center, relax.op.add),
        ):
            if used:
                number = node.emit(relax.op.reshape(call.args[index], along))
                normed = node.emit(combine(normed, number))
        return normed

    rules: ClassVar = {
        **dict.fromkeys(("topk", "argsort", "sort"), ordered),
        **dict.fromkeys(("argmax", "argmin"), place),
        **dict.fromkeys(_RUNNING, running),
        "median": median,
        **dict.fromkeys(("nn.group_norm", "nn.instance_norm"), normalised),
    }


def read_relax(
    mod: tvm.IRModule,
    shapes: Mapping[str, Sequence[int]] | None = None,
    sizes: Mapping[str, int] | None = None,  # of dimensions that the module names
) -> tvm.IRModule:
    """Check ``mod`` and give every parameter of ``main`` a static shape.

    Raises:
        ModelError: There is no Relax ``main``, it is not well-formed, or a dimension stays open.
        InputError: ``shapes`` names an unknown parameter or does not fit.
        UnsupportedError: It sorts too many elements, or adds up to booleans.
    """
    main = mod.functions.get(mod.get_global_var("main")) if "main" in _names(mod) else None
    if not isinstance(main, relax.Function):
        raise ModelError(
            f"expected a Relax function main for the IRModule, got {sorted(_names(mod))}; name "
            "it main"
        )
    if not relax.analysis.check_well_formed(mod):
        raise ModelError(
            "expected a well-formed IRModule, got one that relax.analysis.well_formed refuses; "
            "fix it"
        )
    bindings = _bind_names(main.params, sizes or {})
    _bind_dimensions(main.params, dict(shapes or {}), bindings)
    if bindings:
        mod = relax.transform.BindSymbolicVars(bindings, "main")(mod)
    _check_static(mod["main"].params)
    return _Expander(mod).rewritten(mod)


def _names(mod: tvm.IRModule) -> set[str]:
    return {var.name_hint for var in mod.get_global_vars()}


def _bind_names(params: Sequence[relax.Var], sizes: Mapping[str, int]) -> dict[tvm.tirx.Var, int]:
    """The symbolic dimensions of ``params`` that have a size by name."""
    dims = [dim for param in params for dim in _dimensions(param) or ()]
    return {d: sizes[d.name] for d in dims if isinstance(d, tvm.ir.Var) and d.name in sizes}


def _bind_dimensions(
    params: Sequence[relax.Var],
    shapes: dict[str, Sequence[int]],
    bound: dict[tvm.tirx.Var, int],
) -> None:
    """Match the symbolic dimensions of ``params`` with the sizes in ``shapes``."""
    by_name = {param.name: param for param in params}
    for name, wanted in shapes.items():
        if name not in by_name:
            raise InputError(
                f"expected one of the inputs {sorted(by_name)} for shapes, got {name!r}; "
                "use a name of the model"
            )
        wanted = sizes_of(name, wanted)
        given = _dimensions(by_name[name])
        if given is None or len(given) != len(wanted):
            raise InputError(
                f"expected a shape like {by_name[name].ty} for shapes[{name!r}], got "
                f"{list(wanted)}; "
                "give one size per dimension"
            )
        for index, (dim, size) in enumerate(zip(given, wanted, strict=True)):
            fixed = int(dim) if isinstance(dim, tvm.tirx.IntImm) else bound.get(dim, int(size))
            if fixed != int(size) or int(size) < 0:
                raise InputError(
                    f"expected {fixed} for dimension {index} of shapes[{name!r}], got {size}; "
                    f"the model says {by_name[name].ty}"
                )
            if not isinstance(dim, tvm.tirx.IntImm):
                if not isinstance(dim, tvm.ir.Var):
                    raise ModelError(
                        f"expected sizes or names as dimensions of {name!r}, got {dim}; bind it "
                        "first"
                    )
                bound[dim] = int(size)


def _dimensions(param: relax.Var) -> list[tvm.ir.Expr] | None:
    shape = getattr(param.ty, "shape", None)
    return None if shape is None else list(shape.values)


def _check_static(params: Sequence[relax.Var]) -> None:
    for param in params:
        if not isinstance(param.ty, relax.TensorType):
            raise UnsupportedError(
                f"expected a tensor for input {param.name!r}, got {param.ty}; pass tensors one by "
                "one"
            )
    given = {param.name: _sizes(param) for param in params}
    for param in params:
        dims = given[param.name]
        if dims is None or not all(isinstance(d, int) for d in dims):
            raise ModelError(
                f"expected a static shape for input {param.name!r}, got {param.ty} with an open "
                f"dimension; pass {how_to_close(given)}"
            )


def _sizes(param: relax.Var) -> list[int | str] | None:
    """Sizes, and the names of open dimensions."""
    dims = _dimensions(param)
    return dims and [int(d) if isinstance(d, tvm.tirx.IntImm) else str(d) for d in dims]
