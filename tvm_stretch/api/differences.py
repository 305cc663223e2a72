"""``ts.compare()``: where two processors, two precisions or ONNX Runtime begin to differ.

    print(ts.compare("net.onnx", ["opencl"], precision="float16"))

    operator  tensor   shape            largest difference  relative
    Conv      conv_3   [1, 64, 56, 56]            0.000912   4.1e-04
    ...
    begins to differ (relative above 0.001): conv_17

Every value of the network becomes one of its outputs, so that nothing is hidden in a fused kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.shape_inference

from tvm_stretch.api.compiler import compile
from tvm_stretch.base.errors import InputError, InstallError, ModelError, last_line
from tvm_stretch.base.named_arguments import is_number, named_arguments
from tvm_stretch.read.load import Shapes, require_file
from tvm_stretch.read.onnx.node import dtype_of
from tvm_stretch.read.onnx.reader import read_onnx
from tvm_stretch.targets.registry import TargetLike

Values = Mapping[str, np.ndarray]
ONNX_RUNTIME = "onnxruntime"
_KINDS = "fiu"  # types of NumPy that can be compared: floats and integers


@dataclass(frozen=True)
class TensorDifference:
    """One tensor as two builds computed it."""

    name: str  # its name in the ONNX network
    operator: str  # the type of the node that writes it
    shape: tuple[int, ...]  # its extents
    # the largest difference of an element; infinite where only one of the two is not finite
    largest: float
    # the root of the mean square of the differences, divided by that of the reference
    relative: float
    begins: bool  # whether it is above the limit, and all that its node reads is not


@dataclass(frozen=True)
class Differences:
    """All tensors of a network, in its order.

    Attributes:
        tensors: the tensors.
        limit: the relative difference from which on two values count as different.
    """

    tensors: tuple[TensorDifference, ...]
    limit: float

    @property
    def begin(self) -> tuple[TensorDifference, ...]:
        """Where the two begin to differ: these nodes read equal values and write others."""
        return tuple(tensor for tensor in self.tensors if tensor.begins)

    @property
    def largest(self) -> TensorDifference:
        """The tensor with the largest relative difference."""
        return max(self.tensors, key=lambda tensor: tensor.relative)

    def __repr__(self) -> str:
        """A table, and the nodes where differences begin."""
        head = ("operator", "tensor", "shape", "largest difference", "relative")
        rows = [
            (t.operator, t.name, str(list(t.shape)), f"{t.largest:.3g}", f"{t.relative:.1e}")
            for t in self.tensors
        ]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(width) if place < 3 else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in (head, *rows)
        ]
        names = ", ".join(tensor.name for tensor in self.begin)
        above = f"(relative above {self.limit:g})"
        lines.append(f"begins to differ {above}: {names}" if names else f"no difference {above}")
        return "\n".join(lines)


@named_arguments
def compare(
    source: str | Path | bytes | onnx.ModelProto,
    targets: TargetLike | Sequence[TargetLike] | None = None,
    *,
    reference: str | Sequence[TargetLike] = ONNX_RUNTIME,
    inputs: Values | None = None,
    shapes: Shapes = None,
    precision: str = "float32",
    limit: float = 1e-3,
) -> Differences:
    """Compare each value of a network with a reference.

    Args:
        source: an ONNX file, its bytes or an ``onnx.ModelProto``.
        targets: as for ``ts.compile``.
        reference: ``"onnxruntime"``, without its optimisations; or other targets, in float32.
        inputs: arrays by name; random ones by default.
        shapes: as for ``ts.compile``.
        precision: of ``targets``, as for ``ts.compile``.
        limit: the relative difference from which on two values count as different. Rounding in
            float32 stays below 1e-5 in most networks, float16 below 1e-2.

    Returns:
        The tensors with their differences; printed, a table.

    Raises:
        InputError: an argument has another form, or ``inputs`` do not fit the network.
        InstallError: ONNX Runtime is not installed.
        ModelError: the network cannot be read, or has no value that can be compared.

    Examples:
        >>> found = ts.compare("resnet18.onnx", ["llvm"])
        >>> found.begin
        ()
    """
    if not is_number(limit, 0, float("inf")) or limit == 0:
        raise InputError(f"expected a positive number for limit, got {limit!r}; 1e-3 is usual")
    model = _with_all_values(_proto(source))
    compiled = compile(model, targets, shapes=shapes, precision=precision)
    wanted = {info.name: (info.shape, info.dtype) for info in compiled.inputs}
    values = _random(wanted) if inputs is None else _checked(inputs, wanted)
    names = [output.name for output in model.graph.output]
    if isinstance(reference, str) and reference == ONNX_RUNTIME:
        expected = _run_onnx_runtime(model, values)
    else:
        other = compile(model, reference, shapes=shapes)
        expected = dict(zip(names, _as_list(other(**values)), strict=True))
    got = dict(zip(names, _as_list(compiled(**values)), strict=True))
    return Differences(_differences(model, got, expected, limit), limit)


def _proto(source: str | Path | bytes | onnx.ModelProto) -> onnx.ModelProto:
    """An ONNX network that we own, with its weights."""
    if not isinstance(source, str | Path | bytes | onnx.ModelProto):
        raise InputError(
            f"expected an ONNX file, its bytes or a ModelProto for source, got "
            f"{type(source).__name__}; export the network to ONNX"
        )
    require_file(source)
    read_onnx(source)  # its errors say what to do
    if isinstance(source, onnx.ModelProto):
        own = onnx.ModelProto()
        own.CopyFrom(source)
        return own
    return onnx.load_from_string(source) if isinstance(source, bytes) else onnx.load(source)


def _with_all_values(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same network, whose outputs are all values that nodes compute from inputs."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model)
    except onnx.shape_inference.InferenceError as error:
        raise ModelError(
            f"expected types that agree for source, got: {last_line(error)}; export it again"
        ) from error
    kinds = {
        info.name: info.type.tensor_type.elem_type
        for info in (*inferred.graph.value_info, *inferred.graph.output)
        if info.type.HasField("tensor_type")
    }
    weights = {tensor.name for tensor in model.graph.initializer}
    computed = {info.name for info in model.graph.input} - weights
    outputs = {output.name: output for output in model.graph.output}
    shown = []
    for node in model.graph.node:
        if not computed.intersection(node.input):
            continue  # constants, which both fold
        computed.update(node.output)
        for name in node.output:
            kind = kinds.get(name, onnx.TensorProto.UNDEFINED)
            if kind != onnx.TensorProto.UNDEFINED and np.dtype(dtype_of(kind)).kind in _KINDS:
                shown.append(outputs.pop(name, None) or onnx.ValueInfoProto(name=name))
    if not shown:
        raise ModelError(
            "expected a network that computes numbers for source, got none; see its nodes"
        )
    del model.graph.output[:]
    model.graph.output.extend(shown)
    types = {info.name: info for info in inferred.graph.value_info}
    for output in model.graph.output:
        if not output.HasField("type"):
            output.CopyFrom(types[output.name])
    return model


def _random(wanted: Mapping[str, tuple[tuple[int, ...], str]]) -> dict[str, np.ndarray]:
    dice = np.random.default_rng(0)
    return {
        name: dice.standard_normal(shape).astype(dtype)
        if np.dtype(dtype).kind == "f"
        else dice.integers(0, 2, shape).astype(dtype)
        for name, (shape, dtype) in wanted.items()
    }


def _checked(inputs: Values, wanted: Mapping[str, Any]) -> dict[str, np.ndarray]:
    if not isinstance(inputs, Mapping) or set(inputs) != set(wanted):
        got = sorted(inputs) if isinstance(inputs, Mapping) else type(inputs).__name__
        raise InputError(
            f"expected arrays for {sorted(wanted)} as inputs, got {got}; give each by its name"
        )
    return dict(inputs)


def _run_onnx_runtime(model: onnx.ModelProto, values: Values) -> dict[str, np.ndarray]:
    try:
        import onnxruntime
    except ImportError as error:
        raise InstallError(
            "expected ONNX Runtime for reference, got none; pip install onnxruntime, or give "
            "targets"
        ) from error
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        answers = session.run(None, dict(values))
    except Exception as error:  # its own types
        raise ModelError(
            f"expected a network that ONNX Runtime runs for reference, got: {last_line(error)}; "
            "give other targets as the reference"
        ) from error
    return dict(zip([output.name for output in model.graph.output], answers, strict=True))


def _as_list(values: Any) -> list[np.ndarray]:
    return list(values) if isinstance(values, list | tuple) else [values]


def _differences(
    model: onnx.ModelProto, got: Values, expected: Values, limit: float
) -> tuple[TensorDifference, ...]:
    differences: dict[str, TensorDifference] = {}
    different: set[str] = (
        set()
    )  # tensors above the limit, and what could not be compared after them
    for node in model.graph.node:
        reads_different = bool(different.intersection(node.input))
        for name in node.output:
            if name not in got:
                if reads_different:
                    different.add(name)
                continue
            largest, relative = _distance(got[name], expected[name])
            is_above = relative > limit
            if is_above:
                different.add(name)
            begins = is_above and not reads_different
            shape = tuple(expected[name].shape)
            differences[name] = TensorDifference(
                name, node.op_type, shape, largest, relative, begins
            )
    return tuple(differences.values())


def _distance(got: np.ndarray, expected: np.ndarray) -> tuple[float, float]:
    """The largest difference, and the relative one."""
    one, other = np.asarray(got, "float64"), np.asarray(expected, "float64")
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    if same.all():
        return 0.0, 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.where(same, 0.0, one - other)
        if not np.isfinite(apart).all():
            return float("inf"), float("inf")
        finite = np.where(np.isfinite(other), other, 0.0)
        size = float(np.sqrt(np.mean(finite**2)))
        error = float(np.sqrt(np.mean(apart**2)))
    return float(np.abs(apart).max()), error / size if size else float("inf")
