"""TVM's importer of torch.export, with converters of our own and a check of each result.

aten.pow(n, -1)  ->  the importer's converter gives another type than torch: UnsupportedError

The importer translates some arguments wrongly in silence, and its errors do not say of which
operator they are: types and shapes of results are compared with those that torch derived, and each
error names its operator.

`Call.onnx` calls the converter of one of ONNX's operators:

call.onnx("Resize", [x, None, scales], {"mode": b"linear"})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.base.errors import StretchError, UnsupportedError, last_line
from tvm_stretch.read.onnx import operators as onnx_ops  # noqa: F401  registers the converters
from tvm_stretch.read.onnx.node import CONVERTERS, Node, as_expr

if TYPE_CHECKING:
    from torch.export import ExportedProgram


class Call:
    """A call of an operator of torch, and the importer that translates it."""

    def __init__(self, node: Any, importer: Any) -> None:
        self.node, self.importer = node, importer
        self.emit = importer.block_builder.emit

    @property
    def x(self) -> relax.Expr:
        """The first operand."""
        return self.importer.env[self.node.args[0]]

    @property
    def args(self) -> Any:
        """The arguments that are given by place."""
        return self.importer.retrieve_args(self.node)

    def get(self, place: int, name: str, default: Any) -> Any:
        """An argument by its place or its name."""
        if len(self.node.args) > place:
            return self.importer._retrieve_args(self.node.args[place])
        return self.importer._retrieve_args(self.node.kwargs.get(name, default))

    @property
    def dtype(self) -> str:
        """The type of the result."""
        return str(self.node.meta["val"].dtype).removeprefix("torch.")

    def typed(self, value: Any, dtype: str = "") -> relax.Expr:
        """A tensor or a number as a tensor of ``dtype``, by default the result's."""
        dtype = dtype or self.dtype
        if not isinstance(value, relax.Expr):
            return relax.const(value, dtype)
        given = str(value.ty.dtype)
        if given == dtype:
            return value
        if dtype == "bool":
            return self.emit(relax.op.not_equal(value, relax.const(0, given)))
        return self.emit(relax.op.astype(value, dtype))

    def onnx(
        self,
        op: str,
        inputs: Sequence[relax.Expr | np.ndarray | None],
        attributes: Mapping[str, Any] | None = None,
    ) -> relax.Expr:
        """What the converter of ONNX's operator emits; of several results the first."""
        builder, given = self.importer.block_builder, list(inputs)
        node = Node(op, self.node.name, 20, given, dict(attributes or {}), ["result"], builder)
        result = CONVERTERS[op](node)
        return self.emit(as_expr(result[0] if isinstance(result, tuple) else result))

    def refused(self, expected: str, got: str, advice: str) -> UnsupportedError:
        """The error for arguments that are not supported."""
        return UnsupportedError(
            f"expected {expected} for torch's {self.node.target} ({self.node.name!r}), got {got}; "
            f"{advice}"
        )


Converter = Callable[[Call], Any]

_RANDOM = {"bernoulli.p", "exponential.default", "randn.default", "randn_like.default"}
"""What the importer replaces by constants."""
_ANOTHER_WAY = "write it in other operators, or export through torch.onnx.export"


def importer_names() -> set[str]:
    """The operators that TVM's importer translates."""
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    return {*ExportedProgramImporter().convert_map} - _RANDOM


def import_program(program: ExportedProgram, own: Mapping[str, Converter]) -> tvm.IRModule:
    """Translate a program in operators that TVM's importer, or a converter of ``own``, knows."""
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    importer = ExportedProgramImporter()
    converters_of_tvm = {name: f for name, f in importer.convert_map.items() if name not in _RANDOM}
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    for node in calls:
        if node.target.__name__ not in converters_of_tvm and node.target.__name__ not in own:
            raise UnsupportedError(
                f"expected supported operators of torch, got {node.target} ({node.name!r}); "
                + _ANOTHER_WAY
            )
    names = {node.target.__name__ for node in calls}
    checked = {
        name: _checked(own.get(name) or _without_importer(converters_of_tvm[name]))
        for name in names
        if name in own or "." in name
    }
    return importer.from_exported_program(
        program,
        keep_params_as_input=False,
        unwrap_unit_return_tuple=True,
        no_bind_return_tuple=False,
        custom_convert_map=checked,
    )


def _without_importer(convert: Callable[[Any], Any]) -> Converter:
    return lambda call: convert(call.node)


def _checked(convert: Converter) -> Callable[[Any, Any], Any]:
    """The converter as TVM's importer wants it, whose result must be what torch says."""

    def converted(node: Any, importer: Any) -> Any:
        call = Call(node, importer)
        try:
            result = _of_nothing(call)
            result = _of_vectors(convert, call) if result is None else result
            if isinstance(result, relax.Call):  # TVM's pools of one image leave that to the caller
                result = call.emit(result)
        except StretchError:
            raise
        except Exception as error:  # the importer raises many kinds
            reason = f"an error: {last_line(error)}"
            raise call.refused("supported arguments", reason, _ANOTHER_WAY) from error
        for got, want in _pairs(node, result):
            _compare(node, got, want)
        return result

    return converted


def _of_nothing(call: Call) -> relax.Expr | None:
    """Results without elements, which no operator has to compute."""
    want = call.node.meta.get("val")
    wants = want if isinstance(want, list | tuple) else (want,)
    if not wants or not all(_is_empty(one) for one in wants):
        return None
    zeros = (relax.op.zeros([*one.shape], str(one.dtype)[len("torch.") :]) for one in wants)
    results = [call.emit(one) for one in zeros]
    return results[0] if wants[0] is want else call.emit(relax.Tuple(results))


def _is_empty(want: Any) -> bool:
    sizes = getattr(want, "shape", ())
    return all(isinstance(size, int) for size in sizes) and 0 in sizes


def _value(argument: Any) -> Any:
    return argument.meta.get("val") if hasattr(argument, "meta") else None


def _of_vectors(convert: Converter, call: Call) -> Any:
    """What a converter makes; numbers are vectors of one for operators that have an axis.

    x.softmax(0), of a number   ->   x.reshape(1).softmax(0).reshape()
    """
    node, importer, emit = call.node, call.importer, call.emit
    numbers = [x for x in node.args if getattr(_value(x), "shape", None) == ()]
    schema = getattr(node.target, "_schema", None)
    if (
        not numbers
        or not schema
        or not any(arg.name in ("dim", "dimension") for arg in schema.arguments)
    ):
        return convert(call)
    kept = {number: importer.env[number] for number in numbers}
    importer.env |= {x: emit(relax.op.reshape(value, [1])) for x, value in kept.items()}
    result, want = convert(call), node.meta["val"]
    importer.env |= kept
    if not isinstance(want, list | tuple):
        return emit(relax.op.reshape(result, [*want.shape]))
    parts = [relax.TupleGetItem(result, place) for place in range(len(want))]
    shaped = [relax.op.reshape(emit(x), [*w.shape]) for x, w in zip(parts, want, strict=True)]
    return emit(relax.Tuple([emit(x) for x in shaped]))


def _pairs(node: Any, result: Any) -> list[tuple[Any, Any]]:
    """The types of the results that are used, with torch's own tensors."""
    want = node.meta.get("val")
    kind = getattr(result, "ty", None)
    if not isinstance(want, list | tuple):
        return [(kind, want)]
    used = {user.args[1] for user in node.users if len(user.args) > 1}
    if isinstance(kind, relax.TupleType):
        return [(kind.fields[i], w) for i, w in enumerate(want) if i in used]
    return [(kind, w) for i, w in enumerate(want) if i in used]


def _compare(node: Any, got: Any, want: Any) -> None:
    """Refuse a result of another type or shape; sizes that are symbols are not compared."""
    if not isinstance(got, relax.TensorType) or not hasattr(want, "dtype"):
        return
    dtype = str(want.dtype).removeprefix("torch.")
    sizes = list(got.shape.values) if isinstance(got.shape, relax.ShapeExpr) else None
    same = sizes is None or (
        len(sizes) == len(want.shape)
        and all(
            int(size) == other
            for size, other in zip(sizes, want.shape, strict=True)
            if isinstance(size, tvm.tirx.IntImm) and isinstance(other, int)
        )
    )
    if not same or str(got.dtype) != dtype:
        raise UnsupportedError(
            f"expected {dtype}{[*want.shape]} for the result of torch's {node.target} "
            f"({node.name!r}), got {got.dtype}{sizes} from TVM's importer; {_ANOTHER_WAY}"
        )


def is_static(x: relax.Expr) -> bool:
    """Whether all sizes of a tensor are known."""
    return all(isinstance(size, tvm.tirx.IntImm) for size in x.ty.shape.values)
