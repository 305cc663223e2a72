"""``ts.probe()``: does the device really run what its table says it supports?

    verdicts = ts.probe("opencl", "resnet50.onnx")
    verdicts.refused            # {"nn.conv2d float32 ...": "compile: ..."}; empty if all is well

Every (operator, shape class, dtype, layout) that the network needs is compiled and run there, and
its result is compared with the CPU's. Verdicts are kept in a file, so each is found only once for a
device and a version of this package.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.compiler import compile
from tvm_stretch.cost.device import chosen_folder, fingerprint
from tvm_stretch.cost.files import write_whole
from tvm_stretch.cost.model import check_device
from tvm_stretch.errors import CostModelError, TargetError
from tvm_stretch.frontend import load_network
from tvm_stretch.passes.operators import Operator, Operators
from tvm_stretch.processors import TargetLike, make_processors
from tvm_stretch.targets.processor import OpRule, Processor

FORMAT = "tvm_stretch.cost.probe"
VERSION = 1
_TOLERANCE = 2e-3  # of the largest value: sums in another order, approximate exponentials


@dataclass(frozen=True)
class Verdicts:
    """What a processor runs correctly.

    Attributes:
        device: where that was found out.
        reasons: by class of operators: why the processor does not run it; empty text if it does.
    """

    device: dict[str, Any]
    reasons: dict[str, str]

    @property
    def refused(self) -> dict[str, str]:
        """The classes that do not run, and why."""
        return {key: reason for key, reason in self.reasons.items() if reason}

    def apply(self, processor: Processor) -> Processor:
        """The processor, refusing what failed here."""
        kinds = sorted({key.split()[0] for key in self.refused})

        def check(call: relax.Call) -> str | None:
            reason = self.reasons.get(operator_class(call))
            return f"probe: {reason}" if reason else processor.why_not(call)

        rules = tuple(OpRule(f"relax.{kind}", check=check) for kind in kinds)
        return replace(processor, rules=(*rules, *processor.rules))


def probe(
    target: TargetLike,
    model: object,
    *,
    cache: str | os.PathLike[str] | None = None,
    cpu_threads: int | None = None,
) -> Verdicts:
    """Compile, run and compare every class of operators that a network needs.

    Args:
        target: the processor, as for ``compile``.
        model: the network, as for ``compile``.
        cache: file of verdicts; by default in the user's cache, one for each processor.
        cpu_threads: as for ``compile``.

    Raises:
        CostModelError: the file of verdicts is damaged or from another device.
    """
    processors, placeable = make_processors([target], cpu_threads)
    if len(placeable) != 1:
        raise TargetError(f"expected one target for probe, got {target!r}; probe one at a time")
    processor, host = placeable[0], processors[0]
    path = Path(cache or chosen_folder(None, host) / f"{processor.name}.probe.json")
    device = fingerprint(processor)
    known = _load(path, device)
    wanted: dict[str, Operator] = {}
    for operator in Operators(load_network(model)["main"]):
        if isinstance(operator.binding.value, relax.Call) and operator.inputs:
            wanted.setdefault(operator_class(operator.call), operator)
    for key, operator in wanted.items():
        if key in known:
            continue
        known[key] = processor.why_not(operator.call) or _try(operator, processor, host)
        write_whole(path, _dump(device, known))
    return Verdicts(device, {key: known[key] for key in wanted})


def operator_class(call: relax.Call) -> str:
    """What decides whether an operator runs: all but the sizes of its tensors.

    Of a size only counts whether it is 1 and whether it fills vectors of 4, 8 and 16.
    """
    kind = call.op.name.removeprefix("relax.") if isinstance(call.op, tvm.ir.Op) else "call"
    words = [kind]
    for argument in call.args:
        held = "const" if isinstance(argument, GenericConst) else "tensor"
        types = argument.ty.fields if isinstance(argument.ty, relax.TupleType) else [argument.ty]
        for ty in types:
            if isinstance(ty, relax.TensorType) and ty.shape is not None:
                sizes = ",".join(_size_class(int(size)) for size in ty.shape.values)
                words.append(f"{held}:{ty.dtype}[{sizes}]")
    words.append(_attributes(call))
    return " ".join(words).strip()


def _size_class(size: int) -> str:
    if size == 1:
        return "1"
    return next((f"{n}n" for n in (16, 8, 4) if size % n == 0), "n")


def _attributes(call: relax.Call) -> str:
    """Attributes as text, groups by their kind: one, several, one for each channel."""
    if call.attrs is None:
        return ""
    found = []
    for field in type(call.attrs).__tvm_ffi_type_info__.fields:
        name, value = field.name, getattr(call.attrs, field.name)
        if name == "groups":
            channels = int(call.args[0].ty.shape.values[1])
            value = {1: "one", channels: "all"}.get(int(value), "some")
        found.append(f"{name}={str(value).replace(' ', '')}")
    return " ".join(found)


# --- one operator ---------------------------------------------------------------------------------


def _try(operator: Operator, processor: Processor, host: Processor) -> str:
    """The reason for which the operator does not run; empty if it does."""
    network = _alone(operator.call)
    dice = np.random.default_rng(0)
    values = [_input(param, dice) for param in network["main"].params]
    expected = _outputs(compile(network, [host], cpu_threads=host.threads)(*values))
    try:
        model = compile(network, [processor], cpu_threads=host.threads)
    except Exception as error:  # whatever a compiler finds wrong is a reason, not a failure
        return f"compile: {_first_line(error)}"
    try:
        found = _outputs(model(*values))
    except Exception as error:  # likewise of drivers
        return f"run: {_first_line(error)}"
    for ours, right in zip(found, expected, strict=True):
        worst = float(np.max(np.abs(ours - right), initial=0.0))
        scale = float(np.max(np.abs(right), initial=1.0))
        if not worst <= _TOLERANCE * scale:
            return f"result: differs from the CPU's by {worst:.3g} of {scale:.3g}"
    return ""


def _alone(call: relax.Call) -> tvm.IRModule:
    """A network of this one call; tensors become inputs, constants stay."""
    bb = relax.BlockBuilder()
    params: dict[relax.Var, relax.Var] = {}

    def renamed(expr: relax.Expr) -> relax.Expr:
        if isinstance(expr, relax.Var):
            return params.setdefault(expr, relax.Var(f"x{len(params)}", expr.ty))
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([renamed(field) for field in expr.fields])
        return expr

    alone = relax.Call(call.op, [renamed(arg) for arg in call.args], call.attrs, call.ty_args)
    with bb.function("main", list(params.values())):
        with bb.dataflow():
            result = bb.emit_output(alone)
        bb.emit_func_output(result)
    return bb.get()


def _input(param: relax.Var, dice: np.random.Generator) -> np.ndarray[Any, Any]:
    shape, dtype = [int(size) for size in param.ty.shape.values], str(param.ty.dtype)
    if "float" in dtype:
        return dice.standard_normal(shape).astype(dtype)
    return dice.integers(0, 2, shape).astype(dtype)


def _outputs(result: Any) -> list[np.ndarray[Any, Any]]:
    fields: Sequence[Any] = result if isinstance(result, tuple) else (result,)
    return [field.numpy().astype(np.float64) for field in fields]


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return (lines[-1] if lines else type(error).__name__)[:200]


# --- the file -------------------------------------------------------------------------------------


def _dump(device: dict[str, Any], reasons: dict[str, str]) -> str:
    head = {"format": FORMAT, "version": VERSION, "device": device}
    return json.dumps({**head, "reasons": dict(sorted(reasons.items()))}, indent=1) + "\n"


def _load(path: Path, device: dict[str, Any]) -> dict[str, str]:
    if not path.exists():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        found, reasons = (data["format"], data["version"]), dict(data["reasons"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CostModelError(
            f"expected verdicts of ts.probe in {path}, got {error!r}; delete the file"
        ) from error
    if found != (FORMAT, VERSION):
        raise CostModelError(
            f"expected {(FORMAT, VERSION)} for the format and version of {path}, got {found}; "
            "delete the file"
        )
    check_device(data.get("device"), device, str(path))
    return reasons
