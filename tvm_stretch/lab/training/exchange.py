"""A Relax network as a torch module, and trained weights back into Relax."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.base.errors import InputError, UnsupportedError
from tvm_stretch.lab.training.network import TrainableNetwork
from tvm_stretch.lab.training.torch_functions import attributes_of
from tvm_stretch.lab.training.torch_graph import BATCH_NORM, Graph, Node, Weight
from tvm_stretch.network.expressions import constant, shape_of
from tvm_stretch.network.operators import GRADIENT, Operator, Operators
from tvm_stretch.network.rewriting import with_body
from tvm_stretch.plan.design import Source
from tvm_stretch.read import load_trainable

# Converts trainable Relax to a graph and its weights, and puts weights back into Relax.
#
#     lv = R.nn.batch_norm(x, gamma, beta, mean, var)      ->     one node "bn", with the result
#     bn = lv[0]                                                  of lv[0]
#
# Training changes weights of convolutions and matrix products, scales and offsets of
# normalisations,
# and biases (constants of several elements that are added). Other constants do not change.


Arrays: TypeAlias = dict[str, np.ndarray]

_LAYOUTS = {"data_layout": ("NCHW", "NCW"), "kernel_layout": ("OIHW", "OIW", "IOHW")}
_LAYOUTS |= {"layout": ("NCHW",)}

_ROLES: Mapping[str, tuple[str, ...]] = {
    BATCH_NORM: ("", "weight", "bias", "running_mean", "running_var"),
    "nn.layer_norm": ("", "weight", "bias"),
    "nn.conv1d": ("", "weight"),
    "nn.conv2d": ("", "weight"),
    "nn.conv2d_transpose": ("", "weight"),
    "matmul": ("weight", "weight"),
    "add": ("bias", "bias"),
}


def graph_of(mod: tvm.IRModule) -> tuple[Graph, Arrays]:
    """A network that torch can run, and the values of its weights by name.

    Args:
        mod: the result of `frontend.load_trainable` or of a stretching pass.

    Raises:
        UnsupportedError: it has an operator that cannot be trained here.
    """
    return _Reader(mod).read()


def with_weights(mod: tvm.IRModule, arrays: Mapping[str, np.ndarray]) -> tvm.IRModule:
    """The module with other values of its weights."""
    main = mod["main"]
    names = _weight_names(Operators(main))
    blocks = [
        type(block)([_replaced(binding, names, arrays) for binding in block.bindings])
        for block in main.body.blocks
    ]
    return with_body(mod, relax.SeqExpr(blocks, main.body.body))


def _replaced(
    binding: relax.Binding,
    names: Mapping[tuple[str, int], tuple[str, str]],
    arrays: Mapping[str, np.ndarray],
) -> relax.Binding:
    call = binding.value
    if not isinstance(call, relax.Call):
        return binding
    replaced = {i: names.get((binding.var.name, i)) for i in range(len(call.args))}
    if not any(replaced.values()):
        return binding
    args = [
        constant(arrays[":".join(name)].astype(str(arg.ty.dtype))) if (name := replaced[i]) else arg
        for i, arg in enumerate(call.args)
    ]
    again = relax.Call(call.op, args, call.attrs, call.ty_args, ret_ty=call.ty)
    return relax.VarBinding(binding.var, again)


class _Reader:
    """Reads ``main`` once and collects nodes and weights."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self.main = mod["main"]
        self.operators = Operators(self.main)
        self.names = _weight_names(self.operators)
        self.weights: list[Weight] = []
        self.arrays: Arrays = {}
        self.alias: dict[str, str] = {}

    def read(self) -> tuple[Graph, Arrays]:
        nodes = [node for operator in self.operators for node in self._nodes(operator)]
        result = self.main.body.body
        is_tuple = isinstance(result, relax.Tuple)
        outputs = self._values(result.fields) if is_tuple else self._values([result])
        inputs = {name: self.operators.shape(name) for name in self.operators.params}
        graph = Graph(inputs, tuple(self.weights), tuple(nodes), outputs, is_tuple)
        return graph, self.arrays

    def _nodes(self, operator: Operator) -> Iterator[Node]:
        if operator.kind == "TupleGetItem":
            whole, index = operator.inputs[0], int(operator.binding.value.index)
            if self.operators[whole].kind == BATCH_NORM:
                _require(index == 0, operator, "a batch normalisation whose statistics are read")
                self.alias[operator.name] = layer_name(self.operators, self.operators[whole])
                return
            attrs: dict[str, Any] = {"index": index}
            yield Node(operator.name, operator.kind, (whole,), attrs, operator.shape)
            return
        is_trainable = operator.kind == BATCH_NORM or operator.kind in GRADIENT
        _require(is_trainable, operator, operator.kind)
        attrs = _attrs(operator)
        shape = operator.shape or operator.arg_shapes[0]
        name = layer_name(self.operators, operator)
        yield Node(name, operator.kind, self._inputs(operator), attrs, shape)

    def _inputs(self, operator: Operator) -> tuple[str, ...]:
        inputs: list[str] = []
        for index, arg in enumerate(operator.call.args):
            if (operator.name, index) in self.names:
                self._keep(operator, index, arg)
                inputs.append(":".join(self.names[operator.name, index]))
            elif isinstance(arg, relax.Tuple) and operator.kind == "concat":
                inputs += self._values(arg.fields)
            elif isinstance(arg, relax.Var):
                inputs.append(self.alias.get(arg.name, arg.name))
        return tuple(inputs)

    def _values(self, variables: Any) -> tuple[str, ...]:
        for expr in variables:
            if not isinstance(expr, relax.Var):
                raise UnsupportedError(
                    f"expected computed tensors for concatenations and outputs, got {expr}; "
                    "a network with constants there cannot be trained here"
                )
        return tuple(self.alias.get(var.name, var.name) for var in variables)

    def _keep(self, operator: Operator, index: int, arg: GenericConst) -> None:
        layer, role = self.names[operator.name, index]
        name, value = f"{layer}:{role}", arg.value.numpy()
        is_float = "float" in str(arg.ty.dtype)
        learned = role in ("weight", "bias") and is_float
        if operator.kind == "add":
            learned = learned and value.size > 1
        self.weights.append(Weight(name, layer, role, tuple(shape_of(arg)), learned))
        self.arrays[name] = value


def layer_name(operators: Operators, operator: Operator) -> str:
    """The operator's name; for a batch normalisation the name of its first result."""
    if operator.kind == BATCH_NORM:
        items = [operators[n] for n in operators.readers[operator.name]]
        return next((i.name for i in items if int(i.binding.value.index) == 0), operator.name)
    return operator.name


def _weight_names(operators: Operators) -> dict[tuple[str, int], tuple[str, str]]:
    """Layer and role of every constant, by operator and position among its arguments."""
    names = {}
    for operator in operators:
        if not isinstance(operator.binding.value, relax.Call):
            continue
        roles = _ROLES.get(operator.kind, ())
        for index, arg in enumerate(operator.call.args):
            if isinstance(arg, GenericConst):
                role = roles[index] if index < len(roles) and roles[index] else f"constant{index}"
                names[operator.name, index] = layer_name(operators, operator), role
    return names


def _attrs(operator: Operator) -> dict[str, Any]:
    call = operator.call
    special = _SPECIAL.get(operator.kind, lambda _: {})(operator)
    fields = [f for f in attributes_of(operator.kind) if f not in special and f != "shape"]
    for field, layouts in _LAYOUTS.items():
        layout = getattr(call.attrs, field, layouts[0])
        _require(str(layout) in layouts, operator, f"a layout of {layout}")
    return {field: _plain(getattr(call.attrs, field)) for field in fields} | special


def _batch_norm(operator: Operator) -> dict[str, Any]:
    attrs = operator.call.attrs
    usual = int(attrs.axis) == 1 and bool(attrs.scale) and bool(attrs.center)
    weights = all(isinstance(arg, GenericConst) for arg in operator.call.args[1:])
    _require(usual and weights, operator, "a batch normalisation of another kind")
    return {"rank": len(operator.arg_shapes[0]), "epsilon": _plain(attrs.epsilon)}


def _split(operator: Operator) -> dict[str, Any]:
    axis = int(operator.call.attrs.axis)
    return {"sizes": tuple(int(field.shape.values[axis]) for field in operator.call.ty.fields)}


def _numbers(operator: Operator) -> dict[str, Any]:
    return {"numbers": tuple(float(arg.value) for arg in operator.call.args[1:])}


def _astype(operator: Operator) -> dict[str, Any]:
    return {"dtype": str(operator.call.ty.dtype)}


def _strided_slice(operator: Operator) -> dict[str, Any]:
    axes, begin, end, *strides = (
        tuple(int(number.value) for number in arg.fields) for arg in operator.call.args[1:]
    )
    steps = strides[0] if strides else (1,) * len(axes)
    _require(all(step > 0 for step in steps), operator, "a slice that goes backwards")
    return {"axes": axes, "begin": begin, "end": end, "strides": steps}


def _take(operator: Operator) -> dict[str, Any]:
    """Pixels of a resize, or of padding: constant places along one axis."""
    places = operator.call.args[1]
    row = isinstance(places, GenericConst) and len(shape_of(places)) == 1
    _require(row, operator, "elements by computed places")
    return {}


_SPECIAL: Mapping[str, Callable[[Operator], dict[str, Any]]] = {
    BATCH_NORM: _batch_norm,
    "split": _split,
    "clip": _numbers,
    "strided_slice": _strided_slice,
    "astype": _astype,
    "take": _take,
}


def _plain(value: Any) -> Any:
    """An attribute of TVM as plain numbers, strings and tuples."""
    if value is None or isinstance(value, bool | str):
        return value
    if hasattr(value, "value"):
        value = value.value
    if isinstance(value, int | float):
        return value
    return tuple(_plain(part) for part in value)


def _require(holds: bool, operator: Operator, got: str) -> None:
    if not holds:
        raise UnsupportedError(
            f"expected operators that can be trained for {operator.name!r}, got {got}; train the "
            "network in its own framework"
        )


def to_torch(
    source: object,
    design: Mapping[str, object] | None = None,
    sources: Mapping[str, Source] | None = None,
) -> TrainableNetwork:
    """Convert a network to a torch module with its weights and batch normalisations, for training.

    Args:
        source: as for ``ts.compile``, or the module of a stretching.
        design: the design of a stretching, as JSON; the module keeps it.
        sources: the sources of a stretching; the module keeps them too.

    Raises:
        UnsupportedError: the network has an operator that cannot be trained here.

    Examples:
        >>> net = ts.training.to_torch("resnet18.onnx")
        >>> net(torch.zeros(2, 3, 224, 224)).shape
        torch.Size([2, 1000])
    """
    mod = source if isinstance(source, tvm.IRModule) else load_trainable(source)
    return TrainableNetwork(*graph_of(mod), design, sources)


def load_torch(source: object, net: object) -> tvm.IRModule:
    """Put the weights of a torch module that `to_torch` made back into the Relax network.

    Args:
        source: the network that was given to `to_torch`.
        net: the module that `to_torch` returned, trained.

    Raises:
        InputError: ``net`` is of another network, or weights are missing or not finite.

    Examples:
        >>> net = ts.training.to_torch("resnet18.onnx")
        >>> trained = ts.training.load_torch("resnet18.onnx", net)
        >>> ts.compile(trained)(np.zeros((1, 3, 224, 224), "float32")).shape
        (1, 1000)
    """
    mod = source if isinstance(source, tvm.IRModule) else load_trainable(source)
    graph, _ = graph_of(mod)
    ours = as_network(net)
    if ours.graph.fingerprint != graph.fingerprint:
        raise InputError(
            f"expected the torch module of this network, got one of {_size_text(ours)} where this "
            f"has {len(graph.nodes)} operators and {len(graph.weights)} weights; give what "
            "to_torch made of the same network and design"
        )
    return with_weights(mod, _weights(ours))


def as_network(net: object) -> TrainableNetwork:
    """Check that a module came from `to_torch`, and return it.

    Raises:
        InputError: it did not.
    """
    if isinstance(net, TrainableNetwork):
        return net
    wraps = [n for n in ("module", "_orig_mod") if isinstance(getattr(net, n, 0), TrainableNetwork)]
    hint = f"give its .{wraps[0]}" if wraps else "give what it returned"
    raise InputError(
        f"expected the torch module that to_torch made for net, got {type(net).__name__}; {hint}"
    )


def _size_text(net: TrainableNetwork) -> str:
    return f"{len(net.graph.nodes)} operators and {len(net.graph.weights)} weights"


def _weights(net: TrainableNetwork) -> dict[str, np.ndarray]:
    """All weights by the graph's names, after checks of shapes and values."""
    state = net.state_dict()
    wanted = {net.weight_key(weight.name): weight for weight in net.graph.weights}
    counters = {key for key in state if key.endswith(".num_batches_tracked")}
    extra, missing = set(state) - set(wanted) - counters, set(wanted) - set(state)
    if missing or extra:
        what = f"none for {min(missing)!r}" if missing else f"one more, {min(extra)!r}"
        raise InputError(
            f"expected the {len(wanted)} weights that to_torch made, got {what}; leave layers and "
            "their parameters in place (no pruning, no parametrisation)"
        )
    weights = {}
    for key, weight in wanted.items():
        value = state[key].detach().cpu()
        if tuple(value.shape) != weight.shape:
            raise InputError(
                f"expected a weight of shape {weight.shape} for {key!r}, got "
                f"{tuple(value.shape)}; the network's layers must keep their sizes"
            )
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise InputError(
                f"expected finite numbers for {key!r}, got NaN or infinity; train with a lower "
                "rate, from a checkpoint before that"
            )
        weights[weight.name] = value.float().numpy() if value.is_floating_point() else value.numpy()
    return weights
