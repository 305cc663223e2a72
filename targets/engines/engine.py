"""Engines: vendors' runtimes that take whole regions, through a provider of ONNX Runtime.

    ts.compile(network, ["llvm", {"kind": "engine", "provider": "CPUExecutionProvider"}])
    ts.compile(network, ["llvm", {"kind": "engine", "provider": "Some", "package": "its_package",
                                  "library": "libsome.so", "options": {"level": "3"}}])

A region of an engine is one ONNX model (`targets/engines/code/onnx_region.py`), which the provider
compiles as a whole and runs in a process of its own (`targets/engines/code/engine_code.py`). An
operator runs there if ONNX has it and the provider takes it with every fallback switched off: the
provider is asked once for each version. Nothing falls back inside an engine.

`npu.py` and `openvino.py` describe providers; docs/engines.md tells how to add another one.
"""

from __future__ import annotations

import functools
import itertools
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relax

from tvm_stretch.base.errors import InstallError, StretchError, TargetError
from tvm_stretch.network.expressions import bindings_of, variables_of, with_variables
from tvm_stretch.passes.schedule_kernels import ScheduleKernels
from tvm_stretch.passes.whole_regions import model_of
from tvm_stretch.run.autoload import find_file, load_native_library
from tvm_stretch.targets.engines.code.engine_code import (
    PROGRAM,
    Engine,
    describe,
    engine_module,
    refuse,
    why_refused,
    why_region_refused,
)
from tvm_stretch.targets.engines.code.onnx_operators import onnx_of, why_not_onnx
from tvm_stretch.targets.phases import kernel_phases
from tvm_stretch.targets.processor import (
    Check,
    Code,
    Hardware,
    Kernels,
    Operators,
    Processor,
    RegionError,
    Speed,
)
from tvm_stretch.targets.registry import Attributes, ProcessorKind, register

KIND = "engine"

# A process on cores of the host: what a plan assumes of a provider of which it knows nothing. Start
# and end of a region take 7 to 11 us (docs/engines.md), as long as both sides spin for each other;
# tensors are in memory that both map.
UNKNOWN = Speed(
    cycles_per_ns=2.8, bytes_per_ns=10.0, start_ns=1_000.0, handover_ns=5_000.0, region_ns=10_000.0
)

_EMULATED = (
    "emulated here: an emulator's time says nothing, so none was measured, and predictions are for "
    "the chip"
)

_COMMON = ("kind", "device", "deadline_ms", "spin_us", "threads")
_OWN = ("provider", "package", "library", "hardware", "options")


@dataclass(frozen=True)
class Provider:
    """A provider of ONNX Runtime, as a kind of processor."""

    kind: str  # the word in ``targets``, and the processor's name
    engine: Engine  # the provider, with what a target does not say
    speed: Speed  # of typical devices
    # returns why its devices do not run a call, or why they compute something else
    refuse: Check = lambda _call: None
    attributes: tuple[str, ...] = ()  # options of the provider that a target may give
    half: bool = False  # whether its devices have float16 arithmetic
    emulated: bool = False  # whether this machine only has an emulator, whose time says nothing
    app_files: str = ""  # the libraries that an app has to bring to a device, in words

    def registered(
        self,
        *,
        install: str,  # the package that brings the provider
        cost: str,  # its size
        nickname: str = "",
        stands_for: str = "",
        # the attributes that a device's description of itself adds to those of a target
        seen: Callable[[Mapping[str, Any]], Attributes] | None = None,
    ) -> None:
        """Make the provider a kind of processors; `ProcessorKind` explains the arguments."""

        def why_absent(given: Attributes) -> str:
            reason = _why_absent(self.described(given))
            return f"{reason} (pip install {install})" if reason else ""

        def make(given: Attributes, host: Processor) -> Processor:
            engine = self.described(given)
            if reason := why_absent(given):
                raise TargetError(reason)
            return self.processor(engine, host)

        def on_device(given: Attributes, machine: Mapping[str, Any], host: Processor) -> Processor:
            assert seen is not None
            return make({"device": machine["name"], **seen(machine), **given}, host)

        register(
            ProcessorKind(
                self.kind,
                make,
                why_absent,
                cost=cost,
                by_default=False,
                nickname=nickname,
                stands_for=stands_for,
                on_device=None if seen is None else on_device,
            )
        )

    def _remark(self, engine: Engine) -> str:
        remarks = [] if engine.is_built_in else [_judged_by(engine)]
        if engine.runs_here:
            remarks += [_EMULATED] if self.emulated else []
        elif self.app_files:
            remarks.append(f"beside the artifact, an app brings {self.app_files}")
        return "; ".join(remarks)

    def described(self, given: Attributes) -> Engine:
        """The engine that a target describes."""
        attributes = (*_COMMON, "hardware", *self.attributes)
        unknown = sorted(set(given) - set(attributes))
        if unknown:
            raise TargetError(
                f"expected {', '.join(attributes)} in target {self.kind}, got {unknown[0]!r}; "
                "leave it out"
            )
        options = dict(self.engine.options)
        options |= {
            name: _text(given, name, self.kind) for name in self.attributes if name in given
        }
        hardware = self.engine.hardware
        if "hardware" in given:
            hardware = _text(given, "hardware", self.kind)
        engine = replace(
            self.engine, hardware=hardware, options=tuple(options.items()), program=_program()
        )
        return _common(engine, given, self.kind)

    def processor(self, engine: Engine, host: Processor) -> Processor:
        """The processor, beside this CPU."""

        def judge(calls: Sequence[relax.Call]) -> list[str | None]:
            by_table = [why_not_onnx(call) or self.refuse(call) for call in calls]
            left = [call for call, reason in zip(calls, by_table, strict=True) if not reason]
            asked = iter(_asked(engine, left))
            return [reason or next(asked) for reason in by_table]

        def remark(calls: Mapping[str, relax.Call]) -> Mapping[str, str]:
            remark = self._remark(engine) if calls else ""
            return dict.fromkeys(calls, remark) if remark else {}

        def distrust(calls: Sequence[relax.Call], reason: str) -> None:
            refuse(engine, [onnx_of(_alone(call)) for call in calls], reason)

        def build(kernels: Kernels, _schedule: tvm.transform.Pass) -> tvm.runtime.Module:
            load_native_library()
            return engine_module(code, {name: model_of(k) for name, k in kernels.items()})

        def write(region: relax.Function) -> bytes:
            model = onnx_of(region)
            if reason := why_region_refused(engine, model):
                suspects = _suspects(engine, region, tries)
                refuse(engine, [onnx_of(part) for part in suspects], f"in a region: {reason}")
                raise RegionError(f"expected a region that {self.kind} takes, got: {reason}")
            return model

        tries = itertools.repeat(None, _TRIES)
        # only the device can open an artifact for another architecture: the engine is there
        code = replace(engine, runs_here=engine.runs_here or not _is_of_this_machine(host))
        driver = describe(engine) if engine.runs_here else ""
        phases = kernel_phases(expand_math=True, doubles=True)
        return replace(
            host,
            name=self.kind,
            kind=KIND,
            threads=1,
            code=Code(phases, ScheduleKernels(host.machine), build, model=write),
            speed=self.speed,
            operators=Operators((), lambda call: judge([call])[0], judge, remark, distrust),
            arithmetic=replace(host.arithmetic, half=self.half),
            hardware=Hardware(engine.runs_here and not self.emulated, driver=driver),
        )


def _program() -> str:
    """The program in which engines run."""
    return str(find_file(f"bin/{PROGRAM}"))


def _is_of_this_machine(host: Processor) -> bool:
    """Whether the code of a CPU can run on this machine's."""
    triple = str(host.target.attrs.get("mtriple", ""))
    return triple.partition("-")[0] in ("", platform.machine())


@functools.lru_cache(maxsize=64)
def _why_unasked(engine: Engine) -> str:
    """Why the provider cannot be asked here; empty if it can."""
    try:
        describe(engine)
    except InstallError as error:
        return str(error)
    return ""


def _judged_by(engine: Engine) -> str:
    """What decided which operators run there, for people."""
    if reason := _why_unasked(engine):
        return f"operators by this version's table, as the provider cannot be asked here: {reason}"
    return f"operators as {describe(engine)} takes them"


def _asked(engine: Engine, calls: Sequence[relax.Call]) -> list[str | None]:
    """Why the provider refuses each call, which it is asked about alone; None if it takes it.

    A plan for a device can be predicted without its provider, by the table of operators alone;
    `compile` needs the provider in any case.
    """
    if engine.is_built_in or _why_unasked(engine):
        return [None] * len(calls)
    models: dict[int, bytes] = {}
    reasons: dict[int, str] = {}
    for index, call in enumerate(calls):
        try:
            models[index] = onnx_of(_alone(call))
        except StretchError as error:
            reasons[index] = str(error)
    reasons |= dict(zip(models, why_refused(engine, list(models.values())), strict=True))
    answers = (reasons[index] for index in range(len(calls)))
    return [f"{engine.provider} refuses it: {reason}" if reason else None for reason in answers]


def _alone(call: relax.Call) -> relax.Function:
    """A function of a call's operands."""
    var = relax.Var("result", call.ty)
    bound: list[relax.Binding] = [relax.VarBinding(var, call)]
    if not isinstance(call.ty, relax.TupleType):
        return _part(bound, [var])
    parts = [relax.Var(f"part{i}", ty) for i, ty in enumerate(call.ty.fields)]
    items = (relax.TupleGetItem(var, i) for i in range(len(parts)))
    bound += [relax.VarBinding(p, item) for p, item in zip(parts, items, strict=True)]
    return _part(bound, parts)


def _part(bindings: Sequence[relax.Binding], results: Sequence[relax.Var]) -> relax.Function:
    """A function of these bindings; what others bind becomes its parameters."""
    params: dict[relax.Var, relax.Var] = {}
    own = {binding.var: relax.Var(binding.var.name, binding.var.ty) for binding in bindings}

    def variable(var: relax.Var) -> relax.Expr:
        if isinstance(var, tvm.ir.GlobalVar):
            return var
        if var in own:
            return own[var]
        return params.setdefault(var, relax.Var(f"p{len(params)}", var.ty))

    bound = [relax.VarBinding(own[b.var], with_variables(b.value, variable)) for b in bindings]
    fields = [own[var] for var in results]
    result = fields[0] if len(fields) == 1 else relax.Tuple(fields)
    body = relax.SeqExpr([relax.DataflowBlock(bound)], result)
    return relax.Function(list(params.values()), body, result.ty, is_pure=True)


# --- regions that are refused as a whole ----------------------------------------------------------

_TRIES = 5
"""How often a vendor's compiler is asked about parts of regions that it refused, in one compile."""


def _suspects(
    engine: Engine, region: relax.Function, tries: Iterator[None]
) -> list[relax.Function]:
    """The operators, each alone, with which the beginning of a region becomes too much.

    One operator if there are enough tries: what is before it is taken, and with it is refused.
    """
    bindings = [*bindings_of(region)]
    taken, refused = 0, len(bindings)
    places = [i for i in range(1, refused) if _may_end(bindings, i)]
    while places and next(tries, bindings) is None:
        middle = places[len(places) // 2]
        first = _part(bindings[:middle], _read_outside(region, bindings[:middle]))
        if why_region_refused(engine, onnx_of(first)):
            refused = middle
        else:
            taken = middle
        places = [place for place in places if taken < place < refused]
    calls = (binding.value for binding in bindings[taken:refused])
    return [_alone(call) for call in calls if isinstance(call, relax.Call)]


def _may_end(bindings: Sequence[relax.Binding], place: int) -> bool:
    """Whether no tuple passes from before a place to after it."""
    before, behind = bindings[place - 1].var, bindings[place].value
    return isinstance(behind, relax.Call) and not isinstance(before.ty, relax.TupleType)


def _read_outside(region: relax.Function, bindings: Sequence[relax.Binding]) -> list[relax.Var]:
    """The variables that the rest of the region reads, or returns."""
    inside = {binding.var for binding in bindings}
    rest = [binding.value for binding in bindings_of(region) if binding.var not in inside]
    read = {var for value in (*rest, region.body.body) for var in variables_of(value)}
    return [binding.var for binding in bindings if binding.var in read]


def _common(engine: Engine, given: Attributes, kind: str) -> Engine:
    """The engine with the attributes that all targets of engines have."""
    numbers: dict[str, Any] = {}
    for name, most in (("deadline_ms", 86_400_000), ("spin_us", 10_000), ("threads", 1024)):
        value = given.get(name, getattr(engine, name))
        if type(value) is not int or not 0 <= value <= most:
            raise TargetError(
                f"expected a whole number from 0 to {most} for {name} of target {kind}, got "
                f"{value!r}; leave it out for {getattr(engine, name)}"
            )
        numbers[name] = value
    if "device" not in given:
        return replace(engine, **numbers)
    device = _text(given, "device", kind)
    return replace(engine, device=f"{kind} of {device}", runs_here=False, **numbers)


def _text(given: Attributes, name: str, kind: str) -> str:
    """An attribute that is a word."""
    value = given[name]
    if not isinstance(value, str) or not value.strip() or "\n" in value:
        raise TargetError(f"expected a word for {name} of target {kind}, got {value!r}; correct it")
    return value


def _any(given: Attributes) -> Provider:
    """The provider that a target of kind ``engine`` names."""
    unknown = sorted(set(given) - {*_COMMON, *_OWN})
    if unknown or "provider" not in given:
        expected = ", ".join((*_OWN, *_COMMON[1:])) if unknown else "a provider of ONNX Runtime"
        raise TargetError(
            f"expected {expected} in target {KIND}, got {repr(unknown[0]) if unknown else 'none'}; "
            'write {"kind": "engine", "provider": "CPUExecutionProvider"}, or "npu"'
        )
    provider, package, library, hardware = (
        _text(given, name, KIND) if name in given else "" for name in _OWN[:-1]
    )
    options = given.get("options", {})
    names = options if isinstance(options, Mapping) else [None]
    if any(not isinstance(name, str) or name.split() != [name] for name in names):
        raise TargetError(
            f"expected texts by name for options of target {KIND}, got {options!r}; "
            'write {"level": "3"}'
        )
    engine = Engine(
        provider,
        device=provider,
        package=package,
        library=library,
        hardware=hardware,
        program=_program(),
        options=tuple((str(k), _text(options, k, KIND)) for k in options),
    )
    return Provider(KIND, _common(engine, given, KIND), UNKNOWN)


def _why_absent(engine: Engine) -> str:
    """Why this machine cannot use an engine; empty if it can, or if the engine is elsewhere."""
    try:
        if engine.runs_here:
            describe(engine)
    except InstallError as error:
        return str(error)
    return ""


def _make(given: Attributes, host: Processor) -> Processor:
    provider = _any(given)
    if reason := _why_absent(provider.engine):
        raise TargetError(reason)
    return provider.processor(provider.engine, host)


register(ProcessorKind(KIND, _make, lambda g: _why_absent(_any(g).engine), by_default=False))
