"""``ts.tune.probe()`` tests whether a device runs the operators that its table lists as supported.

    verdicts = ts.tune.probe("resnet50.onnx", "opencl")
    verdicts.refused            # {"nn.conv2d float32 ... in NCHW8c": "compile: ..."}

Every (operator, shape class, dtype, layout) that the network needs, whole or in parts, is compiled
and run on the device, and its result is compared with that of TVM's virtual machine. ``compile()``
reads the verdicts from a file. A class that runs is tried once per device and version of this
package; a class that failed is tried again by every call.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.base.compiling import compiling
from tvm_stretch.base.errors import CostModelError, TargetError, UnsupportedError
from tvm_stretch.base.files import as_path
from tvm_stretch.base.named_arguments import named_arguments
from tvm_stretch.base.progress import Progress, count, quiet, reporting, say
from tvm_stretch.make.pipeline import Job, build_parts
from tvm_stretch.network.expressions import (
    bindings_of,
    builder_with_kernels,
    network_of,
    shape_of,
    with_variables,
)
from tvm_stretch.network.operators import Operators
from tvm_stretch.passes.block_channels import BlockChannels
from tvm_stretch.phone.device import Device
from tvm_stretch.phone.device_processors import processors_of
from tvm_stretch.plan.cost.fingerprint import chosen_folder, fingerprint
from tvm_stretch.plan.cost.verdicts import (
    PLAIN,
    Verdicts,
    blocked_layout,
    in_layout,
    operator_class,
    verdicts_path,
)
from tvm_stretch.plan.measuring.bench import by_packets
from tvm_stretch.plan.measuring.trial import Array, as_arrays, attempt
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.plan.search import search
from tvm_stretch.plan.search.costs import planning_costs
from tvm_stretch.read import load_network
from tvm_stretch.run.model import Model
from tvm_stretch.targets.processor import Processor
from tvm_stretch.targets.registry import TargetLike

_TOLERANCE = 2e-3  # of the largest value: sums in another order, approximate exponentials
_STEP = 1.0  # of 8-bit results, as we round halves up and the virtual machine to even
_PROBED, _BEFORE = "probed", "before"


@dataclass(frozen=True)
class Trial:
    """One operator by itself."""

    call: relax.Call  # the operator's call in a network
    mod: tvm.IRModule  # that network, whose kernels the operator may call
    # names of the network's tensors that are in blocked layout
    blocked: frozenset[str] = frozenset()


@named_arguments
def probe(
    source: object,
    targets: TargetLike,
    *,
    device: Device | None = None,
    cache: str | os.PathLike[str] | None = None,
    cpu_threads: int | None = None,
    progress: Progress | None = None,
) -> Verdicts:
    """Compile, run and compare every class of operators that a network needs.

    Args:
        source: the network, as for ``compile``.
        targets: the processor, one of those for ``compile``.
        device: where to run, as ``ts.connect`` gives it; by default this machine.
        cache: file of verdicts; by default in the user's cache, where ``compile`` finds it.
        cpu_threads: as for ``compile``.
        progress: receives a line of text before every operator that is tried; see ``compile``.

    Raises:
        CostModelError: the file of verdicts is damaged or from another device, or the device
            disappeared; earlier verdicts are kept.
        TargetError: this machine, or the device, does not have the target.

    Examples:
        >>> verdicts = ts.tune.probe("resnet18.onnx", "llvm", cache="verdicts.json")
        >>> verdicts.refused
        {}
    """
    processors, placeable = processors_of(device, targets, cpu_threads)
    if len(placeable) != 1:
        raise TargetError(f"expected one target for probe, got {targets!r}; probe one at a time")
    processor, host = placeable[0], processors[0]
    if not (processor.hardware.runs_here or processor.hardware.device):
        raise TargetError(
            f"expected a processor of this machine for probe, got {targets!r}; call it on the "
            "machine that has it"
        )
    if cache is None:
        path = verdicts_path(chosen_folder(None, host), processor)
    else:
        path = as_path(cache, "the file of verdicts")
    with reporting(progress), compiling():
        return _probe(source, _Trials(processor, host, device), path)


@dataclass(frozen=True)
class _Trials:
    """The processors and the device on which operators are tried."""

    processor: Processor
    host: Processor
    device: Device | None = None


def _probe(source: object, where: _Trials, path: Path) -> Verdicts:
    processor, host = where.processor, where.host
    verdicts = Verdicts.read(path, fingerprint(processor))
    if processor.hardware.packet_ns:
        say(f"{processor.name}: emulated, answers are compared; for speed, {by_packets(processor)}")
    say("reading the network")
    wanted: dict[str, Trial] = {}
    for mod in _networks(load_network(source), processor, host):
        for key, trial in _trials(mod, processor):
            wanted.setdefault(key, trial)
    reasons: dict[str, str] = {}
    for number, (key, trial) in enumerate(wanted.items(), 1):
        count(key.split()[0], number, len(wanted))
        refusal = processor.why_not(trial.call)
        if refusal is None and verdicts.reasons.get(key) != "":
            reason = _try(trial, where)
            if reason.startswith("run:"):
                _require_device(where, reason, path)
                reason = _try(trial, where)  # it may have failed by chance
            verdicts.reasons[key] = reason
            verdicts.write(path)
        reasons[key] = refusal or verdicts.reasons[key]
    return Verdicts(verdicts.device, reasons)


def _networks(mod: tvm.IRModule, processor: Processor, host: Processor) -> Iterator[tvm.IRModule]:
    """The network, and the same network split as the search would split it for the processor."""
    yield mod
    if processor is not host:
        with contextlib.suppress(UnsupportedError):
            for rival in search(mod, planning_costs([host, processor])).rivals:
                yield rival.branched.mod


def _trials(mod: tvm.IRModule, processor: Processor) -> Iterator[tuple[str, Trial]]:
    """Every operator of the network that reads a tensor, with the name of its class."""
    blocked = _blocked(mod, processor)
    for operator in Operators(mod["main"]):
        if isinstance(operator.binding.value, relax.Call) and operator.inputs:
            layout = blocked_layout(processor) if operator.name in blocked else PLAIN
            key = in_layout(operator_class(operator.call), layout)
            yield key, Trial(operator.call, mod, blocked)


def _blocked(mod: tvm.IRModule, processor: Processor) -> frozenset[str]:
    """The operators that compute in blocked layout."""
    phase: Any = BlockChannels({processor.name: processor.machine})  # mypy sees no pass
    main: relax.Function = phase(mod)["main"]
    shapes = {
        binding.var.name: tuple(shape_of(binding.var))
        for block in main.body.blocks
        for binding in block.bindings
        if isinstance(binding.var.ty, relax.TensorType)
    }
    operators = Operators(mod["main"])
    return frozenset(op.name for op in operators if shapes.get(op.name, op.shape) != op.shape)


# --- one operator ---------------------------------------------------------------------------------


@quiet()
def _try(trial: Trial, where: _Trials) -> str:
    """The reason why the operator does not run, empty if it does."""
    processor, host = where.processor, where.host
    network, before = _alone(trial)
    dice = np.random.default_rng(0)
    values = [_input(param, dice) for param in network["main"].params]
    expected = _reference(network, values)
    processors = [host] if processor is host else [host, processor]

    def build() -> Model:
        job = Job(network, processors, processors, _plan(before, processor, host))
        return Model.from_parts(build_parts(job))

    def judge(_model: Model, _loaded: object, answers: Sequence[Array]) -> str:
        return next(filter(None, map(_difference, answers, expected)), "")

    return attempt(build, values, judge, where.device)


def _require_device(where: _Trials, reason: str, path: Path) -> None:
    """After an operator failed, check that the device still runs a trivial one."""
    processor = where.processor
    x = relax.Var("x", relax.TensorType((1, 16), "float32"))
    network = network_of([x], lambda _: relax.op.add(x, x), name=_PROBED)
    (binding,) = bindings_of(network["main"])
    if processor.why_not(binding.value) is None and _try(Trial(binding.value, network), where):
        raise CostModelError(
            f"expected {processor.name} to be there while it is probed, got {reason!r} from "
            f"everything; what was found before is kept in {path}: bring it back and probe again"
        )


def _alone(trial: Trial) -> tuple[tvm.IRModule, list[str]]:
    """A network of this one call, and the names of the operators before it.

    Tensors become inputs, constants stay. A tensor that is in blocked layout in the network comes
    from an identity operator that writes blocks.
    """
    params: dict[relax.Var, relax.Var] = {}
    before: list[str] = []

    def collect(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Tuple):
            for field in expr.fields:
                collect(field)
        elif isinstance(expr, relax.Var) and expr not in params:
            params[expr] = relax.Var(f"x{len(params)}", expr.ty)

    for argument in trial.call.args:
        collect(argument)
    values: dict[relax.Var, relax.Expr] = {}

    def call(bb: relax.BlockBuilder) -> relax.Expr:
        for old, param in params.items():
            passed = _passed_on(param) if old.name in trial.blocked else None
            if passed is not None:
                before.append(f"{_BEFORE}{len(before)}")
            values[old] = param if passed is None else bb.emit(passed, name_hint=before[-1])
        return with_variables(trial.call, values.__getitem__)

    return network_of([*params.values()], call, builder_with_kernels(trial.mod), _PROBED), before


def _passed_on(value: relax.Var) -> relax.Expr | None:
    """An identity operator that writes the value in blocked layout, or None if none can."""
    shape = tuple(shape_of(value))
    if str(value.ty.dtype) != "float32" or len(shape) not in (2, 4):
        return None
    channels = shape[1]
    if len(shape) == 2:
        return relax.op.matmul(value, relax.const(np.eye(channels, dtype="float32")))
    ones = relax.const(np.ones((channels, 1, 1, 1), "float32"))
    return relax.op.nn.conv2d(value, ones, groups=channels)


def _plan(before: Sequence[str], processor: Processor, host: Processor) -> Plan:
    """A plan with the operator on the processor, and operators before it on the CPU."""
    regions = [PlannedRegion("r1", processor.name, (_PROBED,))]
    if before:
        regions.insert(0, PlannedRegion("r0", host.name, tuple(before)))
    return Plan(tuple(dict.fromkeys((host.name, processor.name))), tuple(regions))


def _reference(mod: tvm.IRModule, values: Sequence[Array]) -> list[Array]:
    """The results of TVM's virtual machine, without our kernels."""
    target = tvm.target.Target("llvm")
    with target, tvm.transform.PassContext(opt_level=0):
        machine = relax.VirtualMachine(tvm.compile(mod, target), tvm.cpu())
    return as_arrays(machine["main"](*[tvm.runtime.tensor(value) for value in values]))


def _input(param: relax.Var, dice: np.random.Generator) -> Array:
    shape, dtype = [int(size) for size in param.ty.shape.values], str(param.ty.dtype)
    if "float" in dtype:
        return dice.standard_normal(shape).astype(dtype)
    if dtype in ("int8", "uint8"):
        return dice.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)
    return dice.integers(0, 2, shape).astype(dtype)


def _difference(answer: Array, right: Array) -> str:
    """That an answer differs too much; NaN equals NaN, and is infinitely far from numbers."""
    slack = _STEP if answer.dtype in (np.int8, np.uint8) else 0.0
    answer, right = answer.astype(np.float64), right.astype(np.float64)
    same = (answer == right) | (np.isnan(answer) & np.isnan(right))
    apart = np.where(same, 0.0, np.abs(np.subtract(answer, right, where=~same, out=answer * 0)))
    worst = float(np.max(np.nan_to_num(apart, nan=np.inf), initial=0.0))
    scale = float(np.max(np.abs(right), initial=1.0, where=np.isfinite(right)))
    if worst <= max(_TOLERANCE * scale, slack):
        return ""
    return f"result: differs from the virtual machine's by {worst:.3g} of {scale:.3g}"
