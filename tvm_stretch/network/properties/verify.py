"""Check the rules that hold between any two phases after partitioning.

* the module is well-formed Relax,
* ``main`` only calls regions, each exactly once, and builds and reads tuples,
* a region names a processor, calls no other function, and each of its operators runs there,
* a module without ``main`` holds the regions of one processor,
* so data passes between processors only as parameters and results of regions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import tvm
from tvm import relax, tirx
from tvm.ir import GlobalVar

from tvm_stretch.base.errors import StretchError
from tvm_stretch.network.calls import PROCESSOR, Calls
from tvm_stretch.targets.processor import Processor


class VerifyError(StretchError):
    """A pass broke a rule on which later passes rely."""


def verify(mod: tvm.IRModule, processors: Sequence[Processor]) -> None:
    """Check the rules of the module docstring.

    This is a function and no pass, because an error that leaves a pass loses its type.
    """
    by_name = {processor.name: processor for processor in processors}
    problems = list(_check_regions(mod, by_name))
    if "main" in {var.name_hint for var in mod.functions}:
        problems += _check_main(mod)
    if not relax.analysis.check_well_formed(mod):
        problems.append("the module is not well-formed")
    if problems:
        raise VerifyError(
            f"expected a partitioned network, got broken rules: {'; '.join(problems)}; "
            "correct the pass that ran last"
        )


def _check_regions(mod: tvm.IRModule, processors: Mapping[str, Processor]) -> Iterator[str]:
    for var, function in mod.functions.items():
        if _is_region(var, function):
            name = str((function.attrs or {}).get(PROCESSOR, ""))
            if name not in processors:
                yield f"region {var.name_hint} is for {name or 'no processor'}"
                continue
            for problem in _check_region(mod, function, processors[name]):
                yield f"region {var.name_hint}: {problem}"


def _check_main(mod: tvm.IRModule) -> Iterator[str]:
    called: Counter[str] = Counter()
    for var, call in Calls(mod["main"]).bound:
        if not isinstance(call.op, GlobalVar):
            yield f"main calls {call.op} for {var.name}"
        elif call.op not in mod.functions:
            yield f"main calls {call.op.name_hint}, which is not there"
        else:
            called[call.op.name_hint] += 1
    for var, function in mod.functions.items():
        if _is_region(var, function):
            count = called[var.name_hint]
            if count != 1:
                yield f"region {var.name_hint} is called {count} times"


def _check_region(
    mod: tvm.IRModule, function: relax.Function, processor: Processor
) -> Iterator[str]:
    for var, call in Calls(function).bound:
        if isinstance(call.op, GlobalVar):
            if _is_region(call.op, mod.functions.get(call.op)):
                yield f"{var.name} calls region {call.op.name_hint}"
        elif str(getattr(call.op, "name", "")) == "relax.call_tir":
            if not isinstance(mod.functions.get(call.args[0]), tirx.PrimFunc):
                yield f"{var.name} calls the kernel {call.args[0].name_hint}, which is not there"
        elif (reason := processor.why_not(call)) is not None:
            yield f"{var.name} does not run on {processor.name}: {reason}"


def _is_region(var: GlobalVar, function: object) -> bool:
    """Whether it is a region: not ``main``, no kernel, and no group that FuseOps made."""
    if not isinstance(function, relax.Function) or var.name_hint == "main":
        return False
    return "Primitive" not in (function.attrs or {})
