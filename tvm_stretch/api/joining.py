"""``join()``: several networks as one, whose regions one plan interleaves.

    both = ts.join({"faces": "faces.onnx", "depth": "depth.onnx"})
    model = ts.compile(both, targets=["llvm", "opencl"])
    boxes, depth = model(**{"faces.image": image, "depth.image": image})

    cpu     [faces r0 ][depth r1 ][faces r3 ]     one run computes all networks, and gaps in which
    opencl  [depth r0 ][faces r2 ][depth r2 ]     one of them waits are filled by another

`ts.Group` is for networks that run at rates of their own, or for several processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import tvm
from tvm import relax

from tvm_stretch.base.compiling import compiling
from tvm_stretch.base.errors import InputError, UnsupportedError
from tvm_stretch.base.named_arguments import named_arguments
from tvm_stretch.make.lowering.lower import names_of_outputs
from tvm_stretch.network.codec import to_text
from tvm_stretch.network.expressions import bindings_of, with_variables
from tvm_stretch.network.rewriting import Bindings
from tvm_stretch.network.states import GUARDS, STATES, Guard, read_guards
from tvm_stretch.passes.guard_operators import returned_tensors
from tvm_stretch.read.load import load_network


@named_arguments
def join(
    networks: Mapping[str, object],
    *,
    shapes: Mapping[str, Mapping[str, Sequence[int]]] | None = None,
) -> tvm.IRModule:
    """Make one network of several, for ``ts.compile``: a run computes all of them.

    Args:
        networks: by name, each what ``ts.compile`` takes. Inputs and outputs of the result have the
            network's name and a dot before theirs.
        shapes: of the inputs of each network that leaves some open.

    Raises:
        InputError: there are fewer than two, or a name is no text.
        UnsupportedError: a network has states.

    Examples:
        >>> both = ts.join({"one": "resnet18.onnx", "other": "resnet18.onnx"})
        >>> [param.name for param in both["main"].params]
        ['one.x', 'other.x']
    """
    names = [*networks] if isinstance(networks, Mapping) else []
    if len(names) < 2 or not all(isinstance(name, str) and name for name in names):
        raise InputError(
            f"expected at least two networks by name for networks, got {networks!r:.80}; write "
            'ts.join({"faces": "faces.onnx", "depth": "depth.onnx"})'
        )
    joined = _Joined()
    with compiling():
        for name, source in networks.items():
            mod = load_network(source, (shapes or {}).get(name))
            if STATES in (mod["main"].attrs or {}):
                raise UnsupportedError(
                    f"expected networks without states to join, got {name!r} with some; run it as "
                    "a model of its own"
                )
            joined.add(name, mod["main"])
        return joined.module()


@dataclass(frozen=True)
class _Guarded:
    """The guards of one network, and where its results are among those of all."""

    name: str
    count: int  # of its results for the caller
    first: int  # place of the first of these
    kept: int  # results of networks before it that only guards read
    guards: Sequence[Guard]

    def among(self, total: int) -> Iterator[Guard]:
        """The guards, if the caller gets `total` results of all networks."""
        for guard in self.guards:
            own = guard.result < self.count
            place = (
                self.first + guard.result if own else total + self.kept + guard.result - self.count
            )
            read = f"{self.name}.{guard.input}" if guard.input else ""
            what = f"{guard.what} of {self.name}"
            yield replace(guard, input=read, result=0 if read else place, what=what)


class _Joined(Bindings):
    """One function of several; results that only guards read come last."""

    def __init__(self) -> None:
        super().__init__()
        self.params: list[relax.Var] = []
        self.results: list[relax.Expr] = []
        self.kept: list[relax.Expr] = []
        self.guarded: list[_Guarded] = []
        self.names: list[str] = []

    def add(self, name: str, main: relax.Function) -> None:
        """Add a network, under its name."""
        renamed = {p: relax.Var(f"{name}.{p.name}", p.ty) for p in main.params}
        self.params += renamed.values()
        for binding in bindings_of(main):
            value = with_variables(binding.value, lambda var: renamed[var])
            var = type(binding.var)(f"{name}.{binding.var.name}", binding.var.ty)
            renamed[binding.var] = self.bind(var, value)
        results = [with_variables(r, lambda var: renamed[var]) for r in returned_tensors(main)]
        guarded, guards = read_guards(main)
        count = len(results) if guarded is None else guarded
        self.guarded.append(_Guarded(name, count, len(self.results), len(self.kept), guards))
        self.names += [f"{name}.{one}" for one in names_of_outputs(main, count)]
        self.results += results[:count]
        self.kept += results[count:]

    def module(self) -> tvm.IRModule:
        """The network."""
        block, total = relax.DataflowBlock(self.bindings), len(self.results)
        returned = relax.Tuple([*self.results, *self.kept])
        body = self.builder.normalize(relax.SeqExpr([block], returned))
        function = relax.Function(self.params, body, is_pure=True)
        function = function.with_attr("global_symbol", "main").with_attr("output_names", self.names)
        guards = [guard for one in self.guarded for guard in one.among(total)]
        if self.kept or guards:
            function = function.with_attr(GUARDS, to_text((total, guards)))
        return tvm.IRModule({"main": function})
