"""Transform the input of Winograd convolutions once if several of them read it.

    b = R.concat((b.p0, b.p1), axis=1)       b.tiles.p0 = R.call_tir(winograd_input, (b.p0,))
    c.p0 = R.nn.conv2d(b, w0)                b.tiles.p1 = R.call_tir(winograd_input, (b.p1,))
    c.p1 = R.nn.conv2d(b, w1)            ->  b.tiles = R.concat((b.tiles.p0, b.tiles.p1), axis=1)
                                             c.p0 = R.call_tir(winograd_product, (b.tiles, w0))
                                             c.p1 = R.call_tir(winograd_product, (b.tiles, w1))

The transform works on each channel alone, so each processor transforms its own channels and the
processors meet no more often than before. Without this pass every part of the convolution repeats
the transform of all channels (measured: 15 % of a half).  The transformed tensor is an image too,
with ``tile + 2`` squared rows and one column for each tile.  Its kernels state in plain loops what
they compute; ``BlockChannels`` replaces them by templates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import tvm
from tvm import relax, te, tirx
from tvm.ir import Expr, GenericConst, Op

from tvm_stretch.network.attributes import PARTS, STAGE
from tvm_stretch.network.codec import to_text
from tvm_stretch.network.emitting.weights import WinogradStage
from tvm_stretch.network.expressions import bindings_of, count_uses, shape_of
from tvm_stretch.network.provenance import Provenance, free_name, table_of, with_table
from tvm_stretch.network.rewriting import Bindings, with_body
from tvm_stretch.targets.cpu.kernels.winograd import WinogradConfig
from tvm_stretch.targets.kernels.layers import ConvShape, conv_shape, taken
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import choose
from tvm_stretch.targets.kernels.winograd_sums import (
    multiply_planes,
    transform_input,
    transform_weight,
)


def share_winograd(mod: tvm.IRModule, machines: Mapping[str, VectorMachine]) -> tvm.IRModule:
    """Rewrite ``main``; see the module docstring.

    Args:
        mod: a canonical module, after its layers were split.
        machines: of the processors that own parts, by the part's name. Only parts for which all
            owners choose Winograd are rewritten, so that the result depends on the plan alone and
            not on processors that the plan does not use.
    """
    rewriter = _Rewriter(mod, machines)
    if not rewriter.stages:
        return mod
    return rewriter.rewritten()


def tiles_of(name: str) -> str:
    """The operator that transforms the value of this name, or joins its transformed parts."""
    return f"{name}.tiles"


@tvm.transform.module_pass(opt_level=0, name="ShareWinograd")
class ShareWinograd:
    """`share_winograd` as a pass."""

    def __init__(self, machines: Mapping[str, VectorMachine]) -> None:
        self.machines = machines

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return share_winograd(mod, self.machines)


class _Rewriter(Bindings):
    def __init__(self, mod: tvm.IRModule, machines: Mapping[str, VectorMachine]) -> None:
        super().__init__(relax.BlockBuilder(mod))
        self.mod, self.main = mod, mod["main"]
        self.before = [*bindings_of(self.main)]
        self.concats = {
            binding.var: binding.value.args[0].fields
            for binding in self.before
            if _is_channel_concat(binding.value)
        }
        self.tiles: dict[tuple[relax.Var, WinogradStage], relax.Var] = {}
        self.stages = dict(_shared_stages(self.before, machines))
        self.parts = table_of(self.main, PARTS)
        self.taken = {binding.var.name for binding in self.before}

    def rewritten(self) -> tvm.IRModule:
        """The module with the convolutions in two stages."""
        main = self.main
        for binding in self.before:
            stage = self.stages.get(binding.var)
            if stage is None:
                self.bindings.append(binding)
                continue
            data, weight = binding.value.args
            planes = self._tiles(data, replace(stage, name="input"))
            self.bind(binding.var, self._call(stage, [planes, weight], binding.value.ty))
        body = relax.SeqExpr([relax.DataflowBlock(self.bindings)], main.body.body)
        uses = count_uses(relax.Function(main.params, body, main.ret_ty, main.is_pure))
        live = [b for b in self.bindings if b.var not in self.concats or uses.get(b.var)]
        body = relax.SeqExpr([relax.DataflowBlock(live)], main.body.body)
        updated = with_body(self.mod, body, self.builder)
        updated["main"] = with_table(updated["main"], PARTS, self.parts)
        return updated

    def _tiles(self, data: relax.Var, stage: WinogradStage) -> relax.Var:
        """The transformed tensor: its parts are transformed separately and concatenated."""
        # Convolutions share a transform whatever their output channels are.
        stage = replace(stage, shape=replace(stage.shape, out_channels=stage.shape.in_channels))
        known = self.tiles.get((data, stage))
        if known is not None:
            return known
        count = sum(of == data for of, _ in self.tiles)
        name = f"{tiles_of(data.name)}{count or ''}"
        parts = self.concats.get(data)
        if parts is None:
            found = self._transform(name, data, stage, Provenance((data.name,)))
        else:
            each = [
                self._transform_part(name, index, part, stage, data)
                for index, part in enumerate(parts)
            ]
            found = self._bind(name, relax.op.concat(each, axis=1), Provenance((data.name,)))
        self.tiles[data, stage] = found
        return found

    def _transform_part(
        self, name: str, index: int, data: relax.Expr, stage: WinogradStage, whole: relax.Var
    ) -> relax.Var:
        """A part of a concat, which the processor that computes it also transforms."""
        part = self.parts.get(data.name) if isinstance(data, relax.Var) else None
        if part is None or part.part is None:
            return self._transform(f"{name}.{index}", data, stage, Provenance((whole.name,)))
        return self._transform(f"{name}.p{part.part}", data, stage, part)

    def _transform(
        self, name: str, data: relax.Expr, stage: WinogradStage, of: Provenance
    ) -> relax.Var:
        channels = shape_of(data)[1]
        shape = replace(stage.shape, in_channels=channels, out_channels=channels)
        config = taken(WinogradConfig, shape, lanes=1, tile=stage.tile)
        rows, columns = config.tiles
        planes = (config.batch, channels, config.alpha**2, rows * columns)
        own = replace(stage, shape=shape)
        return self._bind(name, self._call(own, [data], relax.TensorType(planes, "float32")), of)

    def _bind(self, name: str, expr: relax.Expr, of: Provenance) -> relax.Var:
        var = self.bind_new(free_name(name, self.taken), expr)
        self.parts[var.name] = of
        return var

    def _call(
        self, stage: WinogradStage, args: list[relax.Expr], result: relax.TensorType
    ) -> relax.Expr:
        kernel = _plain_kernel(stage).without_attr("global_symbol")
        kernel = kernel.with_attr(STAGE, to_text(stage))
        var = self.builder.add_func(kernel, f"winograd_{stage.name}")
        return relax.call_tir(var, args, result)


def _shared_stages(
    bindings: Sequence[relax.Binding], machines: Mapping[str, VectorMachine]
) -> Iterator[tuple[relax.Var, WinogradStage]]:
    """Groups of at least two convolutions that read the same tensor in the same tiles."""
    groups: dict[tuple[Any, ...], list[tuple[relax.Var, ConvShape]]] = {}
    for binding in bindings:
        if binding.var.name not in machines or not _is_plain_conv(binding.value):
            continue
        shape = conv_shape(binding.value)
        if shape is None or shape.groups > 1 or shape.kernel != (3, 3):
            continue
        key = (binding.value.args[0], shape.padding, shape.stride, shape.dilation)
        groups.setdefault(key, []).append((binding.var, shape))
    for group in groups.values():
        if len(group) < 2:
            continue
        owners = {machines[var.name] for var, _ in group}
        chosen = [choose(shape, machine) for _, shape in group for machine in owners]
        # a GPU's kernels have their own stages
        tiles = {config.tile if type(config) is WinogradConfig else 0 for config in chosen}
        if 0 not in tiles:
            for var, shape in group:
                yield var, WinogradStage("product", shape, max(tiles))


def _is_plain_conv(expr: relax.Expr) -> bool:
    if not isinstance(expr, relax.Call) or expr.op != Op.get("relax.nn.conv2d"):
        return False
    attrs, (data, weight) = expr.attrs, expr.args
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)
    return (
        isinstance(weight, GenericConst)
        and isinstance(data, relax.Var)
        and str(expr.ty.dtype) == "float32"
        and layouts == ("NCHW", "OIHW", "NCHW")
    )


def _is_channel_concat(expr: relax.Expr) -> bool:
    return (
        isinstance(expr, relax.Call)
        and expr.op == Op.get("relax.concat")
        and isinstance(expr.args[0], relax.Tuple)
        and len(shape_of(expr)) == 4
        and int(expr.attrs.axis) in (1, -3)
    )


# --- the kernels in plain loops -------------------------------------------------------------------


@lru_cache(maxsize=512)
def _plain_kernel(stage: WinogradStage) -> tirx.PrimFunc:
    shape = stage.shape
    config = taken(WinogradConfig, shape, lanes=1, tile=stage.tile)
    if stage.name == "input":
        data = te.placeholder((shape.batch, shape.in_channels, *shape.in_size), name="data")
        return te.create_prim_func([data, _image(transform_input(config, _blocks(data), {}))])
    rows, columns = config.tiles
    planes = te.placeholder(
        (shape.batch, shape.in_channels, config.alpha**2, rows * columns), name="planes"
    )
    weight = te.placeholder((shape.out_channels, shape.in_channels, 3, 3), name="weight")
    packed = transform_weight(config, weight, {})
    out = _image(multiply_planes(config, _blocks(planes), packed, {}))
    return te.create_prim_func([planes, weight, out])


def _blocks(image: te.Tensor) -> te.Tensor:
    """NCHW -> NCHW[1]."""
    return te.compute((*image.shape, 1), lambda n, c, h, w, _lane: image[n, c, h, w], name="blocks")


def _image(blocked: te.Tensor) -> te.Tensor:
    """NCHW[1] -> NCHW."""

    def element(n: Expr, c: Expr, h: Expr, w: Expr) -> Expr:
        return blocked[n, c, h, w, 0]

    return te.compute(blocked.shape[:4], element, name="image")
