"""Give each processor a share of the output channels of convolutions and dense layers.

    a = R.nn.conv2d(x, w)            # 64 channels      a.p0 = R.nn.conv2d(x, w[:40])
    b = R.add(a, bias)                              ->  a.p1 = R.nn.conv2d(x, w[40:])
    c = R.nn.conv2d(b, v)                               b.p0 = R.add(a.p0, bias[:40])
                                                        b.p1 = R.add(a.p1, bias[40:])
                                                        b = R.concat((b.p0, b.p1), axis=1)
                                                        c.p0 = R.nn.conv2d(b, v[:..])  ..

Operators that work channel by channel (elementwise operators, pooling, depthwise and grouped
convolutions) stay in parts; parts are concatenated only where an operator reads all channels.  In
the blocked layout both the concat and the slices are views, so nothing is computed twice or copied;
the price is that the processors meet before every operator that reads all channels.

Part k is named ``.pk``; the table `PARTS` of ``main`` records the original operator of each part. A
share of 0 channels makes no part, so that a processor may leave a layer to the others.

The result is the same, because each output channel is computed as before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import tvm
from tvm import relax
from tvm.ir import GenericConst, Op

from tvm_stretch.base.errors import InputError
from tvm_stretch.network.attributes import PARTS
from tvm_stretch.network.convolutions import conv2d_like, operator_like, weights_of
from tvm_stretch.network.expressions import (
    bindings_of,
    builder_with_kernels,
    shape_of,
    with_variables,
)
from tvm_stretch.network.integers import integer_of
from tvm_stretch.network.operators import CONVOLUTIONS, OF_ONE, OF_TWO, kind_of, operands
from tvm_stretch.network.provenance import Provenance, free_name, table_of, with_table
from tvm_stretch.network.rewriting import Bindings, with_body
from tvm_stretch.network.steps import UNITS, is_block_product
from tvm_stretch.targets.cpu.kernels.nibbles import product_like

Widths = tuple[int, ...]
_Parts = tuple[Widths, list[relax.Expr]]


def part_name(name: str, part: int) -> str:
    """Name of a part of an operator."""
    return f"{name}.p{part}"


def can_be_shared(call: relax.Call) -> bool:
    """Whether its output channels can be divided: it is dense and has constant weights."""
    kind = kind_of(call)
    if kind in CONVOLUTIONS:
        return _is_plain_conv(call) and _groups(call) == 1
    if is_block_product(kind):
        return True
    if kind not in ("matmul", "integer.matmul"):
        return False
    data, weight, *_ = operands(call)
    return isinstance(weight, GenericConst) and len(shape_of(data)) == len(shape_of(call)) == 2


def kept_widths(call: relax.Call, widths: Widths) -> Widths | None:
    """Channels of each part of an operator's result, if its operand has parts of ``widths``.

    None if it reads all channels, so that the parts of its operands must be concatenated.
    """
    kind = kind_of(call)
    if kind in CONVOLUTIONS and _is_plain_conv(call) and _groups(call) > 1:
        out_channels, in_group, *_ = shape_of(operands(call)[1])
        if any(width % in_group for width in widths):
            return None
        out_group = out_channels // _groups(call)
        return tuple(width // in_group * out_group for width in widths)
    if kind in OF_ONE or kind in (
        "nn.max_pool2d",
        "nn.avg_pool2d",
        "integer.average",
        "integer.mean",
    ):
        return widths
    if kind == "mean" and _keeps_channels(call):
        return widths
    shape = shape_of(call) if kind in OF_TWO else []
    return widths if len(shape) > 1 and sum(widths) == shape[1] else None


@dataclass
class _Value:
    """A tensor of the network: whole, in parts of channels, or both."""

    whole: relax.Expr | None = None  # the whole tensor
    parts: tuple[relax.Expr, ...] = ()  # the parts that have channels
    widths: Widths = ()  # channels of every part, 0 for parts that do not exist


def split_outputs(
    mod: tvm.IRModule,  # a canonical module with unique names
    # for each convolution or dense layer to split, the number of output channels of each processor.
    # Other operators follow their operands.
    shares: Mapping[str, Sequence[int]],
) -> tvm.IRModule:
    """Rewrite ``main``; see the module docstring."""
    if not shares:
        return mod
    main = mod["main"]
    bindings = [*bindings_of(main)]
    builder = builder_with_kernels(mod)
    unknown = set(shares) - {binding.var.name for binding in bindings}
    if unknown:
        raise InputError(
            f"expected operators of the network for shares, got {sorted(unknown)}; "
            "use the names of the canonical module"
        )
    splitter = _Splitter({name: tuple(widths) for name, widths in shares.items()}, builder)
    splitter.parts = table_of(main, PARTS)
    splitter.taken = {p.name for p in main.params} | {binding.var.name for binding in bindings}
    for binding in bindings:
        splitter.write(binding.var, binding.value)
    uncut = set(shares) - splitter.cut
    if uncut:
        raise InputError(
            "expected dense convolutions and matrix products with constant weights for shares, "
            f"got {sorted(uncut)}; remove them: other operators follow their operands"
        )
    result = splitter.output(main.body.body)
    body = relax.SeqExpr([relax.DataflowBlock(splitter.bindings)], result)
    updated = with_body(mod, body, builder)
    updated["main"] = with_table(updated["main"], PARTS, splitter.parts)
    return updated


@tvm.transform.module_pass(opt_level=0, name="SplitOutputs")
class SplitOutputs:
    """`split_outputs` as a pass."""

    def __init__(self, shares: Mapping[str, Sequence[int]]) -> None:
        self.shares = shares

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return split_outputs(mod, self.shares)


class _Splitter(Bindings):
    def __init__(self, shares: Mapping[str, Widths], builder: relax.BlockBuilder) -> None:
        super().__init__(builder)
        self.shares = shares
        self.values: dict[relax.Var, _Value] = {}
        self.cut: set[str] = set()
        self.results: dict[relax.Expr, relax.Var] = {}
        self.taken: set[str] = set()
        self.parts: dict[str, Provenance] = {}
        self._slices: dict[tuple[relax.Expr, Widths], list[relax.Expr]] = {}

    # --- bindings ---

    def write(self, var: relax.Var, expr: relax.Expr) -> None:
        """Re-emit ``var = expr``, in parts if possible."""
        parts = self._parts_of(var, expr) if isinstance(expr, relax.Call) else None
        if parts is None:
            self.bind(var, self._whole(expr))
            self.values[var] = _Value(whole=var)
            return
        widths, calls = parts
        pieces = tuple(
            self._emit_part(var.name, var.name, owner, call)
            for owner, call in zip(_owners(widths), calls, strict=True)
        )
        channels = iter(shape_of(part)[1] for part in pieces)
        self.values[var] = _Value(parts=pieces, widths=tuple(w and next(channels) for w in widths))

    def output(self, expr: relax.Expr) -> relax.Expr:
        """The function's result, as a variable outside of the dataflow block."""
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self.output(field) for field in expr.fields])
        whole = self._whole(expr)
        if not isinstance(whole, relax.DataflowVar):
            return whole
        if whole not in self.results:  # a network may return a tensor twice
            name = free_name(f"{whole.name}.out", self.taken)
            self.results[whole] = self.bind(relax.Var(name, whole.ty), whole)
        return self.results[whole]

    def _emit_part(self, name: str, of: str, owner: int, expr: relax.Expr) -> relax.Var:
        """Bind an owner's part of an operator of the network."""
        name = free_name(part_name(name, owner), self.taken)
        self.parts[name] = Provenance((of,), part=owner, owner=owner)
        return self.bind_new(name, expr)

    # --- whole values and parts ---

    def _whole(self, expr: relax.Expr) -> relax.Expr:
        """``expr`` with every operand whole."""
        return with_variables(expr, self._whole_value)

    def _whole_value(self, var: relax.Var) -> relax.Expr:
        value = self.values.get(var)
        if value is None:
            return var
        if value.whole is None:
            value.whole = self.bind_new(var.name, relax.op.concat(list(value.parts), axis=1))
        return value.whole

    def _in_parts(self, expr: relax.Expr, widths: Widths) -> list[relax.Expr]:
        """An operand in parts of these widths: its own parts, or slices."""
        value = self.values.get(expr)
        if value is not None and value.widths == widths:
            return list(value.parts)
        whole = self._whole(expr)
        if (whole, widths) not in self._slices:
            self._slices[whole, widths] = [
                self._emit_part(
                    f"{whole.name}.{begin}to{end}",
                    whole.name,
                    owner,
                    relax.op.strided_slice(whole, axes=[1], begin=[begin], end=[end]),
                )
                for owner, (begin, end) in zip(_owners(widths), _ranges(widths), strict=True)
            ]
        return self._slices[whole, widths]

    def _widths(self, expr: relax.Expr) -> Widths:
        """Widths of a value's parts; empty if it is whole."""
        value = self.values.get(expr)
        return () if value is None else value.widths

    # --- operators ---

    def _parts_of(self, var: relax.Var, call: relax.Call) -> _Parts | None:
        """The call in parts, or None if it stays whole."""
        if not isinstance(call.op, Op) or not isinstance(call.ty, relax.TensorType):
            return None
        kind = kind_of(call)
        if var.name in self.shares and can_be_shared(call):
            return self._layer(var, call)
        widths = next((w for arg in operands(call) if (w := self._widths(arg))), ())
        if not widths or kept_widths(call, widths) is None:
            return None
        if kind in CONVOLUTIONS:
            return self._grouped(call)
        return self._binary(call, widths) if kind in OF_TWO else self._channelwise(call)

    def _layer(self, var: relax.Var, call: relax.Call) -> _Parts:
        """A dense convolution or matrix product; each part has some of the filters."""
        widths = self.shares[var.name]
        _check_shares(var.name, widths, shape_of(call)[1])
        self.cut.add(var.name)
        if is_block_product(kind_of(call)):
            _check_units(var.name, widths)
            data = [self._whole(arg) for arg in operands(call) if isinstance(arg, relax.Var)]
            return widths, [
                product_like(self.builder, call, data, slice(begin, end))
                for begin, end in _ranges(widths)
            ]
        whole = self._whole(operands(call)[0])
        like = conv2d_like if kind_of(call) in CONVOLUTIONS else operator_like
        return widths, [
            like(self.builder, call, [whole, *weights_of(call, slice(begin, end))])
            for begin, end in _ranges(widths)
        ]

    def _grouped(self, call: relax.Call) -> _Parts:
        """A grouped convolution; whole groups go with the channels that they read."""
        data, weight, *_ = operands(call)
        widths = self._widths(data)
        out_channels, in_group, *_ = shape_of(weight)
        out_group = out_channels // _groups(call)
        parts: list[relax.Expr] = []
        for part, (begin, end) in zip(self.values[data].parts, _ranges(widths), strict=True):
            first, last = begin // in_group, end // in_group
            own = weights_of(call, slice(first * out_group, last * out_group))
            parts.append(conv2d_like(self.builder, call, [part, *own], groups=last - first))
        return widths, parts

    def _channelwise(self, call: relax.Call) -> _Parts:
        data, *others = operands(call)
        return self._widths(data), [
            operator_like(self.builder, call, [part, *others]) for part in self.values[data].parts
        ]

    def _binary(self, call: relax.Call, widths: Widths) -> _Parts | None:
        """An operator of two operands, both in the parts of the first operand that has parts."""
        shape = tuple(shape_of(call))
        operand_parts = []
        for arg in operands(call):
            parts = self._operand(arg, widths, shape)
            if parts is None:
                return None
            operand_parts.append(parts)
        return widths, [
            operator_like(self.builder, call, pair) for pair in zip(*operand_parts, strict=True)
        ]

    def _operand(
        self, arg: relax.Expr, widths: Widths, shape: tuple[int, ...]
    ) -> list[relax.Expr] | None:
        """The operand of each part of an elementwise operator; None if it cannot be split."""
        own = tuple(shape_of(arg))
        aligned = (1,) * (len(shape) - len(own)) + own
        if len(aligned) != len(shape):
            return None
        if aligned[1] == 1:
            return [self._whole(arg)] * len(_owners(widths))
        if aligned[1] != shape[1]:
            return None
        if isinstance(arg, GenericConst):
            array = arg.value.numpy().reshape(aligned)
            return [relax.const(array[:, begin:end]) for begin, end in _ranges(widths)]
        return self._in_parts(arg, widths) if len(own) == len(shape) else None


def _groups(call: relax.Call) -> int:
    return int((integer_of(call) or call.attrs).groups)


def _is_plain_conv(call: relax.Call) -> bool:
    if not isinstance(operands(call)[1], GenericConst):
        return False
    attrs, plain = call.attrs, ("NCHW", "OIHW", "NCHW")
    if kind_of(call) != "nn.conv2d":
        return True
    return (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) == plain


def _keeps_channels(call: relax.Call) -> bool:
    axes = call.attrs.axis
    rank = len(shape_of(call.args[0]))
    return (
        bool(call.attrs.keepdims) and axes is not None and {int(a) % rank for a in axes} == {2, 3}
    )


def _owners(widths: Widths) -> list[int]:
    """Indices of the parts that exist."""
    return [index for index, width in enumerate(widths) if width]


def _ranges(widths: Widths) -> list[tuple[int, int]]:
    """Channels of each part that exists."""
    return [(a, b) for a, b in pairwise(accumulate(widths, initial=0)) if a < b]


def _check_shares(name: str, widths: Widths, channels: int) -> None:
    if sum(widths) != channels or min(widths) < 0 or len(_owners(widths)) < 2:
        raise InputError(
            f"expected {channels} output channels in all for the shares of {name!r}, "
            f"got {widths}; give two or more processors a number of them"
        )


def _check_units(name: str, widths: Widths) -> None:
    if any(begin % UNITS for begin, _ in _ranges(widths)):
        raise InputError(
            f"expected multiples of {UNITS} for the shares of {name!r}, whose weights are in "
            f"blocks, got {widths}; only the last one may be another number"
        )
