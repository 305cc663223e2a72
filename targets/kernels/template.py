"""Kernel templates: a class is a template, an instance is the configuration of one kernel.

    @dataclass(frozen=True)
    class Doubled(Template):                         # one file is a whole template
        template = "doubled"                         # its name registers it
        layers = (DoubleShape,)                      # what it computes

        configure(layer, machine, block)             # configurations that compute a layer
        cycles(machine)                              # which of them is best
        call(bb, x)                                  # the Relax call; meaning(x): its plain sums
        write(machine, fused)                        # the loop nest
        work(epilogue, machine, item)                # features for the cost model
        part(along, extent, machine)                 # the kernel of a share of the layer

A template without layers belongs to an operator with a PrimFunc of its own: it has `write` alone.
Planning, measuring, stretching and the cost models ask these objects; no other file lists them.
A configuration travels as an annotation of the anchor's block, because FuseTIR drops attributes of
functions and keeps those of blocks. The annotation is written and read in this file only.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, ClassVar

from tvm import relax, te, tirx
from tvm.ir import Expr, GenericConst

from tvm_stretch.base.errors import TargetError
from tvm_stretch.network.attributes import ANNOTATION, ONCE
from tvm_stretch.network.codec import from_text, to_text

from .features import EpilogueWork, Features
from .fused import FusedKernel
from .layers import Along, Layer, taken
from .machine import VectorMachine

_REGISTERED: dict[str, type[Template]] = {}
"""By name; a class registers itself."""


_MOST_MADE = 4096
_MADE: dict[Hashable, tuple[tirx.PrimFunc, relax.TensorType]] = {}
"""Kernels of this process: making one takes milliseconds, and layers repeat within networks."""


def kernel_call(
    bb: relax.BlockBuilder,  # receives the kernel
    name: str,  # of the kernel
    what: Hashable,  # identifies the computation, together with the name and the operands' types
    compute: Callable[..., te.Tensor],  # the tensor expression
    *operands: Expr,  # with static shapes
) -> relax.Call:
    """``compute`` of the operands, as a call of a kernel."""
    types = [(tuple(map(int, op.ty.shape.values)), str(op.ty.dtype)) for op in operands]
    once = all(isinstance(op, GenericConst) for op in operands)
    key = (name, what, once, *types)
    if key not in _MADE:
        while len(_MADE) >= _MOST_MADE:
            del _MADE[next(iter(_MADE))]
        inputs = [te.placeholder(op.ty.shape.values, op.ty.dtype.dtype) for op in operands]
        out = compute(*inputs)
        kernel = te.create_prim_func([*inputs, out], "int64").without_attr("global_symbol")
        kernel = kernel.with_attr(ONCE, True) if once else kernel
        _MADE[key] = kernel, relax.TensorType(out.shape, out.dtype)
    kernel, ty = _MADE[key]
    return relax.call_tir(bb.add_func(kernel, name), list(operands), ty)


class Template(ABC):
    """See the module docstring.

    Attributes:
        template: the name in annotations.
        layers: classes of layers that the template computes.
        machines: kinds of machines that have it (`VectorMachine.kind`).
        is_last_resort: it is chosen only if no other template fits.
        operands: tensors that the anchor reads; parameters after them belong to the epilogue.
        needs_own_blocks: whether the generic schedule takes over if producers are fused into it.
        takes_epilogue: whether elementwise operators that follow may be fused into the kernel.
    """

    template: ClassVar[str] = ""
    layers: ClassVar[tuple[type[Layer], ...]] = ()
    machines: ClassVar[tuple[str, ...]] = ("core", "dsp")
    is_last_resort: ClassVar[bool] = False
    needs_own_blocks: ClassVar[bool] = False
    takes_epilogue: ClassVar[bool] = True

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if "template" in cls.__dict__:
            _REGISTERED[cls.template] = cls
            _TABLES.clear()
            configurations.cache_clear()

    @classmethod
    def configure(cls, layer: Any, machine: VectorMachine, block: int) -> Iterable[Template]:
        """Configurations that compute a layer; ``block`` is as for `choose`."""
        return ()

    def cycles(self, machine: VectorMachine) -> float:
        """Cycles of one core, by which configurations are compared."""
        return 0.0

    @property
    def operands(self) -> int:
        """See the class."""
        return 2

    @property
    def image_operands(self) -> tuple[int, ...]:
        """Operands that a GPU reads as images: all its loads are whole quads."""
        return ()

    @property
    def out_shape(self) -> tuple[int, ...]:
        """The shape of the result in memory."""
        return ()

    def meaning(self, *operands: te.Tensor) -> te.Tensor:
        """The kernel in plain loops; its last block carries `annotation`."""
        raise TargetError(
            f"expected plain sums of the template {self.template}, got none; write its meaning()"
        )

    def call(
        self, bb: relax.BlockBuilder, *operands: Expr, name: str = "", sums: str = ""
    ) -> relax.Var:
        """Emit the call of the kernel ``name``; layers of float16 may have ``sums`` of float32."""
        packed = self.prepared(bb, operands)
        return bb.emit(kernel_call(bb, name or self.kernel_name, self, self.meaning, *packed))

    @property
    def kernel_name(self) -> str:
        """The usual name of the kernel."""
        return self.template

    def prepared(self, bb: relax.BlockBuilder, operands: Sequence[Expr]) -> Sequence[Expr]:
        """The operands of `meaning`: weights are packed by kernels that run once."""
        return operands

    def on(self, machine: VectorMachine) -> Template | None:
        """What writes the kernel on a machine; None: the generic schedule.

        A kernel may reach another machine than it was configured for: cores take over from a GPU.
        """
        return self if machine.kind in self.machines else None

    @abstractmethod
    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt | None:
        """The loop nest of the kernel with its epilogue; None: the generic schedule."""

    def work(self, epilogue: EpilogueWork, machine: VectorMachine, item: int) -> Features | None:
        """Features for cost models; None: the statements of the plain loops are counted.

        Args:
            epilogue: the operators that are fused after the kernel.
            machine: runs the kernel.
            item: bytes of a number of the kernel's input.
        """
        return None

    def part(self, along: Along, extent: int, machine: VectorMachine) -> Template | None:
        """The kernel of a part of the layer, perhaps another template's; `Layer.cut` explains it.

        None: the kernel's features are scaled.
        """
        if not self.layers:
            return None
        layer: Layer = taken(self.layers[0], self)
        cut = layer.cut(along, extent)
        chosen: Template | None = None if cut is None else choose(cut, machine, self.block)
        return chosen

    @property
    def block(self) -> int:
        """Channels of a block of the input; 0: as many as the machine's vectors have lanes."""
        return 0

    @property
    def sampled(self) -> object:
        """The layer that campaigns measure to learn about this kernel; None if there is none."""
        return self if self.layers else None

    @property
    def annotation(self) -> dict[str, str]:
        """The annotation of the template's block."""
        return {ANNOTATION: f"{self.template} {to_text(self)}"}


def every_template() -> Mapping[str, type[Template]]:
    """All templates, by name."""
    _import_templates()
    return _REGISTERED


@cache
def _import_templates() -> None:
    """Import every file in a processor's folder `kernels`: templates register themselves."""
    folder, package = Path(__file__).parents[1], __name__.removesuffix("kernels.template")
    for module in pkgutil.walk_packages([str(folder)], package):
        if ".kernels." in module.name:
            importlib.import_module(module.name)


def read_template(mark: str) -> Template:
    """The configuration in an annotation."""
    name, _, config = mark.partition(" ")
    return from_text(every_template()[name], config)


_TABLES: dict[tuple[type, str], tuple[type[Template], ...]] = {}
"""The templates that compute a kind of layer on a kind of machine, worked out once."""


def templates_for(kind: type, machine: VectorMachine) -> tuple[type[Template], ...]:
    """The templates that a machine has for a kind of layer."""
    key = kind, machine.kind
    if key not in _TABLES:
        every = every_template().values()
        _TABLES[key] = tuple(t for t in every if kind in t.layers and machine.kind in t.machines)
    return _TABLES[key]


@lru_cache(maxsize=4096)
def configurations(
    layer: Any,  # an instance of a class that templates name in `Template.layers`
    machine: VectorMachine,  # runs the kernel
    block: int,  # channels of a block of the layer's input
    count: int = 8,  # most configurations
) -> tuple[Any, ...]:
    """Up to ``count`` configurations that compute a layer, the fastest first by their models."""
    kinds = templates_for(type(layer), machine)
    candidates = [config for kind in kinds for config in kind.configure(layer, machine, block)]
    candidates.sort(key=lambda config: (config.is_last_resort, config.cycles(machine)))
    return tuple(candidates[:count])


def choose(layer: Any, machine: VectorMachine, block: int = 0) -> Any:
    """The best configuration for a layer, or None if no template of the machine fits.

    ``block`` is as for `configurations`; without, blocks are as wide as the machine's vectors.
    """
    return next(iter(configurations(layer, machine, block or machine.lanes, 1)), None)
